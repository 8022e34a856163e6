"""Parameter groups: one optimizer for several parts of a model, each with its own learning rate and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.policy_base import clip_gradients, configured_optimizer

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object


class ParamGroupsMixin(Base):
    """A mixin for models whose parts have different losses, such as actor and critic, with one optimizer for all parts.

    `loss` returns the sum of all losses, so one backward pass and one optimizer step train all parts. Each loss must therefore
    block its gradient to the other parts. If a gradient step leaves out the loss of a part, the step does not change the part,
    nor its moments and step count in the optimizer.
    """

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and the learning rate of each part, by name."""
        raise NotImplementedError(f"{type(self).__name__} has no param_groups(): return the parameters and learning rates.")

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """Make the optimizer with one group per learning rate. Parts with the same rate share a group, which is faster."""
        groups: dict[float, list[nn.Parameter]] = {}
        for part, lr in self.param_groups().values():
            groups.setdefault(lr, []).extend(part)
        return configured_optimizer(self.cfg.learn, [{"params": group, "lr": lr} for lr, group in groups.items()])

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Clip the gradient norm of each part to `cfg.learn.grad_clip_norm`. Returns the norms, and the total norm, to log."""
        limit = self.cfg.learn.grad_clip_norm
        if limit is None:
            return {}
        norms = {name: clip_gradients(part, limit) for name, (part, _) in self.param_groups().items()}
        total = torch.stack(list(norms.values())).norm()
        return {"grad_norm": total, **{f"grad_norm_{name}": norm for name, norm in norms.items()}}
