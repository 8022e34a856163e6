"""Derived classes: turn functions such as `loss_fn` into methods of a new policy class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import gymnasium
import torch
from torch import Tensor, nn

from ding_lite.basics import did_you_mean
from ding_lite.basics.signatures import parameters_of, passed_signature_of, signature_of
from ding_lite.data import Tree
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.data_parallel import StepAverage
from ding_lite.policy_base.foreign_hooks import FOREIGN_HOOKS
from ding_lite.policy_base.hooks import Hooks
from ding_lite.policy_check import HookError

Hook = Callable[..., Any]
Base = TypeVar("Base", bound=Hooks)


class DerivedPolicy(Protocol):
    """The interface that the methods made from functions need from their policy."""

    optimizer: torch.optim.Optimizer
    """The optimizer of `params`."""

    averaging: StepAverage | None
    """Averages gradients over the processes that learn together; None if this process learns alone."""

    @property
    def model(self) -> Any:
        """The networks: of the policy that learns, or of the acting copy."""

    @property
    def params(self) -> list[nn.Parameter]:
        """The model's parameters."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration by short names."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of one environment."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of one environment."""

    @property
    def dry_run_results(self) -> dict[str, Any]:
        """Results of the dry run."""

    def dry_run(self) -> object:
        """Run the policy on a dummy batch, the first time that this is called."""

    def dist_class(self, logit: Tensor, model: nn.Module | None = None, /) -> Any:
        """The distribution over actions with these parameters."""


def derive(base: type[Base], name: str, mixins: Sequence[type], hooks: Mapping[str, Hook]) -> type[Base]:
    """Make a subclass of `base` with these mixins, and with methods made from these functions."""
    if isinstance(mixins, type) or not all(isinstance(mixin, type) for mixin in mixins):
        raise TypeError(f"{name}: mixins={mixins!r:.80} is not a list of classes: write mixins=[LearningRateSchedule].")
    methods: dict[str, Any] = {"__module__": _module_of(hooks) or base.__module__, "__init__": _constructor_of(base)}
    if set(hooks) == {"get_default_config"}:
        methods["only_defaults"] = True  # see `has_hooks_of_users`
    for hook, fn in hooks.items():
        if hook in FOREIGN_HOOKS:
            raise TypeError(f"{name}: there is no hook {hook!r}: {FOREIGN_HOOKS[hook]}")
        if hook not in _METHODS:
            hint = did_you_mean(hook, _METHODS)
            raise TypeError(f"{name}: there is no hook {hook!r}{hint} The arguments are {', '.join(_METHODS)}, mixins.")
        if not callable(fn):
            raise TypeError(f"{name}: {hook} is a {type(fn).__name__}: pass a function.")
        methods |= _METHODS[hook](name, fn)
    new = tuple(mixin for mixin in mixins if not issubclass(base, mixin))
    return type(name, (*new, base), methods)


def _constructor_of(base: type[Base]) -> Callable[..., None]:
    """The constructor of `base`. It hides the constructors of mixins, which `before_loss_init` calls."""

    @functools.wraps(base.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)

    return __init__


def _module_of(hooks: Mapping[str, Hook]) -> str | None:
    return next((fn.__module__ for fn in hooks.values() if hasattr(fn, "__module__")), None)


def _num_arguments(name: str, hook: str, fn: Hook, wanted: str, *counts: int) -> int:
    """The first of `counts` with which `fn` can be called: its number of positional arguments.

    Raises:
        TypeError: `fn` can be called with none of them.
    """
    signature, passed = signature_of(fn), passed_signature_of(fn)
    taken = [count for count in counts if _can_bind(signature, count)]
    if taken:
        return next((count for count in taken if _can_bind(passed, count)), taken[0])
    called = getattr(fn, "__name__", fn)
    raise TypeError(f"{name}: {hook} is called with ({wanted}), but the signature is {called}{signature}: change it to match.")


