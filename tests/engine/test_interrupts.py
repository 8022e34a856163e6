"""Ctrl-C and SIGTERM: the first lets the iteration finish as the last one, the second stops at once."""

import contextlib
import io
import signal
import subprocess
import sys
import threading

import pytest
from forked_scripts import Script, run_script

from ding_lite.engine import Task

BOTH = pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, SystemExit, 143)],
    ids=["SIGINT", "SIGTERM"],
)


@pytest.fixture(autouse=True)
def _defaults():
    """Each test starts from the handlers of a fresh Python, and leaves those of the test run behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


class TestTheFirst:
    @BOTH
    def test_it_lets_the_iteration_finish_as_the_last_one_and_then_raises(self, number, error, code, capsys):
        trace, loop = [], Task()

        def halves(ctx):
            trace.append((ctx.total_step, "forward step", loop.finish))
            yield
            trace.append((ctx.total_step, "backward step", loop.finish))

        def interrupted(ctx):
            if ctx.total_step == 1:
                signal.raise_signal(number)

        def later(ctx):
            trace.append((ctx.total_step, "later", loop.finish))

        with loop.start():
            loop.use(halves).use(interrupted).use(later)
            with pytest.raises(error) as caught:
                loop.run()

        assert trace == [
            (0, "forward step", False),
            (0, "later", False),
            (0, "backward step", False),
            (1, "forward step", False),
            (1, "later", True),
            (1, "backward step", True),
        ]
        assert getattr(caught.value, "code", None) == code
        assert f"{number.name}: this iteration finishes, then the run ends; once more" in capsys.readouterr().err

    @BOTH
    def test_it_counts_in_the_last_iteration_as_well(self, number, error, code):
        with Task().start() as loop:
            loop.use(lambda ctx: signal.raise_signal(number))
            with pytest.raises(error):
                loop.run(max_step=1)

    @BOTH
    def test_it_finishes_the_iteration_even_where_the_terminal_is_gone(self, number, error, code, monkeypatch):
        class Gone(io.TextIOBase):
            def write(self, text):
                raise BrokenPipeError

        def interrupted(ctx):
            signal.raise_signal(number)
            trace.append("went on")
            yield
            trace.append(loop.finish)

        trace, loop = [], Task()
        monkeypatch.setattr(sys, "stderr", Gone())
        with loop.start():
            loop.use(interrupted)
            with pytest.raises(error):
                loop.run()

        assert trace == ["went on", True]

    def test_the_task_can_run_on_afterwards(self):
        with Task().start() as loop:
            loop.use(lambda ctx: signal.raise_signal(signal.SIGINT) if ctx.total_step == 0 else None)
            with pytest.raises(KeyboardInterrupt):
                loop.run(max_step=5)
            loop.run(max_step=2)
            assert loop.ctx.total_step == 2

    def test_an_error_of_the_iteration_comes_before_it(self):
        def breaks(ctx):
            signal.raise_signal(signal.SIGINT)
            raise ValueError("broken")

        with Task().start() as loop:
            loop.use(breaks)
            with pytest.raises(ValueError, match="broken"):
                loop.run()


class TestTheSecond:
    @BOTH
    @pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=lambda number: f"after {number.name}")
    def test_it_stops_at_once_and_the_generators_that_wait_see_it(self, first, number, error, code):
        trace = []

        def waits(ctx):
            try:
                yield
            except BaseException as thrown:
                trace.append(type(thrown))
                raise

        def twice(ctx):
            signal.raise_signal(first)
            trace.append("still here")
            signal.raise_signal(number)
            trace.append("not reached")

        with Task().start() as loop:
            loop.use(waits).use(twice)
            with pytest.raises(error) as caught:
                loop.run()

        assert trace == ["still here", error]
        assert getattr(caught.value, "code", None) == (143 if number == signal.SIGTERM else None)


class TestHandlers:
    def test_they_are_the_old_ones_after_a_run_however_it_ends(self):
        before = handlers()

        def breaks(ctx):
            raise ValueError

        for fn in (lambda ctx: None, breaks, lambda ctx: signal.raise_signal(signal.SIGINT)):
            with Task().start() as loop:
                loop.use(fn)
                with contextlib.suppress(ValueError, KeyboardInterrupt):
                    loop.run(max_step=1)
                assert handlers() == before

    def test_outside_of_a_run_a_signal_means_what_it_always_means(self):
        with Task().start(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    @BOTH
    @pytest.mark.parametrize("leaves", [False, True], ids=["returns", "exits"])
    def test_a_handler_of_another_library_is_called_after_the_run(self, leaves, number, error, code):
        trace = []

        def other(received, frame):
            trace.append(received)
            if leaves:
                sys.exit(7)  # as that of ray does

        signal.signal(number, other)
        with Task().start() as loop:
            loop.use(lambda ctx: signal.raise_signal(number)).use(lambda ctx: trace.append("the iteration finishes"))
            with pytest.raises(error) as caught:
                loop.run(max_step=3)

        assert trace == ["the iteration finishes", number]
        assert getattr(caught.value, "code", None) == code
        assert signal.getsignal(number) is other

    def test_a_run_inside_another_leaves_the_signal_to_the_outer_one(self):
        trace = []

        def inner(ctx):
            with Task().start() as loop:
                loop.use(lambda ctx: signal.raise_signal(signal.SIGINT) if ctx.total_step == 0 else None)
                loop.run(max_step=3)
                trace.append(loop.ctx.total_step)

        with Task().start() as outer:
            outer.use(inner)
            with pytest.raises(KeyboardInterrupt):
                outer.run(max_step=5)
            assert outer.ctx.total_step == 0

        assert trace == [2]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_that_the_program_ignores_stays_ignored(self, number):
        signal.signal(number, signal.SIG_IGN)
        with Task().start() as loop:
            loop.use(lambda ctx: signal.raise_signal(number))
            loop.run(max_step=2)

        assert signal.getsignal(number) == signal.SIG_IGN

    def test_a_run_on_another_thread_leaves_them_alone(self):
        before, seen = handlers(), []

        def run():
            with Task().start() as loop:
                loop.use(lambda ctx: seen.append(handlers()))
                loop.run(max_step=1)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

        assert seen == [before]


# Runs until somebody ends it; says "ready" in every iteration, and "saved" in the one that is known to be the last. As in real
# iterations, most of the time passes before the second halves: during these, a signal may come too late for `finish` there.
ENDLESS = """
import signal, time
from ding_lite.engine import Task
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
loop = Task()

