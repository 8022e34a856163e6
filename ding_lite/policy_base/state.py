"""The state of a policy: saving, loading, random generators, acting copies and modes."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ding_lite.basics.config_classes import Config
from ding_lite.envs.spaces import load_random_state, random_state
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.act_modes import ActMode, CollectMode, EvalMode
from ding_lite.policy_base.acting_copies import ROLES, acting_copy, holds_weights
from ding_lite.policy_base.constructions import Construction
from ding_lite.policy_base.learn_modes import LearnMode
from ding_lite.policy_base.learner_groups import LearnerGroup
from ding_lite.policy_base.learner_workers import without_attached
from ding_lite.policy_base.live_settings import change_settings, live_changes, restored_settings, unfollowed_changes, values_of
from ding_lite.policy_base.nonfinite_steps import NonfiniteSteps
from ding_lite.policy_base.prediction import PredictMode
from ding_lite.policy_base.short_names import Settings, made_kind
from ding_lite.policy_base.weights import PolicyWeights
from ding_lite.policy_check import changed_by_acting
from ding_lite.policy_state import (
    StateDictError,
    all_or_nothing,
    entries_of_other_settings,
    entry_names,
    identity_of,
    moments_of,
    networks_of,
    optimizer_state,
    require_alike,
    require_part,
    require_random_state,
    require_state,
    set_torch_state,
    with_added_settings,
    with_moments,
    with_own_values,
)
from ding_lite.policy_state.network_copies import detached_copy

_OWN = (
    *("optimizer", "train_iter", "version", "learn", "collect", "evaluate", "predict", "metrics", "settings", "attached"),
    *("networks", "made_with", "learners"),
)
"""Entries of a state that `load_learned_state` does not take as they are."""

_SPACE = 1  # makes the seed of the action space differ from those of the generators


class PolicyState(PolicyWeights):
    """The base class of `Policy` for saving, loading and copying."""

    saved_networks: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    """Attributes that `state_dict` saves under their own names. Other networks and optimizers are saved as attachments."""

    set_by_settings: ClassVar[tuple[str, ...]] = ()
    """Entries of the state that follow from the settings and counters, so that `load_learned_state` does not take them."""

    constructed_with: Construction
    """The arguments of the constructor."""

    learners: LearnerGroup | None = None
    """The processes that learn in place of this one, if `cfg.learners` has some."""

    hook_metrics: MetricsLogger
    _nonfinite_steps: NonfiniteSteps | None
    seed: int
    rank_seed: int
    config: Settings
    given_model: str | None
    optimizer: Optimizer
    params: list[nn.Parameter]
    _attached: dict[str, Any]
    _loaded: dict[str, Any]
    _settings_before: dict[str, Any]
    settings_made: dict[str, Any]
    _group_settings: list[dict[str, Any]]

    # The modes are made on first access, so that their copies have the attributes that constructors of subclasses set.
    # `self: Any` because the modes need a whole `Policy`.

    @functools.cached_property
    def learn_mode(self: Any) -> LearnMode:
        """The mode that learns: it changes the model."""
        self.require_made()
        return LearnMode(self)

    @functools.cached_property
    def collect_mode(self: Any) -> CollectMode:
        """The mode that explores."""
        self.require_made()
        return CollectMode(self)

    @functools.cached_property
    def eval_mode(self: Any) -> EvalMode:
        """The mode that acts without exploration."""
        self.require_made()
        return EvalMode(self)

    @functools.cached_property
    def predict_mode(self: Any) -> PredictMode:
        """The mode of `predict`, with its own random generator."""
        self.require_made()
        return PredictMode(self)

    def require_made(self) -> None:
        """Check that the constructor of `Policy` has run.

        Raises:
            RuntimeError: a subclass has not called it, or takes a mode before it does.
        """
        if "settings_made" not in vars(self):
            kind = type(self).__name__
            raise RuntimeError(
                f"{kind} has no networks yet, because the constructor of Policy has not run: call "
                f"super().__init__(cfg, observation_space, action_space) in {kind}.__init__, before anything else."
            )

    usual_name: ClassVar[str] = "policy"
    """Code for it in messages."""

    def code_in_use(self, lane: str) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
        """The functions of the script that a middleware on this lane runs by using it: see `LearnMode.code_in_use`."""
        return self.learn_mode.code_in_use(lane)

    def settings_in_use(self, lane: str) -> list[Config]:
        """The settings that are read in each gradient step: see `LearnMode.settings_in_use`."""
        return self.learn_mode.settings_in_use(lane)

    @classmethod
    def has_hooks_of_users(cls) -> bool:
        """Whether this class, or a class that it is derived from, is defined outside this library. A class that `with_updates`
        has made with other defaults alone does not count."""
        ours = "ding_lite", "builtins", "typing", "abc"
        kinds = [kind for kind in cls.__mro__ if not vars(kind).get("only_defaults")]
        return any(kind.__module__.partition(".")[0] not in ours for kind in kinds)

    @classmethod
    def lineage(cls) -> list[str]:
        """The names of this class and of its base classes that are policies, without `Policy` itself."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, PolicyState)]
        return [kind.__name__ for kind in kinds[:-2]] or [cls.__name__]  # the last two are `Policy` and `PolicyState`

    def changed_by_acting(self) -> dict[str, Any]:
        """By name, the values of the attributes that the copy that collects may change by itself. No state has them."""
        copy = getattr(vars(self).get("collect_mode"), "actor", None)
        held = {} if copy is None else vars(copy)
        return {
            name: held[name] for name in changed_by_acting(self) if name in held and not holds_weights(vars(self).get(name))
        }

    def actor(self, role: str, index: int = 0, device: torch.device | None = None) -> Any:
        """An acting copy of this policy; see `acting_copy`."""
        return acting_copy(self, role, index, device)

    def attach(self, name: str, thing: Any) -> None:
        """Make an object part of this policy's state, such as a reward normalizer, so that checkpoints include it.

        If a state was loaded under this name, or another object was attached under it, the object loads that state.

        Args:
            name: key of the object's state.
            thing: an object with `state_dict()`, which returns plain data, and `load_state_dict(state)`. A loaded state must
                have the same names, shapes and dtypes as the current one, except for lengths of lists. Names in the object's
                attribute `unchecked_entries`, a tuple, are not checked, and those in `new_entries` may be missing. The class
                attribute `state_ranges` may give the allowed range of an entry, such as {"var": (0.0, math.inf)}.

        Raises:
            TypeError: the object does not have these methods; or one of these attributes is not a tuple of names.
            StateDictError: the state does not fit the object.
        """
        if not callable(getattr(thing, "state_dict", None)) or not callable(getattr(thing, "load_state_dict", None)):
            raise TypeError(
                f"attach({name!r}, ...) wants an object with state_dict() and load_state_dict(state), got {thing!r:.80} of "
                f"type {type(thing).__name__}."
            )
        for attribute in ("unchecked_entries", "new_entries"):
            entry_names(thing, attribute)  # here, and not when a state is loaded
        before = self._attached.get(name)
        if before is not None and before is not thing:
            self._load_attached(name, thing, before.state_dict())
        elif name in self._loaded:
            self._load_attached(name, thing, self._loaded[name])
            del self._loaded[name]
        self._attached[name] = thing

    @staticmethod
    def _load_attached(name: str, thing: Any, state: Any) -> None:
        require_part(f'state["attached"][{name!r}]', thing, state)
        _load(thing, detached_copy(state))  # it may keep the extra states of modules

    @property
    def state_settings(self) -> Mapping[str, Sequence[str]]:
        """By name of an entry of the state, the settings that give it its first value. A state that was made with another value
        of one of them does not change the entry. "model/name" is a tensor of the model."""
        return {}

    @property
    def attachments(self) -> Mapping[str, Any]:
        """The attached objects by name, and the networks and optimizers outside of the model, as in `networks_of`."""
        return {**self._attached, **self._networks()}

    def _networks(self) -> dict[str, Any]:
        """The networks and optimizers outside of the model that are saved as attachments, though no one has attached them."""
        attached = {id(thing) for thing in self._attached.values()}
        return {
            name: network
            for name, network in networks_of(self).items()
            if name.partition("/")[0] not in self.saved_networks and id(network) not in attached
        }

    @property
    def made_with(self) -> dict[str, Any]:
        """The algorithm, its configuration and its spaces, as plain data; saved to check that a state fits."""
        spaces, cfg = (self.observation_space, self.action_space), self.cfg
        if unfollowed := unfollowed_changes(cfg, self.settings_made):
            cfg = cfg.trial().override({name: made for name, (_, made) in unfollowed.items()})
        other = None if type(cfg) is made_kind(self.config_type) else type(cfg)
        return identity_of(type(self), self.lineage(), cfg, self.config.extra, *spaces, self.given_model, other)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the whole state: weights, optimizer, counters, attached objects, random generators, metrics of the hooks.

        If iterations overlap, the random generators of the modes that act in other iterations are left out.

        Raises:
            NonFiniteError: a weight is NaN or infinite.
        """
        if self.being_loaded is None:
            self.take_from_learners()
            self.require_finite()
        model = detached_copy(self.get_weights() if self.has_own_weights else self.model.state_dict())
        return {
            "model": model,
            "optimizer": optimizer_state(self.optimizer, self.optimizer_settings(), self.params) if self.params else {},
            "train_iter": self.train_iter,
            "version": self.version,
            "learn": self.generator_state(),
            "metrics": self.hook_metrics.state_dict(),
            "attached": {**copy.deepcopy(self._loaded), **{name: _state_of(it) for name, it in self.attachments.items()}},
            **({"networks": networks} if (networks := [*self._networks()]) else {}),
            "made_with": self.made_with,
            **({"settings": values_of(self.cfg, self._settings_before)} if self._settings_before else {}),
            **({"learners": own} if self.learners is not None and (own := self.learners.own_states) else {}),
            **{mode.role: mode.state_dict() for mode in self._modes_with_state() if self._saves(mode)},
        }

    def _modes_with_state(self) -> list[ActMode]:
        """The acting modes that are saved: that of `predict` too, once it was used."""
        is_predicting = "predict_mode" in vars(self) or "predict" in (self.being_loaded or ())
        return [self.collect_mode, self.eval_mode, *([self.predict_mode] if is_predicting else [])]

    def _saves(self, mode: ActMode) -> bool:
        return not mode.is_led and (self.being_loaded is None or mode.role in self.being_loaded)

    def optimizer_settings(self) -> list[dict[str, Any]]:
        """The settings of each parameter group of the optimizer as the configuration gives them, as plain data.

        Their current values may be others, for example by a schedule.
        """
        return [dict(group) for group in self._group_settings]

    @all_or_nothing
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, or only the weights if the state has nothing else, as in `best.pt`.

        The whole state is checked before anything changes. If loading fails after that, all changes are undone. Settings come
        from this policy's configuration, and a warning names those that the policy of a whole state had otherwise. Only values
        that `reset_config` has set come from the state.

        Raises:
            TypeError: the state is not a mapping.
            StateDictError: a ValueError. The state has no weights; it is a state of another algorithm, other spaces or another
                network; or a part does not fit, or contains NaN or infinity.
        """
        self.set_weights(copy.deepcopy(state["model"]) if self.has_own_weights else state["model"])
        if "optimizer" not in state:
            return
        if self.params:
            _load(self.optimizer, state["optimizer"])
        self.train_iter, self.version = operator.index(state["train_iter"]), operator.index(state["version"])
        self.load_generator_state(state["learn"])
        if self.learners is not None:
            self.learners.own_states = copy.deepcopy(state.get("learners", []))
        if "metrics" in state:  # older states do not have it
            self.hook_metrics.set_state(state["metrics"])
        self._loaded = dict(copy.deepcopy(state.get("attached", {})))
        if self._nonfinite_steps is not None and "nonfinite_steps" not in self._loaded:
            self._nonfinite_steps.drop_copy()
        for name, thing in self.attachments.items():
            if name in self._loaded:
                _load(thing, self._loaded.pop(name))
        for mode in self._modes_with_state():
            if mode.role in state:
                mode.load_state_dict(state[mode.role])

    def reset_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings while the policy learns, such as `{"learn.learning_rate": 3e-4}`. All are changed, or none.

        docs/populations.md lists the settings that can be changed, and when a change takes effect. The middleware of the
        pipeline follow it if they were made with the same configuration, as in `cfg` and `cfg.policy`. A saved state has the
        changed values, so a resumed run goes on with them.

        Args:
            values: new values by dotted name, or by short name such as "lr".

        Returns:
            The former values of the settings that have changed, by dotted name.

        Raises:
            ConfigError: a name does not exist, or a value is out of range or of the wrong type.
            FixedSettingError: a ConfigError; a setting cannot be changed in a run, or has no effect.
        """
        policy: Any = self
        changes = live_changes(policy.cfg, values, self.settings_made)
        self.take_from_learners()
        before = {name: self.settings_made.get(name, value) for name, value in values_of(policy.cfg, changes).items()}
        change_settings(policy, changes, must_have_effect=True)
        for name, value in before.items():
            self._settings_before.setdefault(name, value)
        self.note_change()
        return before

    def restore_settings(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Set the settings that `reset_config` had changed when a state was saved. Returns a function that undoes this.

        Settings that were changed here, but not there, get their first values again.

        Raises:
            StateDictError: a setting does not fit.
        """
        policy: Any = self
        if "optimizer" not in state:  # only weights
            return lambda: None
        changes, first = restored_settings(policy.cfg, state.get("settings", {}), self._settings_before)
        before, first_before = values_of(policy.cfg, changes), self._settings_before
        change_settings(policy, changes)
        self._settings_before = first

        def undo() -> None:
            change_settings(policy, before)
            self._settings_before = first_before

        return undo

    def learned_state(self) -> dict[str, Any]:
        """A copy of what the policy has learned, for `load_learned_state` of another policy.

        It has the weights, the moments of the optimizer, target networks, and attached objects such as statistics of rewards;
        it has no settings, counters, random generators or data.
        """
        state = self.state_dict()
        learned = {name: part for name, part in state.items() if name not in _OWN and name not in self.set_by_settings}
        return {
            **learned,
            "moments": moments_of(self.optimizer, self.params) if self.params else {},
            "attached": {name: it for name, it in state["attached"].items() if self._is_learned(name)},
            "made_with": state["made_with"],
        }

    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Take what another policy has learned; this one keeps its settings, counters, random generators and data.

        Args:
            state: a result of `learned_state` of a policy with the same algorithm, spaces and networks.

        Raises:
            StateDictError: the state does not fit. Nothing is changed.
        """
        policy: Any = self
        require_state(f"{type(self).__name__}.load_learned_state", state)
        if "moments" not in state or "made_with" not in state:
            raise StateDictError(f"{type(self).__name__}.load_learned_state wants a result of learned_state().")
        require_alike(self.made_with, policy.cfg, state["made_with"])
        own = self.state_dict()
        taken = {name: state[name] for name in own if name in state and name not in _OWN}
        taken = with_own_values(taken, own, entries_of_other_settings(policy, state["made_with"]))
        attached = {name: it for name, it in state["attached"].items() if name in own["attached"]}
        for name, it in attached.items():
            if isinstance(self.attachments.get(name), Optimizer):
                attached[name] = {**it, "param_groups": own["attached"][name]["param_groups"]}
        if "learners" in own:
            own["learners"] = [without_attached(one, attached) for one in own["learners"]]
        optimizer = with_moments(own["optimizer"], self.optimizer, self.params, state["moments"]) if self.params else {}
        self.load_state_dict({**own, **taken, "optimizer": optimizer, "attached": {**own["attached"], **attached}})
        self.bump_version()

    def _is_learned(self, name: str) -> bool:
        return getattr(self.attachments.get(name), "is_learned", True)

    def attached_states(self) -> dict[str, Any]:
        """Copies of the states of the attached objects by name, without networks and optimizers that no one has attached."""
        return {name: _state_of(thing) for name, thing in self._attached.items()}

    def take_from_learners(self, is_replaced: bool = False) -> None:
        """Take the state of the learners in other processes, before that of this policy is read or changed.

        Args:
            is_replaced: whether this policy gets another state right after it, so that a lost one is no error.
        """
        if self.learners is not None and self.being_loaded is None:
            self.learners.take(is_replaced)

    @property
    def first_settings(self) -> Mapping[str, Any]:
        """The first values of the settings that reset_config has changed, by dotted name."""
        return self._settings_before

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.take_from_learners()  # for copies
        return super().__reduce_ex__(protocol)

    def note_change(self) -> None:
        """Note, for the learners in other processes, that this policy has changed."""
        if self.learners is not None:
            self.learners.note_change()

    def take_learned(self, state: Mapping[str, Any]) -> None:
        """Take the state of a learner, except for what acting and other objects have changed in this process."""
        attached = {name: _state_of(it) for name, it in self.attachments.items()}
        own: dict[str, Any] = {"settings": values_of(self.cfg, self._settings_before)} if self._settings_before else {}
        attached = {**copy.deepcopy(self._loaded), **attached, **state["attached"]}
        taken = {name: part for name, part in state.items() if name != "networks"}  # a learner may make one on first use
        self.load_state_dict({**own, **taken, "attached": attached})

    def state_to_learn_from(self) -> dict[str, Any]:
        """The state that learners begin with: without what acts, and without metrics."""
        state = self.state_dict()
        return {name: part for name, part in state.items() if name not in ("collect", "evaluate", "metrics", "learners")}

    def update_copies(self) -> None:
        """Copy the weights to the acting copies that the modes of this policy have, also if the version is the same."""
        self._snapshot = None
        for mode in (vars(self).get(name) for name in ("collect_mode", "eval_mode", "predict_mode")):
            if mode is not None:
                mode.renew()

    def make_generators(self, role: str, index: int = 0) -> None:
        """Create the random generators of a role from `rank_seed`.

        Args:
            role: "learn", "collect" or "evaluate".
            index: index of the worker.
        """
        self.rng = np.random.default_rng([self.rank_seed, ROLES[role], *([index] if index else [])])
        self.generator = torch.Generator(self.device).manual_seed(int(self.rng.integers(2**63)))
        # A copy of the space, so that samples from it depend on the policy's seed, and are independent in each acting copy.
        self.action_space = copy.deepcopy(self.action_space)
        self.action_space.seed(int(np.random.default_rng([self.rank_seed, ROLES[role], index, _SPACE]).integers(2**31)))

    def generator_state(self) -> dict[str, Any]:
        """The states of the random generators of this policy or acting copy."""
        space = random_state(self.action_space)
        return {"rng": self.rng.bit_generator.state, "generator": self.generator.get_state(), "action_space": space}

    def require_generator_state(self, where: str, state: Any) -> None:
        """Check that `load_generator_state` can load this state. A policy with more random generators extends this.

        Args:
            where: key of the state, for messages.
            state: the state to check.

        Raises:
            StateDictError: an entry does not fit; the message names it.
        """
        require_random_state(where, state, self.generator_state(), self.rng, self.device, self.action_space)

    def load_generator_state(self, state: Mapping[str, Any]) -> None:
        """Load the states of the random generators."""
        self.rng.bit_generator.state = state["rng"]
        set_torch_state(self.generator, state["generator"])
        if "action_space" in state:  # older states do not have it
            load_random_state(self.action_space, state["action_space"])


def _load(thing: Any, state: Any) -> None:
    """Load the state of an attached object or of the policy's optimizer, which would change the given moments in place."""
    thing.load_state_dict(with_added_settings(state, thing) if isinstance(thing, Optimizer) else state)


def _state_of(thing: Any) -> Any:
    """A copy of the state of an attached object."""
    return optimizer_state(thing) if isinstance(thing, Optimizer) else detached_copy(thing.state_dict())
