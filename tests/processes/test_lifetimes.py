"""How workers end: orderly, with their parent, with the interpreter; and what they leave behind, which is nothing."""

import gc
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref

import cloudpickle
import numpy as np
import psutil
import pytest

from ding_lite.processes import WorkerDied, WorkerProcess, launches
from ding_lite.processes.servers import close_objects

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(120)


class Recorder:
    """Writes into a file when it is closed."""

    def __init__(self, path, error=None):
        self.path, self.error = path, error

    def close(self):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("closed\n")
        if self.error:
            raise self.error


def put(objects, name, value):
    objects[name] = value


def sleep(objects, seconds):
    time.sleep(seconds)


def echo(objects, value):
    return value


def test_close_closes_the_objects_that_can_be(tmp_path):
    with WorkerProcess("w") as process:
        process.call(put, "good", Recorder(tmp_path / "good"))
        process.call(put, "bad", Recorder(tmp_path / "bad", ValueError("stuck")))
        process.call(put, "class", Recorder)
    assert process.exitcode == 0
    assert (tmp_path / "good").read_text() == (tmp_path / "bad").read_text() == "closed\n"


def never_used(process):
    pass


def used(process):
    process.call(echo, 1)


def answered(process):
    process.call(echo, 1)
    process.submit(echo, 1)
    time.sleep(0.1)


def busy(process):
    process.call(echo, 1)
    process.submit(sleep, 60)


def killed(process):
    process.call(echo, 1)
    os.kill(process.pid, signal.SIGKILL)


def found_dead(process):
    killed(process)
    with pytest.raises(WorkerDied):
        process.call(echo, 1)


def stopped(process):
    process.call(echo, 1)
    os.kill(process.pid, signal.SIGSTOP)


def deaf(process):
    process.call(lambda objects: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None)
    process.call(put, "slow", type("Slow", (), {"close": lambda self: time.sleep(60)})())


@pytest.mark.parametrize("state", [never_used, used, answered, busy, killed, found_dead, stopped, deaf])
def test_close_works_in_every_state_and_twice(state, gone):
    process = WorkerProcess("w", progress_size=2)
    state(process)
    began = time.monotonic()
    process.close(timeout_s=0.5 if state in (stopped, deaf) else 5.0)
    assert time.monotonic() - began < 3.0
    process.close()
    assert not process.is_alive
    assert gone(process.pid, timeout_s=0.5)
    assert process.progress.tolist() == [0, 0]
    if state is not found_dead:
        with pytest.raises(RuntimeError, match="worker 'w' is closed: make a new WorkerProcess."):
            process.submit(echo, 1)


def test_a_forgotten_worker_is_killed(gone):
    process = WorkerProcess("w")
    process.call(echo, 1)
    process.submit(sleep, 60)
    pid, there = process.pid, weakref.ref(process)
    gc.disable()
    try:
        del process
        assert there() is None, "something keeps it, or a circle of references does"
    finally:
        gc.enable()
    assert gone(pid, timeout_s=0.5)


def test_twenty_workers_leave_nothing_behind(census):
    def cycle(index):
        process = WorkerProcess(f"w{index}", progress_size=4)
        process.call(echo, np.zeros(50_000 * (1 + index % 3)))
        process.call(echo, np.zeros(200_000))
        if index % 3 == 1:
            process.submit(sleep, 60)
        if index % 3 == 2:
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                process.call(echo, 1)
        if index % 5:
            process.close()

    for index in range(4):
        cycle(index)
    before = census()
    for index in range(20):
        cycle(index)
    assert census() == before


def test_workers_start_side_by_side():
    began = time.monotonic()
    workers = [WorkerProcess(f"w{index}") for index in range(8)]
    made = time.monotonic() - began
    for process in workers:
        process.submit(lambda objects: os.getpid())
    assert [process.result() for process in workers] == [process.pid for process in workers]
    for process in workers:
        process.close()
    assert made < 5.0


