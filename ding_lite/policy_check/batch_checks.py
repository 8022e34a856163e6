"""Batch checks: checks that the columns of a batch fit the spaces of the policy that learns from it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.basics import add_note
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.data import LeafSpec, Tree, flatten, nested
from ding_lite.data.column_names import FLAGS
from ding_lite.data.trees import has_leaf
from ding_lite.envs.arrays import describe_shapes
from ding_lite.envs.spaces import space_spec, subspaces
from ding_lite.policy_check.columns import STANDARD, ColumnError, HookReads, described, explain_missing
from ding_lite.policy_check.finite_numbers import NonFiniteError
from ding_lite.policy_check.hook_results import HookError
from ding_lite.policy_check.observations import describe_leaf, out_of_range

_PREPARING = "postprocess", "learn_on_batch", "dummy_batch"
"""Hooks by which a policy may learn from other batches than those of its spaces."""

_SCALARS = "reward", "terminated", "truncated", "discount", "weight"
"""Columns of one number for each row."""
_MOSTLY_SCALARS = "advantage", "return_", "value", "log_prob"
"""Columns of one number for each row, unless a policy has several heads."""


class LearningPolicy(Protocol):
    """The interface that the checks of a batch need from the policy that learns from it."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of one environment."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of one environment."""

    @property
    def needs_rollouts(self) -> bool:
        """Whether its learning takes rollouts [T, B, ...] apart."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the hooks read; None if unknown."""

    def dry_run(self) -> HookReads:
        """The result of the dry run."""


class _Leaf(NamedTuple):
    """A leaf of obs, next_obs or action in a batch, and the space of its elements."""

    where: str
    space: gymnasium.Space[Any]
    spec: LeafSpec
    leaf: Any

    @property
    def lead_rank(self) -> int | None:
        """The number of leading dimensions; None if the last dimensions are not those of the space."""
        shape = tuple(self.leaf.shape)
        lead = len(shape) - len(self.spec.shape)
        return lead if lead >= 0 and shape[lead:] == self.spec.shape else None


def misfit_in_batch(
    policy: str, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any
) -> ValueError | None:
    """The error about a column of a batch that does not fit the spaces of a policy; None if all do.

    Args:
        policy: name of the policy, for the message.
        observation_space, action_space: spaces of the policy.
        batch: the batch that it learns from, with any leading dimensions, such as those of reward.
    """
    found = shape_misfit(observation_space, action_space, batch)
    if found is None:
        found = next(_lacking_keys(observation_space, action_space, batch), None)
    if found is None:
        leaves = [it for it in _leaves(observation_space, action_space, batch) if isinstance(it, _Leaf)]
        found = next((text for it in leaves for text in _wrong_values(it)), None) or _wrong_rank(leaves, batch)
        found = found or _wrong_rank(leaves, batch, _MOSTLY_SCALARS, only_ones=True) or _wrong_flags(batch)
    if found is None:
        return None
    return ValueError(
        f"{policy} cannot learn from this batch: {found} Look for the code that writes it, such as a dataset or a middleware."
    )


def shape_misfit(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any) -> str | None:
    """What is wrong with the keys and shapes of obs, next_obs and action in a batch; None if nothing is.

    Args:
        observation_space, action_space: spaces of the policy.
        batch: the batch that it learns from, with any leading dimensions.
    """
    found = [*_leaves(observation_space, action_space, batch)]
    leaves = [it for it in found if isinstance(it, _Leaf)]
    texts = [it for it in found if isinstance(it, str)]
    wanted = _lead_rank(leaves, batch)
    texts += [
        f"{it.where} is {describe_leaf(it.leaf)}, expected {it.spec.dtype} {_lead(leaves, wanted, it.spec)} for {it.space}."
        for it in leaves
        if it.lead_rank is None or it.lead_rank != wanted
    ]
    return texts[0] if texts else None


def require_shapes(who: str, policy: LearningPolicy, batch: Tree) -> None:
    """Raise an error if the keys or shapes of obs, next_obs and action in a batch do not fit the spaces of a policy.

    Raises:
        ValueError: with the column, what it is, and what was expected.
    """
    found = shape_misfit(policy.observation_space, policy.action_space, batch)
    if found is not None:
        raise ValueError(f"{who} got data that do not fit the spaces of {type(policy).__name__}: {found}")


