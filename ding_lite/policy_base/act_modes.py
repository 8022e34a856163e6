"""Modes of a policy that act: `collect_mode` and `eval_mode`, which middleware receive."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ding_lite.basics import add_note, foreign_attributes
from ding_lite.basics.comparisons import same_values
from ding_lite.data import Tree, to_device
from ding_lite.engine.manual_control import running_task
from ding_lite.envs import SpaceError, action_masks
from ding_lite.envs.arrays import actions_to_arrays, clipper, describe_shapes, to_arrays, to_tensors
from ding_lite.envs.spaces import hidden_difference, same_layout, same_space, space_spec
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.acting_weights import ActingWeights, PolicyWithWeights
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.foreign_hooks import MODE_ATTRIBUTES
from ding_lite.policy_base.learn_modes import LearnMode
from ding_lite.policy_check import HookReads, code_of_acting, may_be_wrong, misfit_of, own_object
from ding_lite.policy_state import StateDictError


class ActingPolicy(PolicyWithWeights, Protocol):
    """The interface that `ActMode` needs from its policy, and from the acting copy of the policy."""

    @property
    def cfg(self) -> PolicyConfig:
        """The configuration."""

    @property
    def seed(self) -> int:
        """The random seed."""

    @property
    def device(self) -> torch.device:
        """The device of the networks."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of one environment."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of one environment."""

    @property
    def made_with(self) -> dict[str, Any]:
        """The algorithm, its configuration and its spaces, as plain data."""

    @property
    def hook_metrics(self) -> MetricsLogger:
        """The logger of the hooks."""

    @property
    def learn_mode(self) -> LearnMode:
        """The mode that learns."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the hooks read; None if unknown."""

    @property
    def acting_settings(self) -> tuple[str, ...]:
        """Keyword arguments of `compute_actions` that the pipeline must set."""

    @property
    def bootstraps_from_actions(self) -> bool:
        """Whether targets have the value of the best allowed action in the next state."""

    @property
    def previous(self) -> tuple[str, ...]:
        """Those of prev_action_batch and prev_reward_batch that are parameters of `compute_actions`."""

    @property
    def observed(self) -> tuple[str, ...]:
        """Those of info_batch and episodes that are parameters of `compute_actions`."""

    @property
    def has_critic(self) -> bool:
        """Whether `with_values` can be called."""

    @property
    def has_extra_outputs(self) -> bool:
        """Whether `extra_action_out` is overridden."""

    def dry_run(self) -> HookReads:
        """Run the policy on a dummy batch, the first time that this is called."""

    def actor(self, role: str, index: int = 0, device: torch.device | None = None) -> Any:
        """An acting copy."""

    def get_initial_state(self) -> list[Any]:
        """The recurrent state at the start of an episode."""

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Actions for a batch of observations, the next recurrent state, and extra outputs."""

    def extra_action_out(self, obs: Any, state: Sequence[Any], /) -> dict[str, Any]:
        """More outputs of each step."""

    def with_values(self, batch: Tree, /) -> Tree:
        """A rollout with the critic's values."""

    def make_generators(self, role: str, index: int = 0) -> None:
        """Create random generators from the seed."""

    def generator_state(self) -> dict[str, Any]:
        """The states of the random generators."""

    def require_generator_state(self, where: str, state: Any, /) -> None:
        """Raise StateDictError if the states of random generators do not fit."""

    def load_generator_state(self, state: Mapping[str, Any], /) -> None:
        """Load the states of the random generators."""


