"""Checkpoint files: plain data in one zip file, written atomically. Loading never executes code."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics.files import write_atomically

PLAIN_TYPES = frozenset({int, float, str, bool, complex, type(None)})
"""Types of values that a checkpoint holds as they are."""
_DEEPEST = 200  # lists and dicts in one another
_KEYS = (str, int, float, bool)


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or holds something other than plain data."""


def plain(state: Any, where: str = "state", inside: tuple[int, ...] = ()) -> Any:
    """The same state as tensors, numbers, strings, lists, tuples and dicts, which can be loaded without executing code.

    Arrays become tensors. Tensors are detached, moved to the CPU, and copied if they are views of larger ones. Scalars of numpy
    become numbers.

    Args:
        state: the state.
        where: name of the state in messages.
        inside: the ids of the lists, tuples and dicts that contain it.

    Raises:
        TypeError: a value of another type; the message names its place.
        ValueError: a list, tuple or dict contains itself, or is nested too deeply.
    """
    import numpy as np
    import torch

    if torch.nn.parameter.is_lazy(state):
        raise TypeError(f"{where} has no shape yet: run the module once before you save it.")
    if isinstance(state, torch.Tensor) and state.layout is torch.strided and not (state.is_nested or state.is_meta):
        tensor = state.detach().cpu()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if whole else _dense(tensor)  # a view would save its whole base
    if isinstance(state, (np.ma.MaskedArray, np.matrix)):
        parts = "its .data and .mask" if isinstance(state, np.ma.MaskedArray) else "np.asarray(it)"
        raise TypeError(
            f"{where} is a {type(state).__name__}, which would be loaded as a plain array: let state_dict() return {parts}."
        )
    if isinstance(state, np.ndarray) and _is_known(state):
        is_whole = (state.flags.c_contiguous or state.flags.f_contiguous) and state.flags.writeable
        return torch.from_numpy(state if is_whole else state.copy(order="K"))
    if isinstance(state, np.generic) and _is_known(state):
        return state.item()
    if isinstance(state, (Mapping, list, tuple)):
        _require_shallow(state, where, inside)
        inside = (*inside, id(state))
    if isinstance(state, Mapping):
        for key in state:
            if type(key) not in _KEYS:
                raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}: use strings or numbers as keys.")
        return {
            key: value if type(value) in PLAIN_TYPES else plain(value, f"{where}[{key!r}]", inside)
            for key, value in state.items()
        }
    if isinstance(state, (list, tuple)):
        items = [
            value if type(value) in PLAIN_TYPES else plain(value, f"{where}[{position}]", inside)
            for position, value in enumerate(state)
        ]
        return tuple(items) if isinstance(state, tuple) else items
    if type(state) in PLAIN_TYPES:
        return state
    has_dtype = isinstance(state, (np.ndarray, torch.Tensor))
    what = f"{type(state).__name__} of {state.dtype}" if has_dtype else type(state).__name__
    what += f" and layout {state.layout}" if isinstance(state, torch.Tensor) else ""
    raise TypeError(
        f"{where} is a {what}, which a checkpoint cannot hold: let state_dict() return tensors, arrays, numbers, "
        "strings, lists and dicts."
    )


def _is_known(array: Any) -> bool:
    """Whether torch and Python have numbers like those of an array or a scalar of numpy, unlike longdouble."""
    sizes = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
    return bool(array.dtype.isnative and array.dtype.itemsize <= sizes.get(array.dtype.kind, 0))


def _dense(tensor: Any) -> Any:
    """A copy of a view with the same order of dimensions in memory, because sums depend on it in the last bit."""
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).contiguous().clone().permute(back)


def _require_shallow(state: Any, where: str, inside: tuple[int, ...]) -> None:
    short = where if len(where) <= 80 else f"{where[:60]}...{where[-17:]}"
    if id(state) in inside:
        raise ValueError(f"{short} is a {type(state).__name__} that contains itself, which cannot be saved: remove it.")
    if len(inside) >= _DEEPEST:
        raise ValueError(
            f"{short} is nested in {len(inside)} lists and dicts, which is too deep for a checkpoint: reduce the nesting."
        )


