"""Reward models: what they have in common, their saved state, and the scale and the weight of an exploration bonus."""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import Config, base_state, ranged_field
from ding_lite.basics.blocks import block
from ding_lite.data import Spec, Tree, flatten, nested
from ding_lite.data.trees import as_floats, has_leaf, map_leaves, with_leaves
from ding_lite.functional import decayed_value
from ding_lite.policy_base import available_device
from ding_lite.policy_check import NonFiniteError, are_finite
from ding_lite.policy_state import (
    StateDictError,
    group_settings,
    optimizer_state,
    require_count,
    require_like,
    require_optimizer_state,
    require_part,
    require_range,
    with_group_settings,
)
from ding_lite.policy_state.network_copies import detached_copy, load_network


class RewardModel(abc.ABC):
    """A reward model with networks: the device of its networks, and a state that is saved exactly.

    Args:
        device: torch device of the networks.
    """

    columns: ClassVar[tuple[str, ...]]
    """The columns of a batch that it reads."""

    modules: ClassVar[tuple[str, ...]]
    """The attributes that are modules with a state."""

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The attributes that are tensors with a state, and their allowed ranges."""

    optimizer: torch.optim.Optimizer

    def __init__(self, device: str) -> None:
        self.device = available_device(device)
        self.steps = 0
        """Gradient steps taken."""

    def _rows(self, specs: Mapping[str, Spec], batch: Tree, for_learning: bool = False) -> dict[str, Any]:
        """These columns of a batch as rows [N, ...] on the device; for learning, without those that `valid` excludes.

        Raises:
            NonFiniteError: rows for learning hold NaN or infinity.
        """

        def merged(spec: Any, leaf: Tensor) -> Tensor:
            return leaf.to(self.device).reshape(-1, *spec.shape)

        rows = {name: map_leaves(merged, spec, nested(batch[name])) for name, spec in specs.items()}
        if for_learning:
            if has_leaf(batch, "valid"):
                valid = batch.valid.to(self.device).reshape(-1)
                rows = map_leaves(lambda leaf: leaf[valid], rows)
            if names := not_finite(rows):
                raise NonFiniteError(
                    f"{type(self).__name__}.learn() got NaN or infinity in {names}: find out where it comes from, for example "
                    "the environment or a wrapper."
                )
        return rows

    @block
    def _unless_refused(self, *statistics: nn.Module) -> Iterator[None]:
        """Around an update of running statistics and a gradient step: a NonFiniteError leaves the statistics unchanged."""
        before = [detached_copy(one.state_dict()) for one in statistics]
        try:
            yield
        except NonFiniteError:
            for one, state in zip(statistics, before):
                one.load_state_dict(state)
            raise

    def _minimize(self, loss: Tensor, *used: Tensor) -> None:
        """Take one gradient step.

        Args:
            loss: the loss.
            *used: further scalars that must be finite.

        Raises:
            NonFiniteError: the loss, its gradient, or one of `used` is not finite; the networks are as before.
        """
        if not all(one.isfinite() for one in (loss, *used)):
            raise NonFiniteError(
                f"{type(self).__name__}.learn() got the loss {loss.item()}: check the batch for very large numbers, or lower "
                "learning_rate."
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [it.grad for group in self.optimizer.param_groups for it in group["params"] if it.grad is not None]
        if not are_finite(grads):
            self.optimizer.zero_grad()
            raise NonFiniteError(
                f"the gradient in {type(self).__name__}.learn() is not finite: check the batch for very large numbers, or "
                "lower learning_rate."
            )
        self.optimizer.step()
        self.steps += 1

    def _modules(self) -> dict[str, nn.Module]:
        return {name: getattr(self, name) for name in self.modules}

    def state_dict(self) -> dict[str, Any]:
        """A copy of the networks, the optimizer, the running statistics and the number of gradient steps."""
        modules = {name: module.state_dict() for name, module in self._modules().items()}
        tensors = {name: getattr(self, name) for name in self.state_ranges}
        return {
            **detached_copy({**modules, **tensors, "steps": self.steps}),
            "optimizer": optimizer_state(self.optimizer, self._group_settings()),
        }

    def _group_settings(self) -> list[dict[str, Any]]:
        return group_settings([self.optimizer.defaults] * len(self.optimizer.param_groups))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. Settings of the optimizer come from this model's configuration, with a warning of differences.

        Raises:
            StateDictError: a part is missing or does not fit; nothing is changed.
        """
        own = RewardModel.state_dict(self)  # without the entries that a derived class adds
        state = base_state(self, state, own)
        if missing := [name for name in own if name not in state]:
            raise StateDictError(
                f"this state of {type(self).__name__} lacks {missing[0]!r}, it has {sorted(map(str, state))}: pass the whole "
                "result of state_dict()."
            )
        if unknown := [str(name) for name in state if name not in own]:
            raise StateDictError(
                f"this state of {type(self).__name__} has {unknown[0]!r}, expected {sorted(own)}: load it into the class that "
                "saved it."
            )
        for name in (*self.modules, *self.state_ranges, "steps"):
            require_like(f"state[{name!r}]", own[name], state[name])
        for name, module in self._modules().items():
            require_part(f"state[{name!r}]", module, state[name])
        for name, allowed in self.state_ranges.items():
            require_range(f"state[{name!r}]", state[name], allowed)
        require_count("state['steps']", state["steps"])
        require_optimizer_state('state["optimizer"]', self.optimizer, state["optimizer"])
        for name, module in self._modules().items():
            load_network(module, state[name])
        followed, others = with_group_settings(state["optimizer"], self._group_settings())
        if others:
            warnings.warn(
                f"this {type(self).__name__} learns with the settings of its own configuration, which differ from those of the "
                f"loaded state: {'; '.join(others)}. To go on as before, set the former values.",
                stacklevel=2,
            )
        self.optimizer.load_state_dict(copy.deepcopy(dict(followed)))  # it would change these moments in place
        for name in self.state_ranges:
            setattr(self, name, torch.as_tensor(state[name], device=self.device).clone())
        self.steps = state["steps"]


