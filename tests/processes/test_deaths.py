"""Workers that die or hang: noticed in time, and told with the place."""

import gc
import os
import signal
import sys
import time

import cloudpickle
import numpy as np
import pytest

from ding_lite.processes import WorkerDied, WorkerHangs, WorkerProcess

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


def nothing(objects):
    pass


def sleep(objects, seconds):
    time.sleep(seconds)


def write_progress(objects, *values):
    objects["progress"][:] = values


def die(objects, how):
    objects["progress"][:] = 7
    how()


def raised_within(seconds, error, call, *args):
    began = time.monotonic()
    with pytest.raises(error) as caught:
        call(*args)
    assert time.monotonic() - began < seconds
    return caught.value


def say(progress):
    return f"environment {progress[0]}, step {progress[1]}"


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_kill_is_noticed_at_once_and_the_error_names_the_place(is_busy):
    process = WorkerProcess("collect-1", progress_size=2, describe=say)
    process.call(write_progress, 5, 31)
    if is_busy:
        process.submit(sleep, 60)
    os.kill(process.pid, signal.SIGKILL)
    error = raised_within(1.0, WorkerDied, process.result) if is_busy else raised_within(1.0, WorkerDied, process.call, nothing)
    text = "worker 'collect-1' was killed by signal 9 (SIGKILL; the system sends it when memory runs out); it was at "
    assert str(error) == text + "environment 5, step 31."
    assert (error.exitcode, process.exitcode, process.is_alive) == (-9, -9, False)
    assert process.progress.tolist() == [5, 31]
    for call in (process.result, lambda: process.submit(nothing), process.fileno):
        again = raised_within(0.1, WorkerDied, call)
        assert str(again).startswith("worker 'collect-1' is dead, make a new WorkerProcess: it was killed by signal 9")
        assert again.exitcode == -9
    process.close()


def test_it_is_noticed_within_a_tenth_of_a_second():
    delays = []
    for _ in range(3):
        process = WorkerProcess("w")
        process.call(nothing)
        process.submit(sleep, 60)
        killed = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            process.result()
        delays.append(time.monotonic() - killed)
    assert min(delays) < 0.1


@pytest.mark.parametrize(
    ("how", "words", "exitcode"),
    [
        (lambda: os._exit(3), "worker 'w' exited with status 3; it was at [7] (describe() failed: IndexError: ", 3),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "worker 'w' was killed by signal 11 (SIGSEGV); it was at [7]", -11),
        (lambda: os.kill(os.getpid(), 40), "worker 'w' was killed by signal 40 (a signal without a name); it was", -40),
        (lambda: os.closerange(3, 100), "worker 'w' ", None),
    ],
    ids=["exit", "segmentation fault", "odd signal", "closed its connection"],
)
def test_however_it_dies_the_message_says_how(how, words, exitcode):
    process = WorkerProcess("w", progress_size=1, describe=say)
    error = raised_within(10.0, WorkerDied, process.call, die, how)
    assert str(error).startswith(words)
    assert exitcode is None or error.exitcode == exitcode


def test_a_last_answer_before_the_death_still_counts():
    process = WorkerProcess("w")
    process.call(nothing)
    process.submit(lambda objects: 42)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert process.result() == 42
    raised_within(1.0, WorkerDied, process.call, nothing)


def test_a_death_during_the_start_is_told():
    process = WorkerProcess("w")
    os.kill(process.pid, signal.SIGKILL)
    error = raised_within(5.0, WorkerDied, process.call, nothing)
    assert "was killed by signal 9" in str(error)


def test_no_answer_in_time_is_a_hang_and_the_error_has_place_and_stack(gone):
    process = WorkerProcess("w", progress_size=2, describe=say, timeout_s=0.5)
    process.call(write_progress, 5, 31)
    error = raised_within(1.5, WorkerHangs, process.call, sleep, 60)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, WorkerDied)
    words = "worker 'w' made no progress for 0.5 s at environment 5, step 31 and was killed: it hangs; or its work takes longer"
    assert str(error).startswith(words)
    assert "raise timeout_s=0.5" in str(error)
    assert "test_deaths.py" in str(error)
    assert "in sleep" in str(error)
    assert "_die_with_parent" not in str(error)
    assert error.exitcode == -9
    assert gone(process.pid)
    assert "made no progress" in str(raised_within(0.1, WorkerDied, process.call, nothing))


@pytest.mark.parametrize("how", ["a loop", "a stop", "a lock in C"])
def test_a_worker_that_hangs_anywhere_is_killed_in_time(how, gone):
    def hang(objects):
        import ctypes

        if how == "a stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "a lock in C":
            ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter's lock
        while True:
            pass

    process = WorkerProcess("w", timeout_s=0.5)
    process.call(nothing)
    error = raised_within(1.5, WorkerHangs, process.call, hang)
    assert ("in hang" in str(error)) == (how != "a stop")
    assert gone(process.pid)


def test_progress_keeps_it_alive_beyond_the_timeout():
    def plod(objects):
        for step in range(30):
            objects["progress"][1] = step
            time.sleep(0.05)
        return "done"

    with WorkerProcess("w", progress_size=3, timeout_s=0.5) as process:
        process.submit(plod)
        seen = {int(process.progress[1])}
        assert process.result() == "done"
        assert process.progress.tolist() == [0, 29, 0]
        assert process.progress.dtype == np.int64
        assert seen <= set(range(30))


def test_progress_that_ends_is_a_hang():
    def plod(objects):
        for step in range(10):
            objects["progress"][0] = step
            time.sleep(0.05)
        time.sleep(60)

    process = WorkerProcess("w", progress_size=1, describe=lambda progress: f"step {progress[0]}", timeout_s=0.4)
    process.call(nothing)
    began = time.monotonic()
    error = raised_within(2.0, WorkerHangs, process.call, plod)
    assert "made no progress for 0.4 s at step 9 and" in str(error)
    assert time.monotonic() - began > 0.8


def test_a_start_does_not_count_as_a_hang():
    """The first answer may take as long as a process takes to start, however short the timeout."""
    workers = [WorkerProcess(f"w{index}", timeout_s=0.2) for index in range(6)]
    for process in workers:
        process.submit(nothing)
    for process in workers:
        process.result()
        process.close()


def test_a_start_that_takes_for_ever_is_a_hang_with_a_limit_of_its_own(gone):
    process = WorkerProcess("w", timeout_s=60, start_timeout_s=0.3)
    os.kill(process.pid, signal.SIGSTOP)
    if process._child.status.started:
        process.close(0)
        pytest.skip("it was ready before it could be stopped")
    error = raised_within(1.5, WorkerHangs, process.call, nothing)
    assert str(error) == (
        "worker 'w' did not start within 0.3 s, and was killed: it hangs (stderr may say more); or the machine is slow, then "
        "raise start_timeout_s=0.3."
    )
    assert gone(process.pid)


def test_a_failing_start_is_a_death_and_leaves_nothing(monkeypatch):
    import psutil

    def refuse(*args):
        raise EOFError("unexpected EOF")

    gc.collect()  # what tests before have left
    before = psutil.Process().num_fds()
    monkeypatch.setattr("ding_lite.processes.children.start", refuse)
    with pytest.raises(WorkerDied, match="worker 'w' could not be started: EOFError: unexpected EOF") as caught:
        WorkerProcess("w")
    del caught
    assert psutil.Process().num_fds() == before