def _columns(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any
) -> Iterator[tuple[gymnasium.Space[Any], Any, str]]:
    """Of those of action, obs and next_obs that a batch has: the space, the column, and its name."""
    for name, space in (("action", action_space), ("obs", observation_space), ("next_obs", observation_space)):
        if has_leaf(batch, name):
            yield space, nested(batch[name]), f"batch.{name}"


def _lacking_keys(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any) -> Iterator[str]:
    """Which keys nested columns lack."""
    for space, column, where in _columns(observation_space, action_space, batch):
        yield from _lacking_keys_of(space, column, where)


def _lacking_keys_of(space: gymnasium.Space[Any], column: Any, where: str) -> Iterator[str]:
    parts = subspaces(space) or {}
    for name, part in parts.items():
        if name in column:
            yield from _lacking_keys_of(part, column[name], f"{where}[{name!r}]")
        else:
            yield f"{where} lacks the key {name!r}, it has {sorted(map(str, column))}: give all of {[*parts]}."


def _leaves(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any) -> Iterator[_Leaf | str]:
    """The leaves of action, obs and next_obs, or what is wrong in the structure of nested ones."""
    for space, column, where in _columns(observation_space, action_space, batch):
        yield from _leaves_of(space, column, where)


def _leaves_of(space: gymnasium.Space[Any], column: Any, where: str) -> Iterator[_Leaf | str]:
    parts = subspaces(space)
    if parts is None and isinstance(column, (np.ndarray, Tensor)):
        spec: Any = space_spec(space)
        yield _Leaf(where, space, spec, column)
    elif parts is not None and not isinstance(column, Mapping):
        yield f"{where} is {describe_leaf(column)}, expected a dict with the keys {[*parts]}."
    elif parts is not None:
        for name, part in parts.items():
            if name in column:
                yield from _leaves_of(part, column[name], f"{where}[{name!r}]")
    elif isinstance(column, Mapping):
        yield f"{where} is {describe_leaf(column)}, expected an array or a tensor for {space}."


def _lead_rank(leaves: list[_Leaf], batch: Any) -> int:
    """The number of leading dimensions: that of reward; but if all leaves have others, that of the first one that fits, which
    is an observation if one does."""
    by_kind = sorted(leaves, key=lambda it: it.where.startswith("batch.action"))
    ranks = [it.lead_rank for it in by_kind if it.lead_rank is not None]
    reward = batch["reward"].ndim if has_leaf(batch, "reward") and isinstance(batch["reward"], (np.ndarray, Tensor)) else None
    return reward if reward is not None and (reward in ranks or not ranks) else next(iter(ranks), 1)


def _lead(leaves: list[_Leaf], rank: int, spec: LeafSpec) -> str:
    """The expected shape of a leaf, for messages."""
    known = next((it.leaf.shape[:rank] for it in leaves if it.lead_rank == rank), None)
    lead = [*(map(str, leaves[0].leaf.shape[:rank]) if known is None else map(str, known))]
    return f"[{', '.join([*lead, *map(str, spec.shape)])}]"


def _wrong_values(it: _Leaf) -> Iterator[str]:
    """What is wrong with the dtype of a leaf, or with its numbers if its space is discrete."""
    is_discrete = isinstance(it.space, (spaces.Discrete, spaces.MultiDiscrete))
    kinds = "f" if it.spec.dtype.kind == "f" else "iu" if is_discrete else "iub"
    if _kind(it.leaf) not in kinds:
        expected = f"integers of {it.space}" if is_discrete else f"{it.spec.dtype} for {it.space}"
        yield f"{it.where} is {describe_leaf(it.leaf)}, expected {expected}."
    elif is_discrete or isinstance(it.space, spaces.MultiBinary):
        array = it.leaf.detach().cpu().numpy() if isinstance(it.leaf, Tensor) else it.leaf
        yield from out_of_range(it.space, array, it.where)


def _kind(leaf: np.ndarray[Any, Any] | Tensor) -> str:
    """The kind of dtype, as numpy names it; "i" for any integers of tensors."""
    if isinstance(leaf, np.ndarray):
        return str(leaf.dtype.kind)
    return "f" if leaf.is_floating_point() else "c" if leaf.is_complex() else "b" if leaf.dtype == torch.bool else "i"