def arrays(state: Any) -> Any:
    """The same state with numpy arrays instead of tensors, as environments and random generators need it."""
    if hasattr(state, "numpy"):
        return state.numpy()
    if isinstance(state, Mapping):
        return {key: arrays(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(arrays(value) for value in state)
    return state


def save_checkpoint(state: Mapping[str, Any], path: str | PathLike[str]) -> Path:
    """Write `state` to `path`, atomically: after a crash, the file is either the old or the new one.

    Raises:
        TypeError: the state holds something other than plain data.
        ValueError: it contains itself, or is nested too deeply.
        WriteError: the file cannot be written; an earlier file is unchanged.
    """
    import torch

    path = Path(path)
    # Serialised in memory first: torch.save() to a path reports a full disk as "unexpected pos".
    serialised = io.BytesIO()
    torch.save(plain(state), serialised)
    write_atomically(path, serialised.getvalue())
    return path


def load_checkpoint(path: str | PathLike[str], device: str = "cpu") -> dict[str, Any]:
    """Read a file of `save_checkpoint` onto `device`. Never executes code from the file.

    Raises:
        CheckpointError: the file does not exist, is damaged, or holds something other than plain data.
        ValueError: there is no such device.
    """
    import torch

    path = Path(path)
    _require_device(device)
    if not path.is_file():
        raise CheckpointError(_missing(path))
    try:
        _require_sound(path)
        state = torch.load(path, map_location=device, weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001  torch raises many kinds, and advises to turn its protection off
        raise CheckpointError(_unreadable(path, error)) from None
    if not isinstance(state, dict):
        raise CheckpointError(
            f"the checkpoint {path} holds a {type(state).__name__}, not the dict of save_checkpoint(): save a dict, such as "
            "the result of state_dict()."
        )
    return state


def _require_device(device: str) -> None:
    import torch

    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'load_checkpoint(device={device!r}) wants a device of torch, such as "cpu" or "cuda:0".') from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'load_checkpoint(device={device!r}), but torch finds no GPU: use device="cpu".')


def _require_sound(path: Path) -> None:
    """Raise an error for damage that torch.load() does not detect: a flipped bit, or a small file that unpacks to a huge
    one."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        packed = next((part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED), None)
        if packed is not None or sum(part.file_size for part in parts) > path.stat().st_size:
            raise CheckpointError(
                f"the checkpoint {path} cannot be read: it would unpack to more than it holds, which no file of "
                f"save_checkpoint() does.{_others(path)}"
            )
        # The attribute marks a folder; torch.load() does not detect a flipped bit in it either.
        broken = archive.testzip() or next((part.filename for part in parts if part.external_attr), None)
    if broken is not None:
        raise CheckpointError(
            f"the checkpoint {path} is damaged: its part {broken!r} does not match its checksum. Copy it again from the "
            f"original.{_others(path)}"
        )


def _missing(path: Path) -> str:
    start = f"there is no checkpoint {path}"
    if path.is_dir():
        return f"{start}: that is a folder, name a file in it.{_others(path / '...')}"
    if path.is_symlink():
        target = os.readlink(path)
        return f"{start}: that is a link to {target}, which does not exist. Correct the link.{_others(path)}"
    if not path.parent.is_dir():
        return f"{start}: there is no folder {path.parent} either. Check the path; it is relative to {Path.cwd()}."
    return f"{start}.{_others(path)}"


def _others(path: Path) -> str:
    """The checkpoints in the same folder or its subfolders, newest first."""
    found = []
    for file in (file for pattern in ("*.pt", "*/*.pt") for file in path.parent.glob(pattern) if file != path):
        with contextlib.suppress(OSError):  # a running program may remove it
            found.append((file.stat().st_mtime, str(file.relative_to(path.parent))))
    if not found:
        return f" There is no other file *.pt in {path.parent}."
    return f" In {path.parent} there is {', '.join(name for _, name in sorted(found, reverse=True)[:5])}."


def _unreadable(path: Path, error: Exception) -> str:
    start = f"the checkpoint {path} cannot be read"
    if isinstance(error, OSError):
        return f"{start}: {error.strerror or error}. Check its permissions and the disk."
    thing = re.search(r"GLOBAL ([\w.]+)", str(error))
    if thing is not None:
        return (
            f"{start}: it holds {thing[1]}, but a checkpoint may hold only plain data, because other objects may execute code. "
            "If you made the file, save it again with save_checkpoint(...); otherwise do not load it in another way."
        )
    if isinstance(error, zipfile.BadZipFile):
        return f"{start}: it is cut off, or not a checkpoint ({error}).{_others(path)}"
    return f"{start}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}.{_others(path)}"
