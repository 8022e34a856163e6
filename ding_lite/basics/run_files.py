"""Files of a saved run: the state after some iterations in one file, and a manifest that names the latest ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.checkpoints import CheckpointError, load_checkpoint, plain
from ding_lite.basics.files import remove_leftovers, write_atomically

FORMAT = 1
"""Version of the format of the manifest."""

_KEPT = 2  # states; the older one is for the case that the newer one is damaged


class RunFiles:
    """The saved states of one run, in `FOLDER/run`: `state_N.pt` after N iterations, and `manifest.json`.

    A state is first written to its own file, and then named in the manifest. Both are written atomically, so after a crash the
    manifest names complete files.

    Args:
        folder: the run's folder, such as cfg.exp_name.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder) / "run"
        self._manifest = self.folder / "manifest.json"

    def save(self, state: Mapping[str, Any], done: int) -> Path:
        """Write the state after `done` iterations, and remove all but the latest ones.

        Raises:
            TypeError: the state holds something other than plain data.
            WriteError: it cannot be written; earlier states are unchanged.
        """
        import torch

        serialised = io.BytesIO()
        torch.save(plain(state), serialised)
        content = serialised.getvalue()
        path = self.folder / f"state_{done}.pt"
        write_atomically(path, content)
        mine = {"file": path.name, "done": done, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        others = [one for one in self._states() if one["file"] != path.name]
        self._write_manifest([mine, *others][:_KEPT])
        return path

    def _write_manifest(self, states: list[dict[str, Any]]) -> None:
        write_atomically(self._manifest, json.dumps({"format": FORMAT, "states": states}, indent=2).encode())
        named = {one["file"] for one in states}
        for path in self.folder.glob("state_*.pt"):
            if path.name not in named:
                with contextlib.suppress(OSError):  # it is only left over
                    path.unlink()

    def clear(self) -> None:
        """Forget the states of an earlier run in this folder."""
        remove_leftovers(self.folder)
        if self._manifest.exists():
            self._write_manifest([])

    def require(self) -> None:
        """Raise an error if there is no saved state.

        Raises:
            CheckpointError: there is none.
        """
        if next(self._candidates(), None) is None:
            raise CheckpointError(self._missing())

    def _missing(self) -> str:
        run = self.folder.parent
        if not run.is_dir():
            return (
                f"there is no run to resume in {run}: there is no such folder. Check the path; it is relative to {Path.cwd()}."
            )
        return (
            f"there is no saved run in {run}: CkptSaver(policy, {str(run)!r}, train_freq=...) in the pipeline saves one at "
            "intervals, and when a signal or max_step ends the run."
        )

    def load(self) -> tuple[dict[str, Any], Path]:
        """The latest state that is whole, and its file. A warning names each newer one that is damaged.

        Raises:
            CheckpointError: there is none.
        """
        problems = []
        for one in self._candidates():
            path = self.folder / one["file"]
            try:
                state = _read(path, one.get("sha256"))
            except CheckpointError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                warnings.warn(f"{problem} The run continues from the state before, {path}.", stacklevel=3)
            return state, path
        raise CheckpointError(" ".join(problems) or self._missing())

    def _candidates(self) -> Iterator[dict[str, Any]]:
        """The states, newest first: those of the manifest, or all files if the manifest is damaged."""
        try:
            yield from self._states()
        except CheckpointError as error:
            warnings.warn(f"{error} The files are used without it.", stacklevel=4)
            found = [(int(path.stem.partition("_")[2]), path.name) for path in self.folder.glob("state_*.pt")]
            yield from ({"file": name} for _, name in sorted(found, reverse=True))

    def _states(self) -> list[dict[str, Any]]:
        try:
            manifest = json.loads(self._manifest.read_bytes())
            states = [dict(one) for one in manifest["states"]]
            known, names = manifest["format"], [one["file"] for one in states]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self._manifest} is damaged ({type(error).__name__}: {error}).") from None
        if known != FORMAT:
            raise CheckpointError(f"{self._manifest} has format {known}, and this version of ding_lite reads format {FORMAT}.")
        if any(not isinstance(name, str) or os.path.basename(name) != name for name in names):
            raise CheckpointError(f"{self._manifest} names files in another folder.")
        return states


def _read(path: Path, digest: str | None) -> dict[str, Any]:
    if digest is not None and path.is_file():
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
        if found.hexdigest() != digest:
            raise CheckpointError(f"{path} is damaged: its content does not match the checksum in the manifest.")
    return load_checkpoint(path)
