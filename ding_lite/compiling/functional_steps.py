"""Functional steps: a gradient step of a policy as a program, from loss to the new parameters and moments."""

from __future__ import annotations

import operator
import threading
import traceback
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.basics import Config
from ding_lite.basics.blocks import block
from ding_lite.basics.global_random import global_random_states
from ding_lite.compiling.optimizer_updates import (
    moment_names,
    place_counts,
    require_supported,
    step_in_place,
    stepped,
    steps_in_place,
    zero_moment,
)
from ding_lite.compiling.programs import Program, program_of
from ding_lite.compiling.reads import Reads, modules_of
from ding_lite.compiling.tracing import Draw, Meta, NotCompiledError, Trace, refusing_side_effects, user_line
from ding_lite.compiling.value_guards import AnyGuard, is_plain, parts_of
from ding_lite.data import Tree, flatten, nested
from ding_lite.data.trees import map_leaves
from ding_lite.functional.traces import tracing
from ding_lite.policy_check import NonFiniteError, with_stats
from ding_lite.policy_check.policy_restoring import RestorablePolicy, restoring_state
from ding_lite.policy_state import networks_of

Path = tuple[str, ...]
_TRACING = SimpleNamespace(lock=threading.Lock(), owner=None)  # a trace replaces methods of classes, which threads share
_DEVICES = "cpu", "cuda"
ALL_FINITE = "gradients are finite"
"""Name of an output: whether all gradients are finite."""


class CompilablePolicy(RestorablePolicy, Protocol):
    """The interface that compiled steps need from a policy."""

    optimizer: Optimizer
    """The optimizer of `params`."""

    params: list[nn.Parameter]
    """The parameters of the model."""

    def step_variant(self) -> Hashable:
        """What the loss makes of counters."""

    def loss(self, batch: Tree, /) -> Any:
        """The loss of a batch."""

    def compute_gradients(self, loss: Tensor, /) -> dict[str, Any]:
        """Set the gradients. Returns a dict to log."""


class Slot(NamedTuple):
    """Where a tensor of the policy's state is: `held[name]`."""

    held: dict[str, Any]
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def tensor(self) -> Tensor:
        """The tensor."""
        return self.held[self.name]  # type: ignore[no-any-return]


class Moment(NamedTuple):
    """A moment of a parameter, by the key in the optimizer's state of it."""

    param: nn.Parameter
    name: str


class Rate(NamedTuple):
    """The learning rate of a parameter group."""

    group: int


class Coefficient(NamedTuple):
    """A number that is an attribute of the policy."""

    name: str


class Column(NamedTuple):
    """A column of the batch."""

    path: Path

    def __str__(self) -> str:
        return f"the column {'/'.join(self.path)}"


class Constant(NamedTuple):
    """A tensor that the loss makes from Python numbers."""

    tensor: Tensor


Source = Slot | Moment | Rate | Coefficient | Column | Draw | Constant
"""Where an input of a step comes from."""


class FunctionalStep(NamedTuple):
    """A traced gradient step."""

    program: Program
    sources: tuple[Source, ...]
    """The source of each input of the program."""
    outputs: tuple[str, ...]
    """Names of the outputs after the first one, which is the loss."""
    constants: Mapping[str, Any]
    """Statistics that are no tensors."""
    updated: tuple[tuple[int, nn.Parameter], ...]
    """The parameters that the step changes, each with the index of its group."""
    written: tuple[Slot, ...]
    """Buffers that the loss changes."""
    draws: tuple[Draw, ...]
    """All draws of random numbers in their order, also those without effect on the result."""
    guards: tuple[AnyGuard, ...]
    """The Python values that it holds for."""
    variant: Hashable
    """The result of `step_variant` that it holds for."""
    columns: Mapping[Path, Meta]
    """The layout of each column of the batch."""
    shared: tuple[tuple[Slot | Column, ...], ...]
    """The places that have the same tensor: it is one input."""


def all_slots_of(policy: Any) -> list[Slot]:
    """Where a policy's networks and attributes have tensors. A tensor that is in several places is there several times."""
    found = [
        Slot(held, name)
        for module in modules_of(policy)
        for held in (module._parameters, module._buffers, vars(module))
        for name, it in held.items()
        if isinstance(it, Tensor)
    ]
    own = vars(policy)
    return found + [Slot(own, name) for name, it in own.items() if isinstance(it, Tensor)]


