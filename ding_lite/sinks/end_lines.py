"""End lines: the last line of a run on the console, and the line with its result."""

from __future__ import annotations


def end_line(
    taken: str, spent: str, reason: object, value: float | None, evaluated_at: int | None, train_iter: int | None
) -> str:
    """The last line of a run on the console: how far it came, why it ended, and what its last evaluation found.

    Args:
        taken: its steps, such as "10,688 environment steps".
        spent: its time, such as "18 s".
        reason: why it ended, such as `task.end_reason`.
        value: of the last evaluation; None if there was none.
        evaluated_at: gradient steps of the weights that were evaluated; None if unknown.
        train_iter: gradient steps at the end; None if the context does not count them.

    Example:
        >>> end_line("64 environment steps", "1 s", "max_step=8 was reached", 9.5, 3, 7)
        'ended after 64 environment steps in 1 s, because max_step=8 was reached. The last evaluation found 9.5, after 3 of 7 \
gradient steps; the final weights were not evaluated.'
    """
    found = ""
    if value is not None:
        found = f" The last evaluation found {_readable(value)}"
        if evaluated_at is not None and evaluated_at == train_iter:
            found += ", with the final weights"
        elif evaluated_at is not None and train_iter is not None:
            found += f", after {evaluated_at:,} of {train_iter:,} gradient steps; the final weights were not evaluated"
        found += "."
    if train_iter == 0:
        found += " It made no gradient step."
    return f"ended after {taken} in {spent}, because {reason}.{found}"


def result_line(env_id: str, value: float, target: float | None, reason: object | None, folder: str | None) -> str:
    """The line with the result of a run, such as `cfg.report_and_exit_code` prints.

    Args:
        env_id: name of the environments.
        value: of the last evaluation; minus infinity if there was none.
        target: the stop_value; None if there is none.
        reason: why the run ended; None if unknown.
        folder: with the files of the run; None if there is none.

    Example:
        >>> result_line("CartPole-v1", 481.25, 475.0, None, "runs/dqn")
        'CartPole-v1: mean return 481.2 at the last evaluation, stop_value 475 reached. Everything is in runs/dqn/'
        >>> result_line("Reacher-v5", -0.0431, None, None, None)
        'Reacher-v5: mean return -0.0431 at the last evaluation.'
    """
    found = f"mean return {_readable(value)} at the last evaluation" if value != -float("inf") else "no evaluation"
    wanted = "" if target is None else f", stop_value {target:g} {'reached' if value >= target else 'not reached'}"
    why = "" if reason is None else f" The run ended because {reason}."
    where = "" if folder is None else f" Everything is in {folder}/"
    return f"{env_id}: {found}{wanted}.{why}{where}"


def _readable(value: float) -> str:
    """A value with one decimal, or, below 10 and if that would round it, with three significant digits."""
    value = float(value)
    return f"{value + 0.0:.1f}" if abs(value) >= 10 or round(value, 1) == value else f"{value:.3g}"
