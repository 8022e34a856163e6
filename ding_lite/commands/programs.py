"""Programs: what the commands do, and what their options mean."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from ding_lite.basics import printable, require_extra
from ding_lite.reports import ReportError, plot_runs, watch_run, write_page

_ABOUT = "Look at runs of ding_lite: all that is known of them on a page, one metric as a picture, a live run in the terminal."


def report(run_dirs: tuple[Path, ...], out: Path = Path("report.html"), videos: int = 2) -> None:
    """Write one page with summary, learning curves, metrics, configuration, pipeline and videos of runs.

    Runs that differ in nothing but their seed are one experiment. The page is a single file and needs no network.

    Args:
        run_dirs: Folders of runs, or folders that hold some, such as runs/.
        out: The page to write.
        videos: Of each run, how many of its newest videos go onto the page.
    """
    print(printable(str(write_page(run_dirs, out, videos_per_run=videos))))


def plot(
    run_dirs: tuple[Path, ...],
    metric: str | None = None,
    x: str = "env_step",
    out: Path = Path("curve.png"),
    smooth: int = 1,
) -> None:
    """Draw one metric of runs as a picture: the interquartile mean of the seeds of each experiment in its 95% band.

    Args:
        run_dirs: Folders of runs, or folders that hold some, such as runs/.
        metric: Such as learn/loss. None is the mean return at evaluation, or, without evaluations, while collecting.
        x: What it is drawn over: env_step, time_s, train_iter or another counter.
        out: The picture to write, in .png, .svg or .pdf.
        smooth: Rows that each point is the mean of: itself and those before it.
    """
    print(printable(str(plot_runs(run_dirs, metric, x, out, smooth))))


def watch(run_dir: Path, once: bool = False, every: float = 1.0, wait: bool = False) -> None:
    """Follow a run in the terminal, until Ctrl-C: newest numbers, progress, curves of the return.

    Args:
        run_dir: Folder of the run.
        once: Show what there is, and end.
        every: Seconds between two looks.
        wait: Where no run has begun in the folder yet, wait until one does.
    """
    watch_run(run_dir, once=once, every_s=every, wait=wait)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for.

    Args:
        argv: the arguments, without the program's name; None takes the program's own.

    Returns:
        The exit status: 0; 2 where the command could not be carried out, which standard error explains; 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot spell is no reason to end
    try:
        require_extra("tyro", "cli", "ding-lite")
        import tyro

        folders = Annotated[
            tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR ...", help_behavior_hint="(required)")
        ]
        folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
        tyro.extras.subcommand_cli_from_dict(
            {
                "report": _annotated(report, run_dirs=folders),
                "plot": _annotated(plot, run_dirs=folders),
                "watch": _annotated(watch, run_dir=folder),
            },
            prog="ding-lite",
            description=_ABOUT,
            args=list(sys.argv[1:] if argv is None else argv),
        )
    except (ReportError, ImportError, OSError) as error:
        print(f"ding-lite: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:  # help was asked for, or an option does not exist
        return ended.code if isinstance(ended.code, int) else 2
    return 0


def _annotated(program: Callable[..., None], **annotations: Any) -> Callable[..., None]:
    """The program with some annotations that only tyro can spell, which need not be installed when this file is read."""

    def annotated(**options: Any) -> None:
        program(**options)

    annotated.__doc__ = program.__doc__
    annotated.__annotations__ = {**get_type_hints(program), **annotations}
    vars(annotated)["__signature__"] = inspect.signature(program)
    return annotated