def is_number(value: Any) -> bool:
    """Whether a value may be an input as a scalar tensor."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def slots_of(policy: Any) -> list[Slot]:
    """The tensors of a policy's networks and attributes, each once."""
    return list({id(slot.tensor): slot for slot in reversed(all_slots_of(policy))}.values())[::-1]


def shared_in(policy: Any, leaves: Mapping[Path, Tensor]) -> list[list[Slot | Column]]:
    """The places that have the same tensor, of a policy and of a batch."""
    places: dict[int, list[Slot | Column]] = {}
    for slot in all_slots_of(policy):
        places.setdefault(id(slot.tensor), []).append(slot)
    for path, leaf in leaves.items():
        places.setdefault(id(leaf), []).append(Column(path))
    return [group for group in places.values() if len(group) > 1]


def links_of(policy: Any) -> list[tuple[dict[str, Any], str, nn.Module]]:
    """Each network of a policy and each module in one: the dict that has it, and its name there."""
    own, found = vars(policy), []
    for name, network in networks_of(policy).items():
        if isinstance(network, nn.Module):
            found += [(own, name, network)] if name in own else []
            found += [(it._modules, part, inner) for it in network.modules() for part, inner in it._modules.items() if inner]
    return found


def lists_of(policy: Any) -> list[tuple[str, Any, list[Any]]]:
    """Each attribute of a policy that is a list, tuple or dict with networks: its name, the object, and what is in it."""
    groups = [(name, it, parts_of(it)) for name, it in vars(policy).items() if isinstance(it, (list, tuple, dict))]
    return [group for group in groups if any(isinstance(part, nn.Module) for part in group[2])]


def are_same_lists(policy: Any, lists: Sequence[tuple[str, Any, list[Any]]]) -> bool:
    """Whether these attributes are the same objects as in a result of `lists_of`, and have the same objects in them."""
    own = vars(policy)
    for name, group, before in lists:
        parts = parts_of(group)
        if own.get(name) is not group or len(parts) != len(before) or not all(map(operator.is_, parts, before)):
            return False
    return True


def trace_step(policy: CompilablePolicy, batch: Tree, checks_gradients: bool) -> FunctionalStep:
    """Trace a gradient step. The policy is as before afterwards.

    Args:
        policy: the policy.
        batch: the batch of the loss.
        checks_gradients: whether a step with a gradient that is not finite must leave the weights as they are.

    Raises:
        NotCompiledError: the step cannot be compiled; the message says why.
        NonFiniteError: the loss raises it.
    """
    require_supported(policy.optimizer)
    place_counts(policy.optimizer)
    leaves, device = list(flatten(nested(batch))), policy.params[0].device
    for path, leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise NotCompiledError(f"the column {'/'.join(path)} of the batch is a {type(leaf).__name__}, not a tensor.")
        if leaf.device.type not in _DEVICES or leaf.device != device:
            raise NotCompiledError(
                f"the column {'/'.join(path)} of the batch is on {leaf.device} and the network on {device}; only steps on the "
                "CPU and on CUDA devices are compiled."
            )
    found: dict[str, None] = {}
    for kind in type(policy).__mro__:
        names = vars(kind).get("step_inputs", ())
        if not isinstance(names, (tuple, list)):
            raise NotCompiledError(f"{kind.__name__}.step_inputs is {names!r:.60}, expected a tuple of names of attributes.")
        found.update(dict.fromkeys(names))
    own = vars(policy)
    inputs = [name for name in found if is_number(own.get(name)) and own[name]]  # a term of weight 0 may be left out
    try:
        with _only_trace(), restoring_state(policy):
            return _Tracer(policy, batch, inputs, checks_gradients).traced()
    except NotCompiledError:
        if not inputs:
            raise
    with _only_trace(), restoring_state(policy):  # perhaps the loss makes a condition of one
        return _Tracer(policy, batch, [], checks_gradients).traced()


@block
def _only_trace() -> Iterator[None]:
    """Wait until no other thread traces a step.

    Raises:
        NotCompiledError: this thread does.
    """
    if _TRACING.owner == threading.get_ident():
        raise NotCompiledError("a loss takes a gradient step of another policy, whose step cannot be compiled there.")
    with _TRACING.lock:
        _TRACING.owner = threading.get_ident()
        try:
            yield
        finally:
            _TRACING.owner = None


