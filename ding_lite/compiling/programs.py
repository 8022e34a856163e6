"""Programs: a traced gradient step as plain data, with the inputs that it takes and the tensors that it changes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ding_lite.compiling.tracing import Call, Meta, Ref, Trace

_FORMAT = 2  # increases with changes of what a program means


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A function of tensors that changes some of them: what a package is compiled from."""

    calls: tuple[tuple[str, Any, Any, tuple[int | None, ...]], ...]
    """The operations: name, arguments, keyword arguments, numbers of the results."""

    inputs: tuple[int, ...]
    """Numbers of the inputs."""

    metas: tuple[Meta, ...]
    """Their layouts."""

    kept: tuple[tuple[int, int], ...]
    """(input, number of a copy of it before all operations)."""

    outputs: tuple[int, ...]
    """Numbers of the outputs."""

    copies: tuple[tuple[int, int], ...]
    """(input, number of its new value): what is written at the end."""

    @functools.cached_property
    def key(self) -> str:
        """A hash of everything that determines the compiled code, without versions of libraries and the machine."""
        return hashlib.sha256(repr((_FORMAT, self)).encode()).hexdigest()[:40]


def program_of(trace: Trace, outputs: Sequence[int], copies: Sequence[tuple[int, int]]) -> tuple[Program, list[int]]:
    """The program of a trace, without what has no effect.

    Args:
        trace: the trace.
        outputs: numbers of the outputs.
        copies: (input, new value).

    Returns:
        The program, and the numbers of its inputs.
    """
    needed = {*outputs, *(number for pair in copies for number in pair)}
    calls: list[Call] = []
    for call in reversed(trace.calls):
        if needed.intersection(call.results) or call.function._schema.is_mutable:
            calls.append(call)
            needed.update(_refs(call))
    fixed = {number: trace.constant(number) for number in trace.constants if number in needed}
    kept = tuple(pair for pair in (*trace.kept, *((raw, number) for number, raw in fixed.items())) if pair[1] in needed)
    needed.update(number for number, _ in kept)
    candidates = [*dict.fromkeys(trace.inputs), *(number for number, _ in trace.draws), *fixed.values()]
    inputs = [number for number in candidates if number in needed]
    calls.reverse()
    results = (number for call in calls for number in call.results if number is not None)
    # In the order of their use, so that columns that the step does not read do not change the program.
    new = {number: place for place, number in enumerate(dict.fromkeys((*inputs, *(it for _, it in kept), *results)))}
    program = Program(
        tuple(
            (str(it.function), *_renumbered((it.args, it.kwargs), new), tuple(new.get(number) for number in it.results))  # type: ignore[arg-type]
            for it in calls
        ),
        tuple(new[number] for number in inputs),
        tuple(Meta.of(trace.tensor(number)) for number in inputs),
        tuple((new[source], new[number]) for source, number in kept),
        tuple(new[number] for number in outputs),
        tuple((new[to], new[number]) for to, number in copies),
    )
    return program, inputs


def _renumbered(arguments: Any, new: Mapping[int, int]) -> Any:
    return pytree.tree_map(
        lambda it: Ref(new[it.number]) if isinstance(it, Ref) else it, arguments, is_leaf=lambda it: isinstance(it, Ref)
    )


def _refs(call: Call) -> Iterator[int]:
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)), is_leaf=lambda it: isinstance(it, Ref))
    return (leaf.number for leaf in leaves if isinstance(leaf, Ref))


def graph_of(program: Program) -> torch.fx.GraphModule:
    """The program as a module of torch.fx, whose arguments are its inputs."""
    graph = torch.fx.Graph()
    nodes: dict[int, Any] = {number: graph.placeholder(f"input_{place}") for place, number in enumerate(program.inputs)}
    for number, copied in program.kept:
        nodes[copied] = graph.call_function(torch.ops.aten.clone.default, (nodes[number],))
    for name, args, kwargs, results in program.calls:
        given = pytree.tree_map_only(
            Ref, lambda it: nodes[it.number], (args, dict(kwargs)), is_leaf=lambda it: isinstance(it, Ref)
        )
        node = graph.call_function(_function(name), *given)
        _name_results(graph, node, results, nodes)
    for target, new in program.copies:
        graph.call_function(torch.ops.aten.copy_.default, (nodes[target], nodes[new]))
    graph.output([nodes[number] for number in program.outputs])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def changed_inputs(program: Program) -> set[int]:
    """The places of the inputs that the program may change."""
    numbers = {number for number, _ in program.copies}
    for name, args, kwargs, _ in program.calls:
        if _function(name)._schema.is_mutable:
            leaves = pytree.tree_leaves((args, dict(kwargs)), is_leaf=lambda it: isinstance(it, Ref))
            numbers.update(leaf.number for leaf in leaves if isinstance(leaf, Ref))
    return {place for place, number in enumerate(program.inputs) if number in numbers}


def _function(name: str) -> Any:
    space, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), operation), overload)


def _name_results(graph: torch.fx.Graph, node: Any, results: Sequence[int | None], nodes: dict[int, Any]) -> None:
    """Assign the results of an operation to their numbers. An operation in place returns a tensor that has a number."""
    returned = node.target._schema.returns
    is_single = len(returned) == 1 and "List" not in str(returned[0].type) and "[]" not in str(returned[0].type)
    for place, number in enumerate(results):
        if number is not None and number not in nodes:
            nodes[number] = node if is_single else graph.call_function(_item, (node, place))


def _item(parts: Sequence[Any], place: int) -> Any:
    return parts[place]
