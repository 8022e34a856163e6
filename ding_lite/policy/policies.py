"""The policy: a model, how it acts, and how it learns; a set of hooks that an algorithm fills in.

Room: ding_lite.policy, floor 3. Imports nn, envs, data, metrics and the engine.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Tree
from ding_lite.metrics import MetricsLogger
from ding_lite.nn import seeded
from ding_lite.policy.configs import PolicyConfig
from ding_lite.policy.faces import ActMode, CollectMode, EvalMode, LearnMode

_ROLES = {"learn": 0, "collect": 1, "evaluate": 2}
_CUDA_CHECK_EVERY = 64  # gradient steps between two looks at the loss, where each look waits for the device


class LossError(FloatingPointError):
    """The loss, or the norm of its gradient, is not finite; the weights are still those of before."""


class Weights(NamedTuple):
    """The weights of a model at one moment, which nothing changes any more."""

    version: int
    """Names them."""

    weights: list[Tensor]
    """Parameters and buffers, in the model's order."""


class HookMetrics:
    """The logger of a policy's hooks, as an attribute that a policy may have another use for."""

    def __get__(self, policy: Policy, owner: type[Policy]) -> MetricsLogger:
        return policy.hook_metrics


class Policy(abc.ABC):
    """The numeric core of an algorithm: networks, acting and learning. It knows neither environments nor contexts.

    Middleware receive its three faces: `learn_mode` changes the model; `collect_mode` and `eval_mode` act with copies of
    their own, so that acting never sees weights that are half changed.

    An algorithm fills in the hooks `make_model`, `compute_actions` and `loss`, and where it has to `check_spaces`,
    `make_optimizer`, `postprocess`, `stats`, `gradients`, `after_step`, `learn_on_batch`, `with_values` and
    `get_initial_state`. In each, `self.model` is the right one: the model that learns or, in `compute_actions`, the copy
    that acts; `self.rng` and `self.generator` are the random numbers to use, and `self.metrics` takes numbers: what is logged
    in `loss` arrives under `learn/`, in `compute_actions` under `collect/` or `evaluate/`, from every worker.

    Args:
        cfg: `cfg.policy` of a run's configuration.
        observation_space, action_space: of one environment.

    Raises:
        SpaceError: the spaces do not fit the algorithm.
        ValueError: the device does not exist here.
    """

    metrics = HookMetrics()
    """Takes numbers from the hooks. Whoever calls them reduces it."""

    config_type: ClassVar[type] = object
    """What `cfg` has to be."""

    def __init__(self, cfg: PolicyConfig, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        if not isinstance(cfg, self.config_type):
            raise TypeError(
                f"{type(self).__name__}(cfg, ...) wants a {self.config_type.__name__}, got a {type(cfg).__name__}: pass "
                "cfg.policy of the run's configuration."
            )
        self.cfg = cfg
        self.observation_space, self.action_space = observation_space, action_space
        self.device = available_device(cfg.device)
        self.seed = cfg.seed or 0
        self.train_iter = 0
        """Gradient steps taken."""
        self.version = 0
        """Names the weights: another number whenever they have changed."""
        self.hook_metrics = MetricsLogger()
        """What `self.metrics` is in the hooks, unless a policy has something of its own by that name."""
        self._snapshot: Weights | None = None
        self.check_spaces()
        with seeded(self.seed):
            self.model = self.make_model().to(self.device)
        self.params = list(self.model.parameters())
        self.optimizer = self.make_optimizer(self.params)
        self.make_generators("learn")
        self.learn_mode, self.collect_mode, self.eval_mode = LearnMode(self), CollectMode(self), EvalMode(self)

    # Hooks.

    def check_spaces(self) -> None:  # noqa: B027  most algorithms take any space
        """Refuse spaces that the algorithm cannot use, by raising SpaceError."""

    @abc.abstractmethod
    def make_model(self) -> nn.Module:
        """The networks, in one module. Random numbers drawn here come from the policy's seed."""

    @abc.abstractmethod
    def compute_actions(
        self, obs: Any, state: Any = None, *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Actions for a batch of observations.

        Args:
            obs: tensors [B, *obs_shape] on the device, nested as the space is.
            state: recurrent state [B, ...], None for policies without.
            explore: False to do its best.
            **kwargs: what `ctx.collect_kwargs` holds.

        Returns:
            action [B, *action_shape]; the next state; extra outputs [B, ...] by name, which land in the batch.
        """

    @abc.abstractmethod
    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of a batch, and what to log of it: detached scalars on the device."""

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """What turns gradients into steps: Adam at `cfg.learn.learning_rate`."""
        return torch.optim.Adam(params, lr=self.cfg.learn.learning_rate, fused=True)

    def postprocess(self, batch: Tree) -> Tree:
        """The batch as `learn_on_batch` wants it."""
        return batch

    def stats(self, batch: Tree) -> dict[str, Tensor]:
        """More to log, computed once a call of `learn_on_batch`, after its last step."""
        return {}

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Change the gradients before the step: here, clip their norm at `cfg.learn.grad_clip_norm`. Returns what to log."""
        limit = self.cfg.learn.grad_clip_norm
        return {} if limit is None else {"grad_norm": nn.utils.clip_grad_norm_(params, limit, foreach=True)}

    def after_step(self) -> None:  # noqa: B027  most algorithms have nothing to do
        """What follows a gradient step, such as moving a target network."""

    def learn_on_batch(self, batch: Tree) -> dict[str, Tensor]:
        """Learn from a batch on the device: one gradient step, unless an algorithm takes more. Returns what to log."""
        return {**self.gradient_step(batch), **self.stats(batch)}

    def with_values(self, batch: Tree) -> Tree:
        """A rollout with the critic's value and next_value [T, B]."""
        raise TypeError(f"{type(self).__name__} has no critic, so it cannot add values to a rollout: use a PPOPolicy.")

    def get_initial_state(self, batch_size: int) -> Any:
        """The recurrent state [B, ...] at the start of B episodes; None for policies without."""
        return None

    # What the hooks are for.

    def gradient_step(self, batch: Tree) -> dict[str, Tensor]:
        """Loss, gradients and one step of the optimizer. Returns what to log.

        Raises:
            LossError: the loss, or the norm of a clipped gradient, is not finite. No step was taken.
        """
        loss, stats = self.loss(batch)
        look = self.device.type == "cpu" or self.train_iter % _CUDA_CHECK_EVERY == 0
        if look:
            self._require_finite("loss", loss)
        for param in self.params:
            param.grad = None  # what optimizer.zero_grad() does, without its profiler's share
        loss.backward()  # type: ignore[no-untyped-call]
        stats.update(self.gradients(self.params))
        if look and "grad_norm" in stats:
            self._require_finite("gradient", stats["grad_norm"])
        self.optimizer.step()
        self.train_iter += 1
        self.version += 1
        self.after_step()
        return stats

    def _require_finite(self, what: str, tensor: Tensor) -> None:
        value = tensor.item()
        if not math.isfinite(value):
            raise LossError(
                f"the {what} of {type(self).__name__} is {value} in gradient step {self.train_iter}: lower "
                "learn.learning_rate, clip gradients with learn.grad_clip_norm, or look for rewards or observations out of "
                "proportion."
            )

    def actor(self, role: str, index: int = 0, device: torch.device | None = None) -> Policy:
        """A copy that acts: a model of its own that does not learn, random numbers of its own, and no optimizer.

        Args:
            role: "collect" or "evaluate".
            index: of the worker that it acts for; each has other random numbers.
            device: where it acts; None for the policy's own.
        """
        learner_only = (nn.Module, Optimizer, ActMode, LearnMode)
        actor = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, learner_only):
                delattr(actor, name)
        actor.device = device or self.device
        actor.model = copy.deepcopy(self.model).to(actor.device).requires_grad_(False).eval()
        actor.params = list(actor.model.parameters())
        actor._snapshot, actor.hook_metrics = None, MetricsLogger()
        actor.make_generators(role, index)
        return actor

    @property
    def weights(self) -> list[Tensor]:
        """The model's parameters and buffers themselves, in a fixed order."""
        return [*self.model.parameters(), *self.model.buffers()]

    def snapshot(self) -> Weights:
        """A copy of the weights as they are now; the same one again while they do not change."""
        if self._snapshot is None or self._snapshot.version != self.version:
            self._snapshot = Weights(self.version, [tensor.detach().clone() for tensor in self.weights])
        return self._snapshot

    def copy_weights(self, other: Policy | Weights) -> None:
        """Take over the weights of a policy of the same kind, or of a snapshot of one."""
        with torch.no_grad():
            for target, source in zip(self.weights, other.weights, strict=True):
                target.copy_(source)
        self.version = other.version

    def get_weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights that `get_weights` gave."""
        self.model.load_state_dict(dict(weights))
        self.version += 1
        self._snapshot = None

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that acting and learning go on from: weights, optimizer, counters and random numbers.

        While other iterations are under way, without the random numbers of the faces that act in them.
        """
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "train_iter": self.train_iter,
            "version": self.version,
            "learn": self.generator_state(),
            **{face.role: face.state_dict() for face in (self.collect_mode, self.eval_mode) if not face.is_led},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state, or take over the weights alone where it holds no more, as in `best.pt`.

        Raises:
            ValueError: there are no weights in it, or they are not of this network.
        """
        if "model" not in state:
            raise ValueError(f"this is no state of a policy: it lacks 'model', it has {sorted(map(str, state))}.")
        self._snapshot = None
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(
                f"the saved weights are not of this {type(self).__name__}'s network; make the policy with the configuration "
                f"and the spaces of the run that saved them. {error}"
            ) from None
        if "optimizer" not in state:
            self.version += 1
            return
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_iter, self.version = state["train_iter"], state["version"]
        self.load_generator_state(state["learn"])
        for face in (self.collect_mode, self.eval_mode):
            if face.role in state:
                face.load_state_dict(state[face.role])
            face.actor.copy_weights(self)

    def make_generators(self, role: str, index: int = 0) -> None:
        """Random numbers of the learner, a collector or an evaluator, from the policy's seed; `index` tells workers apart."""
        self.rng = np.random.default_rng([self.seed, _ROLES[role], *([index] if index else [])])
        self.generator = torch.Generator(self.device).manual_seed(int(self.rng.integers(2**63)))

    def generator_state(self) -> dict[str, Any]:
        """Where the random numbers of this policy, or of this copy of it, are."""
        return {"rng": self.rng.bit_generator.state, "generator": self.generator.get_state()}

    def load_generator_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the random numbers of a saved state."""
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(state["generator"].cpu())


def available_device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ValueError: there is none on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"cfg.policy.device = {name!r} cannot be used here ({reason}): take 'cpu', or install what it needs."
        ) from None
    return device
