"""Parameter groups: one optimizer for several parts of a model, each with its own learning rate and gradient norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.nn import Adam

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object


class ParamGroupsMixin(Base):
    """A mixin for models with parts that learn by losses of their own, such as actor and critic: one Adam for all.

    The losses are added up in `loss`, one backward pass gives the gradients of all, and one step is taken with all. So each
    loss has to keep its gradient from the parts that are not to learn by it. A part whose loss is left out of a gradient step
    is left alone by it, its moments and its counter too.
    """

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and the learning rate of each part, by name."""
        raise NotImplementedError(f"{type(self).__name__} has no param_groups(): say which parameters learn at which rate.")

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """Adam, with a group for each learning rate, since each group costs a call."""
        groups: dict[float, list[nn.Parameter]] = {}
        for part, lr in self.param_groups().values():
            groups.setdefault(lr, []).extend(part)
        return Adam([{"params": group, "lr": lr} for lr, group in groups.items()], fused=True)

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Clip the norm of each part's gradient at `cfg.learn.grad_clip_norm`. Returns the norms, and that of all, to log."""
        limit = self.cfg.learn.grad_clip_norm
        if limit is None:
            return {}
        norms = {name: nn.utils.clip_grad_norm_(part, limit, foreach=True) for name, (part, _) in self.param_groups().items()}
        total = torch.stack(list(norms.values())).norm()
        return {"grad_norm": total, **{f"grad_norm_{name}": norm for name, norm in norms.items()}}
