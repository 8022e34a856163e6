"""Forms of a gradient step: a compiled step with the shapes and the Python values that it is valid for."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)
from torch.utils.hooks import RemovableHandle

from ding_lite.compiling.cuda_graphs import GraphedStep
from ding_lite.compiling.functional_steps import (
    Coefficient,
    Column,
    Constant,
    FunctionalStep,
    Moment,
    Rate,
    Slot,
    are_same_lists,
    is_number,
    links_of,
    lists_of,
)
from ding_lite.compiling.optimizer_updates import GLOBAL_STEP_HOOKS, begin_moments, settings_of
from ding_lite.compiling.packages import Package
from ding_lite.compiling.programs import changed_inputs
from ding_lite.compiling.reads import MODULE_HOOKS, modules_of
from ding_lite.compiling.tracing import Draw, Meta, NotCompiledError, generator_states
from ding_lite.compiling.value_guards import Guards

RECHECKED = 1000
"""Every so many compiled steps, one is compared with a step that is not compiled."""

_EARLY = 10, 100  # the first ones sooner
_OF_PARAMS = nn.ParameterList, nn.ParameterDict
_CONTAINERS = nn.Sequential, nn.ModuleList, nn.ModuleDict, *_OF_PARAMS
_HOOKS_OF_TENSOR = operator.attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_GLOBAL_HOOKS = _global_forward_hooks, _global_forward_pre_hooks, _global_backward_hooks, _global_backward_pre_hooks


class UnfitError(Exception):
    """A tensor of the policy's state has another layout than in the compiled step; the message names it."""


