"""Attachments: pictures and videos of runs, as addresses that hold their whole content, so that a page needs no other file."""

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
    """One evaluation, to be watched."""

    address: str
    """A data URI."""
    description: str
    """Which evaluation it is, and what it came to."""
    run: str
    """The name of the run that it comes from."""


def picture(run: Run, name: str) -> str:
    """An SVG of the run's folder as a data URI, which a browser shows as a picture, in which no script runs; or an empty
    string, where there is none, or one of more than two megabytes."""
    path = run.folder / name
    fits = path.is_file() and path.stat().st_size <= _MOST_OF_A_PICTURE
    return _address(path, "image/svg+xml") if fits else ""


def text(run: Run, name: str) -> str:
    """What a text file of the run's folder says, or nothing where there is none."""
    path = run.folder / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def newest_videos(runs: Sequence[Run], per_run: int, most_bytes: int) -> tuple[list[Video], list[str]]:
    """The newest evaluations' videos, run by run, and what was left out, a sentence each.

    Each run gets its newest before any gets its next, for as long as they fit.

    Args:
        runs: where they are looked for, in `videos/`.
        per_run: how many of a run.
        most_bytes: of all of them together.
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
    """What stands beside a video about it."""
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
