"""The dry run: runs a policy once on a dummy batch, to find errors in its hooks before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import unwrap
from types import FunctionType
from typing import Any, Protocol, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ding_lite.basics.attribute_reads import instructions_of
from ding_lite.basics.blocks import block
from ding_lite.basics.global_random import global_random_states
from ding_lite.basics.messages import describe_error
from ding_lite.data import Tree, flatten, nested, to_device, tree
from ding_lite.data.column_names import RESERVED
from ding_lite.data.trees import map_leaves
from ding_lite.envs import RunningEpisode, action_masks
from ding_lite.envs.action_masks import ACTION_MASK
from ding_lite.envs.arrays import to_arrays, to_tensors
from ding_lite.envs.spaces import space_spec, subspaces
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.reserved_names import ACTING, LEARNING
from ding_lite.policy_check.acting_attributes import ChangesByActing
from ding_lite.policy_check.batch_checks import element_shapes
from ding_lite.policy_check.columns import ColumnError, HookReads, columns_read, described, leaves_of, read_batch
from ding_lite.policy_check.gradients import PolicyWithModel, require_gradients
from ding_lite.policy_check.hook_results import (
    HookError,
    require_actions,
    require_as_long,
    require_batch,
    require_mapping,
    require_real,
    require_rows,
    require_scalar,
    with_stats,
)
from ding_lite.policy_check.logged_names import require_logged_names, require_own_stats, require_single_stats
from ding_lite.policy_check.policy_restoring import RestorablePolicy, restoring_state
from ding_lite.policy_check.recurrent_checks import state_like_before

_STEPS, _ENVS = 2, 3  # sizes of the dummy rollout: small, and different, to find dimensions in the wrong order


class DryRunMode(Protocol):
    """The interface that the dry run needs from the policy's mode that acts."""

    @property
    def actor(self) -> Any:
        """The acting copy."""

    @property
    def previous(self) -> tuple[str, ...]:
        """Those of prev_action_batch and prev_reward_batch that are parameters of `compute_actions`."""

    @property
    def observed(self) -> tuple[str, ...]:
        """Those of info_batch and episodes that are parameters of `compute_actions`."""

    @property
    def metrics(self) -> MetricsLogger:
        """The logger of the hooks that act."""

    def get_initial_state(self, batch_size: int, /) -> list[Any]:
        """The recurrent state at the start of B episodes."""

    def forward(self, obs: Any, state: Sequence[Any] | None = None, **kwargs: Any) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Actions, the next recurrent state, and extra outputs."""


class DryRunPolicy(RestorablePolicy, PolicyWithModel, Protocol):
    """The interface that the dry run needs from a policy: its hooks, and the attributes that describe their batches."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of one environment."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of one environment."""

    @property
    def device(self) -> torch.device:
        """The device of the networks."""

    @property
    def derived(self) -> Mapping[str, tuple[int, ...]]:
        """Columns that the pipeline may add, with the shape of one element."""

    @property
    def learns_from(self) -> str:
        """The batch of `learn_on_batch`: "rollouts" or "transitions"."""

    @property
    def loss_takes(self) -> str:
        """The batch of `loss`: "rollouts" or "transitions"."""

    @property
    def stats_take_rollouts(self) -> bool:
        """Whether `stats` takes the batch of `learn_on_batch` instead of the batch of `loss`."""

    @property
    def has_loss(self) -> bool:
        """Whether `loss` is overridden."""

    @property
    def given_model(self) -> str | None:
        """The class of the model that was given to the constructor; None if the policy has made it."""

    def check_model(self, obs: Any, /) -> None:
        """Check the outputs of the model for dummy observations."""

    def dummy_batch(self, batch: Tree, /) -> Tree:
        """The dummy batch, changed as the pipeline changes its batches."""

    def postprocess(self, batch: Tree, /) -> Tree:
        """Prepare a batch for `learn_on_batch`."""

    def loss_batch(self, batch: Tree, /) -> Tree:
        """The batch that `loss` takes."""

    def before_step(self) -> None:
        """Called before each gradient step, and so before `loss`."""

    def loss(self, batch: Tree, /) -> Any:
        """The loss of a batch."""

    def compute_gradients(self, loss: Tensor, /) -> dict[str, Any]:
        """Set the gradients. Returns a dict to log."""

    def stats(self, batch: Tree, /) -> dict[str, Any]:
        """More values to log."""


P = TypeVar("P", bound=DryRunPolicy)


class _DummyInfo(dict[str, Any]):
    """An info in which every name has the value 0.0."""

    def __missing__(self, name: str) -> float:
        return 0.0

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """0.0."""
        return 0.0


class HookCallError(HookError):
    """A hook raised an error on the dummy batch."""


def try_out(policy: P, make_mode: Callable[[P], DryRunMode]) -> HookReads:
    """Run a policy on a dummy batch: act, postprocess, begin a step, compute loss, gradients and statistics. Restore it after.

    Args:
        policy: the policy.
        make_mode: makes the mode that acts.

    Returns:
        The columns that the hooks read, and the names of the extra outputs.

    Raises:
        ColumnError: a hook reads a column that the batch does not have.
        HookError: a hook raises an error, or returns something of the wrong shape or type. Errors that hooks raise are ignored
            if the policy does not learn.
    """
    with restoring_state(policy):
        if policy.given_model is not None:
            _check_model(policy)
        try:
            mode = make_mode(policy)
            changes = ChangesByActing(policy, mode.actor)
            columns, outputs = _acted(policy, mode)
            changes.note()
        except HookCallError:
            # A rule-based policy may need real observations of its environment. If it fails on these too, acting raises.
            if _only_acts(policy):
                return HookReads(None, None)
            raise
        try:
            read = _learned(policy, columns, outputs) if policy.has_loss else HookReads(None, None)
        except NotImplementedError:
            read = HookReads(None, None)
        except HookCallError as error:
            if not _is_set_before(policy, str(error), error.__cause__):
                raise
            read = HookReads(None, None)
    return read._replace(outputs=outputs)


def _is_set_before(policy: DryRunPolicy, hook: str, error: BaseException | None) -> bool:
    """Whether a hook failed because an attribute of the policy is missing that its own `learn_on_batch` sets around the hook,
    or its `after_step` before `stats`. The dry run calls neither."""
    if not isinstance(error, AttributeError) or error.obj is not policy:
        return False
    names = ("learn_on_batch", "after_step") if hook.startswith("stats of ") else ("learn_on_batch",)
    around = [vars(kind).get(name) for kind in type(policy).__mro__ for name in names]
    codes = [unwrap(it).__code__ for it in around if isinstance(it, FunctionType)]
    return any(it.opname == "STORE_ATTR" and it.argval == error.name for code in codes for it in instructions_of(code))


def _check_model(policy: DryRunPolicy) -> None:
    """Check the outputs of a model that was given to the constructor."""
    obs = to_tensors(dummy_elements(policy.observation_space, _ENVS), policy.device)
    name = f"the model of {type(policy).__name__}, a {type(policy.model).__name__},"
    with _explained(name, lambda: f"{_ENVS} observations, {described({'obs': obs})}"):
        policy.check_model(obs)


def _only_acts(policy: DryRunPolicy) -> bool:
    """Whether the policy has no loss, or its loss raises NotImplementedError."""
    if not policy.has_loss:
        return True
    try:
        policy.loss(read_batch({}, f"loss of {type(policy).__name__}"))
    except NotImplementedError:
        return True
    except Exception:  # noqa: BLE001  a real loss fails because the batch has no columns
        return False
    return False


def _acted(policy: DryRunPolicy, mode: DryRunMode) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Act on dummy observations. Returns a rollout [T, B, ...] as a collector writes it, and the names of the extra outputs."""
    name = f"compute_actions of {type(policy).__name__}"
    obs = dummy_elements(policy.observation_space, _ENVS)
    if action_masks(policy.observation_space, policy.action_space) is not None:
        obs[ACTION_MASK][...] = 1
    with _explained(f"get_initial_state of {type(policy).__name__}", lambda: "before the first step"):
        state = mode.get_initial_state(_ENVS)
    action_spec = space_spec(policy.action_space)
    given = {
        "prev_action_batch": dummy_elements(policy.action_space, _ENVS),
        "prev_reward_batch": np.zeros(_ENVS, np.float32),
        "info_batch": [_DummyInfo() for _ in range(_ENVS)],
        "episodes": [RunningEpisode(index, 0, 0, 0.0) for index in range(_ENVS)],
    }
    previous = {key: given[key] for key in (*mode.previous, *getattr(mode, "observed", ()))}
    before = global_random_states()
    with torch.inference_mode(), _explained(name, lambda: f"{_ENVS} observations, {described({'obs': obs})}"):
        action, after, outputs = mode.forward(obs, state, **previous)
    _warn_of_draws(name, _draws(before))
    require_logged_names(f"{name} logs", mode.metrics, ACTING)
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
    taken = [key for key in outputs if key in step or key in RESERVED or key.startswith(("state_in_", "state_out_"))]
    if taken:
        raise HookError(f"{name} returns the extra output {taken[0]!r}, but this column is reserved: give it another name.")
    step |= outputs
    for column, shape in policy.derived.items():
        value = np.full((_ENVS, *shape), float(column in ("weight", "discount")), np.float32)
        name, _, inner = column.partition(".")
        if inner:
            step.setdefault(name, {})[inner] = value
        else:
            step.setdefault(column, value)
    rollout: dict[str, Any] = map_leaves(lambda leaf: np.stack([leaf] * _STEPS), step)
    return rollout, tuple(outputs)