def not_finite(rows: Mapping[str, Any]) -> str:
    """The names of the columns that hold NaN or infinity, joined by commas."""
    return ", ".join("/".join(path) for path, leaf in flatten(rows) if not leaf.isfinite().all())


def with_reward(batch: Tree, reward: Tensor) -> Tree:
    """The batch with this reward. The one before is kept as raw_reward, unless the batch has this column."""
    return with_leaves(batch, reward=reward, raw_reward=batch.raw_reward if has_leaf(batch, "raw_reward") else batch.reward)


@dataclasses.dataclass
class BonusConfig(Config):
    """An exploration bonus."""

    bonus_weight: float = ranged_field(0.5, low=0)
    """Weight of the bonus, which is scaled to about 1, in the reward."""

    bonus_steps: int | None = ranged_field(10_000, low=1)
    """Gradient steps in which the weight of the bonus decreases linearly to 0; None for constant."""

    scale_decay: float = ranged_field(0.99, low=0, high=1)
    """Decay per gradient step of the running scale of the bonus; 1 keeps the scale of the first batch."""


class ExplorationBonus(RewardModel):
    """Adds to rewards how badly the model predicts a transition.

        bonus  = error / running root mean square of error
        reward = reward + weight * bonus

    The running root mean square covers about the last 1 / (1 - scale_decay) batches.

    Args:
        cfg: settings.
        device: torch device of the networks.
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"mean_square": (0.0, math.inf)}

    def __init__(self, cfg: BonusConfig, device: str) -> None:
        super().__init__(device)
        self._bonus = cfg
        self.mean_square = torch.zeros((), device=self.device)

    @abc.abstractmethod
    def _error(self, rows: dict[str, Any]) -> Tensor:
        """The error of the prediction for each of these rows, [N]."""

    @abc.abstractmethod
    def _rows_of(self, batch: Tree, for_learning: bool = False) -> dict[str, Any]:
        """The rows of a batch that `_error` takes."""

    @torch.no_grad()
    def estimate(self, batch: Tree) -> Tree:
        """Add the bonus to the reward of a batch. The one before is kept as raw_reward, unless the batch has this column.

        Before `learn` was called for the first time, the size of errors is unknown, and the bonus is 0.
        """
        reward = as_floats(batch.reward)
        bonus = self._scaled(self._error(self._rows_of(batch))).reshape(reward.shape).to(reward)
        return with_reward(batch, reward + self.weight * bonus)

    @property
    def weight(self) -> float:
        """Current weight of the bonus."""
        start, over = self._bonus.bonus_weight, self._bonus.bonus_steps
        return start if over is None else decayed_value(start, 0.0, over, self.steps, "linear")

    def _update_scale(self, square: Tensor) -> None:
        """Add the mean square of the error of a batch to the running one."""
        self.mean_square = torch.where(self.mean_square > 0, self.mean_square.lerp(square, 1 - self._bonus.scale_decay), square)

    def _scaled(self, error: Tensor) -> Tensor:
        scaled = error / (self.mean_square.sqrt() + 1e-8)
        return torch.where(self.mean_square > 0, scaled, 0.0)  # no scale before the first batch
