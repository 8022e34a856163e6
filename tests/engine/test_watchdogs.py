"""Watchdogs: a run that hangs ends with a name and a status; a run that uses up the memory is saved and ends."""

import mmap
import re
import textwrap
import time

import pytest
from forked_scripts import run_script

from ding_lite.engine import Task, contract, watchdogs
from ding_lite.engine.watchdogs import OutOfMemoryError, memory_in_use, memory_limit

SHORT_GRACE = "from ding_lite.engine import watchdogs; watchdogs._GRACE_S = 1.0"
MODES = pytest.mark.parametrize("mode", ["", "async_mode=True", "max_lag=1"])


def program(hangs, mode, before=""):
    """A program in which `hangs` runs in iteration 3, and its result."""
    text = textwrap.dedent(
        f"""
        import sys, threading, time
        from ding_lite.engine import Task, contract
        {before}
        loop = Task()

        @contract(stage="collect")
        def collect(ctx):
            if ctx.total_step == 3:
                {hangs}

        @contract(stage="learn")
        def learn(ctx):
            pass

        with loop.start(watchdog_s=0.5{", " + mode if mode else ""}):
            loop.use(collect).use(learn).run(9)
        """
    )
    begun = time.monotonic()
    done = run_script(text)
    return done, time.monotonic() - begun


@MODES
def test_a_run_that_hangs_ends_with_stacks_and_the_name_of_the_middleware(mode):
    done, spent = program("threading.Event().wait()", mode, SHORT_GRACE)

    assert done.returncode == watchdogs.STUCK_STATUS
    assert "the run made no progress for 0.5 s: " in done.stderr
    assert "collect" in done.stderr.partition("made no progress")[2]
    assert "Thread 0x" in done.stderr
    assert spent < 25


@pytest.mark.parametrize("stderr", ["sys.stderr = None", "sys.stderr.close()", "import io; sys.stderr = io.StringIO()"])
def test_a_run_that_hangs_ends_also_without_a_standard_error(stderr):
    done, _ = program("threading.Event().wait()", "", f"{SHORT_GRACE}; {stderr}")
    assert done.returncode == watchdogs.STUCK_STATUS


@pytest.mark.parametrize("method", ["begin_run(self)", "end_run(self, ctx)"])
def test_a_run_that_hangs_at_its_beginning_or_end_ends_too(method):
    text = f"""
import threading
from ding_lite.engine import Task
{SHORT_GRACE}

class Final:
    def __call__(self, ctx):
        pass

    def {method}:
        threading.Event().wait()

with Task().start(watchdog_s=0.5) as loop:
    loop.use(Final()).run(3)
"""
    done = run_script(text)
    name = method.partition("(")[0]
    assert done.returncode == watchdogs.STUCK_STATUS
    assert {"begin_run": "begin_run of Final", "end_run": "Final.end_run"}[name] in done.stderr.partition("made no progress")[2]


HANGING = """
import threading
from ding_lite.engine import Task, contract

@contract(stage="collect")
def collect(ctx):
    pass

@contract(stage="learn")
def learn(ctx):
    if ctx.total_step == 1:
        {asks}

def work():
    threading.Event().wait()

loop = Task()
with loop.start(watchdog_s=0.5, {mode}) as loop:
    loop.use(collect).use(learn).run({steps})
"""


@MODES
def test_a_save_that_hangs_is_named(mode):
    done = run_script(f"{SHORT_GRACE}{HANGING.format(asks='loop.between_iterations(work)', mode=mode, steps=9)}")
    assert done.returncode == watchdogs.STUCK_STATUS
    assert "for 0.5 s: the save of the run, or what else is called between two iterations, did not return." in done.stderr


@pytest.mark.parametrize(("asks", "steps"), [("", 2), ("; loop.between_iterations(loop.state_dict)", 9)])
def test_deferred_work_that_hangs_is_named_where_the_run_waits_for_it(asks, steps):
    script = HANGING.format(asks=f"loop.defer(work){asks}", mode="async_mode=True", steps=steps)
    done = run_script(f"{SHORT_GRACE}{script}")
    assert done.returncode == watchdogs.STUCK_STATUS
    assert re.search(r"0.5 s: work \(.*\), deferred by middleware learn \(.*\) in iteration 1 of the task did", done.stderr)


ASKED_TO_STOP = """
import os, signal, threading
from ding_lite.engine import Task, contract

signal.signal(signal.SIGINT, signal.default_int_handler)

@contract(stage="collect")
def collect(ctx):
    if ctx.total_step == 0:
        loop.defer(threading.Event().wait)

@contract(stage="learn")
def hangs(ctx):
    if ctx.total_step > 2:
        threading.Event().wait()

with Task().start(watchdog_s=0.5, async_mode=True) as loop:
    loop.use(collect).use(hangs).run(3, final=False)
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        loop.state_dict()  # waits for the work
    except KeyboardInterrupt:
        loop.run(3)
"""


