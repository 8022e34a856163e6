"""Optimizers from the settings in `cfg.learn`, and the clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.nn import Adam, RMSprop
from ding_lite.policy_base.configs import LearnConfig

_EPS = {"adam": 1e-8, "rmsprop": 1e-5}


def configured_optimizer(learn: LearnConfig, params: Iterable[Any]) -> Optimizer:
    """The optimizer that `learn.optimizer` names, with the other settings of `learn` for optimizers.

    Args:
        learn: the section of the configuration.
        params: parameters, or parameter groups, which may have learning rates of their own.

    Reference:
        Mnih et al. (2016), https://arxiv.org/abs/1602.01783, section 4.5, for RMSProp.
    """
    eps = _EPS[learn.optimizer] if learn.optimizer_eps is None else learn.optimizer_eps
    if learn.optimizer == "rmsprop":
        settings: dict[str, Any] = {"alpha": learn.rmsprop_decay, "momentum": learn.rmsprop_momentum}
        return RMSprop(params, lr=learn.learning_rate, eps=eps, foreach=True, **settings)
    return Adam(params, lr=learn.learning_rate, eps=eps, fused=True)


def clip_gradients(params: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale the gradients of these parameters so that their norm is at most `limit`. Returns the norm that they had."""
    return nn.utils.clip_grad_norm_(params, limit, foreach=True)
