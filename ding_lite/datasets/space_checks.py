"""Space checks: whether the columns of a dataset fit the spaces that a policy, or a caller, gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.data import LeafSpec
from ding_lite.envs import SpaceError
from ding_lite.envs.spaces import hidden_difference, integer_bounds, same_layout, same_space, space_spec, subspaces

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def require_spaces(
    dataset: Any,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    owner: str,
    fix: str,
    are_clipped: bool = False,
) -> None:
    """Refuse a dataset whose spaces, if it says them, or whose columns do not fit those of a policy or a reward model.

    Args:
        dataset: an OfflineDataset.
        observation_space, action_space: the spaces.
        owner: what has these spaces, for messages.
        fix: how other spaces get there, for messages.
        are_clipped: whether actions beyond the bounds of a Box are clipped, so that the dataset may have other bounds.

    Raises:
        SpaceError: naming what differs.
    """
    own = {"observation_space": observation_space, "action_space": action_space}
    for name, space in own.items():
        recorded = getattr(dataset, name) if dataset.knows(name) else space
        is_same = same_layout(recorded, space)
        if is_same and name == "action_space":
            is_same = _same_but_bounds(recorded, space) if are_clipped else same_space(recorded, space)
        if not is_same:
            raise SpaceError(
                f"the dataset {dataset.name} was recorded with the {name.replace('_', ' ')} {recorded}, and {owner} has "
                f"{space}{hidden_difference(recorded, space)}: {fix}."
            )
    if found := dataset.misfit(**own):
        raise SpaceError(f"the dataset {dataset.name} does not fit {owner}: {found}")


def _same_but_bounds(one: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Whether two spaces of the same layout are equal but for the bounds of their Boxes."""
    parts, others = subspaces(one), subspaces(other)
    if parts is not None and others is not None:
        return all(_same_but_bounds(part, others[name]) for name, part in parts.items())
    return isinstance(one, spaces.Box) or same_space(one, other)


def find_space_mismatch(
    columns: Mapping[str, Any],
    observation_space: gymnasium.Space[Any] | None,
    action_space: gymnasium.Space[Any] | None,
) -> str | None:
    """What does not fit in the first column whose elements are not those of its space, and the fix; None if all fit.

    Shapes must be equal, and dtypes of the same kind: floats for a Box of floats, integers for all others. A network does not
    notice actions of another shape, because they are broadcast, or integers where floats are meant.

    Args:
        columns: shape and dtype of one row of each column, as `OfflineDataset.columns`.
        observation_space, action_space: the spaces; None for one that is unknown.
    """
    for name, space in (("obs", observation_space), ("next_obs", observation_space), ("action", action_space)):
        if space is None or name not in columns:
            continue
        found = next(_misfits(space, columns[name], name), None)
        if found is not None:
            return found
    return None


def misfit_in_numbers(
    read: Callable[[tuple[str, ...]], np.ndarray[Any, Any]],
    observation_space: gymnasium.Space[Any] | None,
    action_space: gymnasium.Space[Any] | None,
) -> str | None:
    """What is out of range in the first column with numbers outside of a Discrete, MultiDiscrete or MultiBinary space; None if
    all are inside. Other columns are not read.

    Args:
        read: from the path of a leaf, such as ("obs", "position"), to its elements [N, ...].
        observation_space, action_space: the spaces; None for one that is unknown.
    """
    for name, space in (("obs", observation_space), ("action", action_space)):
        found = next(_out_of_range(space, read, (name,)), None) if space is not None else None
        if found is not None:
            return found
    return None


def _out_of_range(space: gymnasium.Space[Any], read: Callable[[tuple[str, ...]], Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, part in (subspaces(space) or {}).items():
        yield from _out_of_range(part, read, (*path, name))
    if subspaces(space) is not None or (bounds := integer_bounds(space)) is None:
        return
    low, high = bounds
    numbers = read(path)
    wrong = np.argwhere((numbers < low) | (numbers > high))
    if len(wrong):
        yield f"the column {'/'.join(path)} has the number {numbers[tuple(wrong[0])]}, which is outside of {_brief(space)}."


def _misfits(space: gymnasium.Space[Any], spec: Any, where: str) -> Iterator[str]:
    parts = subspaces(space)
    if parts is None:
        yield from _misfits_of_leaf(space, spec, where)
        return
    if isinstance(spec, LeafSpec) or spec.keys() != parts.keys():
        has = _shown(spec) if isinstance(spec, LeafSpec) else f"the parts {sorted(spec)}"
        yield f"the column {where} has {has}, and {_brief(space)} has the parts {sorted(parts)}: give a dict with these arrays."
        return
    for name, part in parts.items():
        yield from _misfits(part, spec[name], f"{where}/{name}")


def _misfits_of_leaf(space: gymnasium.Space[Any], spec: Any, where: str) -> Iterator[str]:
    wanted: Any = space_spec(space)
    if not isinstance(spec, LeafSpec):
        yield f"the column {where} has the parts {sorted(spec)}, and {_brief(space)} has no parts: give one array."
        return
    shape_fits = spec.shape == wanted.shape
    if not shape_fits or not _is_of_kind(space, spec.dtype, wanted.dtype):
        fix = _fix(space, spec, wanted, where, shape_fits)
        yield f"the column {where} has elements {_shown(spec)}, and {_brief(space)} wants {_shown(wanted)}: {fix}"


def _is_of_kind(space: gymnasium.Space[Any], dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    if wanted.kind == "f":
        return dtype in _FLOATS or dtype == wanted
    is_number = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    return dtype.kind in ("iu" if is_number else "biu")


def _fix(space: gymnasium.Space[Any], spec: LeafSpec, wanted: LeafSpec, where: str, shape_fits: bool) -> str:
    is_action = where.partition("/")[0] == "action"
    if isinstance(space, spaces.Discrete) and spec.shape == (space.n,) and space.n > 1:
        return f"if it is one-hot, give {where}.argmax(-1){f' + {space.start}' if space.start else ''}."
    if not shape_fits and [size for size in spec.shape if size != 1] != [size for size in wanted.shape if size != 1]:
        return f"give arrays {_rows(wanted)}, or use the {'action' if is_action else 'observation'} space of the data."
    rest = "".join(f", {size}" for size in wanted.shape)
    changed = where if shape_fits else f"{where}.reshape(-1{rest})"
    if _is_of_kind(space, spec.dtype, wanted.dtype):
        return f"give {changed}."
    if isinstance(space, spaces.Box) and wanted.dtype.kind != "f" and spec.dtype.kind == "f":
        return "give the integers of the environment, not scaled."
    changed += f".astype(np.{wanted.dtype})"
    if is_action and (spec.dtype.kind == "f") != (wanted.dtype.kind == "f"):
        other = "a Box" if spec.dtype.kind == "f" else "a Discrete space"
        return f"if these are actions of {other}, use a policy for it. If they are of this space, give {changed}."
    return f"give {changed}."


def _rows(spec: LeafSpec) -> str:
    return f"[N{''.join(f', {size}' for size in spec.shape)}]"


def _shown(spec: LeafSpec) -> str:
    return f"{spec.dtype} {spec.shape}"


def _brief(space: gymnasium.Space[Any]) -> str:
    """The space for messages, without the many bounds of a large Box."""
    text = str(space)
    return text if len(text) <= 200 else f"{text[:120]} ... {text[-40:]}"
