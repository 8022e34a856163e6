"""Memories: a middleware that remembers something, in any form, and has no state is named in a warning."""

import argparse
import asyncio
import collections
import concurrent.futures
import datetime
import enum
import functools
import itertools
import math
import queue
import random
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from memory_runs import Box, Saved, Sum, warned

from ding_lite import Task, contract
from ding_lite.engine import RunStateError
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware import CkptSaver

COUNTS = [0]
SETTINGS = {"rate": 1.0}


def global_list():
    def step(ctx):
        COUNTS[0] += 1

    return step, "COUNTS[0]"


def closure_number():
    count = 0

    def step(ctx):
        nonlocal count
        count += 1

    return step, "count"


def closure_deque():
    latest = collections.deque(maxlen=3)

    def step(ctx):
        latest.append(ctx.total_step)

    return step, "latest"


def closure_numpy_generator():
    rng = np.random.default_rng(0)

    def step(ctx):
        ctx.total += rng.normal()

    return step, "rng"


def closure_python_generator():
    rng = random.Random(0)

    def step(ctx):
        ctx.total += rng.random()

    return step, "rng"


def closure_torch_generator():
    rng = torch.Generator().manual_seed(0)

    def step(ctx):
        ctx.total += torch.randn((), generator=rng).item()

    return step, "rng"


def closure_iterator():
    numbers = iter(range(1000))

    def step(ctx):
        ctx.total += next(numbers)

    return step, "numbers"


def closure_count():
    numbers = itertools.count()

    def step(ctx):
        ctx.total += next(numbers)

    return step, "numbers"


def closure_module():
    model = torch.nn.Linear(1, 1)

    def step(ctx):
        with torch.no_grad():
            model.weight += 1

    return step, "model.weight"


def closure_optimizer():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())

    @contract(uses=(model,))
    def step(ctx):
        model(torch.ones(1)).sum().backward()
        optimizer.step()

    return step, "optimizer"


def new_function_attribute():
    def step(ctx):
        step.count = getattr(step, "count", 0) + 1

    return step, "step.count"


def closure_arguments():
    args = argparse.Namespace(global_step=0)

    def step(ctx):
        args.global_step += 1

    return step, "args.global_step"


def closure_statistics():
    rewards = RunningMeanStd()

    def step(ctx):
        rewards.update(np.ones(2))

    return step, "rewards"


def closure_object():
    box = Box()

    def step(ctx):
        box.count += 1

    return step, "box.count"


def bound_method():
    return Box().step, "count"


def held_method():
    following = Box().next

    def step(ctx):
        ctx.total += following()

    return step, "following.count"


def partial_function():
    def step(counts, ctx):
        counts["n"] += 1

    return functools.partial(step, {"n": 0}), "args[0]['n']"


def callable_object():
    class Counter:
        def __init__(self):
            self.count = 0

        def __call__(self, ctx):
            self.count += 1

    return Counter(), "count"


def slots():
    class Counter:
        __slots__ = ("__weakref__", "count")

        def __init__(self):
            self.count = 0

        def __call__(self, ctx):
            self.count += 1

    return Counter(), "count"


def class_attribute():
    class Counter:
        count = 0

        def __call__(self, ctx):
            Counter.count += 1

    return Counter(), "count"


def function_attribute():
    def step(ctx):
        step.count += 1

    step.count = 0
    return step, "step.count"


def default_value():
    def step(ctx, counts={"n": 0}):  # noqa: B006
        counts["n"] += 1

    return step, "<defaults>[0]['n']"


def generator():
    count = [0]

    def step(ctx):
        count[0] += 1
        yield

    return step, "count[0]"


def helper():
    count = 0

    def following():
        nonlocal count
        count += 1
        return count

    def step(ctx):
        ctx.total += following()

    return step, "following.count"


def decorated():
    count = 0

    def step(ctx):
        nonlocal count
        count += 1

    @functools.wraps(step)
    def around(ctx):
        return step(ctx)

    return around, "step.count"


def listed_without_state():
    seen = []

    @contract(uses=(seen,))
    def step(ctx):
        seen.append(ctx.total_step)

    return step, "seen"


def method_of_generator():
    pick = np.random.default_rng(0).random

    def step(ctx):
        ctx.total += pick()

    return step, "pick"


def sampled_space():
    space = spaces.Discrete(5, seed=0)

    def step(ctx):
        ctx.total += int(space.sample())

    return step, "space"


def namespace():
    counts = types.SimpleNamespace(n=0)

    def step(ctx):
        counts.n += 1

    return step, "counts.n"