def test_a_middleware_that_hangs_is_named_also_if_deferred_work_was_waited_for_before():
    done = run_script(f"{SHORT_GRACE}{ASKED_TO_STOP}")
    assert done.returncode == watchdogs.STUCK_STATUS
    assert re.search(r"for 0.5 s: .*hangs .*did not return", done.stderr)


DEADLOCK = """
import threading
from ding_lite.engine import Task, contract

loop, one, other, both = Task(), threading.Lock(), threading.Lock(), threading.Barrier(2)

@contract(stage="collect")
def collect(ctx):
    if ctx.total_step == 3:
        with one:
            both.wait()
            other.acquire()

@contract(stage="learn")
def learn(ctx):
    if ctx.total_step == 2:
        with other:
            both.wait()
            one.acquire()

with loop.start(watchdog_s=0.5, async_mode=True, max_lag=1):
    loop.use(collect).use(learn).run(9)
"""


def test_two_middleware_that_wait_for_each_other_are_both_named():
    begun = time.monotonic()
    done = run_script(DEADLOCK)

    assert done.returncode == watchdogs.STUCK_STATUS
    assert "the run made no progress for 0.5 s: collect (lane collect), or learn (lane learn) did not return." in done.stderr
    assert "in collect\n" in done.stderr
    assert "in learn\n" in done.stderr
    assert time.monotonic() - begun < 25


def test_a_run_that_ignores_the_interrupt_is_ended_too():
    lines = ["while True:", "    try:", "        time.sleep(60)", "    except BaseException:", "        pass"]
    hang = "\n                ".join(lines)
    done, spent = program(hang, "", SHORT_GRACE)

    assert done.returncode == watchdogs.STUCK_STATUS
    assert spent < 25


def test_a_slow_run_that_makes_progress_goes_on():
    with Task().start(watchdog_s=0.3) as loop:
        loop.use(lambda ctx: time.sleep(0.2)).use(lambda ctx: time.sleep(0.2)).run(3)
        assert loop.end_reason.kind == "max_step"


def pauses(ctx):
    yield
    time.sleep(0.3)


class Slow:
    """Begins and ends slowly."""

    def begin_run(self):
        time.sleep(0.3)

    def __call__(self, ctx):
        pass

    def end_run(self, ctx):
        yield
        time.sleep(0.3)


@pytest.mark.parametrize("made", [lambda: [contract()(pauses)] * 4, lambda: [Slow() for _ in range(4)]], ids=["halves", "ends"])
@MODES
def test_second_halves_and_what_begins_and_ends_a_run_are_progress_too(made, mode):
    with Task().start(
        watchdog_s=0.8, **({"async_mode": {"async_mode": True}, "max_lag": {"max_lag": 1}}.get(mode.partition("=")[0], {}))
    ) as loop:
        for fn in made():
            loop.use(fn)
        loop.run(1)
        assert loop.end_reason.kind == "max_step"


@MODES
def test_a_run_that_uses_up_the_memory_is_saved_and_names_the_largest_objects(mode, monkeypatch):
    monkeypatch.setattr(watchdogs, "_LOOK_S", 0.02)
    monkeypatch.setattr(watchdogs, "memory_in_use", lambda: 99 * 2**20)
    monkeypatch.setattr(watchdogs, "memory_limit", lambda: 100 * 2**20)

    class Buffer:
        nbytes = 50 * 2**20

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    class Changing(Buffer):
        @property
        def nbytes(self):
            raise RuntimeError("dictionary changed size during iteration")

    class Saver:
        def __init__(self):
            self.saved = []
            contract(stage="record")(self)

        def __call__(self, ctx):
            time.sleep(0.01)

        def save_run(self):
            self.saved.append(loop.state_dict()["done"])

    saver, loop = Saver(), Task()
    with loop.start(**eval(f"dict({mode})")):
        loop.use(contract(uses=(Buffer(), Changing()), stage="learn")(lambda ctx: None)).use(saver)
        with pytest.raises(
            OutOfMemoryError, match=r"99 MB, which is 99% .* of 100 MB\. The largest objects are Buffer with 50 MB"
        ):
            loop.run()
        assert loop.end_reason.kind == "memory"
        assert saver.saved == [loop.ctx.total_step + 1]


def test_memory_is_measured_as_the_system_counts_it():
    before = memory_in_use()
    size = 64 * 2**20
    with mmap.mmap(-1, size) as ballast:  # a bytearray may get memory that this process has used before, and has now already
        for page in range(0, size, mmap.PAGESIZE):
            ballast[page] = 1
        after = memory_in_use()

    assert 0 < before < memory_limit()
    assert 60 * 2**20 < after - before < 80 * 2**20


@pytest.mark.parametrize(("name", "value"), [("watchdog_s", 0), ("watchdog_s", -1), ("memory_share", 0), ("memory_share", 1.5)])
def test_limits_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        Task().start(**{name: value})
