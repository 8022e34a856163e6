"""task.wait_for: the next event of another thread, or a timeout, and never for ever."""

import math
import sys
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from forked_scripts import run_script

from ding_lite.engine import Task, contract


def run_in_thread(fn):
    thread = threading.Thread(target=fn)
    thread.start()
    return thread


def is_waiting(thread):
    """Whether the innermost call of the thread is threading's `wait`."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


FOR_EVER = """
from ding_lite.engine import Task, contract
with Task().start() as loop:
    {before}
    try:
        loop.wait_for("tick")
    except RuntimeError as error:
        print(error)
"""


class TestWaitFor:
    def test_it_returns_the_arguments_that_another_thread_emitted(self):
        loop, done = Task(), threading.Event()

        def emit():
            while not done.wait(0.001):
                loop.emit("greeting", "hi", tone="low")

        with loop.start():
            thread = run_in_thread(emit)
            got = loop.wait_for("greeting", timeout=30)
            done.set()
            thread.join()

        assert got == (("hi",), {"tone": "low"})

    def test_without_a_timeout_it_waits_for_a_thread_of_the_script(self):
        with Task().start() as loop:
            timer = threading.Timer(0.5, loop.emit, ("tick", 7))
            timer.start()
            assert loop.wait_for("tick") == ((7,), {})
            timer.join()

    @pytest.mark.parametrize(
        ("event", "timeout", "kind", "message"),
        [
            ("go", "3", TypeError, r"timeout='3'\) wants seconds, or None, got str"),
            ("go", True, TypeError, "wants seconds, or None, got bool"),
            ("go", -1, ValueError, "wants seconds of at least 0, or None for no limit"),
            ("go", float("nan"), ValueError, "wants seconds of at least 0"),
            (3, 1, TypeError, r"task.wait_for\(3\) wants the name of one event, got int"),
            (["a", "b"], 1, TypeError, "wants the name of one event, got list"),
        ],
    )
    def test_what_it_cannot_wait_for_is_refused(self, event, timeout, kind, message):
        with Task().start() as loop, pytest.raises(kind, match=message):
            loop.wait_for(event, timeout)

    def test_a_timeout_raises_if_it_is_not_to_be_ignored(self):
        with (
            Task().start() as loop,
            pytest.raises(TimeoutError, match=r"wait_for\('tick'\): not emitted within 0\.01 s"),
        ):
            loop.wait_for("tick", timeout=0.01, ignore_timeout_exception=False)

    def test_a_timeout_is_none_otherwise_and_leaves_no_listener_behind(self):
        with Task().start() as loop:
            assert loop.wait_for("tick", timeout=0) is None
            loop.emit("tick", 1)
            assert loop.wait_for("tick", timeout=0) is None

    def test_whoever_waits_when_the_task_stops_is_let_go(self):
        got, loop = [], Task()
        loop.start()
        thread = run_in_thread(lambda: got.append(loop.wait_for("never", timeout=60)))
        while not is_waiting(thread):
            assert thread.is_alive()
        loop.stop()
        thread.join(timeout=30)

        assert got == [None]

    def test_a_thread_of_the_script_waits_without_a_limit_for_what_the_run_emits(self):
        got, loop = [], Task()
        with loop.start():
            thread = run_in_thread(lambda: got.append(loop.wait_for("tick")))
            while not is_waiting(thread):
                assert thread.is_alive()
            loop.use(lambda ctx: loop.emit("tick", 1)).run(1)
            thread.join(timeout=30)

        assert got == [((1,), {})]

    def test_a_thread_that_waits_without_a_limit_is_let_go_when_the_task_stops_and_starts_again(self):
        got, loop = [], Task()
        loop.start()
        thread = run_in_thread(lambda: got.append(loop.wait_for("never")))
        while not is_waiting(thread):
            assert thread.is_alive()
        loop.stop()
        loop.start()
        thread.join(timeout=30)
        loop.stop()

        assert got == [None]

    @pytest.mark.parametrize(
        "before", ["pass", "loop.use(loop.parallel(lambda ctx: None)).run(max_step=1)"], ids=["at once", "after a parallel"]
    )
    def test_it_refuses_to_block_for_ever_where_nobody_can_emit(self, before):
        script = FOR_EVER.format(before=before)
        ended = run_script(script, timeout=20, check=True)

        assert "task.wait_for('tick') would block for ever" in ended.stdout
        assert "Set a timeout" in ended.stdout

    @pytest.mark.parametrize("sibling", ["lambda ctx: 1 / 0", "lambda ctx: None", "lambda ctx: loop.wait_for('tock')"])
    def test_beside_parts_that_are_done_or_wait_themselves_it_does_not_block_for_ever(self, sibling):
        script = BESIDE.format(sibling=sibling)
        ended = run_script(script, timeout=20, check=True)

        assert "would block for ever: nothing is left to emit it. Set a timeout." in ended.stdout
        assert "division by zero" in ended.stdout or "1 / 0" not in sibling

    @pytest.mark.parametrize("waits_first", [False, True])
    def test_an_error_of_a_part_beside_it_is_the_one_that_is_raised(self, waits_first):
        handled = []

        def recovers(ctx):
            try:
                yield
            except OSError as error:
                handled.append(str(error))

        def fails(ctx):
            time.sleep(0.02)
            raise OSError("the disk is gone")

        with Task().start() as loop:
            parts = [lambda ctx: loop.wait_for("data"), fails]
            loop.use(recovers).use(loop.parallel(*(parts if waits_first else parts[::-1]))).run(1)
        assert handled == ["the disk is gone"]

    def test_a_timeout_longer_than_the_system_counts_is_no_error(self):
        with Task().start() as loop:
            timer = threading.Timer(0.05, loop.emit, ("tick", 7))
            timer.start()
            assert loop.wait_for("tick", timeout=1e20) == ((7,), {})
            timer.join()

    def test_a_part_beside_it_may_emit_what_it_waits_for(self):
        got = []
        with Task().start() as loop:
            loop.use(
                loop.parallel(
                    lambda ctx: got.append(loop.wait_for("tick")),
                    lambda ctx: (time.sleep(0.4), loop.emit("tick", 1))[0],
                )
            )
            loop.run(max_step=1)

        assert got == [((1,), {})]

    @pytest.mark.parametrize("timeout", [math.inf, 5.0])
    @pytest.mark.parametrize("through_a_part", [False, True])
    def test_a_listener_to_which_no_event_can_come_is_refused(self, timeout, through_a_part):
        def listens():
            def wait(ctx=None):
                loop.wait_for("tick", timeout=timeout)

            loop.parallel(wait)(loop.ctx) if through_a_part else wait()

        with Task().start() as loop:
            loop.on("begun", listens)
            loop.use(loop.parallel(lambda ctx: loop.emit("begun"), lambda ctx: loop.emit("tick")))
            with pytest.raises(RuntimeError, match=r"wait_for\('tick'\) inside the listener of an event .* one after another"):
                loop.run(1)

    def test_what_a_listener_has_begun_may_wait_once_it_has_returned(self):
        futures = []
        with Task().start() as loop:
            loop.on("begun", lambda: futures.append(loop.forward(waits, async_mode=True)))
            returned = threading.Event()

            def waits(ctx):
                returned.wait()
                got.append(loop.wait_for("tick", timeout=10))

            got = []
            loop.emit("begun")
            returned.set()
            while not futures[0].done():
                loop.emit("tick")
                time.sleep(0.01)
            futures[0].result()
        assert got == [((), {})]

    @pytest.mark.parametrize("timeout", [np.float32(0.01), np.int64(0), Fraction(1, 100)])
    def test_any_real_number_is_a_timeout(self, timeout):
        with Task().start() as loop:
            assert loop.wait_for("tick", timeout=timeout) is None

    def test_a_number_beyond_floats_is_no_limit_and_below_them_negative(self):
        with Task().start() as loop:
            timer = threading.Timer(0.05, loop.emit, ("tick",))
            timer.start()
            assert loop.wait_for("tick", timeout=10**400) == ((), {})
            with pytest.raises(ValueError, match="wants seconds of at least 0"):
                loop.wait_for("tick", timeout=-(10**400))
            timer.join()

    def test_a_part_that_asks_for_what_it_forwarded_lends_its_place(self):
        got = []
        with Task().start(n_async_workers=1) as loop:
            loop.use(loop.parallel(lambda ctx: loop.forward(got.append, async_mode=True).result() and None, lambda ctx: None))
            loop.run(1)
        assert len(got) == 1


@pytest.mark.parametrize("mode", [{}, {"async_mode": True}], ids=["plain", "threads"])
def test_stop_from_another_thread_ends_a_run_whose_parts_begin_threads(mode):
    for _ in range(25):
        loop, errors, counts, learning = Task(), [], [], threading.Event()

        def stops(loop=loop, errors=errors, learning=learning):
            learning.wait()
            time.sleep(0.005)
            try:
                loop.stop()
            except RuntimeError as error:
                errors.append(error)

        def learn(ctx, counts=counts, learning=learning):
            counts.append(1)
            learning.set()

        thread = threading.Thread(target=stops)
        with loop.start(**mode):
            part = contract(stage="collect")(lambda ctx: time.sleep(0.001))
            loop.use(loop.parallel(part, part)).use(contract(uses=(counts,), stage="learn")(learn))
            thread.start()
            loop.run(10**6)
        thread.join()
        assert errors == []
        assert 0 < len(counts) < 10**6
    assert [it.name for it in threading.enumerate() if it.name.startswith("task.")] == []


BESIDE = """
from ding_lite.engine import Task, contract
with Task().start() as loop:
    loop.use(loop.parallel(lambda ctx: loop.wait_for("tick"), {sibling}))
    try:
        loop.run(max_step=1)
    except Exception as error:
        print(error, getattr(error, "__notes__", ""))
"""