def module_attribute():
    module = types.ModuleType("module")
    module.count = 0

    def step(ctx):
        module.count += 1

    return step, "module.count"


def waiting_queue():
    waiting = queue.Queue()

    def step(ctx):
        waiting.put(ctx.total_step)

    return step, "waiting"


def date():
    dates = [datetime.date(2000, 1, 1)]

    def step(ctx):
        dates[0] += datetime.timedelta(days=1)

    return step, "dates[0]"


def cached_function():
    count = 0

    @functools.lru_cache
    def following(number):
        nonlocal count
        count += 1
        return count

    def step(ctx):
        ctx.total += following(ctx.total_step)

    return step, "following.count"


def advancing(name, make, use=next):
    def form():
        held = make()

        def step(ctx):
            use(held)

        return step, "held"

    form.__name__ = name
    return form


class Caching:
    """Keeps what a cached property computed."""

    @functools.cached_property
    def box(self):
        return {"n": 0}

    @functools.cached_property
    def rng(self):
        return np.random.default_rng(0)


def cached_generator():
    class Drawing(Caching):
        def __call__(self, ctx):
            ctx.total += self.rng.random()

    return Drawing(), "rng"


class Stages:
    """A state machine."""

    def __init__(self):
        self.stage = self.easy

    def easy(self, ctx):
        ctx.total += 1
        if ctx.total_step == 2:
            self.stage = self.hard

    def hard(self, ctx):
        ctx.total += 100

    def __call__(self, ctx):
        self.stage(ctx)


def swapped_method():
    return Stages(), "stage"


def one():
    return 1


def two():
    return 2


def swapped(name, first, second):
    """A function that takes the place of another one."""

    def form():
        held = first

        def step(ctx):
            nonlocal held
            ctx.total += ctx.total_step if callable(held) else 0
            held = second

        return step, "held"

    form.__name__ = f"swapped {name}"
    return form


def swapped_callback():
    callbacks = [one]

    def step(ctx):
        ctx.total += callbacks[0]()
        callbacks[0] = two

    return step, "callbacks[0]"


def swapped_method_of_a_class():
    class Counter:
        def step(self):
            return 1

        def __call__(self, ctx):
            ctx.total += self.step()
            Counter.step = lambda self: 2

    return Counter(), "step"


def event():
    is_warm = threading.Event()

    def step(ctx):
        ctx.total += is_warm.is_set()
        is_warm.set()

    return step, "is_warm"


def event_of_asyncio():
    is_warm = asyncio.Event()

    def step(ctx):
        ctx.total += is_warm.is_set()
        is_warm.set()

    return step, "is_warm"


def semaphore():
    left = threading.Semaphore(100)

    def step(ctx):
        left.acquire()

    return step, "left"


def done(number):
    future = concurrent.futures.Future()
    future.set_result(number)
    return future


def pending_work():
    class Ahead:
        def __init__(self):
            self.following = done(0)

        def __call__(self, ctx):
            ctx.total += self.following.result()
            self.following = done(ctx.total_step)

    return Ahead(), "following"


def of_this_thread():
    held = threading.local()
    held.count = 0

    def step(ctx):
        held.count += 1

    return step, "held.count"


def unnamed_logger():
    logger = MetricsLogger()

    def step(ctx):
        logger.log_value("reward", float(ctx.total_step), window=100)
        ctx.total += logger.peek("reward")

    return step, "logger"


