"""Hosts on a Ray cluster: the same answers as in this process, also from a worker that was started again."""

import os
import re
import signal
import subprocess
import time

import numpy as np
import psutil
import pytest
import ray

from ding_lite.distributed import Resources, clusters, references
from ding_lite.distributed.ray_hosts import RayHost
from ding_lite.distributed.worker_actors import Actors
from ding_lite.envs import make_envs
from ding_lite.processes import LocalHost, WorkerDied, WorkerError, WorkerHangs, gather_results, release_hosts

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("cluster")]


class Counter:
    """Adds up, and writes into a file when it is closed."""

    def __init__(self, total, path):
        self.total, self.path = total, path

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]

    def close(self):
        self.path.touch()


def make(objects, total, path):
    objects["counter"] = Counter(total, path)
    return "made"


def add(objects, amount):
    objects["counter"].total += amount
    return objects["counter"].total


def add_shared(objects, amounts, index):
    value = amounts.value
    return add(objects, int(value[index])), value.flags.writeable


def change(objects, array):
    array += 1  # arguments belong to the function
    return array


def faulty(amount, path, fault, times=1):
    """`add`, where a fault happens the first `times` that it is run, after the work and before the answer."""

    def run(objects):
        result = add(objects, amount)
        with path.open("a") as file:
            file.write(".")
        if path.stat().st_size <= times:
            if fault == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "SIGSTOP":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "hang":
                time.sleep(60)
            raise ZeroDivisionError(f"attempt {path.stat().st_size}")
        return result

    return run


def ask(host, fn, *args, **kwargs):
    return host.result(request=host.submit(fn, *args, **kwargs))


def ray_host(**settings):
    return RayHost(Actors(Resources(), spares=int(settings.get("restart", False))), "w", **settings)


def wait_until(is_true, seconds=20):
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def worker_pids():
    return {it.pid for it in psutil.process_iter(["name"]) if it.info["name"].startswith("ray::WorkerActo")}


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_host_runs_functions_on_its_objects_and_gives_and_takes_their_state(hosted, tmp_path):
    host = hosted(ray_host(depth=4))
    assert ask(host, make, 10, tmp_path / "closed", lasting=True) == "made"
    requests = [host.submit(add, amount) for amount in (1, 2, 3, 4)]
    with pytest.raises(RuntimeError, match=r"got add\(\) while a request is in flight"):
        host.submit(add, 5)
    host.forget(requests[1])
    assert [host.result(request=requests[index]) for index in (0, 2, 3)] == [11, 16, 20]
    array = np.arange(100_000)
    np.testing.assert_array_equal(ask(host, change, array), array + 1)
    assert host.span[0] < host.span[1]
    host.load_state({"counter": {"total": 100}})
    with pytest.raises(ValueError, match="invalid literal") as caught:
        ask(host, lambda objects: int("no number"))
    assert "It was raised in worker 'w'." in caught.value.__notes__
    assert "no number" in str(caught.value.__cause__)  # its traceback in the worker
    with pytest.raises(TypeError, match="cannot pickle"):
        ask(host, add, (one for one in "ab"))
    with pytest.raises(WorkerError, match="cannot be sent: TypeError: cannot pickle .generator. object. Return numbers"):
        ask(host, lambda objects: (one for one in "ab"))
    small, large = ask(host, lambda objects: (array[:3], array))
    np.testing.assert_array_equal(large[:3], small)
    assert not large.flags.writeable  # it lies in the object store, where others may read it
    host.release()
    workers = worker_pids()
    assert (tmp_path / "closed").exists()
    assert (host.state(), ask(host, add, 1), host.starts) == ({"counter": {"total": 100}}, 101, 2)
    assert host.pid in workers  # one that was kept, see conftest.py; its objects are new ones
    assert ask(host, lambda objects: sorted(objects)) == ["counter", "progress", "share"]
    host.close()
    assert host.state() == {"counter": {"total": 101}}


@pytest.mark.parametrize(("fault", "timeout_s"), [("SIGKILL", 60.0), ("SIGSTOP", 1.0), ("hang", 1.0), ("raise", 60.0)])
def test_a_worker_that_fails_is_replaced_and_no_work_is_lost_or_done_twice(hosted, tmp_path, fault, timeout_s):
    host = hosted(ray_host(restart=True, timeout_s=timeout_s, depth=3))
    ask(host, make, 0, tmp_path / "closed", lasting=True)
    before = ask(host, add, 1), host.pid
    begun = time.monotonic()
    requests = [host.submit(faulty(10, tmp_path / "runs", fault)), host.submit(add, 100)]
    assert [host.result(request=request) for request in requests] == [11, 111]
    assert time.monotonic() - begun < timeout_s + 40
    assert (host.restarts, host.starts, (tmp_path / "runs").read_text()) == (1, 2, "..")
    wait_until(lambda: is_gone(before[1]))


