"""What deferred work is given: no context, and nothing that changes before its result is taken."""

import array
import functools
import threading
from collections import deque

import numpy as np
import pytest
import torch
from deferred_runs import MODES, Counts, collector, learner

from ding_lite.engine import Task, contract

pytestmark = pytest.mark.timeout(60)


class Score(torch.nn.Linear):
    def score(self):
        return float(self.weight.detach().sum())


class Box:
    def __init__(self, held):
        self.held = held

    def go(self):
        return self.held.count


def total(values):
    return len(values)


def of_closure(rows):
    return lambda: len(rows)


def of_default(rows):
    return lambda rows=rows: len(rows)


def of_keyword_default(rows):
    def work(*, rows=rows):
        return len(rows)

    return work


def change(thing):
    if isinstance(thing, torch.nn.Module):
        thing = thing.weight.data
    if isinstance(thing, memoryview) or (isinstance(thing, np.ndarray) and thing.dtype.hasobject):
        thing[0] += 1
    elif isinstance(thing, (np.ndarray, torch.Tensor)):
        thing += 1
    elif isinstance(thing, dict):
        change(thing["a"])
    elif isinstance(thing, set):
        thing.add(len(thing))
    elif isinstance(thing, tuple):
        change(thing[0])
    else:
        thing.append(0)


MAKES = {
    "a list": lambda: [1],
    "a list in a tuple": lambda: ([1],),
    "a deque": lambda: deque([1]),
    "a set": lambda: {5},
    "a dict of arrays": lambda: {"a": np.zeros(3), "b": Box(None)},
    "a dict of tensors": lambda: {"a": torch.zeros(3)},
    "an array": lambda: np.zeros(3),
    "a tensor": lambda: torch.zeros(3),
    "a module": lambda: Score(2, 2),
    "a module in a list": lambda: [Score(2, 2)],
}
GIVES = {
    "argument": lambda work, it: (work, it),
    "partial": lambda work, it: (functools.partial(work, it),),
    "closure": lambda work, it: (lambda: work(it),),
    "default": lambda work, it: (lambda it=it: work(it),),
}


def nested():
    """A module in a module, with a list that it holds."""
    net = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    net.sizes = [2]
    net._scale = 1.0
    return net


def deep():
    """A list in lists."""
    inner = [0]
    for _ in range(2_000):
        inner = [inner]
    return inner


CHANGES = {
    "the mode of a module": (nested, lambda net: net.eval(), r"it\.training"),
    "the mode of a module in it": (nested, lambda net: net[0].eval(), r"it\[0\]\.training"),
    "a number of a module in it": (nested, lambda net: setattr(net[0], "p", 0.1), r"it\[0\]\.p"),
    "a private number of a module": (nested, lambda net: setattr(net, "_scale", 2.0), r"it\._scale"),
    "a list of a module": (nested, lambda net: net.sizes.append(3), r"it\.sizes\[1\]"),
    "what is trained": (nested, lambda net: net.requires_grad_(False), r"it\[1\]\.weight\.requires_grad"),
    "a hook": (nested, lambda net: net[1].register_forward_hook(print), r"it\[1\]\._forward_hooks"),
    "a module that is added": (nested, lambda net: net.append(torch.nn.ReLU()), r"it\[2\]"),
    "an array of objects": (lambda: np.array([1, None]), lambda it: it.__setitem__(0, 2), r"it\.flat\[0\]"),
    "an array of Python": (lambda: array.array("d", [1.0]), lambda it: it.append(2.0), r"it"),
    "bytes": (lambda: bytearray(2), lambda it: it.__setitem__(0, 1), r"it"),
    "a view of memory": (lambda: memoryview(bytearray(2)), lambda it: it.__setitem__(0, 1), r"it"),
    "a module that takes its shape": (lambda: torch.nn.LazyLinear(2), lambda net: net(torch.ones(1, 3)), r"it"),
    "a deep list": (deep, lambda it: it.append(1), r"it\[1\]"),
}


def run_with_change(mode, make, call_of, change=change, is_while_it_runs=False):
    """Work is deferred in iteration 0, what it was given changes in 1, its result is taken in 2."""
    things, works, has_changed = [], [], threading.Event()

    def waits(thing):
        has_changed.wait()

    @contract(stage="evaluate")
    def evaluate(ctx):
        if ctx.total_step == 0:
            things.append(make())
            work, *args = call_of(waits if is_while_it_runs else type, things[0])
            works.append(loop.defer(work, *args))
            while not works[0].done and not is_while_it_runs:
                threading.Event().wait(0.001)
        if ctx.total_step == 1:
            change(things[0][0] if type(things[0]) is list and isinstance(things[0][0], Score) else things[0])
            has_changed.set()
        if ctx.total_step == 2:
            works[0].result()

    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(collector).use(evaluate).use(learner).run(4)