def batch_copy(policy: Any, batch: Tree) -> Tree:
    """A copy of a batch, so that a loss may change it. Columns that share a tensor share its copy; tensors of the policy are
    not copied.
    """
    own = {id(slot.tensor): slot.tensor for slot in slots_of(policy)}
    copies: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) in own:
            return leaf
        if id(leaf) not in copies:
            found = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in leaf.stride())  # of expanded dimensions
            found[once].copy_(leaf.detach()[once])
            copies[id(leaf)] = found
        return copies[id(leaf)]

    return map_leaves(copied, batch)


class _Tracer:
    """Traces a step of a policy, whose state is restored afterwards."""

    def __init__(self, policy: Any, batch: Tree, inputs: Sequence[str], checks_gradients: bool) -> None:
        self._policy, self._batch, self._checks = policy, batch_copy(policy, batch), checks_gradients
        self._leaves = leaves = dict(flatten(nested(self._batch)))
        self._slots = slots_of(policy)
        own = vars(policy)
        where = {"device": policy.params[0].device}
        self._coefficients = {name: torch.tensor(own[name], dtype=policy.params[0].dtype, **where) for name in inputs}
        self._groups = policy.optimizer.param_groups
        self._rates = [torch.tensor(float(group["lr"]), dtype=torch.float64, **where) for group in self._groups]
        self._moments = {
            id(param): self._moments_of(group, param)
            for group in self._groups
            for param in group["params"]
            if param.requires_grad
        }
        self._sources: list[tuple[Tensor, Source]] = [
            *((slot.tensor, slot) for slot in self._slots),
            *((it, Column(path)) for path, it in leaves.items()),
            *((it, Coefficient(name)) for name, it in self._coefficients.items()),
            *((it, Rate(place)) for place, it in enumerate(self._rates)),
            *(
                (it, Moment(param, name))
                for group in self._groups
                for param in group["params"]
                for name, it in self._moments.get(id(param), {}).items()
            ),
        ]
        self._trace = Trace([tensor for tensor, _ in self._sources])

    def _moments_of(self, group: Mapping[str, Any], param: Tensor) -> dict[str, Tensor]:
        held = self._policy.optimizer.state.get(param) or {}
        names = moment_names(self._policy.optimizer, group)
        return {name: held[name] if name in held else zero_moment(name, param) for name in names}

    def traced(self) -> FunctionalStep:
        """The step."""
        policy, trace = self._policy, self._trace
        variant = policy.step_variant()
        vars(policy).update({**self._coefficients, "step_variant": lambda: variant})
        reads = Reads((type(policy), Config, nn.Module), [*self._coefficients, "step_variant"], policy)
        versions = [tensor._version for tensor, _ in self._sources]
        before = {id(slot.tensor): trace.keep(slot.tensor) for slot in self._slots if not isinstance(slot.tensor, nn.Parameter)}
        generators = _states_of_numpy(policy)
        with _explained(), tracing(), refusing_side_effects(), reads.recording(), trace, torch.enable_grad():
            loss, stats = with_stats(policy.loss(self._batch))
            if not isinstance(loss, Tensor) or loss.ndim:
                raise NotCompiledError("the loss is no scalar tensor.")
            for param in policy.params:
                param.grad = None
            stats = {**stats, **(policy.compute_gradients(loss) or {})}
        now = dict(flatten(nested(self._batch)))
        if now.keys() != self._leaves.keys() or any(leaf is not self._leaves[path] for path, leaf in now.items()):
            raise NotCompiledError(
                f"the loss of {type(policy).__name__} assigns a column of the batch, which a compiled step would not do: use a "
                "variable."
            )
        self._require_pure(generators)
        written = self._written(versions, before)
        with trace, torch.no_grad():
            outputs, constants = self._outputs(loss.detach(), stats)
            finite = self._is_finite(outputs, stats)
            copies, updated = self._updates(finite)
            copies += [(it, torch.where(finite, it, before[id(it)])) for it in (slot.tensor for slot in written)]
            if self._checks and "grad_norm" not in stats:
                outputs[ALL_FINITE] = finite
        numbers = [trace.number_of(it) for it in outputs.values()]
        program, inputs = program_of(trace, numbers, [(trace.number_of(to), trace.number_of(new)) for to, new in copies])
        draws = dict(trace.draws)
        sources: dict[int, Source] = {trace.number_of(tensor): source for tensor, source in reversed(self._sources)}
        sources.update({trace.number_of(it): Constant(it) for it in trace.constants.values() if trace.has(it)})
        return FunctionalStep(
            program,
            tuple(draws[number] if number in draws else sources[number] for number in inputs),
            tuple(outputs)[1:],
            constants,
            tuple(updated),
            tuple(written),
            tuple(draws.values()),
            tuple(reads.guards),
            variant,
            {path: Meta.of(leaf) for path, leaf in self._leaves.items()},
            tuple(map(tuple, shared_in(policy, self._leaves))),
        )

    def _require_pure(self, generators: Mapping[str, Any]) -> None:
        """Raise NotCompiledError if the loss has logged something, or drawn from numpy or Python."""
        policy, kind = self._policy, type(self._policy).__name__
        if any(True for _ in flatten(policy.hook_metrics.peek())):
            raise NotCompiledError(
                f"the loss of {kind} logs with self.metrics, which a compiled step would not: return the value."
            )
        if drawn := [name for name, state in _states_of_numpy(policy).items() if generators[name] != state]:
            raise NotCompiledError(
                f"the loss of {kind} draws from the random generator {drawn[0]}, whose numbers a compiled step would repeat: "
                "draw from self.generator, such as torch.randn(shape, generator=self.generator)."
            )

    def _written(self, versions: Sequence[int], before: Mapping[int, Tensor]) -> list[Slot]:
        """The buffers that the loss has changed in place. Batch normalisation does not count these changes."""
        found = []
        for (tensor, source), version in zip(self._sources, versions):
            if tensor._version == version and (id(tensor) not in before or torch.equal(tensor, before[id(tensor)])):
                continue
            if not isinstance(source, Slot) or isinstance(tensor, nn.Parameter):
                what = "/".join(source.path) if isinstance(source, Column) else getattr(source, "name", "a moment")
                raise NotCompiledError(f"the loss of {type(self._policy).__name__} changes {what} in place.")
            found.append(source)
        return found

    def _outputs(self, loss: Tensor, stats: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies of loss and statistics, because these may share memory with weights; and statistics that are no tensors."""
        outputs, constants = {"": loss.clone()}, {}
        for name, value in stats.items():
            if isinstance(value, Tensor):
                outputs[name] = value.detach().clone()
            elif is_plain(value):
                constants[name] = value
            else:
                raise NotCompiledError(f"the loss returns {name!r} to log, a {type(value).__name__}.")
        return outputs, constants

    def _is_finite(self, outputs: Mapping[str, Tensor], stats: Mapping[str, Any]) -> Tensor:
        """Whether the step is taken, a bool scalar; the conditions are those of a step that is not compiled."""
        finite = torch.isfinite(outputs[""])
        if "grad_norm" in outputs:
            return finite & torch.isfinite(outputs["grad_norm"])
        if self._checks:
            for param in self._policy.params:
                if param.grad is not None:
                    finite = finite & torch.isfinite(param.grad).all()
        return finite

    def _updates(self, finite: Tensor) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[int, nn.Parameter]]]:
        """(tensor, new value) of parameters and moments, unless the optimizer changes them in place; and the parameters that
        change, with the indices of their groups.
        """
        copies: list[tuple[Tensor, Tensor]] = []
        updated: list[tuple[int, nn.Parameter]] = []
        for place, group in enumerate(self._groups):
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            updated += [(place, param) for param in params]
            moments = [self._moments[id(param)] for param in params]
            grads = [param.grad for param in params]
            if steps_in_place(self._policy.optimizer, params):
                step_in_place(group, params, grads, moments, self._rates[place], finite)
                continue
            found = stepped(self._policy.optimizer, group, params, grads, moments, self._rates[place])
            for param, own, (new, new_moments) in zip(params, moments, found):
                copies.append((param, torch.where(finite, new, param)))
                copies += [(own[name], torch.where(finite, it, own[name])) for name, it in new_moments.items()]
        return copies, updated


def _states_of_numpy(policy: Any) -> dict[str, Any]:
    """The states of the generators of numpy and Python that a loss may draw from."""
    states = {name: state for name, state in global_random_states().items() if name != "torch"}
    return {**states, **{f"self.{name}": repr(it) for name, it in policy.generator_state().items() if name != "generator"}}


@block
def _explained() -> Iterator[None]:
    """Turn an error of the traced hooks into NotCompiledError: without tracing, they raise it themselves, or do not."""
    try:
        yield
    except (NotCompiledError, NonFiniteError):
        raise
    except Exception as error:
        where = user_line(traceback.extract_tb(error.__traceback__))
        raise NotCompiledError(f"{where} raises {type(error).__name__} while it is traced: {str(error)[:300]}") from error
