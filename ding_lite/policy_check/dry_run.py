"""The dry run: a policy run once on a dummy batch, so that what does not fit is known before the first step."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.basics.global_random import global_random_states
from ding_lite.data import Tree, flatten, map_leaves, nested, to_device, tree
from ding_lite.envs import space_spec, subspaces, to_arrays
from ding_lite.policy_check.columns import ColumnError, HookReads, columns_read, described, leaves_of, read_batch
from ding_lite.policy_check.hook_results import (
    HookError,
    require_actions,
    require_as_long,
    require_batch,
    require_mapping,
    require_rows,
    require_scalar,
    with_stats,
)
from ding_lite.policy_check.recurrent_states import state_like_before
from ding_lite.policy_check.restoring import RestorablePolicy, restoring_state

_RESERVED = {"valid"}
_STEPS, _ENVS = 2, 3  # of the dummy rollout: small, and different, so that mixed up dimensions show


class TriedMode(Protocol):
    """What the dry run asks of the mode that acts for the policy."""

    @property
    def previous(self) -> tuple[str, ...]:
        """Which of prev_action_batch and prev_reward_batch acting asks for."""

    def get_initial_state(self, batch_size: int, /) -> list[Any]:
        """The recurrent state at the start of B episodes."""

    def forward(self, obs: Any, state: Sequence[Any] | None = None, **kwargs: Any) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Actions, the next state, and extra outputs."""


class TriedPolicy(RestorablePolicy, Protocol):
    """What the dry run asks of a policy: the hooks that it calls, and what says how they are called."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""

    @property
    def device(self) -> torch.device:
        """Where it learns."""

    @property
    def derived(self) -> Mapping[str, tuple[int, ...]]:
        """Columns that the pipeline may add, and the shape of one element."""

    @property
    def learns_from(self) -> str:
        """ "rollouts" or "transitions"."""

    @property
    def loss_takes(self) -> str:
        """Likewise."""

    @property
    def stats_take_rollouts(self) -> bool:
        """Whether `stats` is given rollouts where the loss is given rows."""

    @property
    def has_loss(self) -> bool:
        """Whether it learns by a loss."""

    def dummy_batch(self, batch: Tree, /) -> Tree:
        """What the pipeline makes of a rollout before the policy learns from it."""

    def postprocess(self, batch: Tree, /) -> Tree:
        """The batch with columns added."""

    def loss_batch(self, batch: Tree, /) -> Tree:
        """The batch as the loss takes it."""

    def loss(self, batch: Tree, /) -> Any:
        """The loss of a batch."""

    def compute_gradients(self, loss: Tensor, /) -> dict[str, Any]:
        """Set the gradients. Returns what to log."""

    def stats(self, batch: Tree, /) -> dict[str, Any]:
        """More to log."""


P = TypeVar("P", bound=TriedPolicy)


class HookCallError(HookError):
    """What a hook raised itself."""


def try_out(policy: P, make_mode: Callable[[P], TriedMode]) -> HookReads:
    """Let the policy act, postprocess, and compute loss, gradients and statistics on a dummy batch, and put it back as it was.

    Args:
        make_mode: makes the mode of the policy that acts.

    Raises:
        ColumnError: a hook reads a column that the batch does not have.
        HookError: a hook fails, or gives something of a wrong shape or kind; of a policy that only acts, the latter alone.
    """
    with restoring_state(policy):
        try:
            columns, outputs = _acted(policy, make_mode(policy))
        except HookCallError:
            # A rule may want observations of the environment that it was written for: it shows when it acts.
            if _only_acts(policy):
                return HookReads(None, None)
            raise
        try:
            read = _learned(policy, columns) if policy.has_loss else HookReads(None, None)
        except NotImplementedError:
            read = HookReads(None, None)
    return read._replace(outputs=outputs)


def _only_acts(policy: TriedPolicy) -> bool:
    """Whether it has no loss, or one that says that it does not learn."""
    if not policy.has_loss:
        return True
    try:
        policy.loss(read_batch({}, f"loss of {type(policy).__name__}"))
    except NotImplementedError:
        return True
    except Exception:  # noqa: BLE001  it misses its columns, as it should
        return False
    return False


def _acted(policy: TriedPolicy, mode: TriedMode) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A rollout [T, B, ...] of dummy observations with what the policy does about them; the names of its extra outputs."""
    name = f"compute_actions of {type(policy).__name__}"
    obs = dummy_elements(policy.observation_space, _ENVS)
    with _explained(f"get_initial_state of {type(policy).__name__}", lambda: "of no step yet"):
        state = mode.get_initial_state(_ENVS)
    action_spec = space_spec(policy.action_space)
    given = {"prev_action_batch": dummy_elements(policy.action_space, _ENVS), "prev_reward_batch": np.zeros(_ENVS, np.float32)}
    previous = {key: given[key] for key in mode.previous}
    before = global_random_states()
    with torch.inference_mode(), _explained(name, lambda: f"{_ENVS} observations, {described({'obs': obs})}"):
        action, after, outputs = mode.forward(obs, state, **previous)
    _warn_of_global_draws(name, before)
    require_rows(name, _ENVS, {"action": action}, {"action": action_spec})
    require_actions(name, policy.action_space, action)
    require_rows(name, _ENVS, outputs)
    try:
        after = state_like_before(state, [] if after is None and not state else after, type(policy).__name__)
    except (TypeError, ValueError) as error:
        raise HookError(f"{error} The dry run has {_ENVS} observations.") from None
    states = {f"state_in_{k}": element for k, element in enumerate(state)}
    states |= {f"state_out_{k}": element for k, element in enumerate(after)}
    step = {
        "obs": obs,
        "action": action,
        **{key: to_arrays(element) for key, element in states.items()},
        "reward": np.zeros(_ENVS, np.float32),
        "next_obs": obs,
        "terminated": np.zeros(_ENVS, np.bool_),
        "truncated": np.zeros(_ENVS, np.bool_),
        "policy_version": np.zeros(_ENVS, np.int64),
    }
    taken = [key for key in outputs if key in step or key in _RESERVED or key.startswith(("state_in_", "state_out_"))]
    if taken:
        raise HookError(f"{name} gives an extra output {taken[0]!r}, which is a column of our own: give it another name.")
    step |= outputs
    for column, shape in policy.derived.items():
        step.setdefault(column, np.full((_ENVS, *shape), float(column in ("weight", "discount")), np.float32))
    rollout: dict[str, Any] = map_leaves(lambda leaf: np.stack([leaf] * _STEPS), step)
    return rollout, tuple(outputs)