def test_an_error_of_the_program_is_final_after_one_more_attempt_in_another_worker(hosted, tmp_path):
    host = hosted(ray_host(restart=True))
    ask(host, make, 0, tmp_path / "closed", lasting=True)
    with pytest.raises(ZeroDivisionError, match="attempt 2") as caught:
        ask(host, faulty(1, tmp_path / "runs", "raise", times=9))
    assert any("attempt 2 of the same request" in note for note in caught.value.__notes__)
    assert (tmp_path / "runs").read_text() == ".."


@pytest.mark.parametrize(("fault", "error"), [("SIGKILL", WorkerDied), ("hang", WorkerHangs)])
def test_without_restart_the_error_arrives_in_time_and_the_state_is_lost(hosted, tmp_path, fault, error):
    host = hosted(ray_host(timeout_s=1.0, progress_size=1, describe=lambda progress: f"step {progress[0]}"))
    ask(host, make, 7, tmp_path / "closed", lasting=True)
    begun = time.monotonic()
    with pytest.raises(error, match=r"worker 'w' .*") as caught:
        ask(host, faulty(1, tmp_path / "runs", fault))
    assert time.monotonic() - begun < 10
    if fault == "hang":
        assert "time.sleep(60)" in str(caught.value)
    with pytest.raises(WorkerDied, match="worker 'w' has ended before, and its state is lost"):
        ask(host, add, 1)
    host.load_state({"counter": {"total": 7}})
    assert ask(host, add, 1) == 8


def test_a_worker_that_makes_progress_does_not_hang(hosted):
    def walk(objects):
        for step in range(6):
            time.sleep(0.4)
            objects["progress"][0] = step + 1
        return "there"

    host = hosted(ray_host(timeout_s=1.0, progress_size=1))
    assert ask(host, walk) == "there"


def test_a_shared_value_is_stored_once_and_leaves_the_store(hosted, tmp_path):
    hosts = [hosted(ray_host()) for _ in range(2)]
    gather_results(hosts, [host.submit(make, 0, tmp_path / "closed", lasting=True) for host in hosts])
    puts = []
    put, references.ray.put = references.ray.put, lambda value: puts.append(value) or put(value)
    try:
        amounts = hosts[0].share(np.arange(1000))
        found = gather_results(hosts, [host.submit(add_shared, amounts, 5 + index) for index, host in enumerate(hosts)])
    finally:
        references.ray.put = put
    assert found == [(5, False), (6, False)]
    assert len(puts) == 1
    with pytest.raises(TypeError, match="only be sent by a request"):
        references.dumps(amounts)


def test_a_lost_shared_value_is_stored_again(hosted, tmp_path, spilled):
    def read_soon(objects, seconds):
        references._FETCH_S = seconds

    host = hosted(ray_host(restart=True))
    ask(host, make, 0, tmp_path / "closed", lasting=True)
    ask(host, read_soon, 1.0)
    amounts = host.share(np.arange(5_000_000))
    # The store has 200 MB, so all but the last four are written to disk, the first one among them.
    others = [host.share(np.arange(5_000_000)) for _ in range(14)]
    time.sleep(1)
    files = [path for path in spilled.rglob("*") if path.is_file()]
    for path in files:
        path.unlink()
    assert files
    del others
    assert ask(host, add_shared, amounts, 3) == (3, False)
    assert host.restarts == 1


def test_results_leave_the_object_store(hosted):
    """Each is 40 MB, and the store has 200 MB."""
    host = hosted(ray_host(depth=2))
    for _ in range(12):
        assert ask(host, lambda objects: np.ones(5_000_000))[-1] == 1
    free = ray.available_resources()["object_store_memory"]
    assert free > 100e6


def test_more_than_the_object_store_holds_is_written_to_disk(hosted):
    host = hosted(ray_host(depth=8))
    requests = [host.submit(lambda objects, index=index: np.full(5_000_000, index)) for index in range(8)]  # 320 MB
    found = [host.result(request=request) for request in requests]
    assert [int(array[-1]) for array in found] == list(range(8))


@pytest.mark.parametrize(
    ("resources", "workers", "says"),
    [
        (Resources(num_cpus=64), 1, "asks for 64 CPU for each worker, and no machine of the cluster has that: it has 2 CPU"),
        (
            Resources(num_cpus=1),
            3,
            "asks for 3 CPU for 3 workers, and the cluster has 2 CPU. Lower workers or num_cpus",
        ),
        (Resources(num_gpus=1), 1, "asks for 1 GPU for each worker, and no machine of the cluster has that: it has 0 GPU"),
        (Resources(custom={"tpu": 0.5}), 1, "asks for 0.5 tpu .* Lower worker_resources"),
    ],
)
def test_what_the_cluster_can_never_give_is_an_error_at_once(resources, workers, says):
    begun = time.monotonic()
    with pytest.raises(ValueError, match=says):
        make_envs(
            "CartPole-v1",
            4,
            workers=workers,
            backend="ray",
            num_cpus_per_worker=resources.num_cpus,
            num_gpus_per_worker=resources.num_gpus,
            worker_resources=resources.custom,
        )
    assert time.monotonic() - begun < 5


