"""Generator middleware: a first half, one bare `yield`, and a second half that runs when all first halves are done."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from ding_lite.basics.blocks import block
from ding_lite.basics.messages import add_note, call_of, describe_call, name_of
from ding_lite.basics.optional_attributes import attribute_behind, attribute_of, has_attribute
from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.pending_work import PendingWork

if TYPE_CHECKING:
    WaitingGenerator = GeneratorType[Any, Any, Any]
else:
    WaitingGenerator = GeneratorType  # which Python 3.10 cannot subscript

_OVER: Any = object()
_WARNED: set[CodeType] = set()


def may_yield(fn: Callable[..., Any]) -> bool:
    """Whether `fn` may have a second half: it is a generator function, or returns the result of one."""
    if isinstance(fn, functools.partial):
        return may_yield(fn.func)
    declared = attribute_of(fn, "may_yield")
    if isinstance(declared, bool):
        return declared
    decorated = inspect.unwrap(fn, stop=inspect.isgeneratorfunction)
    bodies = decorated, call_of(decorated), call_of(fn)
    return any(body is not None and inspect.isgeneratorfunction(body) for body in bodies)


def method_of(fn: object, name: str) -> Callable[..., Any] | None:
    """The method of a middleware with this name, or None. Also found behind decorators."""
    method = attribute_behind(fn, name)
    return method if callable(method) else None


def forward_step(fn: Callable[..., Any], result: object, ctx: Any) -> WaitingGenerator | None:
    """Run the result of `fn(ctx)` up to its `yield`, or take it if it is pending work.

    Returns:
        The waiting generator, or None if there is no second half.

    Raises:
        TypeError: `fn` returned a function or a coroutine, so that its body never ran; or it returned or yielded
            another context.
    """
    if result is None:
        return None
    if isinstance(result, GeneratorType):
        try:
            given = next(result)
        except StopIteration as end:
            _refuse_other_context(fn, end.value, ctx)
            return None
        if given is not None:
            _refuse_other_context(fn, given, ctx, result)
        return result
    if isinstance(result, PendingWork):
        result.take(ctx)
        return None
    if isinstance(result, (FunctionType, MethodType)):
        raise TypeError(
            f"{describe_call(fn)} returned the function {result.__qualname__} instead of working on ctx. If it is a factory, "
            "call it first: task.use(factory(...))."
        )
    if has_attribute(result, "__await__") or has_attribute(result, "__anext__"):
        close = attribute_of(result, "close")
        if close:
            close()
        raise TypeError(f"{describe_call(fn)} is an async function, which is not awaited here: write a plain function.")
    if result is False:
        _warn_of_false(fn)
    _refuse_other_context(fn, result, ctx)
    return None


def _warn_of_false(fn: Callable[..., Any]) -> None:
    """Warn once of a middleware that returned False and has it in its code: a callback of Stable-Baselines3 ends its run so.

    Lambdas are left out, whose result is that of their last operation.
    """
    bare = inspect.unwrap(fn)
    while isinstance(bare, functools.partial):
        bare = inspect.unwrap(bare.func)
    code = getattr(bare, "__code__", None) or getattr(call_of(bare), "__code__", None)
    if code is None or code in _WARNED or not any(it is False for it in code.co_consts) or code.co_name == "<lambda>":
        return
    _WARNED.add(code)
    warnings.warn(
        f"{describe_call(fn)} returned False, which has no effect: to end the run, set task.finish = True.", stacklevel=3
    )


def _refuse_other_context(fn: Callable[..., Any], given: object, ctx: Any, generator: WaitingGenerator | None = None) -> None:
    if isinstance(given, Context) and given is not ctx:
        if generator is not None:
            generator.close()
        raise TypeError(
            f"{describe_call(fn)} gave back another context than the one that it works on, which would have no effect: set "
            "fields of the one that it is given, ctx.field = ..., and return nothing."
        )


def backward_step(generator: WaitingGenerator, error: BaseException | None = None) -> None:
    """Resume a waiting generator; with an error, throw it in at the `yield`.

    Raises:
        BaseException: what the generator raises; the error itself unless the generator handles it.
        RuntimeError: the generator yields again.
    """
    try:
        if error is not None:
            generator.throw(error)
        elif next(generator, _OVER) is _OVER:  # several times as fast as catching StopIteration
            return
    except StopIteration:
        return
    except RuntimeError as raised:
        if isinstance(error, StopIteration) and raised.__cause__ is error:  # Python wraps it inside a generator
            raise error from error.__cause__
        raise
    code, frame = generator.gi_code, generator.gi_frame
    place = f"{code.co_filename}:{frame.f_lineno if frame else code.co_firstlineno}"
    generator.close()
    raise RuntimeError(f"{generator.__qualname__} yielded a second time, at {place}: a middleware has at most one yield.")


def unwind(waiting: list[WaitingGenerator], error: BaseException | None = None) -> None:
    """Run every second half, last first, leaving `waiting` empty.

    An error, the given one or one of a second half, is thrown into the generators that still wait, like into nested `with`
    blocks: each may clean up, replace it, or handle it; after that, the remaining ones run normally.

    Raises:
        BaseException: the error, if no generator handled it.
    """
    while waiting:
        generator = waiting.pop()
        try:
            backward_step(generator, error)
            error = None
        except BaseException as raised:  # noqa: BLE001  the generators that still wait must see it
            if raised is not error:
                add_note(raised, f"in the second half of {generator.__qualname__}")
            error = raised
    if error is not None:
        raise error


class Backward:
    """Runs the second half of a middleware that was begun inside another, when called, if it still waits."""

    def __init__(self, generator: WaitingGenerator | None, waiting: list[WaitingGenerator]) -> None:
        self._half, self._waiting = generator, waiting

    def __call__(self) -> None:
        if self._half is not None and self._half in self._waiting:
            self._waiting.remove(self._half)
            unwind([self._half])


def at_yield(call: Callable[..., object], *args: Any) -> Iterator[None]:
    """A generator that waits at one bare `yield`. Resumed, it calls `call(*args, None)`; with an error thrown in,
    `call(*args, error)`, which may handle the error."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  the call may handle it
        call(*args, error)
    else:
        call(*args, None)


