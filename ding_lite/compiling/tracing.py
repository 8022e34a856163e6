"""Tracing: the tensor operations of a function, with the random numbers that it draws as inputs."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ding_lite.basics.blocks import block

_OWN = Path(__file__).resolve().parent
_TORCH = Path(torch.__file__).resolve().parent
_STANDARD = Path(contextlib.__file__).resolve().parent
_OF_TREES = frozenset({"treetensor", "treevalue"})  # folders of packages
_LARGEST_CONSTANT = 4096  # elements of a tensor that a loss makes from Python numbers
_AS_NUMBERS = {
    "item": "a number",
    "__bool__": "a condition",
    "__int__": "a number",
    "__float__": "a number",
    "__index__": "a number",
    "tolist": "numbers",
    "numpy": "an array",
    "__array__": "an array",
    "__repr__": "text",
    "__format__": "text",
    "data_ptr": "an address",
    "untyped_storage": "its memory",
}
"""Methods that read the elements of a tensor outside of torch's operations, and what they make of them."""


_COPIES = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


class NotCompiledError(BaseException):
    """A gradient step cannot be compiled; the message is the reason. No Exception, because a loss that handles errors must not
    handle this one."""


class Meta(NamedTuple):
    """What a compiled step relies on in an input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> Meta:
        """The meta data of a tensor."""
        return Meta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def empty(self) -> Tensor:
        """A new tensor with this layout, whose elements are not set."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class Draw(NamedTuple):
    """A call that draws random numbers."""

    function: Any
    """The operation, an overload of torch.ops.aten."""

    args: tuple[Any, ...]
    """Its arguments. In operations that fill or resemble a tensor, without this tensor, the first one."""

    kwargs: Mapping[str, Any]
    """Its keyword arguments, without the generator."""

    generator: torch.Generator | None
    """The random generator; None for torch's own."""

    like: Meta | None
    """The layout of the first argument, a tensor; None if the operation takes none."""

    meta: Meta
    """The layout of the result."""

    @property
    def source(self) -> torch.Generator:
        """The random generator, also if it is torch's own."""
        if self.generator is not None:
            return self.generator
        device = self.meta.device
        return torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]

    def draw(self) -> Tensor:
        """Draw the numbers."""
        kwargs = self.kwargs if self.generator is None else {**self.kwargs, "generator": self.generator}
        if self.like is None:
            return self.function(*self.args, **kwargs)  # type: ignore[no-any-return]
        return self.function(self.like.empty(), *self.args, **kwargs)  # type: ignore[no-any-return]


def generator_states(draws: Iterable[Draw]) -> list[tuple[torch.Generator, Tensor]]:
    """The random generators of draws, each with its state."""
    return [(it, it.get_state()) for it in {id(draw.source): draw.source for draw in draws}.values()]


class Ref(NamedTuple):
    """In a trace, the tensor with this number."""

    number: int


