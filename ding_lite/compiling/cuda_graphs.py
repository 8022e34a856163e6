"""CUDA graphs: gradient steps on a GPU that the CPU launches as one operation instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ding_lite.compiling.programs import Program, changed_inputs, graph_of
from ding_lite.compiling.tracing import Meta, NotCompiledError

_WARM_UPS = 2  # libraries choose their kernels in the first calls, which a graph must not record
_MOST_RECORDINGS = 100

Replay = Callable[[], object]


def uses_graphs(device: torch.device) -> bool:
    """Whether gradient steps on a device are CUDA graphs, and not compiled."""
    return device.type == "cuda"


def record(work: Callable[[], object], rehearse: Callable[[], object], device: torch.device) -> Replay:
    """Record the operations of a function as a CUDA graph.

    Args:
        work: the function. It is called once, and nothing is computed.
        rehearse: does the same as `work` on copies; called before, and computes.
        device: the CUDA device.

    Returns:
        A function that carries out the operations on the current stream.
    """
    now, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(now)
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            rehearse()
    now.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay


class GraphedStep:
    """A program on a CUDA device, to be run many times.

    Args:
        program: the program.
        stays: the places among its inputs of tensors that stay where they are, such as weights. The graph reads and changes
            them there. Other inputs are copied to memory of the graph.
    """

    def __init__(self, program: Program, stays: Iterable[int]) -> None:
        self._graph, self._metas = graph_of(program), program.metas
        self._device = next((meta.device for meta in program.metas if meta.device.type != "cpu"), torch.device("cpu"))
        self._stays, self._changed = sorted(stays), changed_inputs(program)
        self._addresses: list[int] = []
        self._recordings = 0
        self._inputs: list[Tensor] = []
        self._staged: list[tuple[int, Tensor]] = []
        self._numbers: dict[int, tuple[Tensor, int]] = {}
        self._packed: list[tuple[list[int], Tensor]] = []
        self._scalars: set[int] = set()
        self._outputs: list[Tensor] = []
        self._replay: Replay | None = None

    def is_recorded_for(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a run with these inputs need not record the program anew."""
        return self._replay is not None and [inputs[place].data_ptr() for place in self._stays] == self._addresses

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run the program. Returns its outputs, which later runs do not change.

        Raises:
            NotCompiledError: tensors that the program changes are elsewhere in each run.
        """
        addresses = [inputs[place].data_ptr() for place in self._stays]
        if addresses != self._addresses or self._replay is None:
            self._record(inputs, addresses)
        else:
            self._stage(inputs)
        assert self._replay is not None, "it has just been made"
        self._replay()
        outputs = [None if place in self._scalars else it.clone() for place, it in enumerate(self._outputs)]
        for places, packed in self._packed:
            for place, value in zip(places, packed.clone().unbind()):
                outputs[place] = value
        return outputs  # type: ignore[return-value]

    def _record(self, inputs: list[Tensor], addresses: Sequence[int]) -> None:
        """Record the program for tensors at these addresses."""
        self._recordings += 1
        if self._recordings > _MOST_RECORDINGS:
            raise NotCompiledError(f"its weights or moments were replaced by other tensors {_MOST_RECORDINGS} times.")
        if self._addresses:  # what moves, and is only read, is copied from now on
            moved = {place for place, old, new in zip(self._stays, self._addresses, addresses) if old != new}
            self._stays = [place for place in self._stays if place in self._changed or place not in moved]
        stays, self._replay = set(self._stays), None
        self._inputs = [it if place in stays else meta.empty() for place, (it, meta) in enumerate(zip(inputs, self._metas))]
        self._staged = [(place, _once(self._inputs[place])) for place in range(len(inputs)) if place not in stays]
        self._numbers = {}
        self._stage(inputs)
        # Of all inputs: a program may also change a part of one, such as of random numbers.
        copies = [_copy(it, meta) for it, meta in zip(self._inputs, self._metas)]
        try:
            with torch.no_grad():
                self._replay = record(self._run_graph, lambda: self._graph(*copies), self._device)
        except RuntimeError as error:  # nothing has changed
            raise NotCompiledError(f"a CUDA graph of it cannot be recorded: {str(error)[:300]}.") from error
        self._addresses = [inputs[place].data_ptr() for place in self._stays]

    def _run_graph(self) -> None:
        outputs = self._graph(*self._inputs)
        by_dtype: dict[torch.dtype, list[int]] = {}
        for place, it in enumerate(outputs):
            if it.ndim == 0 and it.device == self._device:
                by_dtype.setdefault(it.dtype, []).append(place)
        # Statistics are mostly scalars, which are copied together.
        self._scalars = {place for places in by_dtype.values() for place in places}
        self._packed = [(places, torch.stack([outputs[place] for place in places])) for places in by_dtype.values()]
        self._outputs = outputs

    def _stage(self, inputs: Sequence[Tensor]) -> None:
        """Copy the inputs that do not stay where they are; numbers from the CPU only if they are others than before."""
        targets, sources = [], []
        for place, target in self._staged:
            source = inputs[place]
            if source.is_cpu and source.ndim == 0:
                known, version = self._numbers.get(place, (None, 0))
                if known is source and version == source._version:
                    continue
                self._numbers[place] = source, source._version
            targets.append(target)
            sources.append(_once(source))
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources, non_blocking=True)


def _once(tensor: Tensor) -> Tensor:
    """The elements of a tensor, those of expanded dimensions once."""
    if 0 not in tensor.stride() or not tensor.ndim:
        return tensor
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def _copy(tensor: Tensor, meta: Meta) -> Tensor:
    copied = meta.empty()
    _once(copied).copy_(_once(tensor.detach()))
    return copied
