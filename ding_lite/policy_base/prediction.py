"""Prediction: actions for one observation or a batch, as a program that uses a trained policy wants them."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ding_lite.basics import did_you_mean
from ding_lite.basics.signatures import parameters_of
from ding_lite.data import LeafSpec, Spec, allocate, flatten
from ding_lite.data.column_arrays import tensor_to_array
from ding_lite.data.trees import map_leaves
from ding_lite.envs.arrays import describe_shapes
from ding_lite.envs.spaces import space_spec, splitter, to_gymnasium, to_nested
from ding_lite.policy_base.act_modes import ActingPolicy, ActMode
from ding_lite.policy_check import ObservationError

_OURS = "ding_lite.policy.", "ding_lite.policy_base.hooks", "ding_lite.policy_parts."
"""Modules whose `compute_actions` name all settings that they use."""

_REWARD = LeafSpec((), np.dtype(np.float32))
_SHORT = {"prev_action_batch": "action", "prev_reward_batch": "reward"}


class PredictMode(ActMode):
    """The mode of `Policy.predict`. It has its own random generator, so that predictions change nothing in training.

    Args:
        policy: the policy that this is a mode of.
    """

    role, explore = "predict", False

    def __init__(self, policy: ActingPolicy) -> None:
        super().__init__(policy)
        self._split = splitter(policy.action_space)
        self._has_warned = False

    def predict(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        deterministic: bool = True,
        episode_start: Any = None,
        **settings: Any,
    ) -> tuple[Any, Sequence[Any] | None]:
        """See `Policy.predict`."""
        if state is not None and not isinstance(state, (list, tuple)):
            raise TypeError(
                f"predict(state={state!r:.60}) wants the recurrent state that an earlier call returned, a list, or None. Name "
                "the other arguments: predict(obs, deterministic=False)."
            )
        if not isinstance(deterministic, (bool, np.bool_)):
            raise TypeError(
                f"predict(deterministic={deterministic!r:.60}) wants True or False. If this is the third argument as of "
                "Stable-Baselines3, name it: predict(obs, state, episode_start=...)."
            )
        self.require_known(settings)
        if not deterministic:
            self.require_settings(settings)
        batch, is_single = _as_batch(self._policy.observation_space, obs)
        count = len(next(iter(flatten(batch)))[1])
        starts = None if episode_start is None else _as_flags(episode_start, count)
        if not state:
            state = self.get_initial_state(count)
            starts = np.ones(count, bool) if state else starts
        else:
            self._require_state(state, count)
            if starts is not None:
                state = _restarted(state, self.get_initial_state(count), starts)
        if self.previous:
            settings |= self._previous_step(settings, starts, count, is_single, bool(state))
        self.explore = not deterministic
        try:
            actions, state, _ = self.forward(batch, state, **settings)
        finally:
            self.explore = False
        if self.masks is not None:
            self.masks.require_choice(batch, "row {} of predict()".format)
        actions = self.env_action(actions)
        return (self._split(actions)[0] if is_single else to_gymnasium(self._policy.action_space, actions)), state or None

    @functools.cached_property
    def _state_length(self) -> int:
        """The number of elements of the recurrent state."""
        return len(self.actor.get_initial_state())

    def _require_state(self, state: Sequence[Any], count: int) -> None:
        """Refuse a recurrent state of another policy, or of another number of episodes than there are observations.

        Raises:
            ValueError: naming both numbers.
        """
        if len(state) != self._state_length:
            raise ValueError(
                f"predict(state=...) got a state of {len(state)} elements, and that of {type(self._policy).__name__} has "
                f"{self._state_length}: pass the whole state that the previous call returned, or None."
            )
        for index, rows in enumerate(map(_count_rows, state)):
            if rows != count:
                found = "no rows" if rows is None else f"{rows} rows"
                raise ValueError(
                    f"predict(state=...) got {found} in element {index} of the state, for a batch of {count} observations: "
                    "pass the state that the previous call with these episodes returned, one row for each, or None."
                )

    def _previous_step(
        self, settings: Mapping[str, Any], starts: np.ndarray[Any, Any] | None, count: int, is_single: bool, is_recurrent: bool
    ) -> dict[str, Any]:
        """The last actions and rewards that the policy reads, arrays [B, ...] by name: those of `settings`, zeros where an
        episode starts. A parameter of `compute_actions` with a default other than None keeps it.

        Raises:
            ValueError: one is missing although an episode goes on, or does not fit.
        """
        specs = {"prev_action_batch": space_spec(self._policy.action_space), "prev_reward_batch": _REWARD}
        found, missing = {}, []
        for name in self.previous:
            zeros = map_leaves(np.zeros_like, allocate(specs[name], count))
            if settings.get(name) is not None:
                space = self._policy.action_space if name == "prev_action_batch" else None
                given = _as_previous(name, space, specs[name], settings[name], count, is_single)
                found[name] = given if starts is None else map_leaves(_with_zeros(starts), given)
            elif parameters_of(self.actor.compute_actions)[name].default in (None, inspect.Parameter.empty):
                found[name] = zeros
                missing.append(name)
        if missing and (is_recurrent or starts is not None) and not (starts is not None and starts.all()):
            raise ValueError(f"{self._wants(missing)}.")
        if missing and starts is None and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{self._wants(missing)}, or episode_start=True. It acts with zeros now.", stacklevel=4)
        return found

    def _wants(self, missing: Sequence[str]) -> str:
        names = " and ".join(_SHORT[name] for name in missing)
        given = ", ".join(f"{name}={_SHORT[name]}" for name in missing)
        return (
            f"{type(self._policy).__name__} acts on the last {names} of the episode, which predict() does not know: pass it, "
            f"predict(obs, state, {given}), zeros at the start of an episode"
        )

    def require_known(self, settings: Mapping[str, Any]) -> None:
        """Raise an error for a setting that the policy does not use. Policies of users may use any.

        Raises:
            TypeError: naming it, and the nearest one.
        """
        known: set[str] = set()
        for kind in type(self.actor).__mro__ if settings else ():
            if "compute_actions" in vars(kind):
                if not kind.__module__.startswith(_OURS):
                    return
                known.update(parameters_of(vars(kind)["compute_actions"]))
        known -= {"self", "obs", "state", "explore", "kwargs"}
        if unknown := [name for name in settings if name not in known]:
            hint = did_you_mean(unknown[0], sorted({*known, "deterministic", "episode_start"}))
            raise TypeError(f"{type(self._policy).__name__} does not use the setting {unknown[0]!r}{hint}")

    def require_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise an error if these lack a setting without which the policy does not explore.

        Raises:
            ValueError: naming it.
        """
        missing = [name for name in self._policy.acting_settings if name not in settings]
        if missing:
            raise ValueError(
                f"{type(self._policy).__name__} explores by {missing[0]}, which a saved policy does not know: pass it, such as "
                f"predict(obs, deterministic=False, {missing[0]}=0.05)."
            )