def _learned(policy: TriedPolicy, columns: dict[str, Any]) -> HookReads:
    kind = type(policy).__name__
    policy.hook_metrics.reset()  # of what acting logged, which goes elsewhere
    if policy.learns_from == "transitions":
        columns = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), columns)
    columns = to_device(nested(policy.dummy_batch(tree(columns))), policy.device)
    raw = read_batch(columns, f"postprocess of {kind}")
    with _explained(f"postprocess of {kind}", lambda: described(columns)):
        processed = policy.postprocess(raw)
    read = columns_read(raw)
    leaves = _leaves_of(processed, f"postprocess of {kind}")
    if policy.learns_from == "rollouts" and policy.loss_takes == "transitions":  # which are cut into rows together
        require_as_long(f"postprocess of {kind}", columns, leaves)
    rows = _leaves_of(policy.loss_batch(tree(leaves)), f"loss_batch of {kind}")
    for_loss = read_batch(rows, f"loss of {kind}")
    with _explained(f"loss of {kind}", lambda: described(rows)):
        loss, outputs = with_stats(policy.loss(for_loss))
    require_scalar(f"loss of {kind}", loss)
    with _explained(f"gradients of {kind}", lambda: f"a loss of {float(loss)}"):
        of_gradients = require_mapping(f"gradients of {kind}", policy.compute_gradients(loss))
    for_stats = read_batch(leaves if policy.stats_take_rollouts else rows, f"stats of {kind}")
    with _explained(f"stats of {kind}", lambda: described(rows)):
        of_rows = require_mapping(f"stats of {kind}", policy.stats(for_stats))
    _require_apart(policy, {**outputs, **(of_gradients or {}), **(of_rows or {})})
    by_loss = columns_read(for_loss)
    passed_on = {name for name in by_loss | columns_read(for_stats) if name in columns}
    collected = tuple(name for name in columns if name in read | passed_on)
    return HookReads(collected, tuple(name for name in rows if name in by_loss))


def _warn_of_global_draws(hook: str, before: Mapping[str, Any]) -> None:
    """Warn where acting draws from a global generator: threads share it, and each worker process has another one."""
    drawn = [name for name, state in global_random_states().items() if state != before.get(name, state)]
    if drawn:
        warnings.warn(
            f"{hook} draws from the global random numbers of {' and '.join(drawn)}, which no seed of the policy sets, and "
            "whose order depends on timing where iterations overlap: draw from self.generator (torch) or self.rng (numpy), "
            "such as torch.randn(shape, generator=self.generator).",
            stacklevel=2,
        )


def _require_apart(policy: TriedPolicy, outputs: Mapping[str, Any]) -> None:
    """Refuse a name under which a hook gives a number to log and logs another one."""
    given = {"/".join(map(str, path)) for path, _ in flatten(outputs)}
    for path, _ in flatten(policy.hook_metrics.peek()):
        name = "/".join(map(str, path))
        if name in given:
            kind = type(policy).__name__
            raise HookError(
                f"{kind} gives {name!r} to log with each gradient step, and logs it with self.metrics as well: two numbers "
                "under one name. Take another name in self.metrics, or leave it out of what the hook returns."
            )


@contextlib.contextmanager
def _explained(hook: str, batch: Callable[[], str]) -> Iterator[None]:
    """Errors from inside a hook, with its name and what it was given."""
    try:
        yield
    except (ColumnError, HookError, NotImplementedError):
        raise
    except Exception as error:
        raise HookCallError(
            f"{hook} fails on a dummy batch ({batch()}): {type(error).__name__}: {error}. This is a dry run before "
            "the first step; what the hook needs has to be there by then."
        ) from error


def _leaves_of(batch: Any, hook: str) -> dict[str, Any]:
    require_batch(hook, batch)
    return dict(nested(tree(leaves_of(batch))))


def dummy_elements(space: gymnasium.Space[Any], count: int) -> Any:
    """`count` times the element of this space that is nearest to zero, as arrays, nested as the space is."""
    parts = subspaces(space)
    if parts is not None:
        return {name: dummy_elements(part, count) for name, part in parts.items()}
    least: Any = 0
    if isinstance(space, spaces.Box):
        least = np.clip(np.zeros(space.shape), space.low, space.high)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        least = space.start
    spec: Any = space_spec(space)
    return np.broadcast_to(np.asarray(least, spec.dtype), (count, *spec.shape)).copy()