class Form:
    """A compiled step, with what it is valid for.

    Args:
        step: the traced step.
        policy: the policy.
    """

    def __init__(self, step: FunctionalStep, policy: Any) -> None:
        self.step = step
        self.begins: float = 0
        """The value of `train_iter` from which steps of this form are compiled; infinity if they never are."""
        self.package: Package | GraphedStep | None = None
        """The compiled step, when it is there."""
        self.is_verified = False
        """Whether a compiled step was compared with one that is not compiled."""
        self.is_doubted = False
        """Whether the last compiled step that was compared with one that is not compiled differed from it."""
        self.has_rnn = any(isinstance(module, nn.RNNBase) for module in modules_of(policy))
        """Whether a network has a layer that cuDNN computes if steps are not compiled."""
        self._taken = 0
        self._guards = Guards(step.guards)
        links, self._lists = links_of(policy), lists_of(policy)
        self._optimizer, self._links, self._linked = policy.optimizer, [link[:2] for link in links], [link[2] for link in links]
        self._learns = [param.requires_grad for param in policy.params]
        self._groups = [list(group["params"]) for group in policy.optimizer.param_groups]
        self._hooks, self._surroundings = _Hooks(policy), _surroundings(policy)
        self._containers = [(it._parameters if isinstance(it, _OF_PARAMS) else it._modules) for it in _containers_in(policy)]
        self._sizes = list(map(len, self._containers))
        self.held_places = [place for place, it in enumerate(step.sources) if isinstance(it, (Slot, Moment))]
        """The inputs that are tensors of the policy's state."""
        read = {it.path for it in step.sources if isinstance(it, Column)}
        layouts = {path: meta if path in read else meta._replace(stride=()) for path, meta in step.columns.items()}
        self._columns = _Columns(layouts)
        self._column_places = [(place, it.path) for place, it in enumerate(step.sources) if isinstance(it, Column)]
        self._rate_places = [(place, it.group) for place, it in enumerate(step.sources) if isinstance(it, Rate)]
        self._coefficient_places = [(place, it.name) for place, it in enumerate(step.sources) if isinstance(it, Coefficient)]
        places = {id(it): place for place, it in enumerate(step.sources) if isinstance(it, Draw)}
        self._draws = [(places.get(id(draw)), draw) for draw in step.draws]
        held = {place: it.tensor for place, it in enumerate(step.sources) if isinstance(it, Slot)}
        self._params = {place: it for place, it in held.items() if isinstance(it, nn.Parameter)}
        self._reshaped = [
            (n, step.program.metas[at]) for n, at in enumerate(self.held_places) if at in held.keys() - self._params
        ]
        """Tensors that may get another shape in place, each with its index among those that are held."""
        self._settings = settings_of(policy.optimizer)
        self._states: list[Any] | None = None  # the optimizer's states of parameters when their tensors were looked up
        self._held: list[tuple[Mapping[str, Any], str]] = []
        self._tensors: list[Any] = []
        self._addresses: list[int] = []
        # Weights and buffers that may be transposed where they are.
        self._matrices = [n for n, at in enumerate(self.held_places) if at in held and len(step.program.metas[at].shape) > 1]
        self._strides: list[tuple[int, ...]] = []
        self._changed = changed_inputs(step.program)
        self._shared_before: list[tuple[int, int, int]] = []
        self._rates: list[Any] = []
        self._coefficients: list[Any] = []
        self._inputs: list[Any] = [it.tensor if isinstance(it, Constant) else None for it in step.sources]

    def record(self) -> None:
        """Make the compiled step of a form on a GPU."""
        stays = [place for place, it in enumerate(self.step.sources) if isinstance(it, (Slot, Moment, Constant))]
        self.package = GraphedStep(self.step.program, stays)

    def is_stale(self, policy: Any) -> bool:
        """Whether the networks of the policy, or its optimizer, are other objects than in the trace."""
        things = [held.get(name) for held, name in self._links]
        is_same = policy.optimizer is self._optimizer and all(map(operator.is_, things, self._linked))
        return not is_same or not are_same_lists(policy, self._lists)

    @property
    def digest(self) -> str:
        """A hash of the program. Forms for other values that do not change it have the same one."""
        return self.step.program.key

    def misfit(self, policy: Any, columns: Mapping[str, Any]) -> str | None:
        """Why a step does not have this form; None if it has.

        Args:
            policy: the policy.
            columns: the batch, as nested dicts.
        """
        step = self.step
        if (variant := policy.step_variant()) != step.variant:
            return f"step_variant() is {variant!r}"
        if (guard := self._guards.broken()) is not None:
            return guard.difference()
        if [param.requires_grad for param in policy.params] != self._learns:
            return "other parameters have requires_grad"
        if _surroundings(policy) != self._surroundings or not self._hooks.are_same():
            return "there are other hooks, or another autocast, default dtype or optimizer.step"
        if list(map(len, self._containers)) != self._sizes:
            return "a network has more or fewer parts"
        groups = [group["params"] for group in policy.optimizer.param_groups]
        if len(groups) != len(self._groups) or not all(map(_are_same, groups, self._groups)):
            return "the optimizer has other parameters"
        for _, name in self._coefficient_places:
            if not is_number(value := vars(policy).get(name)) or not value:
                return f"{type(policy).__name__}.{name} is {value!r:.60}"
        if found := self._columns.misfit(columns):
            return found
        for shared in step.shared:
            first, *others = (_found(it, columns) for it in shared)
            if any(it is not first for it in others):
                return f"{' and '.join(map(str, shared))} are no longer the same tensor"
        for group, settings in zip(policy.optimizer.param_groups, self._settings):
            for name, value in settings:
                if group[name] is not value and group[name] != value:
                    return f"{name} of the optimizer is {group[name]!r}, and was {value!r}"
        return None

    def is_due(self) -> bool:
        """Whether the next step is to be compared with one that is not compiled; asked before each step."""
        self._taken += 1
        return self.is_doubted or self._taken in _EARLY or self._taken % RECHECKED == 0

    def begin(self, policy: Any) -> list[nn.Parameter]:
        """Make the moments of parameters that have none. Returns these parameters."""
        groups = policy.optimizer.param_groups
        return [param for place, param in self.step.updated if begin_moments(policy.optimizer, groups[place], param)]

    def held(self, policy: Any) -> list[Tensor]:
        """The tensors of the policy's state that are inputs, checked. Moments that are missing are made.

        Raises:
            UnfitError: one has another layout than in the trace.
        """
        states = list(policy.optimizer.state.values())
        if self._states is None or len(states) != len(self._states) or not all(map(operator.is_, states, self._states)):
            self.begin(policy)
            state, sources = policy.optimizer.state, [self.step.sources[place] for place in self.held_places]
            self._held = [(it.held, it.name) if isinstance(it, Slot) else (state[it.param], it.name) for it in sources]  # type: ignore[union-attr]
            self._states = list(state.values())
        tensors = [held.get(name) for held, name in self._held]
        try:
            addresses = list(map(Tensor.data_ptr, tensors))  # type: ignore[arg-type]
            strides = [tensors[n].stride() for n in self._matrices]  # type: ignore[union-attr]
        except TypeError:
            addresses, strides = [], []
        is_same = addresses == self._addresses and strides == self._strides and all(map(operator.is_, tensors, self._tensors))
        if not is_same or any(_layout(tensors[n]) != (meta.shape, meta.stride) for n, meta in self._reshaped):
            self._check(tensors)
            shared = self._shared(tensors)
            if self._addresses and (_pattern(addresses) != _pattern(self._addresses) or shared != self._shared_before):
                raise UnfitError("tensors of the policy share memory that did not before")
            self._tensors, self._addresses, self._strides, self._shared_before = tensors, addresses, strides, shared
        return tensors  # type: ignore[return-value]

    def _shared(self, tensors: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Which buffers and attributes share memory with a tensor that the step changes, and how far apart they begin."""
        others = [n for n, _ in self._reshaped]
        changed = [n for n, place in enumerate(self.held_places) if place in self._changed] if others else []
        spans = {n: _span(tensors[n]) for n in (*others, *changed)}
        return [
            (n, m, spans[n][0] - spans[m][0])
            for n in others
            for m in changed
            if n != m and spans[n][0] < spans[m][1] and spans[m][0] < spans[n][1]
        ]

    def _check(self, tensors: Sequence[Any]) -> None:
        for place, tensor in zip(self.held_places, tensors):
            meta, source = self.step.program.metas[place], self.step.sources[place]
            name = source.name  # type: ignore[union-attr]
            if not isinstance(tensor, Tensor):
                raise UnfitError(f"{name} is a {type(tensor).__name__}, and was a tensor")
            if place in self._params and tensor is not self._params[place]:
                raise UnfitError(f"the parameter {name} is another object than before")
            if Meta.of(tensor) != meta:
                raise UnfitError(
                    f"{name} is {tensor.dtype} of shape {list(tensor.shape)} and strides {list(tensor.stride())} on "
                    f"{tensor.device}, and was {meta.dtype} of shape {list(meta.shape)} and strides {list(meta.stride)} on "
                    f"{meta.device}"
                )

    def take(self, policy: Any, columns: Mapping[str, Any]) -> list[Tensor]:
        """Take the step: draw its random numbers, and change weights and moments. Returns the outputs."""
        assert self.package is not None, "a form without a package is not taken"
        inputs = self._inputs.copy()
        for place, tensor in zip(self.held_places, self.held(policy)):
            inputs[place] = tensor
        for place, path in self._column_places:
            inputs[place] = columns[path[0]] if len(path) == 1 else _column(columns, path)
        rates = [float(group["lr"]) for group in policy.optimizer.param_groups]
        if rates != self._rates:
            self._rates = rates
            for place, group in self._rate_places:
                self._inputs[place] = inputs[place] = torch.tensor(rates[group], dtype=torch.float64)
        coefficients = [vars(policy)[name] for _, name in self._coefficient_places]
        if coefficients != self._coefficients:
            self._coefficients = coefficients
            for number, (place, _) in zip(coefficients, self._coefficient_places):
                self._inputs[place] = inputs[place] = torch.tensor(number, dtype=self.step.program.metas[place].dtype)
        package = self.package
        is_sure = not self._draws or not isinstance(package, GraphedStep) or package.is_recorded_for(inputs)
        before = [] if is_sure else generator_states(self.step.draws)
        for drawn_place, draw in self._draws:
            numbers = draw.draw()
            if drawn_place is not None:
                inputs[drawn_place] = numbers
        try:
            return package.run(inputs)
        except NotCompiledError:  # the step is taken without compilation, and draws the same numbers
            for generator, state in before:
                generator.set_state(state)
            raise


class _Hooks:
    """The hooks that a step calls, of networks, parameters and the optimizer.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: Any) -> None:
        optimizer, self._params = policy.optimizer, policy.params
        of_modules = [vars(module)[name] for module in modules_of(policy) for name in MODULE_HOOKS]
        of_steps = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *GLOBAL_STEP_HOOKS
        self._held: list[Mapping[int, Any]] = [*of_modules, *of_steps, *_GLOBAL_HOOKS]
        self._ids, self._next = self._now(), RemovableHandle.next_id

    def _now(self) -> list[int]:
        """The id of each hook; torch counts them."""
        of_params = (hooks for param in self._params for hooks in _HOOKS_OF_TENSOR(param) if hooks)
        return [number for hooks in (*self._held, *of_params) for number in hooks]

    def are_same(self) -> bool:
        """Whether there are no others now. While torch has made no more hooks, and none was there, this is one comparison."""
        if not self._ids and self._next == RemovableHandle.next_id:
            return True
        made = RemovableHandle.next_id
        if self._now() != self._ids:
            return False
        self._next = made
        return True