def _as_batch(space: gymnasium.Space[Any], obs: Any) -> tuple[Any, bool]:
    """The observations as arrays [B, ...], nested like the space, and whether there was a single one.

    Raises:
        ObservationError: it is neither an element of the space nor a batch of them.
    """
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not isinstance(space, gymnasium.spaces.Tuple):
        raise ObservationError("predict() wants an observation, got a pair with a dict: write obs, info = env.reset().")
    layout = space_spec(space)
    try:
        leaves = map_leaves(_as_array, layout, to_nested(space, obs))
    except (TypeError, ValueError, KeyError) as error:
        raise ObservationError(f"predict() wants an observation of {space}, or a batch of them: {error}") from None
    for path, leaf in flatten(leaves):
        if leaf.dtype.kind == "f" and np.isinf(leaf).any():  # NaN is refused when it acts
            raise ObservationError(f"predict() got {'/'.join(('obs', *map(str, path)))} with an infinite number.")
    specs = dict(flatten(layout))
    ranks = {leaf.ndim - len(specs[path].shape) for path, leaf in flatten(leaves)}
    if ranks not in ({0}, {1}):
        raise ObservationError(
            f"predict() wants an observation of {space}, or a batch [B, ...] of them, got {describe_shapes(leaves)}."
        )
    if ranks == {1}:
        return leaves, False
    return map_leaves(lambda leaf: leaf[None], leaves), True