def test_threads_start_workers_at_once_and_nothing_of_the_process_is_changed_for_good():
    from multiprocessing import forkserver, spawn

    def state():
        main = vars(sys.modules["__main__"]).get("__file__")
        return spawn.get_preparation_data, forkserver.connect_to_new_process, dict(os.environ), main

    before, results = state(), []

    def use(index):
        with WorkerProcess(f"w{index}") as process:
            results.append(process.call(echo, index))

    threads = [threading.Thread(target=use, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [0, 1, 2, 3]
    assert state() == before


def test_a_fork_server_that_somebody_else_has_started_is_left_alone():
    """It knows nothing of the imports that take a worker seconds."""
    context = multiprocessing.get_context("forkserver")
    theirs = context.Process(target=time.sleep, args=(60,))
    theirs.start()
    with WorkerProcess("w") as process:
        ours = psutil.Process(process.pid).ppid()
        imported = process.call(lambda objects: "torch" in sys.modules)
    others = psutil.Process(theirs.pid).ppid()
    theirs.kill()
    theirs.join()

    assert imported
    assert others != ours


@pytest.mark.slow
def test_a_fork_of_the_process_starts_workers_of_its_own_and_an_object_that_fails_to_close_says_so(script):
    process = script(
        START
        + """
class Bad:
    def close(self): raise ValueError("stuck")
def put(objects):
    objects["bad"] = Bad()
print("parent", worker.call(lambda objects: 1), flush=True)
child = os.fork()
if not child:
    with WorkerProcess("of the fork") as mine:
        print("child", mine.call(lambda objects: 2), flush=True)
    os._exit(0)
print("ended", os.waitpid(child, 0)[1], worker.call(lambda objects: 3), flush=True)
worker.call(put)
worker.close()
"""
    )
    out, errors = process.communicate(timeout=60)

    assert [line for line in out.splitlines() if line.startswith(("parent", "child", "ended"))] == [
        "parent 1",
        "child 2",
        "ended 0 3",
    ], errors
    assert errors.startswith("worker 'w': closing 'bad' failed.\n")
    assert "ValueError: stuck" in errors


@pytest.mark.slow
def test_a_fork_of_the_process_that_exits_does_not_end_its_workers(script):
    """At the exit of a process, multiprocessing ends all children that it knows."""
    process = script(
        START
        + """
worker.call(lambda objects: 1)
child = os.fork()
if not child:
    sys.exit(0)
print("ended", os.waitpid(child, 0)[1], worker.call(lambda objects: 3), flush=True)
worker.close()
"""
    )
    out, errors = process.communicate(timeout=60)

    assert "ended 0 3" in out.splitlines(), errors


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_objects_of_a_worker_are_closed_also_where_errors_cannot_be_printed(stderr, monkeypatch):
    class Bad:
        def close(self):
            raise ValueError("stuck")

    class Good:
        def close(self):
            closed.append(self)

    closed, stream = [], io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if stderr else None)
    close_objects({"good": Good(), "bad": Bad()}, "w")
    assert len(closed) == 1


@pytest.mark.slow
def test_without_a_fork_server_workers_are_spawned(monkeypatch):
    monkeypatch.setattr(launches.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with WorkerProcess("w", progress_size=1) as process:
        assert process.call(echo, 3) == 3
        assert process.call(lambda objects: os.environ["OMP_NUM_THREADS"]) == "1"
        assert "forkserver" not in " ".join(psutil.Process(process.pid).cmdline())
        process.close(timeout_s=60)  # a whole interpreter ends
    assert process.exitcode == 0


START = """
import os, sys, time
from ding_lite.processes import WorkerProcess
print("the script runs in", __name__, flush=True)
class Of:
    def __init__(self, x): self.x = x
class MyError(Exception): pass
factor = 6
def double(objects, x):
    return Of(factor * x.x)
def fail(objects):
    raise MyError("mine")
def busy(objects, how):
    if how == "sleep":
        time.sleep(100)
    while True:
        pass
worker = WorkerProcess("w")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once_its_functions_and_classes_work_and_a_fork_leaves_its_worker(script):
    process = script(
        START
        + """
import multiprocessing
result = worker.call(double, Of(7))
print(type(result) is Of, result.x, worker.call(lambda objects: factor), flush=True)
try:
    worker.call(fail)
except MyError as error:
    print("caught", error, flush=True)
other = multiprocessing.get_context("fork").Process(target=len, args=([],))
other.start()
other.join()
print(worker.call(double, Of(1)).x)
worker.close()
"""
    )
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["the script runs in __main__", "True 42 6", "caught mine", "6"], err
    assert (process.returncode, err) == (0, "")


@pytest.mark.slow
def test_a_script_that_ends_without_closing_leaves_no_process_and_does_not_wait(script, gone):
    """Workers that have answered, sleep, are in a loop, or have only just been started, each held by a circle."""
    process = script(
        START
        + """
sleeps, loops = WorkerProcess("sleeps"), WorkerProcess("loops")
worker.call(len)
sleeps.call(len)
sleeps.submit(busy, "sleep")
loops.submit(busy, "loop")
starts = WorkerProcess("starts")
workers = [worker, sleeps, loops, starts]
circles = [[it] for it in workers]
for circle in circles:
    circle.append(circle)
print(*[it.pid for it in workers])
"""
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    pids = [int(pid) for pid in out.splitlines()[-1].split()]
    assert len(pids) == 4
    assert gone(*pids, timeout_s=2.0)


def test_workers_die_with_their_parent(script, gone):
    """Workers that are idle, sleep or are in a loop, and the server that started them."""
    process = script(
        START
        + """
sleeps, loops = WorkerProcess("sleeps"), WorkerProcess("loops")
for it in (worker, sleeps, loops):
    it.call(len)
sleeps.submit(busy, "sleep")
loops.submit(busy, "loop")
print(worker.pid, sleeps.pid, loops.pid, flush=True)
time.sleep(100)
"""
    )
    process.stdout.readline()
    pids = [int(pid) for pid in process.stdout.readline().split()]
    server = psutil.Process(pids[0]).ppid()
    time.sleep(0.2)
    assert len(pids) == 3
    assert all(map(psutil.pid_exists, pids))
    process.kill()
    process.wait(10)
    assert gone(*pids, server, timeout_s=5.0)


@pytest.mark.slow
def test_signals_to_the_group_are_the_parents_affair(script):
    process = script(
        START
        + """
worker.submit(lambda objects: [time.sleep(0.01) for _ in range(100)] and "unharmed")
try:
    time.sleep(0.5)
    print("ready", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(worker.result(), worker.call(lambda objects: "still"), flush=True)
import signal
signal.signal(signal.SIGTERM, lambda *args: None)
os.killpg(0, signal.SIGTERM)  # torchrun sends it to the group too
print(worker.call(lambda objects: "and after SIGTERM"), flush=True)
try:
    print("again", flush=True)
    worker.submit(lambda objects: [time.sleep(0.01) for _ in range(120)] and "late")
    worker.result()
except KeyboardInterrupt:
    print(worker.result(), "but there", flush=True)
"""
    )
    for line in process.stdout:
        if line.strip() in ("ready", "again"):
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)
        if line.strip() == "late but there":
            break
    else:
        pytest.fail(process.communicate()[1])
    assert process.wait(20) == 0
