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
        """Make the optimizer with one group per learning rate. Parts with the same rate share a group, which is faster.

        Raises:
            TypeError: a parameter that learns is in two parts, and would take two steps in each gradient step.
        """
        groups: dict[float, list[nn.Parameter]] = {}
        part_of: dict[nn.Parameter, str] = {}
        for part, (part_params, lr) in self.param_groups().items():
            own = list(dict.fromkeys(part_params))
            shared = [param for param in own if param in part_of and param.requires_grad]
            if shared:
                raise TypeError(self._in_two_parts(shared[0], part_of[shared[0]], part))
            groups.setdefault(lr, []).extend(param for param in own if param not in part_of)
            part_of |= dict.fromkeys(own, part)
        return configured_optimizer(self.cfg.learn, [{"params": group, "lr": lr} for lr, group in groups.items()])

    def _in_two_parts(self, shared: nn.Parameter, part: str, other: str) -> str:
        name = next((repr(name) for name, param in self.model.named_parameters() if param is shared), "a parameter")
        return (
            f"{name} of the {type(self.model).__name__} of this {type(self).__name__} is in two parts, {part!r} and {other!r}, "
            "and would take two steps in each gradient step, with the gradients of both losses: give each its own layers, such "
            "as its own encoder, or override param_groups()."
        )

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Clip the gradient norm of each part to `cfg.learn.grad_clip_norm`. Returns the norms, and the total norm, to log."""
        limit = self.cfg.learn.grad_clip_norm
        if limit is None:
            return {}
        norms = {name: clip_gradients(part, limit) for name, (part, _) in self.param_groups().items()}
        total = torch.stack(list(norms.values())).norm()
        return {"grad_norm": total, **{f"grad_norm_{name}": norm for name, norm in norms.items()}}
