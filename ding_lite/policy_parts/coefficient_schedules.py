"""Coefficient schedules: mixins for numbers that change during training, such as the learning rate.

Each mixin is set up from the policy's configuration, unless `before_loss_init` calls its constructor. Its state is part of the
policy's state.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ding_lite.basics import ConfigError
from ding_lite.data import Tree
from ding_lite.functional import piecewise_linear
from ding_lite.policy_base import SKIPPED_FRACTION, FixedSettingError, set_up_by_hooks

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object

_LOWEST_KL_COEFF = 1e-8

Points = Sequence[tuple[float, float]]
"""Points (gradient step, value) of a schedule: linear interpolation between points, constant outside."""


def _checked(name: str, points: Points | None) -> Points | None:
    """The points of the setting `name`.

    Raises:
        ConfigError: there are none, they are not sorted, or a step is not a whole number.
    """
    if points is None:
        return None
    steps = [step for step, _ in points]
    if not steps or steps != sorted(steps):
        raise ConfigError(f"{name} = {list(points)}: expected one point (gradient step, value) or more, sorted by step.")
    if any(step != int(step) for step in steps):
        raise ConfigError(
            f"{name} = {list(points)}: steps are numbers of gradient steps, not fractions of the run. Multiply them by the "
            "gradient steps of the run."
        )
    return points


def is_in_use(coefficient: Any) -> bool:
    """Whether a loss has a term with this weight: if it is positive or, in a compiled gradient step, a tensor."""
    return isinstance(coefficient, torch.Tensor) or coefficient > 0


def _scheduled(name: str, schedule: str) -> FixedSettingError:
    return FixedSettingError(
        f"{name} has no effect, because {schedule} gives its value in each gradient step: change the schedule, or set it to "
        "None at the same time."
    )


class LearningRateScheduleMixin(Base):
    """A mixin for a learning rate that depends on the number of gradient steps, by `cfg.learn.lr_schedule`.

    `cur_lr` is the current learning rate, which is logged. It is that of the optimizer's first parameter group. Other groups,
    such as that of an actor with `cfg.learn.learning_rate_actor`, keep the ratio to it that they have when the policy is made.
    """

    _rate_ratios: Sequence[float] = ()

    def set_up(self) -> None:
        """Use `lr_schedule` of the configuration. Without one, the optimizer keeps its learning rates.

        Raises:
            ConfigError: with a schedule, the first rate is 0 and another one is not, so that there is no ratio.
        """
        base, *others = (float(group["lr"]) for group in self.optimizer.param_groups)
        self.cur_lr, self.lr_schedule = base, _checked("learn.lr_schedule", self.config.get("lr_schedule"))
        if self.lr_schedule is None:
            return
        if not base and any(others):
            raise ConfigError(
                f"learn.learning_rate = 0 with a learn.lr_schedule, and another rate is {max(others):g}: other rates keep "
                "their ratio to learning_rate. Set learning_rate to the first value of the schedule."
            )
        self._rate_ratios = [1.0, *(other / base if other != base else 1.0 for other in others)]
        self._set_learning_rate()

    def optimizer_settings(self) -> list[dict[str, Any]]:
        """The settings of each parameter group as the configuration gives them: with a schedule, its points instead of "lr"."""
        groups = super().optimizer_settings()
        if self.lr_schedule is None:
            return [{**group, "lr_schedule": None} for group in groups]
        points = [list(point) for point in self.lr_schedule]
        ratios = itertools.chain(self._rate_ratios, itertools.repeat(1.0))
        kept = [{name: value for name, value in group.items() if name != "lr"} for group in groups]
        return [{**group, "lr_schedule": points, "lr_ratio": ratio} for group, ratio in zip(kept, ratios)]

    def settings_changed(self, names: frozenset[str]) -> None:
        """Follow changes of learning rates and of the schedule."""
        super().settings_changed(names)
        rates = {name for name in names if name.startswith("learn.learning_rate")}
        if not rates and not names & {"learn.lr_schedule", "learn.optimizer_eps", "learn.rmsprop_decay"}:
            return
        LearningRateScheduleMixin.set_up(self)

    def require_effect(self, names: frozenset[str]) -> None:
        """Refuse a change of the only learning rate beside a schedule."""
        super().require_effect(names)
        if "learn.learning_rate" in names and self.lr_schedule is not None and len(self._rate_ratios) == 1:
            raise _scheduled("learn.learning_rate", "learn.lr_schedule")

    def before_step(self) -> None:
        """Set the learning rate of the gradient step."""
        super().before_step()
        if self.lr_schedule is not None:
            self._set_learning_rate()
        else:  # a scheduler of torch may have changed it
            self.cur_lr = float(self.optimizer.param_groups[0]["lr"])

    def _set_learning_rate(self) -> None:
        if self.lr_schedule is not None:
            self.cur_lr = piecewise_linear(self.lr_schedule, self.train_iter)
        for group, ratio in zip(self.optimizer.param_groups, itertools.chain(self._rate_ratios, itertools.repeat(1.0))):
            group["lr"] = self.cur_lr * ratio

    def stats(self, batch: Tree) -> dict[str, Any]:
        """The current learning rate, cur_lr."""
        return {**super().stats(batch), "cur_lr": torch.full((), self.cur_lr)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. `cur_lr` becomes the learning rate of the loaded optimizer."""
        super().load_state_dict(state)
        self.cur_lr = float(self.optimizer.param_groups[0]["lr"])