@foreign_attributes(MODE_ATTRIBUTES)
class ActMode(ActingWeights):
    """A mode that acts with its own copy of the policy. `forward` first loads the newest weights into the copy.

    If iterations overlap, the engine chooses the weights instead: see `ActingWeights`.

    Args:
        policy: the policy that this is a mode of.
        actor: the acting copy; None makes one.
    """

    role: str
    actor: ActingPolicy
    _policy: ActingPolicy

    def __init__(self, policy: ActingPolicy, actor: ActingPolicy | None = None) -> None:
        super().__init__(policy, policy.actor(self.role) if actor is None else actor)
        self._remote: Any = None
        self._loaded: list[Any] = []  # random states of worker copies that do not exist yet
        self.env_action = clipper(policy.action_space)
        """Converts actions [B, ...] of the policy to actions for the environment: clips Box actions to their bounds."""
        self._plain = self.actor.device.type == "cpu"
        self._spec = space_spec(policy.observation_space)
        self._element = describe_shapes(self._spec)
        self.masks = action_masks(policy.observation_space, policy.action_space)
        """The masks of actions in observations; None if there are none."""

    def forward(self, obs: Any, state: Sequence[Any] | None = None, **kwargs: Any) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions for a batch of observations.

        Args:
            obs: [B, *obs_shape] arrays or tensors, nested like the space.
            state: recurrent state of the previous step, a batch per element; empty or None for policies without one.
            **kwargs: passed to `compute_actions`, such as `eps`.

        Returns:
            action, arrays [B, *action_shape] nested like the space; the next recurrent state; and the extra outputs of the
            policy, arrays [B, ...] by name.

        Raises:
            ObservationError: a ValueError; the observations do not fit the policy's space, or contain NaN.
            ActionMaskError: a ValueError; an action that the `action_mask` of its observation does not allow.
        """
        actor = self.current()
        if may_be_wrong(self._spec, obs):
            self._require_fitting(obs, None)
        try:
            tensors = torch.from_numpy(obs) if self._plain and type(obs) is np.ndarray else to_tensors(obs, actor.device)
        except (TypeError, RuntimeError) as error:
            self._require_fitting(obs, error)
            raise
        if state:
            state = [to_device(element, actor.device) for element in state]
        before = state or []
        try:
            action, state, outputs = actor.compute_actions(tensors, before, explore=self.explore, **kwargs)
            if self.explore and actor.has_extra_outputs:
                outputs = {**outputs, **(actor.extra_action_out(tensors, before) or {})}
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            self._require_fitting(obs, error)
            if not isinstance(error, RuntimeError):
                raise
            add_note(error, f"acting on {describe_shapes(tensors)}; one observation of this policy's space is {self._element}")
            raise
        if outputs:
            outputs = {name: to_arrays(output) for name, output in outputs.items()}
        if type(action) is not np.ndarray:
            action = actions_to_arrays(action, actor.action_space)
        if self.masks is not None:
            try:
                self.masks.require_allowed(obs, action, type(self._policy).__name__)
            except (TypeError, ValueError, LookupError) as error:
                self._require_fitting(obs, error)
                raise
        return action, state, outputs

    def _require_fitting(self, obs: Any, error: Exception | None) -> None:
        """Raise ObservationError if the observations do not fit the space; `error` is its cause, if there is one."""
        found = misfit_of(type(self._policy).__name__, self._policy.observation_space, obs)
        if found is not None:
            raise found from error

    @property
    def made_with(self) -> dict[str, Any]:
        """The policy's algorithm, configuration and spaces, as plain data; see `Policy.made_with`."""
        return self._policy.made_with

    def require_spaces(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        """Check that an environment has the spaces that the policy was made for.

        Raises:
            SpaceError: a space differs. The bounds of observations may differ.
        """
        made_for = self._policy.observation_space, self._policy.action_space
        if not same_layout(observation_space, made_for[0]) or not same_space(action_space, made_for[1]):
            batched = made_for[0].shape and observation_space.shape == made_for[0].shape[1:]
            hint = " Of a vector environment these are single_observation_space and single_action_space." if batched else ""
            found = observation_space, action_space
            hidden = "".join(map(hidden_difference, made_for, found))
            raise SpaceError(
                f"{type(self._policy).__name__} was made for the spaces {made_for[0]}, {made_for[1]}, and the environment has "
                f"{observation_space}, {action_space}{hidden}: make the policy from this environment's spaces.{hint}"
            )

    @property
    def metrics(self) -> MetricsLogger:
        """The logger of the hooks that act, in this mode's copy of the policy."""
        return self.actor.hook_metrics

    @property
    def learner(self) -> LearnMode:
        """The learning mode of the same policy."""
        return self._policy.learn_mode

    leader = learner

    def code_in_use(self, lane: str) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
        """The functions of the script that a middleware runs in this process by using it, each with the object whose methods
        they are: the hooks that act, and the networks of the acting copy."""
        return iter(()) if self._remote is not None else code_of_acting(self.actor, self.explore)

    def dry_run(self) -> None:
        """Run the policy on a dummy batch, the first time that this is called; see `Policy.dry_run`."""
        self._policy.dry_run()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it acts in other iterations than the one that learns, or in worker processes."""
        return self.is_led or self._remote is not None

    def worker_copy(self, index: int, name: str | None = None) -> ActMode:
        """A mode for worker `index`, with its own copy on the CPU. The worker copies new weights into it.

        Args:
            index: index of the worker.
            name: if several policies act, the name of this one, which seeds the generators too; see `reseed_for`.
        """
        self._policy.dry_run()  # a copy cannot run it
        actor = self._policy.actor(self.role, index, torch.device("cpu"))
        if name is not None:
            actor.make_generators(self.role, _index_of(name, index))
        return type(self)(actor, actor)

    def reseed_for(self, name: str) -> None:
        """Seed the random generators by this name, so that policies with one seed draw different random numbers.

        No effect if the generators have been used, reseeded or loaded from a state.
        """
        state = self.actor.generator_state()
        self.actor.make_generators(self.role)
        is_fresh = same_values(state, self.actor.generator_state())
        self.actor.make_generators(self.role, _index_of(name))
        if not is_fresh:
            self.actor.load_generator_state(state)

    @property
    def seed(self) -> int:
        """The policy's seed."""
        return self._policy.seed

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """The recurrent state at the start of B episodes, a batch per element; empty for policies without one.

        Tensors, arrays and numbers become tensors [B, ...]; other objects become lists of B deep copies.

        Raises:
            TypeError: an object cannot be copied.
        """
        name = type(self.actor).__name__
        return [_batch_of(element, batch_size, name) for element in self.actor.get_initial_state()]

    @property
    def state_columns(self) -> tuple[str, ...] | None:
        """The columns of recurrent state that the policy's hooks read; None if unknown."""
        read = self._policy.columns
        return None if read is None else tuple(name for name in read if name.startswith("state_"))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the extra outputs of acting, such as log_prob; empty if the dry run could not find them."""
        return self._policy.dry_run().outputs

    @property
    def previous(self) -> tuple[str, ...]:
        """Those of prev_action_batch and prev_reward_batch that are parameters of `compute_actions`."""
        return self.actor.previous

    @property
    def observed(self) -> tuple[str, ...]:
        """Those of info_batch and episodes that are parameters of `compute_actions`."""
        return self.actor.observed

    @property
    def cfg(self) -> PolicyConfig:
        """The policy's configuration."""
        return self._policy.cfg

    def bind_remote(
        self,
        states: Callable[[], Sequence[dict[str, Any]]],
        load_states: Callable[[Sequence[Mapping[str, Any]]], None],
    ) -> None:
        """Let worker copies act for this mode. `state_dict` then saves the states of their random generators.

        If the number of workers is the same as before, or as in a loaded state, they continue those random numbers.

        Args:
            states: returns the state of the random generators of each worker copy.
            load_states: loads such states into the worker copies.

        Raises:
            ValueError: the loaded state has another number of workers.
        """
        earlier, count = self._generator_states(), len(states())
        if self._loaded:
            self._require_as_many(self._loaded, count)
        self._remote, self._loaded = (states, load_states), []
        if len(earlier) == count:
            load_states(earlier)

    def _generator_states(self) -> list[Any]:
        return list(self._remote[0]()) if self._remote else self._loaded or [self.actor.generator_state()]

    @staticmethod
    def _require_as_many(states: Sequence[Any], count: int) -> None:
        if len(states) != count:
            raise ValueError(
                f"the state of a policy that acted in {len(states)} worker{'s' if len(states) > 1 else ''} does not fit "
                f"{count}: make the environments with workers={len(states)}."
            )

    def state_dict(self) -> dict[str, Any]:
        """The states of the random generators; with several worker copies, those of each copy."""
        states = self._generator_states()
        return states[0] if len(states) == 1 else {"twins": states}

    def worker_states(self, state: Mapping[str, Any]) -> list[Any]:
        """The states of the random generators of each worker copy in a saved state of this mode.

        Raises:
            StateDictError: it is not a state of a mode.
            ValueError: the state has another number of workers.
        """
        if not isinstance(state, Mapping):
            raise StateDictError(f"the state of {self.role}_mode is {state!r:.80}, expected a dict from state_dict().")
        twins = state.get("twins", [state])
        if not isinstance(twins, (list, tuple)) or not twins:
            raise StateDictError(f"state['twins'] is {twins!r:.80}, expected a list of the states of workers.")
        states = list(twins)
        if self._remote:
            self._require_as_many(states, len(self._remote[0]()))
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of the random generators. States of several workers wait for `bind_remote`.

        Raises:
            StateDictError: it is not a state of such a mode, or an entry does not fit; the message names it. Nothing is
                changed.
            ValueError: the state has another number of workers. Nothing is changed.
        """
        states = self.worker_states(state)
        for index, one in enumerate(states):
            if isinstance(one, Mapping) and "model" in one:
                found = f"a dict with {', '.join(map(str, one))}"
                raise StateDictError(
                    f"{type(self).__name__}.load_state_dict() wants the random states that its own state_dict() returns, got "
                    f"{found}. A state of the whole policy is for policy.load_state_dict(), or learn_mode.load_state_dict()."
                )
            self.actor.require_generator_state(f"state['twins'][{index}]" if "twins" in state else "state", one)
        if self._remote:
            self._remote[1](states)
        elif len(states) > 1:
            self._loaded = states
        else:
            self._loaded = []
            self.actor.load_generator_state(state)


def _index_of(name: str, worker: int = 0) -> int:
    """An index for the generators of the policy with this name; more than 32 bits, so that it is no index of a worker."""
    return (worker + 1 << 32) + zlib.crc32(name.encode())


class CollectMode(ActMode):
    """The mode that explores."""

    role, explore = "collect", True
    reads_leader_in = ("with_values",)
    """Methods that read the policy itself, and not the acting copy: middleware that call one wait for the learner."""

    @property
    def acting_settings(self) -> tuple[str, ...]:
        """Keyword arguments of `compute_actions` that the pipeline must set, because the policy would not explore otherwise."""
        return self._policy.acting_settings

    @property
    def bootstraps_from_actions(self) -> bool:
        """Whether targets of the policy have the value of the best allowed action in the next state."""
        return self._policy.bootstraps_from_actions

    @property
    def has_critic(self) -> bool:
        """Whether `with_values` can be called."""
        return self._policy.has_critic

    def with_values(self, batch: Tree) -> Tree:
        """A rollout [T, B, ...] with the critic's estimates, value and next_value [T, B].

        Raises:
            ContractError: iterations overlap, and the contract of the calling middleware does not name the learner.
        """
        if (running := running_task()) is not None:
            running.require_order(self.leader, f"{type(self._policy).__name__}.collect_mode.with_values()")
        return self._policy.with_values(batch)


class EvalMode(ActMode):
    """The mode that acts without exploration."""

    role, explore = "evaluate", False


def _batch_of(element: Any, batch_size: int, policy: str) -> Any:
    """One element of a recurrent state, repeated for B episodes."""
    if isinstance(element, (Tensor, np.ndarray, bool, int, float, np.generic)):
        tensor = torch.as_tensor(element)
        return tensor.unsqueeze(0).repeat(batch_size, *[1] * tensor.ndim)
    return [own_object(element, policy) for _ in range(batch_size)]
