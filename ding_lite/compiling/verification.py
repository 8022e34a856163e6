"""Verification: a compiled step beside the same step without compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.basics.comparisons import same_values
from ding_lite.compiling.forms import Form
from ding_lite.compiling.functional_steps import Moment, Slot
from ding_lite.compiling.tracing import NotCompiledError, generator_states
from ding_lite.policy_check.policy_restoring import restoring_state

_OF_WEIGHTS = 1e-5  # largest difference, relative to the largest element of a tensor or to 1
_OF_SUMS = {torch.float64: 1e-6}  # of moments and statistics, by dtype: sums over a batch, in another order
_OF_OTHER_SUMS = 1e-4
_NOISE = 1e-6  # of the largest gradient: rounding, which Adam turns into whole steps where gradients are as small
_OF_TF32 = 2e-3  # relative error where cuDNN multiplies numbers of 10 bits, which torch allows it to do by default

_SQUARES = "exp_avg_sq", "max_exp_avg_sq", "square_avg"
"""Moments of squared gradients."""


class Reference(NamedTuple):
    """A step that was taken without compilation, and undone."""

    stats: Mapping[str, Any]
    tensors: Sequence[Tensor]
    """Copies of the tensors that the step has changed or may have changed, in the order of the form's inputs."""


class Saved:
    """Copies of the tensors that a step changes, and of the random generators that it draws from, to undo it.

    Args:
        form: the form of the step.
        policy: the policy, after `form.begin`.
    """

    def __init__(self, form: Form, policy: Any) -> None:
        self._tensors = form.held(policy)
        self.before = [tensor.detach().clone() for tensor in self._tensors]
        self._generators = generator_states(form.step.draws)

    def restore(self) -> None:
        """Undo the step."""
        with torch.no_grad():
            for tensor, before in zip(self._tensors, self.before):
                tensor.copy_(before)
        for generator, state in self._generators:
            generator.set_state(state)


def reference_step(form: Form, policy: Any, take: Callable[[], Mapping[str, Any]]) -> Reference:
    """Take a step without compilation, and undo it.

    Args:
        form: the form of the step.
        policy: the policy, after `form.begin`.
        take: takes the step, without hooks before and after it and without counting it, and returns its statistics.
    """
    saved = Saved(form, policy)
    try:
        with restoring_state(policy):
            stats = {name: it.detach().clone() if isinstance(it, Tensor) else it for name, it in take().items()}
            tensors = [tensor.detach().clone() for tensor in form.held(policy)]
    finally:
        saved.restore()
    return Reference(stats, tensors)


def require_equal(form: Form, before: Saved, reference: Reference, stats: Mapping[str, Any], now: Sequence[Tensor]) -> None:
    """Check that a compiled step had the result of the reference.

    Args:
        form: the form of the step.
        before: the tensors before the step.
        reference: the same step without compilation.
        stats: the statistics of the compiled step.
        now: the tensors after it.

    Raises:
        NotCompiledError: a statistic, weight or moment differs; the message names it.
    """
    if set(stats) != set(reference.stats):
        raise NotCompiledError(f"it returns {sorted(stats)}, and without compilation {sorted(reference.stats)}.")
    least = _OF_TF32 if form.has_rnn and torch.backends.cudnn.allow_tf32 and any(it.is_cuda for it in now) else 0.0
    compare = partial(_compare, least)
    for name, value in stats.items():
        other = reference.stats[name]
        if isinstance(value, Tensor) or isinstance(other, Tensor):
            compare(name, torch.as_tensor(value), torch.as_tensor(other), at_least=1.0)
        elif not same_values(value, other):
            raise NotCompiledError(f"its {name} is {value!r:.60}, and without compilation {other!r:.60}.")
    sources = [form.step.sources[place] for place in form.held_places]
    gradients = _gradients(sources, reference.tensors, before.before, max(_NOISE, least))
    noise = _noise(sources, reference.tensors, least)
    for source, tensor, other, old in zip(sources, now, reference.tensors, before.before):
        if isinstance(source, Moment):
            compare(f"the optimizer's {source.name}", tensor, other, 0.0, None, noise[source.name](other))
        elif isinstance(source, Slot):
            error = gradients.get(id(source.tensor))
            more = 0.0 if error is None else error * _largest(other - old)
            compare(source.name, tensor, other, 1.0, _OF_WEIGHTS, more)