class LearningRateSchedule(LearningRateScheduleMixin):
    """`LearningRateScheduleMixin` with a constructor that hooks may call, such as `before_loss_init` of `build_policy`.

    Args:
        lr: the learning rate without a schedule.
        lr_schedule: points (gradient step, learning rate); None for constant `lr`.
    """

    @set_up_by_hooks
    def __init__(self, lr: float, lr_schedule: Points | None = None) -> None:
        self.cur_lr, self.lr_schedule = lr, lr_schedule
        self._set_learning_rate()


class EntropyCoeffSchedule(Base):
    """A mixin for a weight of the entropy bonus, `entropy_coeff`, that depends on the number of gradient steps.

    Args:
        entropy_coeff: the weight without a schedule.
        entropy_coeff_schedule: points (gradient step, weight); None for constant `entropy_coeff`.
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"entropy_coeff": (-math.inf, math.inf)}
    set_by_settings: ClassVar[tuple[str, ...]] = ("entropy_coeff",)
    step_inputs: ClassVar[tuple[str, ...]] = ("entropy_coeff",)

    @set_up_by_hooks
    def __init__(self, entropy_coeff: float, entropy_coeff_schedule: Points | None = None) -> None:
        self.entropy_coeff, self.entropy_coeff_schedule = entropy_coeff, entropy_coeff_schedule
        if entropy_coeff_schedule is not None:
            self.entropy_coeff = piecewise_linear(entropy_coeff_schedule, self.train_iter)

    def set_up(self) -> None:
        """Use `entropy_coeff` and `entropy_coeff_schedule` of the configuration."""
        points = _checked("learn.entropy_schedule", self.config.get("entropy_coeff_schedule"))
        EntropyCoeffSchedule.__init__(self, self.config.get("entropy_coeff", 0.0), points)

    def settings_changed(self, names: frozenset[str]) -> None:
        """Follow changes of the weight and of its schedule."""
        super().settings_changed(names)
        if names & {"learn.entropy_weight", "learn.entropy_schedule"}:
            EntropyCoeffSchedule.set_up(self)

    def require_effect(self, names: frozenset[str]) -> None:
        """Refuse a change of the weight beside a schedule."""
        super().require_effect(names)
        if "learn.entropy_weight" in names and self.entropy_coeff_schedule is not None:
            raise _scheduled("learn.entropy_weight", "learn.entropy_schedule")

    def before_step(self) -> None:
        """Set `entropy_coeff` for the gradient step."""
        super().before_step()
        if self.entropy_coeff_schedule is not None:
            self.entropy_coeff = piecewise_linear(self.entropy_coeff_schedule, self.train_iter)

    @property
    def state_settings(self) -> Mapping[str, Sequence[str]]:
        """The settings of the entries of the state; the weight follows from the schedule, if there is one."""
        weight = ("learn.entropy_weight",) if self.entropy_coeff_schedule is None else ()
        return {**super().state_settings, "entropy_coeff": ("learn.entropy_schedule", *weight)}

    def state_dict(self) -> dict[str, Any]:
        """The policy's state, including the weight."""
        return {**super().state_dict(), "entropy_coeff": self.entropy_coeff}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. The policy keeps its own weight if the state was made with another one."""
        super().load_state_dict(state)
        self.entropy_coeff = state.get("entropy_coeff", self.entropy_coeff)


class KLCoeffMixin(Base):
    """A mixin for an adaptive weight of the KL penalty, `kl_coeff`.

    After each batch whose learning returns "kl", the weight is multiplied by 1.5 if kl > 2 * kl_target, and by 0.5 if
    kl < 0.5 * kl_target; it stays above 1e-8, from which it can grow again. If learning returns no "kl", there is a warning.

    Args:
        config: a mapping with `kl_coeff`, the initial weight, and `kl_target`, in nats.

    Reference:
        Schulman et al. (2017), https://arxiv.org/abs/1707.06347, section 4, with the constants of RLlib. The paper doubles the
        weight above 1.5 * kl_target, and halves it below kl_target / 1.5.
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"kl_coeff": (0.0, math.inf)}
    step_inputs: ClassVar[tuple[str, ...]] = ("kl_coeff",)
    _has_warned = False

    @set_up_by_hooks
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kl_coeff, self.kl_target = float(config.get("kl_coeff", 0.2)), float(config.get("kl_target", 0.01))

    def set_up(self) -> None:
        """Use `kl_coeff` and `kl_target` of the configuration."""
        KLCoeffMixin.__init__(self, self.config)

    def settings_changed(self, names: frozenset[str]) -> None:
        """Follow changes of the initial weight, which becomes the current one, and of the target."""
        super().settings_changed(names)
        if "learn.kl_coeff" in names:
            self.kl_coeff = float(self.config["kl_coeff"])
        if "learn.kl_target" in names:
            self.kl_target = float(self.config["kl_target"])

    def learn(self, batch: Tree) -> dict[str, Any]:
        """Learn from a batch, then adapt the weight to the KL divergence."""
        output = super().learn(batch)
        if self.kl_coeff > 0 and "kl" in output:
            self.update_kl(float(output["kl"]))
        elif self.kl_coeff > 0 and output and not self._has_warned and not output.get(SKIPPED_FRACTION):
            self._has_warned = True
            warnings.warn(
                f"kl_coeff of {type(self).__name__} stays {self.kl_coeff:g}: it is adapted to the KL divergence, and learning "
                'returns no "kl". Return it from the loss, as in return loss, {"kl": kl}; or set kl_coeff to 0.',
                stacklevel=2,
            )
        return output

    def update_kl(self, sampled_kl: float) -> float:
        """Adapt the weight to a KL divergence in nats. Returns the new weight."""
        if sampled_kl > 2.0 * self.kl_target:
            self.kl_coeff *= 1.5
        elif sampled_kl < 0.5 * self.kl_target:
            self.kl_coeff = max(self.kl_coeff * 0.5, min(self.kl_coeff, _LOWEST_KL_COEFF))
        return self.kl_coeff

    @property
    def state_settings(self) -> Mapping[str, Sequence[str]]:
        """The settings of the entries of the state; without a typed configuration, by the short name."""
        return {**super().state_settings, "kl_coeff": ("learn.kl_coeff", "kl_coeff")}

    def state_dict(self) -> dict[str, Any]:
        """The policy's state, including the weight."""
        return {**super().state_dict(), "kl_coeff": self.kl_coeff}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. The policy keeps its own weight if the state was made with another initial one."""
        super().load_state_dict(state)
        self.kl_coeff = state.get("kl_coeff", self.kl_coeff)


ScheduledLearningRate = LearningRateScheduleMixin  # its name in earlier versions
