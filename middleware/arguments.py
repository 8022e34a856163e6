"""Checks of the arguments of middleware, done when a middleware is created and not in the first iteration."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from ding_lite.basics import Config, warn_caller
from ding_lite.config import RunConfig
from ding_lite.envs import stepper
from ding_lite.envs.carried_state import INSTEAD, statistics_in
from ding_lite.envs.vector_adapters import VectorEnvAdapter
from ding_lite.policy import CollectMode, EvalMode, LearnMode, Policy, PolicyConfig

_OF_REPLAY = "policy.learn.update_per_collect"
RUN_CONFIG = "the run's configuration, such as DQNConfig"
"""Describes the first argument of most middleware in messages."""


def require(middleware: str, given: object, attribute: str, described: str) -> None:
    """Refuse an argument without the attribute that the middleware uses; its class does not matter.

    Args:
        middleware: name of the middleware, for the message.
        attribute: attribute that the middleware uses, such as "attach", or dotted, such as "policy.other.eps".
        described: description of the expected argument, for the message.

    Raises:
        TypeError: the argument lacks the attribute.
    """
    try:
        operator.attrgetter(attribute)(given)
    except AttributeError:
        kind = type(given).__name__
        shown = f"one of type {kind}" if isinstance(given, Config) else f"{given!r:.80} of type {kind}"
        raise TypeError(
            f"{middleware} wants {described}, got {shown}, which has no {attribute!r}."
            f"{_instead(given, attribute) if 'configuration' in described else ''}"
        ) from None


def require_settings(middleware: str, cfg: object, *names: str, such_as: str = "DQNConfig") -> None:
    """Refuse a configuration that lacks one of these settings, such as "policy.learn.batch_size".

    Raises:
        TypeError: naming the setting.
    """
    for name in names:
        require(middleware, cfg, name, f"a configuration with {name}, such as {such_as}")


def policy_settings(cfg: RunConfig) -> Any:
    """The settings of the policy, whose names depend on the algorithm; `require_settings` checks that they are there."""
    return cfg.policy


def require_evaluations(middleware: str, cfg: object) -> None:
    """Refuse a configuration that lacks one of the settings that evaluators use.

    Raises:
        TypeError: naming the setting.
    """
    evaluator = (f"policy.eval.evaluator.{name}" for name in ("eval_freq", "eval_freq_env_step"))
    require_settings(middleware, cfg, *evaluator, "env.n_evaluator_episode", "env.stop_value", "log.video_every")


def require_info_columns(middleware: str, cfg: Any, env: object) -> None:
    """Refuse environments that do not record the columns of infos that the configuration names.

    Vector environments of other libraries record them from now on.

    Raises:
        ValueError: naming the columns.
    """
    wanted = tuple(getattr(cfg.env, "info_columns", ()))
    if wanted and isinstance(env, VectorEnv):
        adapter = stepper(env)
        if isinstance(adapter, VectorEnvAdapter):
            adapter.record_infos(wanted)
            return
    missing = [name for name in wanted if name not in getattr(env, "info_columns", ())]
    if missing:
        raise ValueError(
            f"cfg.env.info_columns = {wanted}, but {middleware} got environments that do not record {missing[0]!r}: make them "
            "with make_envs(..., **cfg.env.options()), or make_multi_agent_envs(..., info_columns=cfg.env.info_columns)."
        )


def warn_of_normalizers(middleware: str, env: object, is_evaluator: bool = False) -> None:
    """Warn of wrappers with running statistics, which the environments for collection and evaluation do not share."""
    for name in statistics_in(env):
        if name == "NormalizeReward":
            compared = ", and stop_value is compared with these" if is_evaluator else ""
            effect = f"so the returns of episodes are sums of normalised rewards{compared}"
        else:
            effect = "and its statistics are those of these environments alone: collection and evaluation normalise differently"
        warn_caller(f"the environments of {middleware} have the wrapper {name}, {effect}. Leave it out, and {INSTEAD[name]}.")


def _instead(given: object, attribute: str) -> str:
    """Advice for an argument that is almost the configuration that is wanted."""
    if attribute == _OF_REPLAY and isinstance(given, RunConfig):
        return " If its algorithm learns from rollouts, as PPO does, use multistep_trainer, and no buffer."
    if isinstance(given, type):
        return f" Pass an instance, {given.__name__}()."
    if isinstance(given, Mapping):
        return " Make one from its settings: DQNConfig().override(settings)."
    if hasattr(given, "learn") and hasattr(given, "collect"):
        return " Pass cfg, not cfg.policy."
    return ""


Mode = Literal["learn_mode", "collect_mode", "eval_mode"]
_MODES: dict[type, Mode] = {LearnMode: "learn_mode", CollectMode: "collect_mode", EvalMode: "eval_mode"}


def require_mode(middleware: str, given: Any, mode: Mode, *attributes: str) -> None:
    """Refuse another mode than the one that the middleware is for, the policy itself, and one that its dry run refuses.

    A policy of another library only needs the attributes that the middleware uses.

    Args:
        middleware: name of the middleware, for the message.
        mode: name of the mode that it needs.
        *attributes: attributes that the middleware uses.

    Raises:
        TypeError: naming both, and what to pass.
        ColumnError, HookError: see `Policy.dry_run`.
    """
    wanted, kind = f"policy.{mode}", type(given).__name__
    found = next((name for one, name in _MODES.items() if isinstance(given, one)), None)
    if isinstance(given, Policy) or found not in (None, mode):
        acts = mode != "learn_mode" and found in (None, "learn_mode")
        found_mode = f"{'the policy itself' if found is None else f'policy.{found}'}, of type {kind}"
        why = f"; a {kind} does not act by itself" if acts else ""
        raise TypeError(f"{middleware} wants {wanted}, got {found_mode}{why}: pass {wanted}.")
    for attribute in attributes:
        require(middleware, given, attribute, wanted)
    if found is not None:
        given.dry_run()


def require_transitions(middleware: str, policy: object) -> None:
    """Refuse a policy that learns from rollouts, for a middleware that samples transitions in any order.

    Raises:
        ValueError: the policy learns from rollouts.
    """
    if isinstance(policy, LearnMode) and policy.learns_from != "transitions":
        kind = policy.name
        raise ValueError(
            f"{middleware} draws transitions in any order, and {kind} learns from rollouts, in their order: use "
            f'multistep_trainer(cfg, policy.learn_mode), or set learns_from = "transitions" in {kind} if its loss '
            "does not need that order."
        )


def require_same_algorithm(middleware: str, cfg: object, policy: object) -> None:
    """Refuse the configuration of one algorithm together with a policy of another.

    Raises:
        TypeError: the algorithms differ.
    """
    given, own = getattr(cfg, "policy", None), getattr(policy, "cfg", None)
    if not isinstance(given, PolicyConfig) or not isinstance(own, PolicyConfig):
        return  # a policy of another library
    if not type(own).__module__.startswith("ding_lite.policy."):
        return  # a policy of the user may use any configuration
    if not isinstance(given, type(own)) and not isinstance(own, type(given)):
        raise TypeError(
            f"{middleware} wants the configuration that the policy was made with, {type(own).__name__}, got a "
            f"{type(cfg).__name__} with a {type(given).__name__}: use the same configuration for both."
        )
    if type(given) is type(own):
        _warn_of_unused_settings(middleware, given, own)


_READ_BY_MIDDLEWARE = frozenset(
    f"learn.{name}" for name in ("batch_size", "update_per_collect", "learning_starts", "unroll_len", "burn_in", "priority_eta")
) | frozenset(
    ("collect.n_sample", "collect.n_episode", "collect.discount_factor", "collect.gae_lambda", "random_collect_size")
    + ("seed", "device")
)
"""Settings of a policy that middleware or the script read."""


def _warn_of_unused_settings(middleware: str, given: PolicyConfig, own: PolicyConfig) -> None:
    """Warn of settings that were changed from their default, where the policy was made with another value."""
    default, found = type(given)(), []
    for section in ("", "learn", "model", "collect"):
        of_policy, of_run, plain = (getattr(one, section, None) if section else one for one in (own, given, default))
        for name in vars(of_run) if of_run is not None and type(of_run) is type(of_policy) is type(plain) else ():
            value, used = getattr(of_run, name), getattr(of_policy, name)
            place = f"{section}.{name}" if section else name
            if isinstance(value, Config) or place in _READ_BY_MIDDLEWARE:
                continue
            if value not in (used, getattr(plain, name)):
                found.append(f"policy.{place} = {value!r} (the policy has {used!r})")
    if found:
        warnings.warn(
            f"the configuration of {middleware} has settings without effect on the policy, which was made with others: "
            f"{', '.join(found)}. Change the configuration before the policy is made from it.",
            stacklevel=4,
        )


def warn_of_other_settings(middleware: str, cfg: object, policy: object, *names: str) -> None:
    """Warn of settings that this middleware reads, where the policy was made with another value, which is not the default.

    Args:
        middleware: name of the middleware, for the message.
        cfg: configuration of the run.
        policy: the policy or one of its modes.
        *names: the settings by dotted name, such as "learn.batch_size".
    """
    given, own = getattr(cfg, "policy", None), getattr(policy, "cfg", None)
    if given is own or not isinstance(given, PolicyConfig) or not isinstance(own, PolicyConfig):
        return
    default, found = type(own)(), []
    for name in names:
        used, made, usual = (_setting(one, name) for one in (given, own, default))
        if made not in (used, usual):
            found.append(f"policy.{name} = {made!r} ({middleware} has {used!r})")
    if found:
        warn_caller(
            f"{middleware} does not use settings that the policy was made with, because it reads them from its own "
            f"configuration: {', '.join(found)}. Make the policy from cfg.policy; or set cfg.policy = policy.cfg before the "
            "middleware is made."
        )


def _setting(cfg: PolicyConfig, name: str) -> Any:
    try:
        return operator.attrgetter(name)(cfg)
    except AttributeError:
        return None


class SettingsReadOnce:
    """Warns before a run of settings that a middleware has read when it was made, and that have been changed since.

    Args:
        middleware: name of the middleware, for the message.
        cfg: configuration of the run.
        *names: the settings by dotted name, such as "collect.n_sample" of the policy.
    """

    def __init__(self, middleware: str, cfg: RunConfig, *names: str) -> None:
        self._middleware, self._cfg, self._read = middleware, cfg, {name: _setting(cfg.policy, name) for name in names}
        self._reported: dict[str, Any] = {}

    def __call__(self) -> None:
        """Warn once of each new value. To be called in `begin_run`."""
        now = {name: _setting(self._cfg.policy, name) for name in self._read}
        found = {name: it for name, it in now.items() if it != self._read[name] and it != self._reported.get(name)}
        self._reported.update(found)
        if found:
            shown = ", ".join(f"policy.{name} = {it!r} (made with {self._read[name]!r})" for name, it in found.items())
            warnings.warn(
                f"{self._middleware} was made before its configuration was changed, and does not follow the change: {shown}. "
                f"Make {self._middleware} after the change, or give it a configuration of its own, copy.deepcopy(cfg).",
                stacklevel=2,
            )


def warn_of_later_settings(middleware: str, policy: object) -> None:
    """Warn before a run of settings that were changed in the policy's own configuration after it was made."""
    found = getattr(policy, "unfollowed_settings", {})  # a policy of another library has none
    if found:
        shown = ", ".join(f"policy.{name} = {now!r} (made with {made!r})" for name, (now, made) in found.items())
        warnings.warn(
            f"{middleware} trains a policy that was made before its configuration was changed, and that does not follow the "
            f"change: {shown}. Make the policy after the change, or change live settings by policy.reset_config.",
            stacklevel=2,
        )