class TestInputs:
    @MODES
    @pytest.mark.parametrize("made", MAKES)
    @pytest.mark.parametrize("given_as", GIVES)
    def test_work_whose_input_goes_on_changing_is_refused_when_its_result_is_taken(self, mode, made, given_as):
        with pytest.raises(RuntimeError, match=r"deferred by middleware evaluate .*was changed after the work had ended"):
            run_with_change(mode, MAKES[made], GIVES[given_as])

    @pytest.mark.few
    @MODES
    @pytest.mark.parametrize("kind", CHANGES)
    @pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
    def test_such_a_change_is_noticed(self, mode, kind):
        make, change, way = CHANGES[kind]
        with pytest.raises(RuntimeError, match=rf"`{way}`, an argument, was changed after the work "):
            run_with_change(mode, make, lambda work, it: (lambda it: work(it), it), change)

    @pytest.mark.parametrize("kind", CHANGES)
    @pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
    def test_and_so_is_one_while_the_work_runs(self, kind):
        make, change, way = CHANGES[kind]
        with pytest.raises(RuntimeError, match=rf"`{way}`, an argument, was changed while the work ran"):
            run_with_change({"async_mode": True}, make, lambda work, it: (lambda it: work(it), it), change, True)

    @pytest.mark.few
    @MODES
    @pytest.mark.parametrize("kind", CHANGES)
    @pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
    def test_what_does_not_change_is_fine(self, mode, kind):
        run_with_change(mode, CHANGES[kind][0], lambda work, it: (lambda it: work(it), it), lambda it: None)

    @MODES
    @pytest.mark.parametrize(
        ("make", "call_of", "fix"),
        [
            (lambda: Score(2, 2), lambda _, net: (lambda: net.score(),), r"`net\.weight`.*copy\.deepcopy\(net\)\."),
            (lambda: Score(2, 2), lambda _, net: (net.score,), r"`self\.weight`.*task\.defer\(copy\.deepcopy\(it\)\.score\)"),
            (lambda: [1], lambda _, rows: (lambda rows: len(rows), rows), r"`rows\[1\]`, an argument.*rows\.copy\(\)"),
            (lambda: [[1]], lambda _, rows: (lambda rows: len(rows), rows), r"`rows\[1\]`.*copy\.deepcopy\(rows\)"),
            (
                lambda: {"a": torch.ones(2)},
                lambda _, w: (lambda w: len(w), w),
                r"`w\['a'\]`.*deepcopy\(w\).*policy\.get_weights\(\)",
            ),
            (lambda: np.array([1, None]), lambda _, x: (lambda x: len(x), x), r"`x\.flat\[0\]`.*copy\.deepcopy\(x\)"),
            (lambda: memoryview(bytearray(2)), lambda _, x: (lambda x: len(x), x), r"`x`, an argument.*: bytes\(x\)"),
            (lambda: torch.ones(2), lambda _, x: (x.sum,), r"`self`, the object of the method"),
        ],
    )
    def test_the_message_names_the_input_and_the_fix(self, mode, make, call_of, fix):
        with pytest.raises(RuntimeError, match=fix):
            run_with_change(mode, make, call_of)

    @MODES
    def test_a_variable_that_is_bound_again_is_an_input_that_changes(self, mode):
        works = []

        @contract(stage="evaluate")
        def evaluate(ctx):
            for k in range(2):
                works.append(loop.defer(lambda: k))  # noqa: B023  that is the fault
                while not works[-1].done:
                    threading.Event().wait(0.001)
            works[0].result()

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner)
            with pytest.raises(RuntimeError, match=r"`k`, a variable of its closure.*task\.defer\(<lambda>, k\)"):
                loop.run(3)

    @pytest.mark.parametrize("made", MAKES)
    @pytest.mark.parametrize("given_as", GIVES)
    def test_and_so_is_one_whose_input_changes_while_it_runs(self, made, given_as):
        with pytest.raises(RuntimeError, match=r"deferred by middleware evaluate .*was changed while the work ran"):
            run_with_change({"async_mode": True}, MAKES[made], GIVES[given_as], is_while_it_runs=True)

    @MODES
    def test_work_that_changes_its_input_says_so_and_then_only_what_comes_later_counts(self, mode):
        def work(rows, net, box):
            rows.append(1)
            net.weight.data += 1
            box.held.append(1)  # other objects are not looked at
            return len(rows)

        got, errors, rows, box = [], [], [], Box([])

        @contract(stage="evaluate")
        def evaluate(ctx):
            if ctx.total_step == 0:
                got.append(loop.defer(work, [], Score(2, 2), box))
                got.append(loop.defer(work, [], Score(2, 2), box))
                got.append(loop.defer(work, rows, Score(2, 2), box))
                got[1].changes_inputs = got[2].changes_inputs = True
            if ctx.total_step == 2:
                while not all(work.done for work in got):
                    threading.Event().wait(0.001)
                rows.append(got[1].result())
                got[1].result()
                for refused in (got[0], got[2]):
                    with pytest.raises(RuntimeError, match="was changed") as caught:
                        refused.result()
                    errors.append(str(caught.value))

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(evaluate).use(learner).run(4)
        assert rows == [1, 1]
        assert "`rows[0]`, an argument, was changed while the work ran." in errors[0]
        assert "nothing else changes the input, set `work.changes_inputs = True` on the object" in errors[0]
        assert "was changed after the work had ended" in errors[1]

    @MODES
    @pytest.mark.parametrize(
        ("work_of", "way"),
        {
            "list": (lambda ctx: (len, [1, ctx]), r"uses `obj\[1\]`"),
            "dict in tuple": (lambda ctx: (len, ({"c": ctx},)), r"uses `obj\[0\]\['c'\]`"),
            "set": (lambda ctx: (total, {Box(ctx)}), r"uses `values\.held`"),
            "default": (lambda ctx: (lambda c=ctx: c.count,), "uses `c`"),
            "keyword default": (lambda ctx: (of_keyword_default(ctx),), "uses `rows`"),
            "method": (lambda ctx: (Box(ctx).go,), r"uses `self\.held`"),
            "method of a list": (lambda ctx: (Box([ctx]).go,), r"uses `self\.held\[0\]`"),
            "partial of a method": (lambda ctx: (functools.partial(Box.go, Box(ctx)),), r"uses `self\.held`"),
            "partial": (lambda ctx: (functools.partial(total, ctx),), "is given a context"),
            "object in a closure": (lambda ctx: (of_closure(Box(ctx)),), r"uses `rows\.held`"),
            "closure in a closure": (lambda ctx: (of_closure(of_default(ctx)),), "uses `rows` in `rows`"),
        }.values(),
    )
    def test_a_context_is_found_wherever_the_work_gets_at_it(self, mode, work_of, way):
        @contract(("count",), stage="learn")
        def defers(ctx):
            loop.defer(*work_of(ctx))

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(defers)
            with pytest.raises(TypeError, match=rf"task\.defer\(.*{way}, a context,|{way}, which the iteration changes"):
                loop.run(3)

    @MODES
    def test_what_can_be_no_work_is_refused_at_that_line(self, mode):
        async def asynchronous():
            pass

        def generates():
            yield

        def work(x):
            return x

        @functools.wraps(work)
        def decorated():
            return work(9)

        wrong = {
            "wants a function and then its arguments, got 9 of type int": lambda: loop.defer(work(9)),
            "got None of type NoneType": lambda: loop.defer(None),
            "got 'no' of type str": lambda: loop.defer("no"),
            r"write task\.defer\(functools\.partial\(work, x=\.\.\.\)\)": lambda: loop.defer(work, x=3),
            "which would not be awaited": lambda: loop.defer(asynchronous),
            "got a generator function": lambda: loop.defer(functools.partial(generates)),
            r"work \(.*\) takes \(x\): missing a required argument": lambda: loop.defer(work),
            r"work \(.*\) takes \(x\): too many": lambda: loop.defer(work, 1, 2),
            r"work \(.*\) takes \(\): too many": lambda: loop.defer(decorated, 1),
        }

        @contract(stage="learn")
        def defers(ctx):
            for message, call in wrong.items():
                with pytest.raises(TypeError, match=rf"^task\.defer\(.*{message}"):
                    call()
            assert loop.defer(decorated).result() == 9

        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(collector).use(defers).run(1)
