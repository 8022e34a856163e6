"""`ding-lite replay`, apart from the other commands because it imports torch."""

from __future__ import annotations

import traceback
from pathlib import Path

from ding_lite.basics import CheckpointError, printable
from ding_lite.envs import NotReproducibleError, reproduce_env_error
from ding_lite.reports import ReportError


def show_replay(file: Path) -> None:
    """Replay the episode of a file of `save_env_error`, and show the traceback of its error.

    Raises:
        ReportError: the file cannot be replayed.
        SystemExit: the error was raised again.
    """
    try:
        where = reproduce_env_error(file)
    except (CheckpointError, NotReproducibleError) as error:
        raise ReportError(str(error)) from None
    except Exception as error:
        if not hasattr(error, "env_location"):
            raise
        traceback.print_exception(error)
        raise SystemExit(1) from None
    at = "in its reset" if where.step is None else f"step {where.step}"
    place = f"environment {where.env} ({where.name}), episode {where.episode}, {at}"
    print(printable(f"No error was raised again in {place}: the environment does not depend on its seed alone."))