def _learned(policy: DryRunPolicy, columns: dict[str, Any], outputs_of_acting: Sequence[str]) -> HookReads:
    """Call the hooks that learn on a dummy rollout. Returns the columns that they read, and the shapes of the added ones."""
    kind = type(policy).__name__
    before = global_random_states()
    policy.hook_metrics.reset()  # removes values that acting logged: these may have the names of learning's values
    if policy.learns_from == "transitions":
        columns = map_leaves(lambda leaf: leaf.reshape(_STEPS * _ENVS, *leaf.shape[2:]), columns)
    columns = to_device(nested(policy.dummy_batch(tree(columns))), policy.device)
    raw, versions = read_batch(columns, f"postprocess of {kind}"), _versions(columns)
    with _watched(policy, f"postprocess of {kind}"), _explained(f"postprocess of {kind}", lambda: described(columns)):
        processed = policy.postprocess(raw)
    if policy.learns_from == "rollouts":  # other middleware use these tensors too
        _require_unchanged(f"postprocess of {kind}", columns, versions)
    read = columns_read(raw)
    leaves = _leaves_of(processed, f"postprocess of {kind}")
    if policy.learns_from == "rollouts" and policy.loss_takes == "transitions":  # all columns are flattened to rows together
        require_as_long(f"postprocess of {kind}", columns, leaves)
    rows = _leaves_of(policy.loss_batch(tree(leaves)), f"loss_batch of {kind}")
    with _watched(policy, f"before_step of {kind}"), _explained(f"before_step of {kind}", lambda: "before a gradient step"):
        policy.before_step()
    for_loss = read_batch(rows, f"loss of {kind}")
    with _watched(policy, f"loss of {kind}"), _explained(f"loss of {kind}", lambda: described(rows)):
        given = policy.loss(for_loss)
        loss, outputs = with_stats(given)
    require_scalar(f"loss of {kind}", loss)
    require_own_stats(policy, loss, given)
    require_real(kind, policy.model)
    with (
        _watched(policy, f"gradients of {kind}"),
        require_gradients(policy),
        _explained(f"gradients of {kind}", lambda: f"a loss of {float(loss.detach())}"),
    ):
        of_gradients = require_mapping(f"gradients of {kind}", policy.compute_gradients(loss))
    for_stats = read_batch(leaves if policy.stats_take_rollouts else rows, f"stats of {kind}")
    with _watched(policy, f"stats of {kind}"), _explained(f"stats of {kind}", lambda: described(rows)):
        of_rows = require_mapping(f"stats of {kind}", policy.stats(for_stats))
    drawn = [name for name in _draws(before) if name != "torch"]  # `_watched` warns of torch, with the name of the hook
    _warn_of_draws(f"a hook of {kind} that learns (postprocess, loss, gradients or stats)", drawn)
    require_single_stats(kind, {"loss": outputs, "gradients": of_gradients or {}, "stats": of_rows or {}})
    _require_apart(policy, {**outputs, **(of_gradients or {}), **(of_rows or {})})
    require_logged_names(f"a hook of {kind} that learns logs", policy.hook_metrics, LEARNING)
    by_loss = columns_read(for_loss)
    passed_on = {name for name in by_loss | columns_read(for_stats) if name in columns}
    collected = tuple(name for name in columns if name in read | passed_on)
    added = {name for name in (*policy.derived, *outputs_of_acting) if name.partition(".")[0] in collected}
    shapes = element_shapes(policy.observation_space, policy.action_space, columns, added)
    return HookReads(collected, tuple(name for name in rows if name in by_loss), shapes=shapes)