def require_modes(middleware: str, given: object, mode: Mode) -> None:
    """Refuse anything but a dict of this mode by name of the policy.

    Raises:
        TypeError: as `require_mode`, or the argument is not a dict.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f'{middleware} wants a dict of policies by name, such as {{"first": policy.{mode}}}, got {given!r:.80} of type '
            f"{type(given).__name__}."
        )
    for name, one in given.items():
        require_mode(f"{middleware} (policy {name!r})", one, mode)


def require_count(middleware: str, name: str, given: object, low: int) -> None:
    """Refuse anything but an integer of at least `low`.

    Raises:
        TypeError: not an integer.
        ValueError: less than `low`.
    """
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{middleware}({name}={given!r}) wants an integer, got a {type(given).__name__}.")
    if operator.index(given) < low:
        raise ValueError(f"{middleware}({name}={given!r}) is out of range: it is at least {low}.")


def discount_factor_of(middleware: str, cfg: object) -> float:
    """The discount factor: of policy.collect for on-policy algorithms, of policy for off-policy ones.

    Args:
        middleware: name of the middleware, for the message.
        cfg: configuration of a run or of a policy.

    Raises:
        TypeError: the configuration has no discount factor.
    """
    policy = getattr(cfg, "policy", cfg)
    for section in (getattr(policy, "collect", None), policy):
        if hasattr(section, "discount_factor"):
            return float(section.discount_factor)
    raise TypeError(
        f"{middleware} wants a configuration with policy.collect.discount_factor or policy.discount_factor, such as PPOConfig "
        f"or DQNConfig, got {cfg!r:.80} of type {type(cfg).__name__}, which has neither."
    )