def _wrong_rank(leaves: list[_Leaf], batch: Any, names: Sequence[str] = _SCALARS, only_ones: bool = False) -> str | None:
    """What is wrong with the number of dimensions of the first column that has not one number for each row; None if all have.

    A weight may be that of a whole sequence.

    Args:
        leaves: those of obs, next_obs and action.
        batch: the batch.
        names: the columns.
        only_ones: whether to look only for columns [B, 1].
    """
    rank = _lead_rank(leaves, batch)
    for name in names if leaves else ():
        leaf = batch[name] if has_leaf(batch, name) else None
        if not isinstance(leaf, (np.ndarray, Tensor)) or leaf.ndim == rank or (name == "weight" and leaf.ndim == 1 < rank):
            continue
        has_ones = leaf.ndim == rank + 1 and leaf.shape[-1] == 1
        if only_ones and not has_ones:
            continue
        fix = f": batch.{name}.squeeze(-1)." if has_ones else "."
        return f"batch.{name} is {describe_leaf(leaf)}, expected {_lead(leaves, rank, LeafSpec((), np.dtype(bool)))}{fix}"
    return None


def element_shapes(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], batch: Any, names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """The shapes of one element of these columns of a batch, by dotted name, such as "info.speed".

    Columns of objects, and those with fewer dimensions than the rows, such as the weight of a sequence, are left out.

    Args:
        observation_space, action_space: spaces of the policy.
        batch: the batch, with any leading dimensions.
        names: names of columns, or of parts of them.
    """
    rank = _lead_rank([it for it in _leaves(observation_space, action_space, batch) if isinstance(it, _Leaf)], batch)
    found = {".".join(path): leaf for path, leaf in flatten(batch) if path[0] in names or ".".join(path) in names}
    return {name: tuple(leaf.shape[rank:]) for name, leaf in found.items() if isinstance(leaf, Tensor) and leaf.ndim >= rank}