class Call(NamedTuple):
    """An operation of a trace; tensors among its arguments are `Ref`."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[int | None, ...]
    """The numbers of its results, flattened; None for a result that is no tensor."""


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block, records the operations on tensors, which are executed as usual.

    Args:
        inputs: the tensors that are inputs of the recorded function.

    Raises:
        NotCompiledError: in the block, an operation depends on the elements of a tensor in a way that a graph cannot have.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.draws: list[tuple[int, Draw]] = []
        """The draws of random numbers, with the numbers of their results."""
        self.constants: dict[int, Tensor] = {}
        """Copies of tensors that the function has made from Python numbers, by number."""
        self.kept: list[tuple[int, int]] = []
        """(input, number of a copy of it before all operations)."""
        self._device = next(
            (it.device for it in inputs if not it.is_cpu), None
        )  # where the function computes, if not on the CPU
        self._by_products: set[int] = set()
        self._tensors: list[Tensor] = []  # also so that no id is used twice
        self._numbers: dict[int, int] = {}
        self.inputs = [self._add(tensor) for tensor in inputs]
        """The number of each input."""

    def _add(self, tensor: Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return number

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of the trace."""
        return id(tensor) in self._numbers

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of an input as it was before all operations."""
        copied = tensor.detach().clone()
        self.kept.append((self.number_of(tensor), self._add(copied)))
        return copied

    def constant(self, number: int) -> int:
        """The number of the copy of a constant, which is an input, so that the function may change the constant."""
        return self._add(self.constants[number])

    def tensor(self, number: int) -> Tensor:
        """The tensor with this number, as it is now."""
        return self._tensors[number]

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor of the trace.

        Raises:
            NotCompiledError: it is none of them.
        """
        if id(tensor) not in self._numbers:
            raise NotCompiledError(
                f"{user_line()} uses a tensor {tuple(tensor.shape)} that is neither a column of the batch, nor in a network "
                "of the policy or an attribute of it: keep it as a buffer of the model."
            )
        return self._numbers[id(tensor)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch would import torch._dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            raise NotCompiledError(f"{user_line()} makes a number of a tensor ({func}), which a compiled step cannot have.")
        if torch.Tag.dynamic_output_shape in func.tags and not _has_whole_indices(func, args):
            raise NotCompiledError(f"{user_line()} makes a tensor whose shape depends on numbers ({func}), such as x[mask].")
        if func is torch.ops.aten.lift_fresh.default and id(args[0]) not in self._numbers:
            return self._constant(args[0])
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, kwargs):
            return self._drawn(func, args, dict(kwargs))
        return self._called(func, args, kwargs)

    def _constant(self, tensor: Tensor) -> Tensor:
        if tensor.numel() > _LARGEST_CONSTANT:
            raise NotCompiledError(
                f"{user_line()} makes a tensor {tuple(tensor.shape)} of Python numbers or an array in each step: keep it as a "
                "buffer of the model."
            )
        self.constants[self._add(tensor)] = tensor.detach().clone()
        return tensor

    def _called(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func is torch.ops.aten.native_batch_norm.default and args[3] is not None and args[5]:
            func = (
                torch.ops.aten._native_batch_norm_legit.default
            )  # the same operation, with a schema that tells what it changes
        ref_args, ref_kwargs = pytree.tree_map_only(Tensor, lambda it: Ref(self.number_of(it)), (tuple(args), dict(kwargs)))
        result = func(*args, **kwargs)
        leaves = pytree.tree_leaves(result)
        if self._device is not None and self._is_computed_once(func, args, kwargs, leaves):
            return result
        numbers = tuple(self._add(it) if isinstance(it, Tensor) else None for it in leaves)
        self.calls.append(Call(func, ref_args, ref_kwargs, numbers))
        return result

    def _is_computed_once(self, func: Any, args: Any, kwargs: Mapping[str, Any], results: Sequence[Any]) -> bool:
        """Whether the results of an operation on the CPU, in a step on another device, are constants: it makes a tensor of
        Python numbers, or computes with such tensors, or moves one to the device.

        Raises:
            NotCompiledError: they are not, since a step on a device cannot wait for the CPU.
        """
        given = [it for it in pytree.tree_leaves((args, dict(kwargs))) if isinstance(it, Tensor)]
        made = [it for it in results if isinstance(it, Tensor)]
        numbers = {self._numbers[id(it)] for it in given if it.is_cpu}
        if not numbers and not any(it.is_cpu for it in made):
            return False
        is_mixed = any(not it.is_cpu for it in given)
        if is_mixed and not numbers and func not in _COPIES:
            # Beside its results on the GPU, an operation has some for its own backward pass, such as a random seed.
            self._by_products.update(self._add(it) for it in made if it.is_cpu)
            return False
        if is_mixed and numbers and numbers <= self._by_products:
            return False
        is_fixed = numbers <= self.constants.keys()
        if is_fixed and is_mixed and numbers and all(it.ndim == 0 for it in given if it.is_cpu):
            return False  # torch passes a scalar on the CPU to the operation as a number
        if not is_fixed or is_mixed or func._schema.is_mutable:
            raise NotCompiledError(
                f"{user_line()} computes on the CPU ({func}), for which a compiled step on {self._device} cannot wait: make "
                "tensors with device=self.device."
            )
        for tensor in made:
            self._constant(tensor)
        return True

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        generator = kwargs.pop("generator", None)
        tensors = [it for it in pytree.tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
        name, fills = str(func), str(func).partition(".")[2].partition(".")[0].endswith("_")
        if tensors and not ((fills or "_like" in name) and len(tensors) == 1 and tensors[0] is args[0]):
            raise NotCompiledError(
                f"{user_line()} draws random numbers that depend on tensors ({name}). Draw uniform or normal numbers, and "
                "compute from them: argmax(logit - log(e)) with exponential e draws from a softmax."
            )
        like = Meta.of(args[0]) if tensors else None
        with_generator = kwargs if generator is None else {**kwargs, "generator": generator}
        result = func(*args, **with_generator)
        if not fills:
            self.draws.append(
                (self._add(result), Draw(func, tuple(args[len(tensors) :]), kwargs, generator, like, Meta.of(result)))
            )
            return result
        drawn = args[0].detach().clone() if 0 not in args[0].stride() else args[0].detach()
        number = self._add(drawn)
        self.draws.append((number, Draw(func, tuple(args[1:]), kwargs, generator, like, Meta.of(drawn))))
        target = Ref(self.number_of(args[0]))
        self.calls.append(Call(torch.ops.aten.copy_.default, (target, Ref(number)), {}, (target.number,)))
        return result


def _has_whole_indices(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operation takes elements by their indices, and not by a mask."""
    return func is torch.ops.aten.index.Tensor and all(it is None or it.dtype is not torch.bool for it in args[1])


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation with dropout, such as attention, is called without."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    default = func._schema.arguments[place].default_value
    return not (args[place] if place < len(args) else kwargs.get("dropout_p", default))


class _NoNumbers(TorchFunctionMode):
    """Inside the block, refuses to make Python numbers, arrays or text of tensors, which is outside of torch's operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" or name == "__set__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name == "data":
                raise NotCompiledError(
                    f"{user_line()} uses `data` of a tensor: use detach(), or copy_() under torch.no_grad()."
                )
        elif name in _AS_NUMBERS and args and isinstance(args[0], Tensor):
            raise NotCompiledError(
                f"{user_line()} makes {_AS_NUMBERS[name]} of a tensor ({name}), which a compiled step cannot have: compute "
                "with tensors, such as torch.where for a condition."
            )
        return func(*args, **(kwargs or {}))


class _Watched:
    """A text stream that notices what one thread writes to it."""

    def __init__(self, stream: Any, thread: int, current: Callable[[], int]) -> None:
        self._stream, self._thread, self._current = stream, thread, current

    def write(self, text: str) -> int:
        if self._current() == self._thread:
            raise NotCompiledError(f"{user_line()} prints, and a compiled step would not: return the value to log it.")
        return self._stream.write(text)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@block
def refusing_side_effects() -> Iterator[None]:
    """Inside the block, raise NotCompiledError when this thread prints, logs, or makes Python numbers of tensors."""
    own, streams, handle = threading.get_ident(), (sys.stdout, sys.stderr), logging.Logger.handle

    def refused_handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() == own:
            raise NotCompiledError(f"{user_line()} logs, and a compiled step would not: return the value to log it.")
        handle(logger, record)

    # A process may have no standard streams; what other threads print there is then lost, as before.
    outputs = (io.StringIO() if stream is None else stream for stream in streams)
    sys.stdout, sys.stderr = (_Watched(output, own, threading.get_ident) for output in outputs)
    logging.Logger.handle = refused_handle  # type: ignore[method-assign, assignment]
    try:
        with _NoNumbers():
            yield
    finally:
        sys.stdout, sys.stderr = streams
        logging.Logger.handle = handle  # type: ignore[method-assign]


def user_line(frames: Sequence[traceback.FrameSummary] | None = None) -> str:
    """The file and line of the innermost function of these frames that is neither torch's nor the tracer's.

    Args:
        frames: of a traceback; None for the current ones.
    """
    for frame in reversed(traceback.extract_stack() if frames is None else frames):
        path = Path(frame.filename)
        real = path.resolve()  # the environment may be reached by a link
        is_library = real.parent in (_OWN, _STANDARD) or _TORCH in real.parents or not _OF_TREES.isdisjoint(real.parts)
        if path.exists() and not is_library:
            return f"{path}:{frame.lineno}, in {frame.name},"
    return "the loss"