def save(ctx):
    print("ready", flush=True)
    time.sleep(0.01)
    yield
    if loop.finish:
        print("saved", flush=True)

with loop.start():
    loop.use(save)
    loop.run()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_that_is_told_to_end_saves_first_and_tells_how_it_ended(number, status):
    with Script(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)

    assert output.split().count("saved") == 1
    assert output.split()[-1] == "saved"
    assert process.returncode == status
    assert signal.Signals(number).name in errors
    assert "Traceback" not in errors


# Ends its standard streams in one of several ways, and gets the signal, in the same iteration.
UNSEEN = """
import os, signal, sys, warnings
from ding_lite.engine import Task
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted(ctx):
    print("left in the buffer")
    warnings.warn("a warning")
    signal.raise_signal(int(sys.argv[1]))

{before}
with Task().start() as loop:
    loop.use(interrupted)
    loop.run()
"""

GONE = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "no reader": "r, w = os.pipe(); os.dup2(w, 1); os.dup2(w, 2); os.close(w); os.close(r)",
    "closed": "sys.stderr.close()",
    "none": "sys.stderr = None",
}


@pytest.mark.few
@pytest.mark.parametrize("before", GONE.values(), ids=GONE)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_the_exit_status_also_where_nobody_can_read_of_it(number, status, before, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = run_script(UNSEEN.format(before=before), int(number))
    assert done.returncode == status, done.stderr
