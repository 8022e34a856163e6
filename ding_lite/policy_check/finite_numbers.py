"""Finite numbers: checks that losses, gradients and weights are not NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ADVICE = (
    "lower learn.learning_rate, clip gradients with learn.grad_clip_norm, or look for very large rewards, observations or "
    "actions"
)


class NonFiniteError(FloatingPointError):
    """The loss, the norm of its gradient, or a weight is not finite.

    If it is the loss or the gradient, and was checked in this step, no step was taken; on a GPU, not every step is checked. If
    it is a weight, no state is saved; on a CPU, no snapshot is made either, and nothing is copied to acting copies.
    """

    found: str = ""
    """What is not finite, and when it was found; without advice."""


def loss_error(found: str) -> NonFiniteError:
    """The error for a loss or a gradient that is not finite, with advice."""
    error = NonFiniteError(f"{found}: {_ADVICE}.")
    error.found = found
    return error


def require_finite(policy: str, train_iter: int, params: Sequence[Tensor]) -> None:
    """Check that the weights of a policy are finite.

    Raises:
        NonFiniteError: a weight is NaN or infinite.
    """
    # A sum is much cheaper than isfinite(). It may overflow although all numbers are finite, so isfinite() then decides.
    with torch.no_grad():
        total = sum([param.sum().item() for param in params])
    if math.isfinite(total) or all(bool(it.isfinite().all()) for it in params):
        return
    if not train_iter:
        raise NonFiniteError(
            f"the first weights of {policy} are not finite: initialise the networks of make_model, or of the argument model, "
            "with finite numbers."
        )
    raise NonFiniteError(
        f"the weights of {policy} are not finite after {train_iter} gradient steps, because a gradient was not finite although "
        f"the loss was, or because a step was much too large: {_ADVICE}; and continue from an earlier checkpoint."
    )


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers of these tensors are finite. It usually waits for a GPU only once."""
    total = sum(tensor.sum() for tensor in tensors)
    return math.isfinite(float(total)) or all(bool(tensor.isfinite().all()) for tensor in tensors)  # the sum may overflow


LossError = NonFiniteError  # its name in earlier versions