def _largest(tensor: Tensor) -> Tensor:
    """The largest finite size of an element; 0 if there is none."""
    return tensor.abs().nan_to_num(0.0, 0.0).amax() if tensor.numel() else tensor.new_zeros(())


def _noise(sources: Sequence[Any], after: Sequence[Tensor], least: float) -> dict[str, Callable[[Tensor], Tensor]]:
    """By the name of a moment, the rounding of one of its tensors: that of the largest gradient of all parameters, because a
    gradient that ought to be 0, such as that of a bias before a softmax, is what others leave when they cancel."""
    largest: dict[str, Tensor] = {}
    for source, tensor in zip(sources, after):
        if isinstance(source, Moment):
            size = _largest(tensor)
            largest[source.name] = torch.maximum(largest.get(source.name, size), size)

    def of_squares(size: Tensor, tensor: Tensor) -> Tensor:
        error = max(_rounding(size), least) * size.sqrt()  # (gradient + error)^2 - gradient^2
        return error.square() + 2 * error * tensor.abs().sqrt()

    def of_gradients(size: Tensor, _: Tensor) -> Tensor:
        return max(_rounding(size), least) * size

    return {name: partial(of_squares if name in _SQUARES else of_gradients, size) for name, size in largest.items()}


def _rounding(tensor: Tensor) -> float:
    """The relative rounding of a sum over a batch, in the dtype of the tensor."""
    return 8 * torch.finfo(tensor.dtype).eps


def _gradients(sources: Sequence[Any], after: Sequence[Tensor], before: Sequence[Tensor], noise: float) -> dict[int, Tensor]:
    """By the id of a parameter, the share of its update that is rounding: its relative error, where the gradient is small."""
    found: dict[int, Tensor] = {}
    for source, new, old in zip(sources, after, before):
        if isinstance(source, Moment) and source.name in ("exp_avg", "square_avg", "momentum_buffer"):
            size = (new - old).abs()
            error = noise * _largest(size) / size.clamp(min=1e-38)
            found[id(source.param)] = error.clamp(max=2.0)
    return found


def _compare(
    least: float,
    name: str,
    found: Tensor,
    expected: Tensor,
    at_least: float,
    tolerance: float | None = None,
    more: Tensor | float = 0.0,
) -> None:
    """Raise NotCompiledError if two tensors differ by more than rounding.

    Args:
        least: the least relative tolerance.
        name: what they are, for the message.
        found, expected: of the compiled step, and of the other one.
        at_least: the tolerance is relative to the largest expected element, or to this.
        tolerance: None for that of sums.
        more: added to the tolerance of each element.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise NotCompiledError(
            f"{name} is {found.dtype} of shape {list(found.shape)}, and without compilation {expected.dtype} of shape "
            f"{list(expected.shape)}."
        )
    if not found.numel():
        return
    alike = (found == expected) | (found.isnan() & expected.isnan())
    if found.is_floating_point():
        relative = max(least, _OF_SUMS.get(found.dtype, _OF_OTHER_SUMS) if tolerance is None else tolerance)
        allowed = relative * _largest(expected).clamp(min=at_least) + more + 1e-30
        alike |= ((found - expected).abs() <= allowed) & found.isfinite() & expected.isfinite()
    if not alike.all():
        difference = (found.double() - expected.double()).abs()[~alike].max().item()
        raise NotCompiledError(f"its {name} differs from that of a step without compilation, by up to {difference:.3g}.")