def test_resources_that_others_hold_are_waited_for_and_then_named(hosted):
    first = hosted(RayHost(Actors(Resources(num_cpus=2)), "first"))
    ask(first, lambda objects: None)
    second = hosted(RayHost(Actors(Resources(num_cpus=1)), "second", start_timeout_s=2.0))
    with pytest.raises(WorkerHangs, match=r"did not start within 2.0 s: a worker asks for 1 CPU, and 0 CPU is free"):
        ask(second, lambda objects: None)


def test_another_cluster_and_an_address_without_one_are_refused(cluster):
    with pytest.raises(ValueError, match=re.escape(f"this program is connected to the cluster at {cluster}")):
        clusters.connect("10.0.0.1:6379")
    clusters.connect(cluster)
    with pytest.raises(ValueError, match=r"backend='process', ray_address='auto'\): this is a setting of backend='ray'"):
        make_envs("CartPole-v1", 2, workers=2, backend="process", ray_address="auto")


def test_a_time_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"'CartPole-v1, environments 0 to 1' wants timeout_s > 0 .*, got timeout_s=0"):
        make_envs("CartPole-v1", 2, backend="ray", timeout_s=0)


def test_processes_that_an_earlier_cluster_has_left_are_named(monkeypatch):
    shown = subprocess.run(
        ["bash", "-c", "(exec -a ray::TestAgent sleep 60 >/dev/null) & echo $!"], stdout=subprocess.PIPE, check=False
    )
    pid = int(shown.stdout)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *args, **kwargs: None)
    try:
        wait_until(lambda: (pid, "ray::TestAgent") in clusters.leftovers())
        with pytest.warns(UserWarning, match=rf"has left processes on this machine: .*{pid} \(ray::TestAgent\).*kill .*{pid}"):
            clusters.connect()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_kept_workers_that_have_died_or_hold_other_resources_are_not_used(hosted):
    first = RayHost(Actors(Resources(num_cpus=1)), "first")
    ask(first, lambda objects: None)
    pid = first.pid
    first.close()
    second = hosted(RayHost(Actors(Resources(num_cpus=2)), "second", start_timeout_s=60.0))  # both CPUs
    ask(second, lambda objects: None)
    assert is_gone(pid)
    pid = second.pid
    second.close()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    third = hosted(RayHost(Actors(Resources(num_cpus=2)), "third"))
    assert ask(third, lambda objects: "works") == "works"


def test_workers_of_this_program_count_for_what_the_cluster_has():
    envs = make_envs("CartPole-v1", 2, workers=2, backend="ray", num_cpus_per_worker=1)
    with pytest.raises(ValueError, match=r"asks for 1 CPU for 1 worker, and the cluster has 2 CPU, of which .* 2 CPU"):
        make_envs("CartPole-v1", 1, backend="ray", num_cpus_per_worker=1)
    envs.close()


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"num_cpus_per_worker": "2"}, ValueError, r"num_cpus_per_worker='2' wants a number of 0 or more"),
        ({"num_cpus_per_worker": float("nan")}, ValueError, r"num_cpus_per_worker=nan wants"),
        ({"num_gpus_per_worker": -1}, ValueError, r"num_gpus_per_worker=-1 wants"),
        ({"worker_resources": {"sim": "x"}}, ValueError, r"worker_resources\['sim'\]='x' wants"),
        ({"worker_resources": ["sim"]}, TypeError, r"wants a dict of amounts by name"),
        ({"ray_address": 5}, TypeError, r"ray_address=5\) wants a string"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, error, says):
    with pytest.raises(error, match=says):
        make_envs("CartPole-v1", 2, backend="ray", **settings)
    with pytest.raises(ValueError, match=r"keep_workers=-1\) wants a whole number"):
        clusters.connect(keep_workers=-1)


def test_an_environment_that_fails_to_start_raises_its_own_error():
    def fails():
        raise FileNotFoundError("no such map")

    with pytest.raises(FileNotFoundError, match="no such map"):
        make_envs(fails, 2, workers=2, backend="ray")


def test_hosts_end_at_the_same_time_and_leave_no_worker(tmp_path):
    clusters.connect(keep_workers=0)
    hosts = [ray_host(restart=True) for _ in range(2)]
    local = LocalHost()
    gather_results(hosts, [host.submit(make, 0, tmp_path / "closed", lasting=True) for host in hosts])
    pids = [host.pid for host in hosts]
    release_hosts([*hosts, local], for_good=True)
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid))
    clusters.connect(keep_workers=4)