FORMS = [
    swapped_method,
    swapped("function", one, two),
    swapped("lambda of the same line", *(lambda: 1, lambda: 2)),
    swapped("function of Python", math.sin, math.cos),
    swapped("method of a type", str.upper, str.lower),
    swapped("function of numpy", np.sin, np.cos),
    swapped("function of torch", torch.relu, torch.tanh),
    swapped("class", int, float),
    swapped("class of the script", Box, Saved),
    swapped_callback,
    swapped_method_of_a_class,
    event,
    event_of_asyncio,
    semaphore,
    pending_work,
    of_this_thread,
    unnamed_logger,
    cached_generator,
    advancing("cycle", lambda: itertools.cycle([1, 2, 3])),
    advancing("a cycle that begins again", lambda: itertools.cycle([1, 2, 3, 4, 5, 6, 7])),
    advancing("islice", lambda: itertools.islice(range(100), 50)),
    advancing("chain", lambda: itertools.chain([1, 2, 3, 4, 5], [6])),
    advancing("chain of a generator", lambda: itertools.chain(it for it in range(100))),
    advancing("accumulate", lambda: itertools.accumulate(range(100))),
    advancing("product", lambda: itertools.product(range(9), range(9))),
    advancing("pairwise, whose position cannot be read", lambda: itertools.pairwise(range(100))),
    advancing("SimpleQueue", queue.SimpleQueue, lambda it: it.put(1)),
    advancing("SeedSequence", lambda: np.random.SeedSequence(0), lambda it: it.spawn(1)),
    method_of_generator,
    sampled_space,
    namespace,
    module_attribute,
    waiting_queue,
    date,
    cached_function,
    global_list,
    closure_number,
    closure_deque,
    closure_numpy_generator,
    closure_python_generator,
    closure_torch_generator,
    closure_iterator,
    closure_count,
    closure_module,
    closure_optimizer,
    closure_arguments,
    new_function_attribute,
    closure_statistics,
    closure_object,
    bound_method,
    held_method,
    partial_function,
    callable_object,
    slots,
    class_attribute,
    function_attribute,
    default_value,
    generator,
    helper,
    decorated,
    listed_without_state,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda it: it.__name__)
def test_each_form_of_memory_is_named_once_with_its_place(form, tmp_path):
    step, place = form()
    (found,) = warned(tmp_path, step)
    assert f"remembers something from iteration to iteration ({place}" in found
    assert "a resumed run begins without it. If the object has a state_dict, name it in the contract" in found


def visits(ctx):
    TOTALS[0] += 1


TOTALS = [0]


class Counted:
    """An object with a state, and a method that reads an attribute with the name of a global function."""

    visits = 1

    def __init__(self):
        self.rows = []

    def step(self, ctx):
        return self.visits, ctx.total_step

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, state):
        self.rows = state["rows"]


def test_an_attribute_is_no_global_variable_of_its_name(tmp_path):
    (found,) = warned(tmp_path, contract(stage="process")(visits), Counted().step, lambda ctx: Counted().visits)
    assert found.startswith("visits remembers something from iteration to iteration (TOTALS[0])")


def test_it_is_named_where_iterations_overlap_too(tmp_path):
    seen = []

    @contract(stage="collect")
    def step(ctx):
        seen.append(ctx.total_step)

    assert len(warned(tmp_path, step, async_mode=True, max_step=20, train_freq=3)) == 1


def test_two_middleware_of_the_same_name_are_two(tmp_path):
    def made(increment):
        count = 0

        def step(ctx):
            nonlocal count
            count += increment

        return step

    assert len(warned(tmp_path, made(1), made(0), made(2))) == 2


class Several:
    """A middleware with a counter, and with what does not matter."""

    not_saved = ("seconds",)

    def __init__(self):
        self.turns, self._cache, self.seconds, self.ends = 0, {}, 0.0, [[0], [0]]

    @functools.cached_property
    def double(self):
        return 2 * self.turns

    def __call__(self, ctx):
        self.turns += 1
        self._cache[self.turns] = self.double
        self.seconds += 0.5
        self.ends[ctx.total_step % 2].append(1)


class Listing(Several):
    not_saved = ("ends", "_cache")


def test_all_memories_are_named_together_caches_last_without_what_the_class_leaves_out(tmp_path):
    (found,) = warned(tmp_path / "several", Several(), max_step=6, train_freq=1)
    assert "Several remembers something from iteration to iteration (ends[0], turns, _cache), and" in found
    assert "seconds" not in found
    assert "double" not in found
    (found,) = warned(tmp_path / "listing", Listing(), max_step=6, train_freq=1)
    assert "iteration (turns), and has no state_dict" in found


def test_what_a_cached_property_holds_is_named_if_it_changes_between_two_saves(tmp_path):
    class Counting(Caching):
        def __call__(self, ctx):
            self.box["n"] += 1

    (found,) = warned(tmp_path, Counting(), max_step=4, train_freq=1)
    assert "Counting remembers something from iteration to iteration (box['n']), and has no state_dict" in found


class ReadingCache(Caching):
    def __call__(self, ctx):
        ctx.total += self.box["n"]


class ComputingAnew(Caching):
    def __call__(self, ctx):
        self.box["n"] = ctx.total_step
        del self.box


class ListedCache(Caching):
    not_saved = ("box",)

    def __call__(self, ctx):
        self.box["n"] += 1


def rotating():
    waiting = queue.SimpleQueue()

    def step(ctx):
        waiting.put(1)
        ctx.total += waiting.get()

    return step


def repeated():
    ones = itertools.repeat(1)

    def step(ctx):
        ctx.total += next(ones)

    return step


