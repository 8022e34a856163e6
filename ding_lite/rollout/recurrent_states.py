"""Recurrent states: the recurrent state of a policy in each environment."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ding_lite.basics import arrays, plain
from ding_lite.data import Spec, allocate
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.trees import map_leaves
from ding_lite.envs import AgentSlots
from ding_lite.envs.spaces import space_spec
from ding_lite.envs.step_interfaces import Stepper
from ding_lite.policy import ActMode
from ding_lite.policy_check import own_object, state_like_before

_ACTION, _REWARD = "prev_action_batch", "prev_reward_batch"
_ARRAY = "numpy array"  # key of an array in plain data, which has only tensors


class RecurrentState:
    """The recurrent state of a policy in B environments, and its last actions and rewards, if it needs them.

    Each element of the state is a tensor [B, ...], or a list of B objects, as from `policy.get_initial_state`. At the start of
    an episode it is reset to the initial state. Objects are recorded and saved as deep copies, so a policy may change them in
    place.

    The last action and reward are stored with the environments (`Stepper.last`), because another worker may have stepped them.

    Args:
        policy: the acting mode.
        env: its environments.
    """

    def __init__(self, policy: ActMode, env: Stepper) -> None:
        self._policy, self._env = policy, env
        self._policy_name = type(getattr(policy, "actor", policy)).__name__
        self.state: list[Any] = list(policy.get_initial_state(env.num_envs) or ())
        """A tensor or list for each element; empty for policies without a recurrent state."""
        self._is_loaded = self._has_warned = False
        self.previous: tuple[str, ...] = tuple(getattr(policy, "previous", ()))
        """Names of the values of the last step that the policy needs."""
        self.observed: tuple[str, ...] = tuple(getattr(policy, "observed", ()))
        """Names of what the policy needs of the current episodes: info_batch, episodes."""
        self._action_spec: Spec = space_spec(env.single_action_space)
        stored: tuple[str, ...] | None = getattr(policy, "state_columns", None)
        self._stored = [
            (name, element)
            for element in range(len(self.state))
            for name in (f"state_in_{element}", f"state_out_{element}")
            if stored is None or name in stored
        ]

    @property
    def is_needed(self) -> bool:
        """Whether the policy has a recurrent state, or needs the last action or reward, infos or episodes."""
        return bool(self.state or self.previous or self.observed)

    def act(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        """The policy's outputs for these observations [B, ...], and the state before and after, arrays by name.

        Args:
            **kwargs: for the policy's `compute_actions`.
        """
        self.restart()
        acted_with = self.columns("state_in")  # before the policy may change it in place
        action, state, outputs = self._policy.forward(obs, self.state or None, **self.inputs(), **kwargs)
        if self.state:
            self.update(state)
        return {"action": action, **acted_with, **self.columns("state_out"), **outputs}

    def pass_through(self, action: Any) -> dict[str, Any]:
        """The outputs for an action that the policy did not compute, with an unchanged state."""
        self.restart()
        return {"action": action, **self.columns("state_in"), **self.columns("state_out")}

    def restart(self) -> None:
        """Reset the state in environments in which an episode begins."""
        restarted = self._env.restarted
        if not self.state:
            return
        self._env.acted_by = self
        if self._env.stepped_by is not self and not self._has_warned:
            self._warn_of_gap(restarted)
        if restarted is None or not restarted.any():
            return
        fresh = self._policy.get_initial_state(self._env.num_envs)
        self.state = [_chosen(restarted, *elements) for elements in zip(fresh, self.state, strict=True)]

    def _warn_of_gap(self, restarted: np.ndarray[Any, Any] | None) -> None:
        """Warn if another worker took the last step of an episode that continues: the recurrent state lacks that step."""
        # Some agents may join an episode later.
        begins = restarted is not None and (restarted.any() if isinstance(self._env, AgentSlots) else restarted.all())
        if begins or self._is_loaded:
            return
        self._has_warned = True
        warnings.warn(
            f"{self._policy_name} has a recurrent state, but acts in episodes that it did not begin, so its state does not fit "
            "them. Reset the environments before, continue with the same collector, or load the state that was saved with the "
            "environments, worker.load_state_dict(state).",
            stacklevel=2,
        )

    def update(self, state: Sequence[Any]) -> None:
        """Store the state that the policy returned: for each element a tensor, array or list [B, ...].

        Raises:
            ValueError, TypeError: its elements, shapes or kinds of dtype differ from the initial state.
        """
        self.state = state_like_before(self.state, state, self._policy_name)

    def columns(self, prefix: str) -> dict[str, Any]:
        """Copies of the state as columns by name, arrays [B, ...] of numbers or objects.

        Args:
            prefix: "state_in" for the state before acting, or "state_out" for the state after it.
        """
        return {name: self._column(self.state[element]) for name, element in self._stored if name.startswith(prefix)}

    def _column(self, element: Any) -> np.ndarray[Any, Any]:
        if isinstance(element, torch.Tensor):
            return np.array(element.detach().cpu().numpy())
        return to_objects(self._copied([element])[0])

    def _copied(self, state: Sequence[Any]) -> list[Any]:
        """Copies of the elements, since a policy may change them in place."""
        return [
            element.clone() if isinstance(element, torch.Tensor) else [own_object(it, self._policy_name) for it in element]
            for element in state
        ]

    def inputs(self) -> dict[str, Any]:
        """What the policy needs by name: arrays [B, ...] of the last step, zeros at the start of an episode; and lists of the
        current infos and episodes."""
        found: dict[str, Any] = {}
        if "info_batch" in self.observed:
            found["info_batch"] = [dict(info) for info in self._env.infos]
        if "episodes" in self.observed:
            found["episodes"] = self._env.running_episodes
        return {**found, **self._last_step()} if self.previous else found

    def _last_step(self) -> dict[str, Any]:
        restarted, count = self._env.restarted, self._env.num_envs
        if self._env.last is None or restarted is None:
            action, reward = self._env.last or self._nothing()
        else:
            action, reward = map_leaves(
                lambda last, none: np.where(restarted.reshape(count, *[1] * (last.ndim - 1)), none, last),
                dict(enumerate(self._env.last)),
                dict(enumerate(self._nothing())),
            ).values()
        return {name: value for name, value in ((_ACTION, action), (_REWARD, reward)) if name in self.previous}

    def _nothing(self) -> tuple[Any, np.ndarray[Any, Any]]:
        count = self._env.num_envs
        zeros = map_leaves(lambda leaf: np.zeros_like(leaf), allocate(self._action_spec, count))
        return zeros, np.zeros(count, np.float32)

    def observe_step(self, action: Any, reward: np.ndarray[Any, Any]) -> None:
        """Store the actions [B, ...] and rewards [B] of the last step."""
        self._env.stepped_by, self._env.acted_by, self._is_loaded = self, None, False
        if self.previous:
            kept = map_leaves(lambda leaf, like: np.array(leaf, like.dtype), action, allocate(self._action_spec, 0))
            self._env.last = kept, np.array(reward, np.float32)

    def raw_state(self) -> dict[str, Any]:
        """The state in each environment, with objects unchanged, and the last actions and rewards."""
        last = self._env.last if self.previous else None
        return {"state": self._copied(self.state), "last": None if last is None else list(last)}

    @staticmethod
    def as_plain(raw_state: Mapping[str, Any]) -> dict[str, Any]:
        """A result of `raw_state` as plain data.

        Raises:
            TypeError: the state holds objects that a checkpoint cannot hold.
        """
        return {"state": plain(_marked(raw_state["state"]), "recurrent state"), "last": plain(raw_state["last"])}

    def state_dict(self) -> dict[str, Any]:
        """The state in each environment, and the last actions and rewards, as plain data."""
        return self.as_plain(self.raw_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, or a result of `raw_state`.

        Raises:
            ValueError: the state is of another policy, or has another number of environments.
        """
        saved, count = _unmarked(state["state"]), self._env.num_envs
        if len(saved) != len(self.state) or any(len(element) != count for element in saved):
            found = [len(element) for element in saved]
            raise ValueError(
                f"the saved recurrent state has elements for {found} environments, but this policy has {len(self.state)} "
                f"elements for {count} environments: use the same policy and number of environments as in the saved run."
            )
        self.state, self._is_loaded = self._copied(saved), True
        if self.previous and state["last"] is not None:
            action, reward = arrays(state["last"])
            self._env.last = action, reward


def _chosen(restarted: np.ndarray[Any, Any], fresh: Any, old: Any) -> Any:
    if not isinstance(old, torch.Tensor):
        return [new if begins else one for begins, new, one in zip(restarted, fresh, old)]
    where = torch.from_numpy(restarted).to(old.device).reshape(-1, *[1] * (old.ndim - 1))
    return torch.where(where, fresh.to(old.device), old)


def _marked(state: Any) -> Any:
    """The same with each array in a dict, to distinguish it from a tensor."""
    if isinstance(state, np.ndarray):
        return {_ARRAY: state}
    if isinstance(state, Mapping):
        return {key: _marked(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        items = [_marked(value) for value in state]
        return tuple(items) if isinstance(state, tuple) else items
    return state


def _unmarked(state: Any) -> Any:
    """The reverse; objects other than plain data are unchanged."""
    if type(state) is dict:
        if state.keys() == {_ARRAY}:
            return arrays(state[_ARRAY])
        return {key: _unmarked(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_unmarked(value) for value in state)
    return state