@block
def run_inside(fn: Callable[..., Any], ctx: object) -> Iterator[None]:
    """Run one middleware inside another: its first half on entry, its second half on exit, errors thrown in."""
    generator = forward_step(fn, fn(ctx), ctx)
    yield from at_yield(unwind, [] if generator is None else [generator])


engaged = run_inside  # its name in earlier versions


def wrap_both_steps(fn: Callable[..., Any], wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Apply a wrapper to a middleware without losing either step of a generator.

    A plain decorator calls `fn(ctx)` and ignores the returned generator, which would then never run. Here, the call itself runs
    the first half inside the wrapper. The wrapper, or finally the engine, runs the second half.
    """
    running: list[list[WaitingGenerator]] = []  # the steps begun by each current call

    def inner(ctx: object) -> object:
        generator = forward_step(fn, fn(ctx), ctx)
        if generator is None:
            return None
        running[-1].append(generator)
        return _resumable(generator, nullcontext())

    inner.__name__ = inner.__qualname__ = name_of(fn)
    inner.__doc__ = fn.__doc__
    outer = wrapper(inner)
    if not callable(outer):
        raise TypeError(f"the wrapper {describe_call(wrapper)} returned {outer!r} instead of a function of ctx.")

    @block
    def collecting(waiting: list[WaitingGenerator]) -> Iterator[None]:
        running.append(waiting)
        try:
            yield
        finally:
            running.pop()

    def wrapped(ctx: object) -> object:
        waiting: list[WaitingGenerator] = []
        with collecting(waiting):
            try:
                generator = forward_step(outer, outer(ctx), ctx)
            except BaseException as error:  # noqa: BLE001  the inner middleware may handle it
                unwind(waiting, error)
                return None
        if generator is not None:
            waiting.append(generator)
        return named(inner.__name__, at_yield(rest, waiting)) if waiting else None

    def rest(waiting: list[WaitingGenerator], error: BaseException | None) -> None:
        with collecting(waiting):
            unwind(waiting, error)

    wrapped.__name__ = wrapped.__qualname__ = inner.__name__
    return wrapped


def locked(fn: Callable[..., Any], lock: AbstractContextManager[Any]) -> Callable[..., Any]:
    """`fn`, each step of which runs while holding `lock`."""

    def hold(ctx: object) -> object:
        with lock:
            generator = forward_step(fn, fn(ctx), ctx)
        return None if generator is None else _resumable(generator, lock)

    hold.__name__ = hold.__qualname__ = name_of(fn)
    vars(hold)["__wrapped__"] = fn
    return hold


def _resumable(generator: WaitingGenerator, lock: AbstractContextManager[Any]) -> WaitingGenerator:
    def rest(error: BaseException | None) -> None:
        with lock:
            backward_step(generator, error)

    return named(generator.__qualname__, at_yield(rest))


def named(name: str, generator: Any) -> WaitingGenerator:
    """The generator, renamed to the name of its middleware for messages."""
    generator.__qualname__ = name
    waiting: WaitingGenerator = generator
    return waiting
