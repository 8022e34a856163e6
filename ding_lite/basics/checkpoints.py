"""Checkpoint files: plain data in one zip file, whole or not there at all, and no code in it ever runs.

Room: ding_lite.basics, floor 0. Torch, when a file is written or read.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

_PLAIN = (int, float, str, bool, complex, type(None))
_KEYS = (str, int, float, bool)


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or holds something else than plain data."""


def plain(state: Any, where: str = "state") -> Any:
    """The same state as tensors, numbers, strings, lists, tuples and dicts, which every reader can load without trust.

    Arrays become tensors, tensors leave their device, graph and larger storage, numpy scalars become numbers.

    Raises:
        TypeError: anything else, naming where it stands.
    """
    import numpy as np
    import torch

    if isinstance(state, torch.Tensor):
        tensor = state.detach().cpu()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if whole else tensor.clone()  # a view would take along all that it looks at
    if isinstance(state, np.ndarray) and state.dtype.kind in "biufc":
        return torch.from_numpy(state if state.flags.c_contiguous and state.flags.writeable else state.copy())
    if isinstance(state, np.generic) and state.dtype.kind in "biufc":
        return state.item()
    if isinstance(state, Mapping):
        for key in state:
            if type(key) not in _KEYS:
                raise TypeError(f"{where} has the key {key!r}, a {type(key).__name__}: use strings or numbers.")
        return {key: plain(value, f"{where}[{key!r}]") for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        items = [plain(value, f"{where}[{position}]") for position, value in enumerate(state)]
        return tuple(items) if isinstance(state, tuple) else items
    if type(state) in _PLAIN:
        return state
    what = f"{type(state).__name__} of {state.dtype}" if isinstance(state, np.ndarray) else type(state).__name__
    raise TypeError(
        f"{where} is a {what}, which no checkpoint holds: have state_dict() return tensors, arrays, numbers, "
        "strings, lists and dicts."
    )


def arrays(state: Any) -> Any:
    """The same state with numpy arrays for tensors, which is what environments and random generators want back."""
    if hasattr(state, "numpy"):
        return state.numpy()
    if isinstance(state, Mapping):
        return {key: arrays(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(arrays(value) for value in state)
    return state


def save_checkpoint(state: Mapping[str, Any], path: str | PathLike[str]) -> Path:
    """Write `state` to `path`. Whatever happens meanwhile, the file is the old one or the new one, and whole.

    Raises:
        TypeError: something in it is no plain data.
        OSError: the file cannot be written; the one before is still there.
    """
    import torch

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Serialised in memory first: torch.save() to a path reports a full disk as "unexpected pos".
    serialised = io.BytesIO()
    torch.save(plain(state), serialised)
    write_atomically(path, serialised.getvalue())
    return path


def load_checkpoint(path: str | PathLike[str], device: str = "cpu") -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, onto `device`. A file from a stranger runs no code.

    Raises:
        CheckpointError: the file is not there, is damaged, or holds more than plain data.
    """
    import torch

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load() itself does not notice a flipped bit, be it in the data or in the attribute that marks a folder.
            broken = archive.testzip() or next((part.filename for part in archive.infolist() if part.external_attr), None)
        if broken is not None:
            raise CheckpointError(f"the checkpoint {path} is damaged: its part {broken!r} does not fit its checksum.")
        state = torch.load(path, map_location=device, weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"the checkpoint {path} holds a {type(state).__name__}, not the dict of save_checkpoint().")
    return state


def move_aside(path: Path) -> None:
    """Let what an earlier run left at `path`, a file or a folder, make room: it becomes `name.1`, or the next free number."""
    if not path.exists():
        return
    number = 1
    while (older := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(older)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by one with this content, durably: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