def held_alone():
    numbers, seeds = itertools.cycle([1, 2]), np.random.SeedSequence(0)

    def step(ctx):
        return (numbers, seeds.entropy)

    return step


class OneName(Caching):
    not_saved = "box"  # a string is one name

    def __call__(self, ctx):
        self.box["n"] += 1


def same_function_again():
    class Making:
        def __init__(self):
            self.make = self.made = self.rate = None
            self.callbacks = [self.follow]
            self.__call__(Sum())

        def follow(self):
            return 1

        def __call__(self, ctx):
            self.make, self.rate = self.follow, lambda: 0.5
            self.callbacks[0] = self.follow
            ctx.total += self.make() + self.rate()

    return Making()


def work_of_one_iteration():
    class Working:
        def __init__(self):
            self.done, self.loaded = None, done(3)

        def __call__(self, ctx):
            self.done = done(ctx.total_step)
            ctx.total += self.done.result() + self.loaded.result()

    return Working()


def event_of_one_iteration():
    is_done = threading.Event()

    def step(ctx):
        is_done.set()
        ctx.total += is_done.is_set()
        is_done.clear()

    return step


def logger_of_one_iteration():
    logger = MetricsLogger()

    def step(ctx):
        logger.log_value("reward", float(ctx.total_step), window=100)
        logger.log_value("sum", 1.0, reduce="sum", with_throughput=True)
        with logger.log_time("seconds"):
            ctx.total += logger.peek("reward")
        logger.reduce()

    return step


OF_ONE_ITERATION = [same_function_again, work_of_one_iteration, event_of_one_iteration, logger_of_one_iteration]


@pytest.mark.parametrize(
    "make", [ReadingCache, ComputingAnew, ListedCache, OneName, rotating, repeated, held_alone, *OF_ONE_ITERATION]
)
def test_caches_and_iterators_and_queues_that_do_not_change_cause_no_warning(make, tmp_path):
    assert warned(tmp_path, make(), max_step=6, train_freq=1) == []


def test_a_memory_that_begins_later_is_named_then(tmp_path):
    class Later:
        def __init__(self):
            self.first = self.second = 0

        def __call__(self, ctx):
            self.first += 1
            self.second += ctx.total_step > 3

    found = warned(tmp_path, Later(), max_step=8, train_freq=1)
    assert [text.partition("(")[2].partition(")")[0] for text in found] == ["first", "second"]


def test_more_than_four_memories_are_counted(tmp_path):
    class Many:
        def __init__(self):
            self.counts = {}
            for name in "abcdef":
                setattr(self, name, 0)

        def __call__(self, ctx):
            for name in "abcdef":
                setattr(self, name, ctx.total_step)

    (found,) = warned(tmp_path, Many())
    assert "(a, b, c, d, and 2 more)" in found


def test_saved_objects_cause_no_warning(tmp_path):
    """Neither an object that a contract names, nor what is inside it, nor a method of an object with a state."""
    saved, loop = Saved(), Task()
    rows, box = saved.rows, saved.box

    @contract(uses=(saved,))
    def named(ctx):
        saved.step(ctx)

    def inside(ctx):
        rows.append(box.next())

    def reads_settings(ctx):
        return (SETTINGS["rate"], loop.ctx, FORMS[0], Sum, np.float32(1))

    assert warned(tmp_path, named, inside, reads_settings, Saved().step) == []


class Flags(enum.Flag):
    FIRST = 1
    SECOND = 2


