"""Action masks: which actions an observation allows, as its part `action_mask`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_lite.envs.arrays import to_arrays
from ding_lite.envs.names import name_of_env
from ding_lite.envs.spaces import SpaceError

ACTION_MASK = "action_mask"
"""The key of the mask in Dict observations, as in PettingZoo, and in infos, as in gymnasium."""

Array = np.ndarray[Any, Any]


class ActionMaskError(ValueError):
    """A mask is missing, has wrong values or allows no action, or a policy took an action that its mask does not allow."""


class ActionMasks:
    """The masks of one action space: checks of masks and actions, and random choices among the allowed actions.

    A mask is an array [B, n] for Discrete(n), and [B, sum(nvec)] for MultiDiscrete(nvec): the masks of its elements, one after
    the other. An action is allowed where the mask is not 0. Made by `action_masks`.

    Args:
        action_space: Discrete or MultiDiscrete.
    """

    def __init__(self, action_space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        sizes = action_space.nvec if isinstance(action_space, spaces.MultiDiscrete) else action_space.n
        self._sizes, self._starts = np.ravel(sizes).astype(np.int64), np.ravel(action_space.start).astype(np.int64)
        self._begins = np.cumsum(self._sizes) - self._sizes
        self._shape, self._dtype = tuple(np.shape(action_space.start)), action_space.dtype

    @property
    def num_choices(self) -> int:
        """The number of choices of an action: 1 for Discrete, the number of elements for MultiDiscrete."""
        return len(self._sizes)

    @property
    def first_columns(self) -> Array:
        """The column of a mask, for the first value of each choice, [num_choices]."""
        return self._begins

    def has_choice(self, obs: Any) -> Array:
        """Whether each observation allows an action, [B] bool."""
        return np.asarray(self._counts(_mask_of(obs)).all(-1))

    def require_choice(self, obs: Any, name_of: Callable[[int], str], idle: Array | None = None) -> None:
        """Check that every observation allows an action.

        Args:
            obs: observations [B, ...], nested arrays or tensors.
            name_of: name of a row in messages, such as "environment 3".
            idle: [B] bool, rows whose action has no effect, which are not checked; None for no row.

        Raises:
            ActionMaskError: naming the first row without an allowed action.
        """
        has_choice = self.has_choice(obs)
        if has_choice.all():
            return
        stuck = ~has_choice if idle is None else ~(has_choice | idle)
        if stuck.any():
            raise ActionMaskError(
                f"{name_of(int(stuck.argmax()))} has an observation whose {ACTION_MASK!r} allows no action: return a mask with "
                "a 1 in every state in which an action is taken, and end the episode (terminated) in a state without one."
            )

    def require_allowed(self, obs: Any, action: Array, policy: str) -> None:
        """Check that the masks allow these actions [B, ...]. Rows without an allowed action are not checked.

        Raises:
            ActionMaskError: naming the policy and the first action that is not allowed.
        """
        is_allowed = self.are_allowed(_binary_mask_of(obs), action)
        if is_allowed.all():
            return
        row = int(is_allowed.argmin())
        raise ActionMaskError(
            f"{policy} takes the action {np.asarray(action)[row].tolist()} in row {row}, which the {ACTION_MASK!r} of its "
            "observation does not allow: in compute_actions, or in the forward of your network, use masked(logit, obs) of "
            "ding_lite.nn, which gives such actions the probability 0."
        )

    def are_allowed(self, mask: Array, action: Array) -> Array:
        """Whether masks [B, n] allow these actions [B, ...], [B] bool; True where no action is allowed."""
        index = np.asarray(action).reshape(len(mask), -1).astype(np.int64) - self._starts
        places = np.clip(index, 0, self._sizes - 1) + self._begins  # steps of environments refuse actions out of range
        is_allowed = np.take_along_axis(mask, places, -1) != 0
        if not is_allowed.all():
            is_allowed |= self._counts(mask) == 0
        return np.asarray(is_allowed.all(-1))

    def choose(self, mask: Array, fraction: Array) -> Array:
        """The action at a fraction of the allowed ones: if the fraction is uniform in [0, 1), so is the action among these.

        Args:
            mask: [B, n].
            fraction: a number in [0, 1) for each choice, [B, num_choices].

        Returns:
            Actions [B, *action_shape]; the first ones of the space in rows without an allowed action.
        """
        masks = np.split(mask, self._begins[1:], -1)
        columns = [choose_allowed(part, column) for part, column in zip(masks, fraction.T)]
        return (np.stack(columns, -1) + self._starts).reshape(-1, *self._shape).astype(self._dtype)

    def draw(self, obs: Any, rng: np.random.Generator) -> Array:
        """Draw actions [B, *action_shape], uniform over the allowed ones.

        Raises:
            ActionMaskError: a mask has other numbers than 0 and 1.
        """
        mask = _binary_mask_of(obs)
        return self.choose(mask, rng.random((len(mask), self.num_choices)))

    def log_prob(self, obs: Any) -> Array:
        """The log-probability [B] float64 of each action that `draw` may return for these observations."""
        log_prob: Array = -np.log(self._counts(_mask_of(obs)).clip(min=1)).sum(-1)
        return log_prob

    def _counts(self, mask: Array) -> Array:
        """The number of allowed actions for each choice, [B, num_choices]."""
        counts: Array = np.add.reduceat((mask != 0).view(np.int8), self._begins, -1, dtype=np.int64)
        return counts


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the mask in the infos of an environment to its observations, as the part `action_mask`.

    A Dict observation gets this part; any other becomes {"obs": observation, "action_mask": mask}. The infos of `reset` and of
    each step must have the mask: an array of 0 and 1, [n] for Discrete(n), [sum(nvec)] for MultiDiscrete(nvec), or a tuple with
    the mask of each element, as gymnasium's `space.sample(mask)` takes it.

    Args:
        env: the environment.
        key: key of the mask in the infos.

    Raises:
        SpaceError: the actions are neither Discrete nor MultiDiscrete, or the observations have a mask already.

    Example:
        >>> env = ActionMask(gymnasium.make("Taxi-v4"))
        >>> sorted(env.reset(seed=0)[0])
        ['action_mask', 'obs']
    """

    def __init__(self, env: gymnasium.Env[Any, Any], key: str = ACTION_MASK) -> None:
        super().__init__(env)
        self._key, space = key, env.observation_space
        self._size = _mask_size(env.action_space)
        if self._size is None:
            raise SpaceError(
                f"ActionMask wants Discrete or MultiDiscrete actions, and {name_of_env(env)} has {env.action_space}: leave out "
                "action_mask=True, or --env.action-mask on the command line."
            )
        self._is_dict = isinstance(space, spaces.Dict)
        parts = {**space.spaces} if isinstance(space, spaces.Dict) else {"obs": space}
        if ACTION_MASK in parts:
            raise SpaceError(
                f"the observations of {name_of_env(env)} have the key {ACTION_MASK!r} already: leave out action_mask=True, or "
                "--env.action-mask on the command line."
            )
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(self._size)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info, "reset"), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, "step"), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any], method: str) -> dict[str, Any]:
        who, key = name_of_env(self.env), self._key
        if key not in info:
            raise ActionMaskError(
                f"the info that {who} returned from {method}() has no {key!r}, it has {sorted(map(str, info))}: put the mask "
                "of actions there, in every step and reset, or leave out action_mask=True (--env.action-mask)."
            )
        value, mask = info[key], _as_array(info[key])
        if mask is None or mask.shape != (self._size,) or not ((mask == 0) | (mask == 1)).all():
            raise ActionMaskError(
                f"the info that {who} returned from {method}() has {key!r} = {value!r:.200}, expected an array of "
                f"{self._size} numbers 0 or 1, one for each action of {self.env.action_space}."
            )
        return {**(obs if self._is_dict else {"obs": obs}), ACTION_MASK: mask.astype(np.int8)}


