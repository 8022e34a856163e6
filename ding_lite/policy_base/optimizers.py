"""Optimizers from the settings in `cfg.learn`, and the clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.functional import is_traced
from ding_lite.nn import Adam, RMSprop
from ding_lite.policy_base.config_sections import LearnConfig

_LAYOUT, _DENSE = attrgetter("__class__", "dtype", "is_cpu", "is_sparse"), (Tensor, torch.float32, True, False)
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


@torch.no_grad()
def clip_gradients(params: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale the gradients of these parameters so that their norm is at most `limit`. Returns the norm that they had.

    The result is that of `torch.nn.utils.clip_grad_norm_`, bit for bit. On the CPU, its preparation takes most of its time, and
    gradients below the limit need not be multiplied by 1.
    """
    params = [*params]
    grads = [param.grad for param in params if param.grad is not None]
    if not grads or is_traced() or [*map(_LAYOUT, grads)].count(_DENSE) != len(grads):
        return nn.utils.clip_grad_norm_(params, limit, foreach=True)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)), 2.0)
    if not norm.item() + 1e-6 < 0.999 * limit:  # with rounding, the factor of others may be 1 as well
        torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
