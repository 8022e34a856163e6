"""Attachments: images and videos of runs as data URIs, so that a page needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite.reports.labels import readable
from ding_lite.reports.runs import Run, natural, read_object

_MOST_OF_A_PICTURE = 2_000_000  # bytes


@dataclass(frozen=True)
class Video:
    """The video of one evaluation."""

    address: str
    """A data URI."""
    description: str
    """Number of the evaluation, and its result."""
    run: str
    """Name of the run."""


def picture(run: Run, name: str) -> str:
    """An SVG file of the run as a data URI, for an image, in which scripts do not run; an empty string if the file does not
    exist or is larger than two megabytes."""
    path = run.folder / name
    fits = path.is_file() and path.stat().st_size <= _MOST_OF_A_PICTURE
    return _address(path, "image/svg+xml") if fits else ""


def text(run: Run, name: str) -> str:
    """The content of a text file of the run; an empty string if it does not exist."""
    path = run.folder / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def newest_videos(runs: Sequence[Run], per_run: int, most_bytes: int) -> tuple[list[Video], list[str]]:
    """The newest videos of evaluations, run by run; and for each run with more videos, a text about these.

    The newest video of every run is taken first, then the next of every run, while they fit into `most_bytes`.

    Args:
        runs: the runs, with videos in their folders `videos`.
        per_run: maximum number of videos of each run.
        most_bytes: maximum size of all videos together.
    """
    found = [sorted((run.folder / "videos").glob("*.mp4"), key=lambda path: natural(path.name), reverse=True) for run in runs]
    taken: dict[tuple[int, int], Path] = {}
    for turn in range(per_run):
        for place, paths in enumerate(found):
            if turn < len(paths) and 0 < paths[turn].stat().st_size <= most_bytes:
                most_bytes -= paths[turn].stat().st_size
                taken[place, turn] = paths[turn]
    videos = [Video(_address(taken[key], "video/mp4"), _description(taken[key]), runs[key[0]].name) for key in sorted(taken)]
    left = [(run, len(paths) - sum(key[0] == place for key in taken)) for place, (run, paths) in enumerate(zip(runs, found))]
    return videos, [f"{count} more of {run.name} in {run.folder / 'videos'}" for run, count in left if count]


def _description(video: Path) -> str:
    """The caption of a video."""
    details, _ = read_object(video.with_suffix(".json"))
    parts = [
        (f"evaluation {readable(_number(details, 'evaluation'))}", "evaluation"),
        (f"after {readable(_number(details, 'env_step'))} environment steps", "env_step"),
        (f"return {readable(_number(details, 'return'))}", "return"),
        (f"{readable(_number(details, 'length'))} steps long", "length"),
    ]
    return ", ".join(part for part, name in parts if _number(details, name) is not None) or video.stem.replace("_", " ")


def _number(details: dict[str, Any], name: str) -> float | None:
    value = details.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _address(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