def require_known_shapes(policy: LearningPolicy, batch: Any, known: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an error if a column has other elements in a batch than in the dry run: they may broadcast.

    Args:
        policy: the policy that learns from the batch.
        batch: the batch.
        known: the shapes of the elements in the dry run, by dotted name.

    Raises:
        ValueError: with the column, its shape, and what was expected.
    """
    if not has_leaf(batch, "reward") and not any(True for _ in _columns(policy.observation_space, policy.action_space, batch)):
        return  # nothing says which dimensions are rows
    found = element_shapes(policy.observation_space, policy.action_space, batch, known)
    leaves = {".".join(path): leaf for path, leaf in flatten(batch)}
    for name, shape in found.items():
        if name not in known or shape == known[name]:
            continue
        kind, column, leaf = type(policy).__name__, name.partition(".")[0], leaves[name]
        lead = list(leaf.shape[: leaf.ndim - len(shape)])
        source = "acting returns it so" if column in policy.dry_run().outputs else f"{kind}.derived declares {known[name]}"
        fix = (
            f"write batch.{name}.squeeze(-1)"
            if shape == (*known[name], 1)
            else f"declare derived = {{**{kind}.derived, {name!r}: {shape}}}"
        )
        raise ValueError(
            f"{kind} cannot learn from this batch: batch.{name} is {describe_leaf(leaf)}, expected {[*lead, *known[name]]}, "
            f"because {source}: {fix}, or correct the middleware that writes it."
        )


def _wrong_flags(batch: Any) -> str | None:
    """Which of terminated and truncated is not bool."""
    for name in FLAGS:
        leaf = batch[name] if has_leaf(batch, name) else None
        if isinstance(leaf, (np.ndarray, Tensor)) and _kind(leaf) != "b":
            return f"batch.{name} is {describe_leaf(leaf)}, expected bool: batch.{name} > 0."
    return None


def explain_learning(policy: LearningPolicy, error: Exception, batch: Tree, known: Collection[str]) -> None:
    """Raise a clearer error from one that learning raised, if the batch is the reason.

    Args:
        policy: the policy that learned.
        error: the error.
        batch: the batch that it learned from.
        known: names of columns that a pipeline may provide.

    Raises:
        ColumnError: the batch lacks a column that the policy reads.
        NonFiniteError: a column holds NaN or an infinite number.
        ValueError: a column does not fit the spaces of the policy, or the batch has no rows, or none that are valid.
    """
    name = type(policy).__name__
    if isinstance(error, NonFiniteError):
        floats = {
            "/".join(path): leaf for path, leaf in flatten(batch) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }
        for what, wrong in (("NaN", Tensor.isnan), ("an infinite number", Tensor.isinf)):
            if named := [path for path, leaf in floats.items() if bool(wrong(leaf).any())]:
                raise NonFiniteError(
                    f"{error.found or error}: {', '.join(named)} of the batch it learns from holds {what}. Find out where it "
                    "comes from, for example the environment or a middleware that changes rewards."
                ) from error
        if floats and not any(map(len, floats.values())):
            raise _empty(name) from error
        _require_valid_rows(name, batch, error)
        return
    if isinstance(error, (ColumnError, HookError)):
        return
    if isinstance(error, (KeyError, AttributeError)):
        explain_missing(error, batch, known, f"learning of {name}")
    if not nested(batch) and (read := [column for column in policy.columns or () if column in STANDARD]):
        raise ColumnError(
            f"learning of {name} reads the columns {', '.join(read)}, and the batch has no columns. A buffer gives only the "
            "columns that the policy reads: push rows with these names into it."
        ) from error
    leaves = [leaf for _, leaf in flatten(batch) if isinstance(leaf, (np.ndarray, Tensor)) and leaf.ndim]
    if leaves and not any(map(len, leaves)):
        raise _empty(name) from error
    misfit = misfit_in_batch(name, policy.observation_space, policy.action_space, batch)
    if misfit is not None:
        raise misfit from error
    _require_valid_rows(name, batch, error)
    if isinstance(error, (KeyError, AttributeError)):  # after the misfit, which may be a missing part of an observation
        explain_missing(error, batch, None, f"learning of {name}")
    if isinstance(error, RuntimeError) and "dtype" in str(error):
        doubles = ["/".join(path) for path, leaf in flatten(batch) if isinstance(leaf, Tensor) and leaf.dtype == torch.float64]
        if doubles:
            raise ValueError(
                f"{name} cannot learn from this batch: {', '.join(doubles)} of it is float64, and networks compute with "
                f"float32: give float32, batch.{doubles[0].replace('/', '.')}.float()."
            ) from error
    if policy.needs_rollouts and 1 in {it.lead_rank for it in _leaves_for(policy, batch)}:
        raise ValueError(
            f"{name} learns from rollouts [T, B, ...], steps in order of time, and got rows, {described(nested(batch))}: "
            "collect rollouts with a collector. To learn from a dataset, use an algorithm that learns from transitions, such "
            "as BC, CQL, IQL or TD3+BC."
        ) from error
    if isinstance(error, (RuntimeError, IndexError)):
        element = describe_shapes(space_spec(policy.observation_space))
        add_note(error, f"learning from {described(nested(batch))}; one observation has {element}")


def _leaves_for(policy: LearningPolicy, batch: Tree) -> list[_Leaf]:
    return [it for it in _leaves(policy.observation_space, policy.action_space, batch) if isinstance(it, _Leaf)]


def _empty(policy: str) -> ValueError:
    return ValueError(
        f"{policy} cannot learn from this batch: it has no rows. Leave the call out, or give it at least one row."
    )


def _require_valid_rows(policy: str, batch: Tree, error: Exception) -> None:
    """Raise an error if `valid` excludes all rows of a batch that could not be learned from."""
    valid = batch["valid"] if has_leaf(batch, "valid") else None
    if isinstance(valid, Tensor) and not bool(valid.any()):
        raise ValueError(
            f"{policy} cannot learn from this batch: `valid` is False for all of its {valid.numel()} rows, so that it has no "
            "step. Collect more steps at once, or check the middleware that writes `valid`."
        ) from error


def warn_of_misfit(policy: LearningPolicy, batch: Tree) -> None:
    """Warn if the keys or shapes of observations or actions do not fit the spaces of a policy that has learned from them, or if
    a column such as reward has not one number for each row.

    Policies whose own hooks prepare batches may learn from others.
    """
    owners = (next(base for base in type(policy).__mro__ if hook in vars(base)) for hook in _PREPARING)
    if not all(is_of_ding_lite(owner.__module__) for owner in owners):
        return
    found = shape_misfit(policy.observation_space, policy.action_space, batch)
    if found is None:
        found = _wrong_rank(_leaves_for(policy, batch), batch, (*_SCALARS, *_MOSTLY_SCALARS), only_ones=True)
    if found is not None:
        warnings.warn(
            f"{type(policy).__name__} learns from a batch that does not fit its spaces, maybe by broadcasting: {found}",
            stacklevel=4,
        )
