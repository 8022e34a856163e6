"""`ding-lite eval`, `ding-lite play` and `ding-lite collect`, apart from the other commands because they import torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ding_lite.basics import CheckpointError, printable, write_atomically
from ding_lite.config.command_line import named_values
from ding_lite.datasets import DatasetError
from ding_lite.policy_state import StateDictError
from ding_lite.reports import ReportError
from ding_lite.rollout import RunEvaluation, evaluate_run, play_run, record_run
from ding_lite.sinks import json_value

Result = TypeVar("Result")


def show_evaluations(run_dirs: Sequence[str | Path], out: Path | None, **options: Any) -> None:
    """Evaluate the policies of these runs, print a line for each, and write all numbers to `out`.

    Args:
        run_dirs: folders of runs.
        out: path of a JSON file; None for none.
        **options: for `evaluate_run`; the settings as words NAME=VALUE.

    Raises:
        ReportError: a policy or an environment cannot be made.
    """
    if not run_dirs:
        raise ReportError("no folder was given: pass the folder of a run, such as runs/dqn.")
    found: list[RunEvaluation] = []
    for run in run_dirs:
        found.append(_reported(partial(_evaluated, run, options)))
        for line in _lines(found[-1]):
            print(printable(line), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, json.dumps([json_value(one.to_dict()) for one in found], indent=2).encode())


def show_episodes(run_dir: str | Path, **options: Any) -> None:
    """Show episodes in a window, or film them, and print a line for each.

    Args:
        run_dir: folder of the run.
        **options: for `play_run`; the settings as words NAME=VALUE.

    Raises:
        ReportError: the policy or the environment cannot be made, or there is no display.
    """

    def play() -> None:
        for episode, path in play_run(run_dir, **_parsed(options)):
            where = "" if path is None else f": {path}"
            by_agent = episode.info.get("return") if "policy_return" in episode.info else None
            parts = "" if by_agent is None else f" ({_listed(by_agent)})"
            print(printable(f"return {episode.return_:g}{parts} in {episode.length} steps{where}"), flush=True)

    _reported(play)


def record_episodes(run_dir: Path, out: Path, **options: Any) -> None:
    """Record episodes of the policy of a run as a dataset, and print what it holds.

    Args:
        run_dir: folder of the run.
        out: folder of the dataset.
        **options: for `record_run`; the settings as words NAME=VALUE.

    Raises:
        ReportError: the policy, the environment or the dataset cannot be made.
    """
    dataset = _reported(lambda: record_run(run_dir, out, **_parsed(options)))
    returns = dataset.returns
    print(
        printable(
            f"{dataset.name}: {len(dataset):,} transitions in {dataset.num_episodes:,} episodes, return: mean "
            f"{returns.mean():.6g}, min {returns.min():.6g}, max {returns.max():.6g}"
        )
    )


def _evaluated(run: str | Path, options: Mapping[str, Any]) -> RunEvaluation:
    return evaluate_run(run, **_parsed(options))


def _parsed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with settings by name instead of words NAME=VALUE.

    Raises:
        ValueError: a word has another form.
    """
    return {**options, "settings": named_values(options["settings"])}


def _lines(found: RunEvaluation) -> list[str]:
    low, high = found.interval
    steps = "" if found.train_iter is None else f" after {found.train_iter:,} gradient steps"
    settings = "".join(f", {name}={value}" for name, value in found.settings.items())
    length = sum(found.lengths) / len(found.lengths)
    spread = f"min {min(found.returns):.6g}, max {max(found.returns):.6g}"
    return [
        f"{found.run}: {found.algorithm} on {found.env}, {found.which}{steps}{settings}",
        f"  {len(found.returns)} episodes, seed {found.seed}, mean length {length:.6g}",
        f"  return: mean {found.mean:.6g}, standard deviation {found.std:.4g}, {spread}",
        f"  interquartile mean {found.iqm:.6g}, 95% interval {low:.6g} to {high:.6g}",
        *(["  mean return by agent: " + _listed(found.agent_returns)] if found.agent_returns else []),
        *(["  mean return by policy: " + _listed(found.policy_returns)] if found.policy_returns else []),
    ]


def _listed(returns: Mapping[Any, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in returns.items())


def _reported(work: Callable[[], Result]) -> Result:
    """The result of `work`, with expected errors as errors of the command line."""
    try:
        return work()
    except (CheckpointError, StateDictError) as error:
        words = str(error).replace("load_policy(..., policy_class=", "--policy-class MODULE:NAME (in Python policy_class=")
        raise ReportError(words.replace("load_policy(..., name=", "--name NAME (in Python name=")) from None
    except DatasetError as error:
        raise ReportError(str(error).replace("append=True", "--append")) from None
    except (TypeError, ValueError) as error:  # a number of episodes, a seed or an eps that is missing or out of range
        raise ReportError(str(error)) from None