def _optional(fn: Hook, names: Sequence[str]) -> tuple[str, ...]:
    """Those of these names that a function declares behind the policy, and that a partial has not bound."""
    others = [*inspect.signature(fn, follow_wrapped=False).parameters.values()][1:]
    bound = fn.keywords if isinstance(fn, functools.partial) else ()
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return tuple(one.name for one in others if one.name in names and one.name not in bound and one.kind in kinds)


def _can_bind(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _loss(name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, "loss_fn", fn, "policy, model, dist_class, batch", 4)

    def loss(self: DerivedPolicy, batch: Tree) -> Any:
        return fn(self, self.model, self.dist_class, batch)

    return {"loss": loss}


def _postprocess(name: str, fn: Hook) -> dict[str, Any]:
    count = _num_arguments(name, "postprocess_fn", fn, "policy, batch, other_agent_batches, episode", 2, 3, 4)

    missing = {one[0]: NotHere(name, *one) for one in _NOT_HERE}
    given = [*missing.values()][: count - 2]
    by_name = {one: missing[one] for one in [*parameters_of(fn)][count:] if one in missing}

    def postprocess(self: DerivedPolicy, batch: Tree) -> Tree:
        processed: Tree = fn(self, batch, *given, **by_name)
        return processed

    return {"postprocess": postprocess}


_NOT_HERE = (
    (
        "other_agent_batches",
        "a policy learns from the rollout of its own agents. Add columns of other agents to ctx.parts[name].trajectories in a "
        "middleware between MultiAgentCollector and for_policy(name, ...), by trajectories.with_columns(name=...)",
    ),
    (
        "episode",
        "the batch is a rollout [T, B, ...] with several episodes, or rows of replay. Episodes end where batch.terminated or "
        "batch.truncated is true; EpisodeCollector collects whole ones, and ctx.finished_episodes has their returns and "
        "lengths",
    ),
)


class NotHere:
    """An argument of RLlib's `postprocess_fn` that does not exist here. Using it raises an error with the replacement."""

    def __init__(self, policy: str, name: str, advice: str) -> None:
        self.__dict__["_message"] = f"the postprocess_fn of {policy} uses {name!r}, which does not exist here: {advice}."

    def _refuse(self, *args: Any) -> NoReturn:
        raise TypeError(self.__dict__["_message"])

    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __setattr__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return "<does not exist here>"


def _stats(name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, "stats_fn", fn, "policy, batch", 2)
    return {"stats": lambda self, batch: fn(self, batch)}


def _extra_action_out(name: str, fn: Hook) -> dict[str, Any]:
    count = _num_arguments(name, "extra_action_out_fn", fn, "policy) or (policy, obs, state, model, dist", 1, 5)
    by_name = _optional(fn, ("obs", "state", "model", "dist")) if count == 1 else ()

    def extra_action_out(self: DerivedPolicy, obs: Any, state: Sequence[Any]) -> dict[str, Any]:
        if count == 1 and not by_name:
            return fn(self)  # type: ignore[no-any-return]
        has_dist = hasattr(self.model, "last_output") and (count == 5 or "dist" in by_name)
        dist = self.dist_class(self.model.last_output(), self.model) if has_dist else None
        if count == 1:
            known = {"obs": obs, "state": state, "model": self.model, "dist": dist}
            return fn(self, **{one: known[one] for one in by_name})  # type: ignore[no-any-return]
        return fn(self, obs, state, self.model, dist)  # type: ignore[no-any-return]

    return {"extra_action_out": extra_action_out}


def _gradients(name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, "gradients_fn", fn, "policy, optimizer, loss", 3)

    def compute_gradients(self: DerivedPolicy, loss: Tensor) -> dict[str, Any]:
        if "reads" not in self.dry_run_results:
            self.dry_run()
        if "gradients_fn_does_backward" not in self.dry_run_results:  # only during the dry run
            self.dry_run_results["gradients_fn_does_backward"], output = _first_gradients(self, fn, loss)
            return output
        does_backward = self.dry_run_results["gradients_fn_does_backward"]
        if does_backward and self.averaging is not None:
            raise HookError(
                f"gradients_fn of {name} computes the gradients itself, so they cannot be averaged over the processes of a "
                "data-parallel run before it clips them: leave the backward pass out, which then happens before the call."
            )
        if not does_backward:
            loss.backward()  # type: ignore[no-untyped-call]
            if self.averaging is not None:
                self.averaging.average(self.params)
        output = _set_gradients(fn(self, self.optimizer, loss))
        if does_backward and all(param.grad is None for param in self.params):
            raise HookError(
                f"gradients_fn of {name} left all gradients None, but it computed them itself in the dry run: compute them "
                "in each call, or in none."
            )
        return output

    return {"compute_gradients": compute_gradients}


def _first_gradients(policy: DerivedPolicy, fn: Hook, loss: Tensor) -> tuple[bool, dict[str, Any]]:
    """Call a gradients_fn for the first time. Returns whether it does a backward pass itself, and what to log."""
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    passed: list[bool] = []
    learned = [param for param in policy.params if param.requires_grad]
    watches = [param.register_hook(lambda _: passed.append(True)) for param in learned]  # type: ignore[no-untyped-call]
    try:
        output = _set_gradients(fn(policy, policy.optimizer, loss))
    finally:
        for watch in watches:
            watch.remove()
    return bool(passed), output


def _set_gradients(given: Any) -> dict[str, Any]:
    """The dict to log that a gradients_fn returned; if it returned (gradient, parameter) pairs, set them as `param.grad`."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    try:
        pairs = [(gradient, param) for gradient, param in given]
    except TypeError:
        raise HookError(
            f"a gradients_fn returned {given!r:.60} of type {type(given).__name__}: return None, a dict of values to log, or "
            "(gradient, parameter) pairs."
        ) from None
    for gradient, param in pairs:
        param.grad = gradient
    return {}


def _optimizer(name: str, fn: Hook) -> dict[str, Any]:
    count = _num_arguments(name, "optimizer_fn", fn, "policy, config", 1, 2)
    takes_config = count == 1 and bool(_optional(fn, ("config",)))

    def make_optimizer(self: DerivedPolicy, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        if takes_config:
            return fn(self, config=self.config)  # type: ignore[no-any-return]
        return fn(self, self.config) if count == 2 else fn(self)  # type: ignore[no-any-return]

    return {"make_optimizer": make_optimizer}


def _model(name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, "make_model", fn, "policy, observation_space, action_space, config", 4)
    return {"make_model": lambda self: fn(self, self.observation_space, self.action_space, self.config)}


def _init(hook: str, name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, hook, fn, "policy, observation_space, action_space, config", 4)

    def initialize(self: Any) -> None:
        if hook == "before_loss_init":
            Hooks.before_loss_init(self)  # sets up mixins; `fn` may call their constructors again
        fn(self, self.observation_space, self.action_space, self.config)

    return {hook: initialize}


def _default_config(name: str, fn: Hook) -> dict[str, Any]:
    _num_arguments(name, "get_default_config", fn, "", 0)
    given = fn()
    if given is not None and not isinstance(given, (PolicyConfig, Mapping)):
        fix = (
            f"its policy, {type(given).__name__}().policy"
            if hasattr(given, "policy")
            else "PPOPolicyConfig() or a dict of settings"
        )
        raise TypeError(
            f"{name}: get_default_config returned a {type(given).__name__}, not the configuration of a policy: return {fix}."
        )
    typed = {"config_type": type(given)} if isinstance(given, PolicyConfig) else {}
    return {"default_config": classmethod(lambda cls: fn()), **typed}


_METHODS: dict[str, Callable[[str, Hook], dict[str, Any]]] = {
    "loss_fn": _loss,
    "postprocess_fn": _postprocess,
    "stats_fn": _stats,
    "extra_action_out_fn": _extra_action_out,
    "gradients_fn": _gradients,
    "optimizer_fn": _optimizer,
    "make_model": _model,
    "before_init": functools.partial(_init, "before_init"),
    "before_loss_init": functools.partial(_init, "before_loss_init"),
    "after_init": functools.partial(_init, "after_init"),
    "get_default_config": _default_config,
}
