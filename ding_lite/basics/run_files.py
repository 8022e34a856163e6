"""Files of a saved run: the state after some iterations in one file, and a manifest that names the latest ones."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from ding_lite.basics.checkpoint_files import CheckpointError, plain
from ding_lite.basics.files import absolute, write_atomically, writing
from ding_lite.basics.messages import describe_error
from ding_lite.basics.row_files import RowFiles, read_verified, serialised
from ding_lite.basics.value_types import types_of, with_types

FORMAT = 1
"""Version of the format of the manifest."""

_KEPT = 2  # states; the older one is for the case that the newer one is damaged
_ROWS, _TYPES = "row_files", "types"  # keys in the file of a state
_STATE = re.compile(r"state_(?P<done>[0-9]+)(_(?P<number>[0-9]+))?\.pt")
_RANK = re.compile(r"rank_[0-9]+")
_ROW_FILE = re.compile(r"rows_[0-9]+_[0-9]+_[0-9a-f]+\.pt")


class RunFiles:
    """The saved states of one run, in `FOLDER/run`: `state_N.pt` after N iterations, and `manifest.json`.

    A state is first written to its own file, and then named in the manifest. Both are written atomically, so after a crash the
    manifest names complete files. Rows of replay buffers are in files `rows_FIRST_STOP_CHECKSUM.pt`. States share them, so a
    save writes only new rows.

    Args:
        folder: the run's folder, such as cfg.exp_name.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._name = Path(folder)
        self.folder = absolute(folder) / "run"
        self._manifest = self.folder / "manifest.json"
        self._rows = RowFiles(self.folder)
        self._has_saved = False
        self.held: Callable[[], Collection[str]] = tuple
        """Returns the names of files that must not be removed yet, because they are being copied."""

    def save(self, state: Mapping[str, Any], done: int) -> Path:
        """Write the state after `done` iterations, and remove all but the latest ones.

        Args:
            state: plain data, or scalars and arrays of numpy, which `load` returns as such. In place of the columns of a replay
                buffer, `NumberedRows`, of which only new rows are written.
            done: number of iterations.

        Raises:
            TypeError: the state holds something other than plain data.
            WriteError: it cannot be written; earlier states are unchanged.
        """
        path: Path | None = None
        try:
            with writing(self._manifest):
                others = self._others()
                if not self._has_saved:  # those of an earlier program, of which one may be damaged
                    others = [one for one in others if self._is_whole(one)]
            rest, rows = self._rows.save(state)
            content = serialised({**plain(rest), _ROWS: rows, _TYPES: list(types_of(state))})
            path = self.folder / _free_name(done, {one["file"] for one in others}.union(self.held()))
            write_atomically(path, content)
            mine = {
                "file": path.name,
                "done": done,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "rows": [file["file"] for one in rows for file in one["files"]],
            }
            kept = [mine, *others][:_KEPT]
            write_atomically(self._manifest, json.dumps({"format": FORMAT, "states": kept}, indent=2).encode())
            self._remove_others(kept)
            self._has_saved = True
        except BaseException:
            self.remove_others()
            if path is not None:
                self._remove_unnamed(path)
            raise
        return path

    def save_rows(self, state: Mapping[str, Any]) -> int:
        """Write one file of the new rows of replay buffers, if there are enough for several, so that `save` is shorter later.

        Returns:
            The number of bytes of new rows that are left for further files; 0 if `save` should write the rest.

        Raises:
            TypeError, WriteError: as `save`.
        """
        return self._rows.save_one(state)

    def _is_whole(self, one: Mapping[str, Any]) -> bool:
        """Whether the file of a state in the manifest is as it was written."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: there can be no file of this name
            return hashlib.sha256((self.folder / one["file"]).read_bytes()).hexdigest() == one.get("sha256")
        return False

    def _others(self) -> list[dict[str, Any]]:
        """The states so far, newest first: those of the manifest, or all files if the manifest is damaged."""
        try:
            return self._states()
        except CheckpointError:
            return self._found()

    def _remove_others(self, states: list[dict[str, Any]]) -> None:
        """Remove the files that belong to none of these states."""
        named = {one["file"] for one in states}.union(*(one.get("rows", ()) for one in states), self.held())
        knows_rows = all("rows" in one for one in states)  # not of states that were found without their manifest
        with contextlib.suppress(OSError):  # the next save tries again
            for name in os.listdir(self.folder):
                if name not in named and (_STATE.fullmatch(name) or (knows_rows and _ROW_FILE.fullmatch(name))):
                    with contextlib.suppress(OSError):
                        os.unlink(self.folder / name)

    def remove_others(self) -> None:
        """Remove the files that belong to no state, also those that were held before. Without a manifest, nothing is known of
        the files, and all remain."""
        with contextlib.suppress(OSError, CheckpointError):
            if self._manifest.exists():
                self._remove_others(self._states())

    def _remove_unnamed(self, path: Path) -> None:
        """Remove this file of a state unless the manifest names it."""
        with contextlib.suppress(OSError, CheckpointError):
            if path.name not in {one["file"] for one in self._states()}:
                os.unlink(path)

    def require(self) -> None:
        """Raise an error if there is no saved state.

        Raises:
            CheckpointError: there is none.
        """
        if next(self._candidates(), None) is None:
            raise CheckpointError(self._missing())

    def _missing(self) -> str:
        run = self._name  # as it was given
        of_run = (it for it in [*run.parents][:2] if (it / self.folder.name / self._manifest.name).exists())
        outer = next(of_run, None)
        fix = "Give the folder of the run." if outer is None else f"Give the folder of the run, {outer}."
        if run.is_file():
            return f"there is no run to resume in {run}: it is a file. {fix}"
        if outer == run.parent and _RANK.fullmatch(run.name):
            return self._missing_rank(outer)
        if outer is not None:
            return f"there is no run to resume in {run}: it is inside the folder of a run. {fix}"
        if not run.is_dir():
            return (
                f"there is no run to resume in {run}: there is no such folder. Check the path; it is relative to {Path.cwd()}."
            )
        found = self._found()
        if found and not self._manifest.exists():  # it is written and downloaded last
            names = ", ".join(one["file"] for one in found[:_KEPT])
            return (
                f"there is no saved run in {run}: {self._manifest} is missing beside {names}. If a download was interrupted, "
                "begin it again. If the manifest was deleted, restore it, or make an empty one to use these states without it."
            )
        earlier = [path.parent.name for path in sorted(self.folder.parent.glob(f"{self.folder.name}.*/{self._manifest.name}"))]
        hint = f" An earlier run is there, renamed to {', '.join(earlier)}, as are its other files." if earlier else ""
        return (
            f"there is no saved run in {run}: CkptSaver(policy, {str(run)!r}, train_freq=...) in the pipeline saves one at "
            f"intervals, and when a signal or max_step ends the run.{hint}"
        )

    def _missing_rank(self, outer: Path) -> str:
        """The message for a process without a state of its own, of those that learn together in this folder."""
        run = self.folder.parent
        ranks = [it for it in outer.iterdir() if _RANK.fullmatch(it.name) and RunFiles(it)._manifest.exists()]
        count, start = "1 process", "without torchrun"
        if ranks:
            count, start = f"{len(ranks) + 1} processes", f"torchrun --nproc-per-node {len(ranks) + 1}"
        return (
            f"there is no run to resume in {run}: the run in {outer} has the states of {count}, its own and {len(ranks)} in "
            f"folders rank_N. Start as many, {start}; or restore {run.name} from a copy if it was lost."
        )

    def saved(self) -> list[int]:
        """After how many iterations each state was saved whose file is whole, newest first."""
        return [_done(one) for one in self._candidates() if "sha256" not in one or self._is_whole(one)]

    def load(
        self, done: int | None = None, check: Callable[[Mapping[str, Any]], object] = lambda state: None
    ) -> tuple[dict[str, Any], Path]:
        """The latest state that is whole, and its file. A warning names each newer one that is damaged.

        Args:
            done: only a state after so many iterations; None for any.
            check: raises a ValueError if a state is damaged although its checksum is right.

        Raises:
            CheckpointError: there is none.
        """
        problems = []
        for one in self._candidates(warns=True):
            if done is not None and _done(one) != done:
                continue
            path = self.folder / one["file"]
            try:
                state = read_verified(path, one.get("sha256"), "the manifest")
                rows, types = state.pop(_ROWS, []), state.pop(_TYPES, [])
                self._rows.load(state, rows, path)
                state = _typed(state, types, path)
                check(state)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            except ValueError as error:
                problems.append(f"{path} is damaged: {error}")
                continue
            except OSError as error:  # such as a name that is too long
                problems.append(f"{path} cannot be read: {error.strerror or error}.")
                continue
            for problem in problems:
                warnings.warn(f"{problem} The run continues from the state before, {path}.", stacklevel=3)
            return state, path
        raise CheckpointError(" ".join(problems) or self._missing())

    def _candidates(self, warns: bool = False) -> Iterator[dict[str, Any]]:
        """The states, newest first: those of the manifest, or all files if the manifest is damaged.

        Args:
            warns: whether a warning names a damaged manifest.
        """
        try:
            yield from self._states()
        except (OSError, CheckpointError) as error:
            problem = error if isinstance(error, CheckpointError) else f"{self._manifest} cannot be read ({error.strerror})."
            if warns:
                warnings.warn(f"{problem} The files are used without it.", stacklevel=4)
            yield from self._found()

    def _found(self) -> list[dict[str, Any]]:
        """All files of states, the largest number of iterations first."""
        names = [path.name for path in self.folder.glob("state_*.pt")]
        found = [(int(name["done"]), int(name["number"] or 1), name[0]) for name in map(_STATE.fullmatch, names) if name]
        return [{"file": name} for *_, name in sorted(found, reverse=True)]

    def _states(self) -> list[dict[str, Any]]:
        """The states in the manifest, newest first.

        Raises:
            CheckpointError: the manifest is damaged.
            OSError: it cannot be read.
        """
        try:
            manifest = json.loads(self._manifest.read_bytes())
            states = [dict(one) for one in manifest["states"]]
            known, names = manifest["format"], [name for one in states for name in (one["file"], *one.get("rows", ()))]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{self._manifest} is damaged ({describe_error(error)}).") from None
        if known != FORMAT:
            raise CheckpointError(f"{self._manifest} has format {known}, and this version of ding_lite reads format {FORMAT}.")
        if any(not isinstance(name, str) or os.path.basename(name) != name for name in names):
            raise CheckpointError(f"{self._manifest} names files in another folder.")
        return states


def _typed(state: dict[str, Any], types: Sequence[Mapping[str, Any]], source: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", with_types(state, types))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{source} is damaged: its types do not fit its values ({error!r}).") from None


def _done(one: Mapping[str, Any]) -> int:
    """The number of iterations of a state, by the name of its file."""
    name = _STATE.fullmatch(one["file"])
    return int(name["done"]) if name else -1


def _free_name(done: int, taken: Collection[str]) -> str:
    """A name for the state after `done` iterations; a file of a saved state is never overwritten."""
    names = (f"state_{done}.pt" if number == 1 else f"state_{done}_{number}.pt" for number in itertools.count(1))
    return next(name for name in names if name not in taken)
