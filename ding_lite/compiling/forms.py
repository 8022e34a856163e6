"""Forms of a gradient step: a compiled step with the shapes and the Python values that it holds for."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.compiling.functional_steps import Coefficient, Column, FunctionalStep, Moment, Path, Rate, Slot, metas_of
from ding_lite.compiling.packages import Package
from ding_lite.compiling.tracing import Draw, Meta
from ding_lite.compiling.updates import begin_moments, settings_of

_ADDRESS = operator.methodcaller("data_ptr")


class UnfitError(Exception):
    """A tensor of the policy's state has another layout than in the compiled step; the message names it."""


class Form:
    """A compiled step, with what it holds for.

    Args:
        step: the traced step.
        policy: the policy.
    """

    def __init__(self, step: FunctionalStep, policy: Any) -> None:
        self.step = step
        self.package: Package | None = None
        """The compiled step; None if steps of this form are not compiled."""
        self._metas = metas_of(step)
        self._settings = settings_of(policy.optimizer)
        self._draws = {id(draw): place for place, draw in enumerate(step.sources) if isinstance(draw, Draw)}
        self.held_places = [place for place, it in enumerate(step.sources) if isinstance(it, (Slot, Moment))]
        """The inputs that are tensors of the policy's state."""
        self._addresses: list[int] = []
        self._rates: list[Any] = []
        self._inputs: list[Any] = [None] * len(step.sources)

    @property
    def digest(self) -> str:
        """A hash of the program and of the values that it holds for."""
        values = [str(guard) for guard in self.step.guards]
        return hashlib.sha256(repr((self.step.program.key, values, self.step.variant)).encode()).hexdigest()[:40]

    def misfit(self, policy: Any, leaves: Mapping[Path, Any]) -> str | None:
        """Why a step does not have this form; None if it has.

        Args:
            policy: the policy.
            leaves: the columns of the batch.
        """
        step = self.step
        if step.variant != (variant := policy.step_variant()):
            return f"step_variant() is {variant!r}"
        for guard in step.guards:
            if not guard.holds():
                now = getattr(guard.owner, guard.name, None)
                return f"{type(guard.owner).__name__}.{guard.name} is {now!r:.60}, and was {guard.value!r:.60}"
        if len(leaves) != len(step.columns):
            return f"the batch has the columns {['/'.join(path) for path in leaves]}"
        for path, meta in self._metas.items():
            leaf = leaves.get(path)
            if (
                leaf is None
                or leaf.shape != meta.shape
                or leaf.dtype is not meta.dtype
                or leaf.stride() != meta.stride
                or leaf.device != meta.device
                or leaf.requires_grad
            ):
                found = "missing" if leaf is None else f"{leaf.dtype} of shape {list(leaf.shape)} on {leaf.device}"
                return f"the column {'/'.join(path)} is {found}, and was {meta.dtype} of shape {list(meta.shape)}"
        if any(path not in leaves for path in step.columns):
            return f"the batch has the columns {['/'.join(path) for path in leaves]}"
        if settings_of(policy.optimizer) != self._settings:
            return "the settings of the optimizer have changed"
        return None

    def begin(self, policy: Any) -> list[nn.Parameter]:
        """Make the moments of parameters that have none. Returns these parameters."""
        groups = policy.optimizer.param_groups
        return [param for place, param in self.step.updated if begin_moments(policy.optimizer, groups[place], param)]

    def held(self, policy: Any) -> list[Tensor]:
        """The tensors of the policy's state that are inputs, after `begin`, checked.

        Raises:
            UnfitError: one has another layout than in the trace.
        """
        state, sources = policy.optimizer.state, self.step.sources
        tensors = [
            source.held[source.name] if type(source) is Slot else state[source.param][source.name]  # type: ignore[union-attr]
            for source in (sources[place] for place in self.held_places)
        ]
        addresses = list(map(_ADDRESS, tensors))
        if addresses != self._addresses:
            self._check(tensors)
            self._addresses = addresses
        return tensors

    def _check(self, tensors: Sequence[Tensor]) -> None:
        for place, tensor in zip(self.held_places, tensors):
            meta, source = self.step.program.metas[place], self.step.sources[place]
            if Meta.of(tensor) != meta:
                raise UnfitError(
                    f"{source.name} is {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}, and was {meta.dtype} of "  # type: ignore[union-attr]
                    f"shape {list(meta.shape)} on {meta.device}"
                )

    def take(self, policy: Any, leaves: Mapping[Path, Tensor]) -> list[Tensor]:
        """Take the step: draw its random numbers, and change weights and moments. Returns the outputs."""
        assert self.package is not None, "a form without a package is not taken"
        inputs = self._inputs
        for place, tensor in zip(self.held_places, self.held(policy)):
            inputs[place] = tensor
        rates = [group["lr"] for group in policy.optimizer.param_groups]
        is_same = rates == self._rates
        own = vars(policy)
        for place, source in enumerate(self.step.sources):
            kind = type(source)
            if kind is Column:
                inputs[place] = leaves[source.path]  # type: ignore[union-attr]
            elif kind is Rate and not is_same:
                inputs[place] = torch.tensor(float(rates[source.group]), dtype=torch.float64)  # type: ignore[union-attr]
            elif kind is Coefficient:
                inputs[place] = torch.tensor(own[source.name], dtype=torch.get_default_dtype())  # type: ignore[union-attr]
        self._rates = rates
        for draw in self.step.draws:
            numbers = draw.draw()
            if (place := self._draws.get(id(draw), -1)) >= 0:
                inputs[place] = numbers
        return self.package.run(list(inputs))  # type: ignore[no-any-return]