def test_what_does_not_change_is_no_memory(tmp_path):
    """Frozen and scripted networks, distributions whose attributes are computed when they are read, flags."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants another way to script modules
        scripted = torch.jit.script(torch.nn.Linear(1, 1))
    for number in range(10):
        encoder = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()).requires_grad_(False).eval()
        coin = torch.distributions.Categorical(logits=torch.zeros(2))

        def step(ctx, encoder=encoder, coin=coin):
            encoder(torch.ones(4))
            scripted(torch.ones(1))
            return coin.probs, Flags.FIRST | Flags.SECOND

        assert warned(tmp_path / f"{number}", step, Saved().step) == []


def test_a_method_of_an_object_with_a_state_is_resumed(tmp_path):
    def run(folder, max_step, resume=None):
        saved = Saved()
        with Task().start(resume=resume) as loop:
            loop.use(saved.step).use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1)).run(max_step)
        return saved.rows

    run(tmp_path / "run", 3)
    assert run(tmp_path / "run", 8, tmp_path / "run") == run(tmp_path / "whole", 8) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_global_generators_are_saved(tmp_path):
    """Those of Python, numpy and torch, so functions may draw from them."""

    def run(folder, max_step, resume=None):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)

        def step(ctx):
            ctx.total += random.random() + np.random.normal() + torch.randn(()).item()  # noqa: NPY002

        saver = CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1)
        with Task().start(ctx=Sum(), resume=resume) as loop:
            loop.use(step).use(saver).run(max_step)
            return loop.ctx.total

    run(tmp_path / "run", 3)
    assert run(tmp_path / "run", 8, tmp_path / "run") == run(tmp_path / "whole", 8)


def run_with_a_logger(folder, max_step, resume=None):
    """The total after a run that reads a logger which a contract names."""
    logger = MetricsLogger()

    @contract(reads=("total",), writes=("total",), uses=(logger,), stage="learn")
    def step(ctx):
        logger.log_value("reward", float(ctx.total_step), window=100)
        ctx.total += logger.peek("reward")

    with Task().start(ctx=Sum(), resume=resume) as loop:
        loop.use(step).use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1)).run(max_step)
        return loop.ctx.total


def test_a_logger_that_a_contract_names_is_saved_with_the_run(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_with_a_logger(tmp_path / "run", 3)
        resumed = run_with_a_logger(tmp_path / "run", 8, tmp_path / "run")
    assert resumed == run_with_a_logger(tmp_path / "whole", 8)


def test_a_run_that_was_saved_without_its_logger_can_be_resumed():
    """As by versions whose loggers had no state_dict."""

    def loop_with(logger):
        loop = Task()

        @contract(uses=(logger,), stage="learn")
        def step(ctx):
            logger.log_value("reward", 1.0) if isinstance(logger, MetricsLogger) else None

        loop.start(ctx=Sum()).__enter__()
        return loop.use(step)

    loop = loop_with(MetricsLogger())
    loop.run(2)
    state = loop.state_dict()
    assert list(state["parts"]) == ["MetricsLogger"]
    del state["parts"]["MetricsLogger"]
    logger = MetricsLogger()
    with pytest.warns(UserWarning, match="saved this run without its MetricsLogger, which begins anew"):
        loop_with(logger).load_state_dict(state)
    assert "reward" not in logger
    with pytest.raises(RunStateError, match="other objects: MetricsLogger is only in one of the two"):
        loop_with(Box()).load_state_dict(loop.state_dict())


def test_values_of_a_logger_that_a_checkpoint_cannot_hold_are_named_and_left_out():
    logger = MetricsLogger()
    logger.log_value("reward", 2.0)
    logger.log_value(("last", "episode"), Box(), reduce="item_series")
    with pytest.warns(UserWarning, match=r"begins without them: last/episode \(.*Box.*Log numbers, arrays or tensors, or call"):
        state = logger.state_dict()
    again = MetricsLogger()
    again.load_state_dict(state)
    assert again.peek("reward") == 2.0
    assert ("last", "episode") not in again


@pytest.mark.parametrize("kind", ["object", "method", "partial", "set by name", "default of a class"])
def test_a_saved_middleware_that_holds_the_task_hides_no_other_one(kind, tmp_path):
    class Logger:
        """Like a logger of the library, which is saved and knows its task."""

        def __init__(self):
            self.task, self.rows = None, 0

        def __call__(self, ctx):
            self.rows += 1

        def state_dict(self):
            return {"rows": self.rows}

        def load_state_dict(self, state):
            self.rows = state["rows"]

    class ByName:
        def __call__(self, ctx):
            setattr(self, "count", ctx.total_step)  # noqa: B010

        def read(self):
            return self.count

    class Default:
        count = 0

        def __call__(self, ctx):
            self.count += 1

    box, logger = Box(), Logger()
    kept = {
        "object": Default(),
        "method": box.step,
        "partial": functools.partial(Box.step, box),
        "set by name": ByName(),
        "default of a class": Default(),
    }[kind]
    loop = Task()
    logger.task = loop
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loop.start(ctx=Sum()):
            loop.use(kept).use(logger).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1000)).run(4)
    assert ["count" in str(it.message) for it in caught if "remembers something" in str(it.message)] == [True]


def test_an_attribute_that_is_set_by_name_before_each_use_is_no_memory(tmp_path):
    class SetsFirst:
        def __call__(self, ctx):
            setattr(self, "last", ctx.total_step)  # noqa: B010
            ctx.total += self.last

    assert warned(tmp_path, SetsFirst()) == []