def _as_previous(name: str, space: gymnasium.Space[Any] | None, spec: Spec, value: Any, count: int, is_single: bool) -> Any:
    """Last actions or rewards as arrays [B, ...]; of a single observation also without the first dimension.

    Raises:
        ValueError: their shape is another one.
    """
    try:
        leaves = map_leaves(_as_array, spec, value if space is None else to_nested(space, value))
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"predict({name}={value!r:.60}): {error}") from None
    specs, shapes = dict(flatten(spec)), [leaf.shape for _, leaf in flatten(leaves)]
    if is_single and shapes == [leaf.shape for leaf in specs.values()]:
        leaves = map_leaves(lambda leaf: leaf[None], leaves)
    elif shapes != [(count, *leaf.shape) for leaf in specs.values()]:
        wanted = " or ".join(["one"] * is_single + [f"a batch of {count}"])
        raise ValueError(f"predict({name}=...) wants {wanted}, as there are observations, got {describe_shapes(leaves)}.")
    return map_leaves(lambda leaf, like: leaf.astype(like.dtype), leaves, spec)


def _with_zeros(starts: np.ndarray[Any, Any]) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """A function of an array [B, ...] that sets the rows of episodes that start to zero."""
    return lambda leaf: np.where(starts.reshape(-1, *[1] * (leaf.ndim - 1)), np.zeros_like(leaf), leaf)


def _as_array(spec: LeafSpec, value: Any) -> np.ndarray[Any, Any]:
    """A leaf as an array that torch can use: numbers as floats for a space of floats, else as they are."""
    if isinstance(value, Tensor):
        value = tensor_to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value, None if spec.dtype.kind in "iu" else spec.dtype)
    takes_numbers = spec.dtype.kind == "f" and value.dtype.kind in "fiub"  # also integers, as from an environment
    array = np.asarray(value, spec.dtype if takes_numbers else None)
    return array.copy() if any(stride < 0 for stride in array.strides) else array  # flipped, which torch refuses


def _as_flags(episode_start: Any, count: int) -> np.ndarray[Any, Any]:
    """[B] bool, from one flag or B of them."""
    flags = np.asarray(episode_start, bool)
    if flags.size not in (1, count):
        raise ValueError(
            f"predict(episode_start=...) got {flags.size} flags for a batch of {count} observations: give one, or {count}."
        )
    return np.resize(flags, count)


def _restarted(state: Sequence[Any], initial: Sequence[Any], starts: np.ndarray[Any, Any]) -> list[Any]:
    """The recurrent state with the rows of episodes that start replaced by their initial state."""
    return [_with_rows(element, first, starts) for element, first in zip(state, initial, strict=True)]


def _count_rows(element: Any) -> int | None:
    """The number of rows of an element of a recurrent state, [B, ...] or a list of B objects; None if it has none."""
    shape = getattr(element, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) else None
    return len(element) if isinstance(element, (list, tuple)) else None


def _with_rows(element: Any, first: Any, starts: np.ndarray[Any, Any]) -> Any:
    if isinstance(element, list):
        return [one if starts[row] else old for row, (old, one) in enumerate(zip(element, first))]
    element, first = torch.as_tensor(element), torch.as_tensor(first)
    mask = torch.as_tensor(starts, device=element.device).reshape(-1, *[1] * (element.ndim - 1))
    return torch.where(mask, first.to(element.device, element.dtype), element)
