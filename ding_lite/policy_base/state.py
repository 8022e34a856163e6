"""The state of a policy: what it is saved as, copied as, and goes on from."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ding_lite.envs import load_random_state, random_state
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.acting import ActMode, CollectMode, EvalMode
from ding_lite.policy_base.acting_copies import ROLES, acting_copy
from ding_lite.policy_base.learning import LearnMode
from ding_lite.policy_base.short_names import Settings
from ding_lite.policy_base.weights import PolicyWeights
from ding_lite.policy_state import (
    all_or_nothing,
    identity_of,
    optimizer_state,
    require_part,
    require_random_state,
    warn_of_other_rates,
)

_SPACE = 1  # tells the seed of a space from that of the generators


class PolicyState(PolicyWeights):
    """What `Policy` is saved and copied by; made by `Policy`."""

    saved_networks: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    """Attributes whose state `state_dict` has by itself."""

    is_copy: bool = False
    """Whether it is a copy that acts, which cannot learn."""

    hook_metrics: MetricsLogger
    seed: int
    config: Settings
    optimizer: Optimizer
    params: list[nn.Parameter]
    _attached: dict[str, Any]
    _loaded: dict[str, Any]

    # Its modes: made when first asked for, so that they have what constructors of subclasses add. `self` is a
    # whole `Policy`, which alone has all that they ask for.

    @functools.cached_property
    def learn_mode(self: Any) -> LearnMode:
        """The mode that changes the model."""
        return LearnMode(self)

    @functools.cached_property
    def collect_mode(self: Any) -> CollectMode:
        """The mode that explores."""
        return CollectMode(self)

    @functools.cached_property
    def eval_mode(self: Any) -> EvalMode:
        """The mode that does its best."""
        return EvalMode(self)

    @classmethod
    def lineage(cls) -> list[str]:
        """The names of this class and of the policies that it is derived from, the base of all left out."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, PolicyState)]
        return [kind.__name__ for kind in kinds[:-2]] or [cls.__name__]  # the last two are `Policy` and this one

    def actor(self, role: str, index: int = 0, device: torch.device | None = None) -> Any:
        """A copy that acts, see `acting_copy`."""
        return acting_copy(self, role, index, device)

    def attach(self, name: str, thing: Any) -> None:
        """Make something part of this policy's state that learning goes on from too, such as a normaliser of rewards.

        It goes on from the state that was loaded for it, or from what was attached under this name before.

        Args:
            name: under which its state is kept.
            thing: with `state_dict()`, plain data, and `load_state_dict(state)`. A state that is loaded has to have the names,
                shapes and kinds of numbers of the current one; what is free to have another shape stands in a list, or its name
                in an attribute `varying`, a tuple of names. `state_ranges`, a dict by name on its class, holds the least and
                the largest number of an entry, such as {"var": (0.0, math.inf)}.

        Raises:
            TypeError: it has no such methods.
            StateError: the state that it is to go on from does not fit it.
        """
        if not callable(getattr(thing, "state_dict", None)) or not callable(getattr(thing, "load_state_dict", None)):
            raise TypeError(
                f"attach({name!r}, ...) wants something with state_dict() and load_state_dict(state), got {thing!r:.80} of "
                f"type {type(thing).__name__}."
            )
        before = self._attached.get(name)
        if before is not None and before is not thing:
            self._go_on(name, thing, before.state_dict())
        elif name in self._loaded:
            self._go_on(name, thing, self._loaded[name])
            del self._loaded[name]
        self._attached[name] = thing

    @staticmethod
    def _go_on(name: str, thing: Any, state: Any) -> None:
        require_part(f'state["attached"][{name!r}]', thing, state)
        thing.load_state_dict(state)

    @property
    def attachments(self) -> Mapping[str, Any]:
        """What was attached, by name."""
        self._attach_networks()
        return self._attached

    @property
    def made_with(self) -> dict[str, Any]:
        """The algorithm, its configuration and its spaces, plain data: what a state of it fits."""
        return identity_of(self.lineage(), self.cfg, self.config.extra, self.observation_space, self.action_space)

    def _attach_networks(self) -> None:
        """Make networks and optimizers beside the model part of the state, each under the name of its attribute."""
        parts = {id(module) for module in self.model.modules()} | {id(thing) for thing in self._attached.values()}
        for name, value in list(vars(self).items()):
            if name not in self.saved_networks and id(value) not in parts and isinstance(value, (nn.Module, Optimizer)):
                self.attach(name, value)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that acting and learning go on from: weights, optimizer, counters and random numbers.

        While other iterations are under way, without the random numbers of the modes that act in them.

        Raises:
            LossError: the weights are no numbers any more.
        """
        if self.being_loaded is None:
            self.require_finite()
        self._attach_networks()
        return {
            "model": copy.deepcopy(self.get_weights() if self.has_own_weights else self.model.state_dict()),
            "optimizer": optimizer_state(self.optimizer) if self.params else {},
            "train_iter": self.train_iter,
            "version": self.version,
            "learn": self.generator_state(),
            "attached": {**copy.deepcopy(self._loaded), **{name: _state_of(thing) for name, thing in self._attached.items()}},
            "made_with": self.made_with,
            **{mode.role: mode.state_dict() for mode in (self.collect_mode, self.eval_mode) if self._saves(mode)},
        }

    def _saves(self, mode: ActMode) -> bool:
        return not mode.is_led and (self.being_loaded is None or mode.role in self.being_loaded)

    @all_or_nothing
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state, or take over the weights alone where it holds no more, as in `best.pt`.

        All of it is looked at before anything is changed, and where a part cannot be loaded after all, everything is put back.

        Raises:
            TypeError: a path, or something else that is no mapping.
            StateError: a ValueError. There are no weights in it; it is of another algorithm, other spaces or another network;
                or a part does not fit, or holds numbers that are not finite.
        """
        self.set_weights(copy.deepcopy(state["model"]) if self.has_own_weights else state["model"])
        if "optimizer" not in state:
            return
        if self.params:
            self.optimizer.load_state_dict(state["optimizer"])
            warn_of_other_rates(self, state)
        self.train_iter, self.version = operator.index(state["train_iter"]), operator.index(state["version"])
        self.load_generator_state(state["learn"])
        self._loaded = dict(copy.deepcopy(state.get("attached", {})))
        for name in self._attached.keys() & self._loaded.keys():
            self._attached[name].load_state_dict(self._loaded.pop(name))
        for mode in (self.collect_mode, self.eval_mode):
            if mode.role in state:
                mode.load_state_dict(state[mode.role])
            mode.actor.copy_weights(self)

    def make_generators(self, role: str, index: int = 0) -> None:
        """Random numbers of the learner, a collector or an evaluator, from the policy's seed; `index` tells workers apart."""
        self.rng = np.random.default_rng([self.seed, ROLES[role], *([index] if index else [])])
        self.generator = torch.Generator(self.device).manual_seed(int(self.rng.integers(2**63)))
        # A space of its own, so that what a hook samples from it goes by the policy's seed too, and in every copy by itself.
        self.action_space = copy.deepcopy(self.action_space)
        self.action_space.seed(int(np.random.default_rng([self.seed, ROLES[role], index, _SPACE]).integers(2**31)))

    def generator_state(self) -> dict[str, Any]:
        """Where the random numbers of this policy, or of this copy of it, are."""
        space = random_state(self.action_space)
        return {"rng": self.rng.bit_generator.state, "generator": self.generator.get_state(), "action_space": space}

    def require_generator_state(self, where: str, state: Any) -> None:
        """Refuse anything that `load_generator_state` cannot go on from; a policy with more random numbers looks at them too.

        Raises:
            StateError: the entry that does not fit, by its key, which begins with `where`.
        """
        require_random_state(where, state, self.generator_state(), self.rng, self.device, self.action_space)

    def load_generator_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the random numbers of a saved state."""
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(state["generator"].cpu())
        if "action_space" in state:  # not in older ones
            load_random_state(self.action_space, state["action_space"])


def _state_of(thing: Any) -> Any:
    """A copy of the state of something that was attached."""
    return optimizer_state(thing) if isinstance(thing, Optimizer) else copy.deepcopy(thing.state_dict())