def _containers_in(policy: Any) -> list[nn.Module]:
    """The lists of modules and parameters in a policy's networks."""
    return [module for module in modules_of(policy) if isinstance(module, _CONTAINERS)]


def _surroundings(policy: Any) -> tuple[Any, ...]:
    """What changes the operations of a step from outside."""
    kind = policy.params[0].device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    precision = torch.get_float32_matmul_precision()
    kernels = (cudnn.allow_tf32, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()) if kind != "cpu" else ()
    return autocast, torch.get_default_dtype(), precision, vars(policy.optimizer).get("step"), *kernels


def _pattern(addresses: Sequence[int]) -> list[int]:
    """Which of these addresses are the same, by the index of the first one; those of empty tensors are 0."""
    first: dict[int, int] = {}
    return [first.setdefault(address, place) if address else place for place, address in enumerate(addresses)]


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses where the memory of a tensor begins and ends."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    size = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride())) + 1
    return begin, begin + size * tensor.element_size()


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _layout(tensor: Any) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def _found(place: Slot | Column, columns: Mapping[str, Any]) -> Any:
    """The tensor in a place; None if there is none."""
    return place.held.get(place.name) if isinstance(place, Slot) else _column(columns, place.path)


def _column(columns: Any, path: Sequence[str]) -> Any:
    for name in path:
        columns = columns[name]
    return columns