def action_masks(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> ActionMasks | None:
    """The masks in observations of this space: those of a Dict with the key `action_mask`; None for any other space.

    Raises:
        SpaceError: there is such a key, but it does not fit the action space, or it is the only part.

    Example:
        >>> seen = spaces.Dict({"obs": spaces.Discrete(500), "action_mask": spaces.MultiBinary(6)})
        >>> action_masks(seen, spaces.Discrete(6)).num_choices, action_masks(spaces.Discrete(500), spaces.Discrete(6))
        (1, None)
    """
    if not isinstance(observation_space, spaces.Dict) or ACTION_MASK not in observation_space.spaces:
        return None
    space, size = observation_space.spaces[ACTION_MASK], _mask_size(action_space)
    found = f"observations have the key {ACTION_MASK!r}, {space}, and the actions are {action_space}"
    if size is None:
        raise SpaceError(
            f"{found}: only Discrete and MultiDiscrete actions have masks. Give this part of the observation another key, in a "
            "wrapper, if it is not a mask of actions; otherwise leave it out."
        )
    if space.shape != (size,):
        raise SpaceError(
            f"{found}: the mask has the shape {space.shape}, and the actions want {(size,)}, one number for each action (for "
            "MultiDiscrete, the masks of its elements one after the other). Change the mask; or give this part of the "
            "observation another key if it is not a mask of actions."
        )
    if not _holds_only_0_and_1(space):
        raise SpaceError(f"{found}: a mask holds 0 and 1. Make its space spaces.MultiBinary({size}).")
    without_mask(observation_space)
    return ActionMasks(action_space)  # type: ignore[arg-type]


def without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """An observation space without its part `action_mask`, for networks, because a mask is no feature.

    Raises:
        SpaceError: the mask is the only part.
    """
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    parts = {name: part for name, part in space.spaces.items() if name != ACTION_MASK}
    if not parts:
        raise SpaceError(
            f"observations of {space} hold only a mask, which is no input of networks: add another part, such as "
            '"obs": spaces.Box(0, 1, (1,)) with a constant number.'
        )
    return spaces.Dict(parts)


def choose_allowed(mask: Array, fraction: Array) -> Array:
    """The index [B] int64 at a fraction of the allowed ones: number floor(fraction * count) of those where `mask` is not 0.

    Args:
        mask: [B, n].
        fraction: [B] float in [0, 1).

    Example:
        >>> choose_allowed(np.array([[0, 1, 0, 1]] * 2), np.array([0.49, 0.5]))
        array([1, 3])
    """
    numbers = (mask != 0).cumsum(-1)
    count = numbers[:, -1]
    wanted = np.minimum((fraction * count).astype(np.int64), count - 1)  # rounding may give the count itself
    index: Array = (numbers > wanted[:, None]).argmax(-1)
    return index


def _as_array(value: Any) -> Array | None:
    """A mask as one array: those of the elements of MultiDiscrete actions, in a tuple or list, one after the other; None if it
    is none."""
    is_in_parts = isinstance(value, tuple) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], (list, tuple, np.ndarray))
    )
    try:
        return np.concatenate([np.ravel(part) for part in value]) if is_in_parts else np.asarray(value)
    except (ValueError, TypeError):  # of different lengths, or empty
        return None


def _binary_mask_of(obs: Any) -> Array:
    """The masks in observations.

    Raises:
        ActionMaskError: they have other numbers than 0 and 1.
    """
    mask = _mask_of(obs)
    if not ((mask == 0) | (mask == 1)).all():
        raise ActionMaskError(f"observations have an {ACTION_MASK!r} with other numbers than 0 and 1: {mask.tolist()!s:.80}.")
    return mask


def _mask_of(obs: Any) -> Array:
    mask: Array = to_arrays(obs[ACTION_MASK])
    return mask


def _mask_size(action_space: spaces.Space[Any]) -> int | None:
    """The number of numbers in a mask of these actions; None if there are no masks for them."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    return int(action_space.nvec.sum()) if isinstance(action_space, spaces.MultiDiscrete) else None


def _holds_only_0_and_1(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return bool((space.low >= 0).all() and (space.high <= 1).all())
    if isinstance(space, spaces.MultiDiscrete):
        return bool((space.start == 0).all() and (space.nvec == 2).all())
    return isinstance(space, spaces.MultiBinary)
