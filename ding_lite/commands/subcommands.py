"""The subcommands of `ding-lite` and their options."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from ding_lite.basics import printable, require_extra, tell
from ding_lite.reports import ReportError, plot_runs, watch_run, write_page

_ABOUT = (
    "Show runs of ding_lite: a report with all results, a plot of one metric, a live run in the terminal, the returns of its "
    "saved policy on new episodes, episodes in a window or as a video, a dataset of such episodes, or the replay of an episode "
    "that ended in an error."
)


def report(run_dirs: tuple[Path, ...], out: Path = Path("report.html"), videos: int = 2) -> None:
    """Write one page with summary, learning curves, metrics, configuration, pipeline and videos of runs.

    Runs that differ only in their seed are one experiment. The page is a single file and needs no network.

    Args:
        run_dirs: Folders of runs, or folders that contain runs, such as runs/.
        out: Path of the page.
        videos: Number of the newest videos of each run on the page.
    """
    print(printable(str(write_page(run_dirs, out, videos_per_run=videos))))


def plot(
    run_dirs: tuple[Path, ...],
    metric: str | None = None,
    x: str | None = None,
    out: Path = Path("curve.png"),
    smooth: int = 1,
) -> None:
    """Plot one metric of runs: for each experiment the interquartile mean over seeds, with its 95% interval.

    Args:
        run_dirs: Folders of runs, or folders that contain runs, such as runs/.
        metric: Name of the metric, such as learn/loss. None for the mean return of evaluations, or of collection if there are
            none.
        x: Metric of the x-axis: env_step, time_s, train_iter or another counter. None for env_step, and for train_iter in
            offline runs, which have no env_step.
        out: Path of the image, ending in .png, .svg or .pdf.
        smooth: Number of rows of the moving average: each point and those before it.
    """
    print(printable(str(plot_runs(run_dirs, metric, x, out, smooth))))


def watch(run_dir: Path, once: bool = False, every: float = 1.0, wait: bool = False) -> None:
    """Follow a run in the terminal until Ctrl-C: latest values, progress, curves of the return.

    Args:
        run_dir: Folder of the run.
        once: Show the current state once, then exit.
        every: Seconds between two updates.
        wait: If no run has begun in the folder, wait for one.
    """
    watch_run(run_dir, once=once, every_s=every, wait=wait)


def replay(file: Path) -> None:
    """Replay the episode in which an environment raised an error, up to the error, and show its traceback.

    The exit status is 1 if the error was raised again. The file may name any code to run: replay only files that you trust.

    Args:
        file: The file env_error.pt in the folder of the run.
    """
    importlib.import_module("ding_lite.commands.replay_command").show_replay(file)  # imports torch, which takes a second


def evaluate(
    run_dirs: tuple[str, ...],
    episodes: int = 100,
    which: str | None = None,
    seed: int = 1_000_000,
    env: str | None = None,
    name: str | None = None,
    policy_class: str | None = None,
    explore: bool = False,
    eps: float | None = None,
    settings: tuple[str, ...] = (),
    out: Path | None = None,
) -> None:
    """Evaluate the saved policy of each run on new episodes: mean, interquartile mean and its 95% interval.

    Modules that the files of a run name are imported: evaluate only runs that you trust.

    Args:
        run_dirs: Folders of runs, or URIs of their copies.
        episodes: Number of episodes.
        which: The checkpoint: best, final, latest, or the name of a file in the folder ckpt, such as iteration_300. None for
            best, and for final in offline runs, or where best is from before the first gradient step.
        seed: Seed of the environments; the default is far from the usual seeds of training.
        env: An id, or module:function for a function that makes an environment. None for the environments of the run's
            evaluator.
        name: Name of the policy, if the run saved several for one agent.
        policy_class: The class of the policy as module:name, if the run's file names none that can be imported; with several
            policies as policy=module:name, separated by commas.
        explore: Act as in training instead of greedily.
        eps: With explore, the probability of random actions, for policies that explore by it, such as DQN.
        settings: Further settings to act with, NAME=VALUE ..., such as target_return=300 of a Decision Transformer.
        out: Path of a JSON file for all numbers, with the return of each episode.
    """
    shown = importlib.import_module("ding_lite.commands.evaluations")
    options = {"env": env, "name": name, "policy_class": policy_class, "eps": eps, "settings": settings}
    shown.show_evaluations(run_dirs, out, episodes=episodes, which=which, seed=seed, deterministic=not explore, **options)


def play(
    run_dir: str,
    which: str | None = None,
    video: Path | None = None,
    episodes: int = 1,
    seed: int = 1_000_000,
    env: str | None = None,
    name: str | None = None,
    policy_class: str | None = None,
    settings: tuple[str, ...] = (),
) -> None:
    """Show episodes of the saved policy of a run in a window, or film them.

    Modules that the files of a run name are imported: play only runs that you trust.

    Args:
        run_dir: Folder of the run, or the URI of its copy.
        which: The checkpoint: best, final, latest, or the name of a file in the folder ckpt, such as iteration_300. None for
            best, and for final in offline runs, or where best is from before the first gradient step.
        video: Path of an mp4 file; several episodes get numbers. None opens a window.
        episodes: Number of episodes.
        seed: Seed of the first episode; the default is far from the usual seeds of training.
        env: An id, or module:function for a function of render_mode that makes an environment. None for that of the run.
        name: Name of the policy, if the run saved several for one agent.
        policy_class: The class of the policy as module:name, if the run's file names none that can be imported; with several
            policies as policy=module:name, separated by commas.
        settings: Further settings to act with, NAME=VALUE ..., such as target_return=300 of a Decision Transformer.
    """
    shown = importlib.import_module("ding_lite.commands.evaluations")
    options = {"env": env, "name": name, "policy_class": policy_class, "settings": settings}
    shown.show_episodes(run_dir, which=which, video=video, episodes=episodes, seed=seed, **options)


def collect(
    run_dir: Path,
    out: Path,
    steps: int = 100_000,
    which: str | None = None,
    seed: int = 2_000_000,
    env: str | None = None,
    name: str | None = None,
    policy_class: str | None = None,
    greedy: bool = False,
    eps: float | None = None,
    noise_sigma: float | None = None,
    append: bool = False,
    settings: tuple[str, ...] = (),
) -> None:
    """Record whole episodes of the saved policy of a run as a dataset, for offline RL.

    Modules that the files of a run name are imported: record only runs that you trust.

    Args:
        run_dir: Folder of the run.
        out: Folder of the dataset.
        steps: Transitions; the episodes that are under way then are completed.
        which: The checkpoint: best, final, latest, or the name of a file in the folder ckpt, such as iteration_300. None for
            best, and for final in offline runs, or where best is from before the first gradient step.
        seed: Seed of the environments; the default is far from those of training and of eval.
        env: An id, or module:function for a function that makes an environment. None for the environments of the run's
            evaluator.
        name: Name of the policy, if the run saved several for one agent.
        policy_class: The class of the policy as module:name, if the run's file names none that can be imported.
        greedy: Act greedily instead of as in training.
        eps: The probability of random actions, for policies that explore by it, such as DQN.
        noise_sigma: With greedy, the standard deviation of normal noise on actions in a Box, for actions scaled to [-1, 1].
        append: Add to a dataset that exists.
        settings: Further settings to act with, NAME=VALUE ..., such as target_return=300 of a Decision Transformer.
    """
    shown = importlib.import_module("ding_lite.commands.evaluations")
    options = {"env": env, "name": name, "policy_class": policy_class, "append": append, "settings": settings}
    explored = {"deterministic": greedy, "eps": eps, "noise_sigma": noise_sigma}
    shown.record_episodes(run_dir, out, steps=steps, which=which, seed=seed, **explored, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the name of the program; None for those of this process.

    Returns:
        The exit status: 0 for success, 1 if `replay` raised the error again, 2 after another error, which is printed to
        standard error, 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # so that unknown characters do not raise an error
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            _run(list(sys.argv[1:] if argv is None else argv))
    except (ReportError, ImportError, OSError) as error:
        tell(f"ding-lite: {printable(' '.join(str(error).split()))}")
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:  # after --help, or an unknown option
        return ended.code if isinstance(ended.code, int) else 2
    return 0


def _run(argv: list[str]) -> None:
    require_extra("tyro", "cli", "ding-lite")
    import tyro

    folders = Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR ...", help_behavior_hint="(required)")
    ]
    folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    runs = Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR ...", help_behavior_hint="(required)")
    ]
    run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    tyro.extras.subcommand_cli_from_dict(
        {
            "report": _annotated(report, run_dirs=folders),
            "plot": _annotated(plot, run_dirs=folders),
            "watch": _annotated(watch, run_dir=folder),
            "eval": _annotated(evaluate, run_dirs=runs),
            "play": _annotated(play, run_dir=run),
            "collect": _annotated(collect, run_dir=folder),
            "replay": _annotated(replay, file=Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]),
        },
        prog="ding-lite",
        description=_ABOUT,
        args=argv,
    )


def _show_warning(show: Callable[..., None], message: Warning | str, category: type[Warning], file: str, *place: Any) -> None:
    """Show a warning of a command as one line, without a place in the code of this library or of tyro; others by `show`."""
    import tyro

    if {Path(__file__).parents[1], Path(tyro.__file__).parent} & {*Path(file).parents}:
        tell(f"ding-lite: {printable(' '.join(str(message).split()))}")
    else:
        show(message, category, file, *place)


def _annotated(program: Callable[..., None], **annotations: Any) -> Callable[..., None]:
    """The program with annotations of tyro, which may not be installed when this module is imported."""

    def annotated(**options: Any) -> None:
        program(**options)

    annotated.__doc__ = program.__doc__
    annotated.__annotations__ = {**get_type_hints(program), **annotations}
    vars(annotated)["__signature__"] = inspect.signature(program)
    return annotated