class _Columns:
    """The columns of a batch, to compare others with.

    Args:
        metas: the layout of each column; without strides for those whose elements the step does not read.
    """

    def __init__(self, metas: Mapping[tuple[str, ...], Meta]) -> None:
        inner: dict[str, dict[tuple[str, ...], Meta]] = {}
        for path, meta in metas.items():
            if len(path) > 1:
                inner.setdefault(path[0], {})[path[1:]] = meta
        self._inner = [(name, _Columns(parts)) for name, parts in inner.items()]
        self._flat = [(path[0], meta) for path, meta in metas.items() if len(path) == 1]
        self._names = {path[0] for path in metas}

    def misfit(self, columns: Mapping[str, Any]) -> str | None:
        """How these columns differ; None if they fit."""
        if columns.keys() != self._names:
            return f"the batch has the columns {sorted(columns)}, and had {sorted(self._names)}"
        for name, meta in self._flat:
            leaf = columns[name]
            if (
                type(leaf) is not Tensor
                or leaf.shape != meta.shape
                or (meta.stride and leaf.stride() != meta.stride)
                or leaf.dtype is not meta.dtype
                or leaf.device != meta.device
                or leaf.requires_grad
            ):
                found = f"{leaf.dtype} of shape {list(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
                return (
                    f"the column {name} is {found}, and was {meta.dtype} of shape {list(meta.shape)} and strides {meta.stride}"
                )
        for name, inner in self._inner:
            if not isinstance(columns[name], dict):
                return f"the column {name} is not nested"
            if misfit := inner.misfit(columns[name]):
                return misfit
        return None
