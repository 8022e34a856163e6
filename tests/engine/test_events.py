"""Events: in order, each exactly once, delivered before the task stops, and a listener's error reaches whoever emitted."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.engine import Task


def notes(error):
    return "\n".join(getattr(error, "__notes__", []))


def run_in_thread(fn):
    thread = threading.Thread(target=fn)
    thread.start()
    return thread


class TestDelivery:
    def test_a_listener_gets_every_event_with_its_arguments_and_no_other(self):
        got = []
        with Task().start() as loop:
            loop.on("greeting", lambda *args, **kwargs: got.append((args, kwargs)))
            loop.emit("greeting", "hi", 1, tone="low")
            loop.emit("other", "no")
            loop.emit("greeting")

        assert got == [(("hi", 1), {"tone": "low"}), ((), {})]

    def test_ten_iterations_that_greet_are_ten_greetings(self):
        greets = []
        with Task().start() as loop:
            loop.on("Greeting", greets.append)
            loop.use(lambda ctx: loop.emit("Greeting", ctx.total_step))
            loop.run(max_step=10)

        assert greets == list(range(10))

    def test_listeners_are_called_in_the_order_in_which_they_came(self):
        called = []
        with Task().start() as loop:
            for number in range(5):
                loop.on("tick", lambda number=number: called.append(number))
            loop.emit("tick")

        assert called == [0, 1, 2, 3, 4]

    def test_a_once_listener_gets_one_event_even_if_it_emits_the_same(self):
        got = []

        def once(value):
            got.append(value)
            loop.emit("tick", value + 1)

        with Task().start() as loop:
            loop.once("tick", once)
            loop.emit("tick", 1)
            loop.emit("tick", 9)

        assert got == [1]

    def test_off_forgets_one_listener_or_all(self):
        first, second = [], []
        with Task().start() as loop:
            loop.on("tick", first.append)
            loop.on("tick", second.append)
            loop.off("tick", first.append)
            loop.emit("tick", 1)
            loop.off("tick")
            loop.emit("tick", 2)
            loop.off("never heard of")

        assert (first, second) == ([], [1])

    def test_only_remote_leaves_out_this_process_and_only_local_does_not(self):
        got = []
        with Task().start() as loop:
            loop.on("tick", got.append)
            loop.emit("tick", "remote", only_remote=True)
            loop.emit("tick", "local", only_local=True)

        assert got == ["local"]

    def test_an_event_without_listeners_is_no_error(self):
        with Task().start() as loop:
            loop.emit("nobody listens", 1)

    def test_a_listener_that_cannot_be_called_is_refused_at_once(self):
        with (
            Task().start() as loop,
            pytest.raises(TypeError, match=r"on\('tick'\) wants a function to call, got 3 of type int"),
        ):
            loop.on("tick", 3)

    @pytest.mark.parametrize("call", ["emit", "on", "once", "off", "wait_for"])
    def test_before_the_start_and_after_the_stop_it_is_refused(self, call):
        loop = Task()
        arguments = ("tick", print) if call.startswith("on") else ("tick",)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"task\.{call}\('tick'\) before task\.start\(\): open the task first"):
                getattr(loop, call)(*arguments)
            loop.start()
            loop.stop()

    def test_listeners_are_forgotten_at_the_stop(self):
        got, loop = [], Task()
        with loop.start():
            loop.on("tick", got.append)
        with loop.start():
            loop.emit("tick", 1)

        assert got == []


# What the two listeners of event k emit when they are called: only later events, so that it comes to an end.
ANSWERS = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        *[
            st.tuples(*[st.lists(st.integers(k + 1, size - 1), max_size=2) if k + 1 < size else st.just([])] * 2)
            for k in range(size)
        ]
    )
)


class TestOrder:
    @given(answers=ANSWERS, first=st.lists(st.integers(0, 4), max_size=3))
    def test_whatever_listeners_emit_events_come_one_after_the_other_each_exactly_once(self, answers, first):
        expected, waiting = [], []
        for event in first:
            waiting.append(event)
            while waiting:
                event = waiting.pop(0)
                for number in (0, 1):
                    expected.append((event, number))
                    if event < len(answers):
                        waiting += answers[event][number]

        seen = []

        def listener(event, number):
            def listen():
                seen.append((event, number))
                for other in answers[event][number] if event < len(answers) else ():
                    loop.emit(str(other))

            return listen

        with Task().start() as loop:
            for event in range(5):
                for number in (0, 1):
                    loop.on(str(event), listener(event, number))
            for event in first:
                loop.emit(str(event))

        assert seen == expected

    def test_events_of_many_threads_come_once_each_and_in_the_order_of_each_thread(self):
        got, threads, loop = [], 4, Task()
        line = threading.Barrier(threads)

        def emit(thread):
            line.wait(timeout=30)
            for number in range(100):
                loop.emit("tick", thread, number)

        with loop.start():
            loop.on("tick", lambda thread, number: got.append((thread, number)))
            running = [run_in_thread(lambda thread=thread: emit(thread)) for thread in range(threads)]
            for thread in running:
                thread.join()

        assert len(got) == 400
        for thread in range(threads):
            assert [number for owner, number in got if owner == thread] == list(range(100))

    def test_only_one_listener_runs_at_a_time(self):
        at_work, clashes, loop = threading.Lock(), [], Task()

        def listen():
            if at_work.acquire(blocking=False):
                at_work.release()
            else:
                clashes.append(1)

        def guarded():
            with at_work:
                loop.emit("nothing")

        with loop.start():
            loop.on("tick", listen)
            loop.on("tick", guarded)
            for thread in [run_in_thread(lambda: [loop.emit("tick") for _ in range(100)]) for _ in range(3)]:
                thread.join()

        assert clashes == []

    def test_what_was_emitted_before_the_stop_is_delivered_before_the_stop_returns(self):
        got, loop = [], Task()
        listening, stopping = threading.Event(), threading.Event()

        def slow(value):
            listening.set()
            assert stopping.wait(timeout=30)
            got.append(value)

        def until_the_stop(ctx):
            try:
                yield
            finally:
                stopping.set()

        loop.start()
        loop.on("tick", slow)
        thread = run_in_thread(lambda: loop.emit("tick", 1))
        assert listening.wait(timeout=30)
        loop.forward(until_the_stop)
        assert got == []
        loop.stop()

        assert got == [1]
        thread.join()

    def test_an_event_waits_for_its_turn_while_another_thread_delivers(self):
        got, loop = [], Task()
        listening, go_on = threading.Event(), threading.Event()

        def slow(value):
            listening.set()
            assert go_on.wait(timeout=30)
            got.append((value, threading.current_thread()))

        with loop.start():
            loop.on("tick", slow)
            threads = [run_in_thread(lambda: loop.emit("tick", 1))]
            assert listening.wait(timeout=30)
            threads.append(run_in_thread(lambda: loop.emit("tick", 2)))
            go_on.set()
            for thread in threads:
                thread.join()
        assert got == [(1, threads[0]), (2, threads[1])]

    def test_a_listener_that_stops_the_task_loses_no_event_emitted_before(self):
        got, loop = [], Task()

        def stops():
            loop.emit("later", 1)
            loop.stop()

        loop.start()
        loop.on("later", got.append)
        loop.on("end", stops)
        loop.emit("end")

        assert not loop.running
        assert got == [1]


class TestErrors:
    def test_a_listeners_error_reaches_the_caller_and_the_others_still_get_the_event(self):
        got, loop = [], Task()
        error = ValueError("first")

        def fails(value):
            raise error

        def fails_too(value):
            raise KeyError("second")

        with loop.start():
            for listener in (fails, got.append, fails_too, got.append):
                loop.on("tick", listener)
            with pytest.raises(ValueError, match="first") as caught:
                loop.emit("tick", 1)
            assert got == [1, 1]
            loop.off("tick", fails)
            loop.off("tick", fails_too)
            loop.emit("tick", 2)

        assert caught.value is error
        assert "raised by a listener of the event 'tick'" in notes(error)
        assert "a later listener, of 'tick', raised KeyError: 'second'" in notes(error)
        assert got == [1, 1, 2, 2]

    def test_an_error_in_answer_to_a_listener_reaches_the_caller_of_the_first_event(self):
        def fails():
            raise ValueError("inner")

        with Task().start() as loop:
            loop.on("outer", lambda: loop.emit("inner"))
            loop.on("inner", fails)
            with pytest.raises(ValueError, match="inner") as caught:
                loop.emit("outer")

        assert "'inner'" in notes(caught.value)

    def test_a_listeners_error_ends_the_run_that_emitted(self):
        def fails():
            raise ValueError("from the listener")

        with Task().start() as loop:
            loop.on("tick", fails)
            loop.use(lambda ctx: loop.emit("tick"))
            with pytest.raises(ValueError, match="from the listener"):
                loop.run(max_step=3)
            assert loop.ctx.total_step == 0