def _versions(columns: Mapping[str, Any]) -> dict[str, int]:
    """Torch's count of changes in place of each leaf, by its name."""
    return {"/".join(path): leaf._version for path, leaf in flatten(columns) if isinstance(leaf, Tensor)}


def _require_unchanged(hook: str, columns: Mapping[str, Any], versions: Mapping[str, int]) -> None:
    """Raise HookError if a hook has changed values of columns in place since these counts."""
    changed = [name for name, version in _versions(columns).items() if version != versions[name]]
    if changed:
        raise HookError(
            f"{hook} changes the values of {', '.join(changed)} in place, but other middleware use these tensors too: assign a "
            f"new tensor, such as batch[{changed[0]!r}] = batch[{changed[0]!r}] * 2."
        )


@block
def _watched(policy: DryRunPolicy, hook: str) -> Iterator[None]:
    """Warn if a hook that learns draws from torch's global random generator. Reading the states of all takes much longer."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(torch.get_rng_state(), before):
        _warn_of_draws(hook, ["torch"], _dropouts(policy.model))


def _dropouts(model: nn.Module) -> list[str]:
    """Names of the modules that drop elements at random when they learn."""
    kinds = [(name or "model", module) for name, module in model.named_modules() if module.training]
    # Recurrent layers and attention have a probability of this name.
    return [
        name
        for name, it in kinds
        if isinstance(it, _DropoutNd) or (isinstance(it, (nn.RNNBase, nn.MultiheadAttention)) and it.dropout)
    ]


def _draws(before: Mapping[str, Any]) -> list[str]:
    """Names of the global random generators whose states have changed since then."""
    return [name for name, state in global_random_states().items() if state != before.get(name, state)]


def _warn_of_draws(hook: str, drawn: Sequence[str], dropouts: Sequence[str] = ()) -> None:
    """Warn if a hook draws from global random generators: threads share them, and each worker process has its own.

    Args:
        hook: name of the hook.
        drawn: names of the generators.
        dropouts: names of the modules with dropout, which cannot draw from another generator.
    """
    if not drawn:
        return
    advice = "draw from self.generator (torch) or self.rng (numpy), such as torch.randn(shape, generator=self.generator)."
    if dropouts:
        advice = (
            f"dropout ({', '.join(dropouts)}) draws from torch's global generator, and `torch.manual_seed(cfg.seed)` at the "
            f"start of the script makes runs that do not overlap repeatable. For other random numbers, {advice}"
        )
    warnings.warn(
        f"{hook} draws from the global random generator of {' and '.join(drawn)}. The policy's seed does not seed it, and "
        f"the order of its draws depends on timing if iterations overlap: {advice}",
        stacklevel=2,
    )


def _require_apart(policy: DryRunPolicy, outputs: Mapping[str, Any]) -> None:
    """Raise HookError if a name is both returned by a hook to log, and logged with `self.metrics`."""
    given = {"/".join(map(str, path)) for path, _ in flatten(outputs)}
    for path, _ in flatten(policy.hook_metrics.peek()):
        name = "/".join(map(str, path))
        if name in given:
            kind = type(policy).__name__
            raise HookError(
                f"{kind} returns {name!r} to log with each gradient step, and logs it with self.metrics too: these are two "
                "values under one name. Use another name in self.metrics, or do not return it from the hook."
            )


@block
def _explained(hook: str, batch: Callable[[], str]) -> Iterator[None]:
    """Turn errors from inside a hook into HookCallError, with the names of the hook and its batch."""
    try:
        yield
    except (ColumnError, HookError, NotImplementedError):
        raise
    except Exception as error:
        raise HookCallError(
            f"{hook} fails on a dummy batch ({batch()}): {describe_error(error)}. This is the dry run before the first "
            "step: everything that the hook needs must exist by then."
        ) from error


def _leaves_of(batch: Any, hook: str) -> dict[str, Any]:
    require_batch(hook, batch)
    return dict(nested(tree(leaves_of(batch))))


def dummy_elements(space: gymnasium.Space[Any], count: int) -> Any:
    """The element of this space that is nearest to zero, repeated `count` times: arrays [count, ...], nested like the space."""
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
