"""Hosts: the same answers from this process and from another one, also from one that was started again."""

import contextlib
import os
import signal
import sys
import time
import warnings

import cloudpickle
import pytest

from ding_lite.processes import LocalHost, ProcessHost, WorkerDied, WorkerHangs, gather_results, load_states, release_hosts

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)

FAULTS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(60),
    "raise": lambda: int("no number"),
}
HOSTS = {"here": LocalHost, "process": lambda: ProcessHost("w"), "restarting process": lambda: ProcessHost("w", restart=True)}


class Counter:
    """Adds up, and writes into a file when it is closed."""

    def __init__(self, total, path=None):
        self.total, self.path = total, path

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]

    def close(self):
        if self.path is not None:
            self.path.touch()


def make(objects, total, path=None):
    objects["counter"] = Counter(total, path)
    return "made"


def add(objects, amount):
    objects["counter"].total += amount
    return objects["counter"].total


def scale(objects, factor):
    objects["factor"] = factor


def add_scaled(objects, amount):
    return add(objects, amount * objects["factor"])


def echo(objects, value):
    return value


def sleep(objects, seconds):
    time.sleep(seconds)


def slowly_add(objects, amount):
    time.sleep(0.3)
    return add(objects, amount)


def faulty(fn, amount, path, fault, times=1):
    """`fn`, where a fault happens the first `times` it is run, when the work is done and not yet told."""

    def run(objects):
        result = fn(objects, amount)
        with path.open("a") as file:
            file.write(".")
        if path.stat().st_size <= times:
            FAULTS[fault]()
        return result

    return run


def ask(host, fn, *args, **kwargs):
    host.submit(fn, *args, **kwargs)
    return host.result()


@pytest.mark.parametrize("kind", HOSTS)
def test_every_host_runs_functions_on_its_objects_and_gives_and_takes_their_state(kind, hosted, tmp_path):
    host = hosted(HOSTS[kind]())
    assert ask(host, make, 10, tmp_path / "closed", lasting=True) == "made"
    assert [ask(host, add, 1), ask(host, add, 2)] == [11, 13]
    assert host.state() == {"counter": {"total": 13}}
    host.load_state({"counter": {"total": 100}})
    assert (ask(host, add, 1), host.state()) == (101, {"counter": {"total": 101}})
    with pytest.raises(ValueError, match="invalid literal"):
        ask(host, lambda objects: int("no number"))
    assert ask(host, add, 1) == 102
    host.close()
    assert (tmp_path / "closed").exists()
    assert host.state() == {"counter": {"total": 102}}


@pytest.mark.parametrize("kind", HOSTS)
def test_a_released_host_goes_on_where_it_was(kind, hosted):
    host = hosted(HOSTS[kind]())
    ask(host, make, 0, lasting=True)
    found = []
    for amount in range(1, 4):
        found.append(ask(host, add, amount))
        host.release()
        host.release()
        assert host.state() == {"counter": {"total": found[-1]}}
    assert found == [1, 3, 6]
    host.load_state({"counter": {"total": 50}})
    assert ask(host, add, 1) == 51


def make_named(objects, name):
    objects[name] = Counter(0)


@pytest.mark.parametrize("kind", HOSTS)
def test_discarded_objects_are_removed_and_not_made_again(kind, hosted):
    host = hosted(HOSTS[kind]())
    ask(host, make, 0, lasting=True)
    made = []
    for name in ("a", "b"):
        made.append(host.submit(make_named, name, lasting=True))
        host.result()
    assert sorted(host.state()) == ["a", "b", "counter"]
    host.discard(getattr(made[0], "lasting", None), ["a"])
    assert ask(host, add, 5) == 5
    assert sorted(host.state()) == ["b", "counter"]
    host.release()
    assert ask(host, add, 1) == 6
    assert sorted(host.state()) == ["b", "counter"]


def make_half(objects, path):
    objects["half"] = Counter(0, path)
    raise ValueError("half")


@pytest.mark.parametrize("kind", HOSTS)
def test_a_lasting_request_that_fails_leaves_none_of_its_objects(kind, hosted, tmp_path):
    host = hosted(HOSTS[kind]())
    ask(host, make, 5, lasting=True)
    with pytest.raises(ValueError, match="half"):
        ask(host, make_half, tmp_path / "closed", lasting=True)

    assert (tmp_path / "closed").exists()
    assert host.state() == {"counter": {"total": 5}}
    ask(host, make_named, "a", lasting=True)
    host.release()
    assert ask(host, add, 1) == 6
    assert sorted(host.state()) == ["a", "counter"]


@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize("kind", HOSTS)
def test_the_state_of_an_object_that_does_not_exist_is_refused_by_name(kind, is_released, hosted):
    host = hosted(HOSTS[kind]())
    ask(host, make, 5, lasting=True)
    if is_released:
        host.release()
    for use in (lambda: host.state("other"), lambda: host.load_state({"counter": {"total": 7}, "other": {"total": 1}})):
        with pytest.raises(RuntimeError, match="there is no object 'other', only .*'counter'.*: create it first, in a request"):
            use()

    assert ask(host, add, 1) == 6


def test_an_object_that_no_lasting_request_has_created_cannot_go_on_and_is_named(hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make, 5)
    host.release()
    with pytest.raises(RuntimeError, match="there is no object 'counter', only 'progress': create it first, in a request with"):
        ask(host, add, 1)


def test_objects_are_not_discarded_while_a_request_is_in_flight(hosted):
    host = hosted(ProcessHost("w", restart=True, depth=3))
    made = host.submit(make, 0, lasting=True)
    host.result()
    asked = host.submit(slowly_add, 1)
    host.discard(getattr(made, "lasting", None), ["counter"])
    later = host.submit(add, 1)
    os.kill(host.pid, signal.SIGKILL)

    assert (host.result(request=asked), host.result(request=later)) == (1, 2)
    assert ask(host, lambda objects: sorted(objects)) == ["progress"]


class Lacking(Counter):
    """Its state has not everything."""

    def state_dict(self):
        warnings.warn("the state lacks something", stacklevel=1)
        return super().state_dict()


def make_lacking(objects):
    objects["counter"] = Lacking(1)


@pytest.mark.parametrize("use", [None, "state", "request"])
def test_a_warning_about_the_state_of_a_released_host_comes_when_the_state_is_used(use, hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make_lacking, lasting=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        host.release()
        assert not caught
        if use == "state":
            assert host.state() == {"counter": {"total": 1}}
        elif use == "request":
            assert ask(host, add, 1) == 2
        host.close()
    assert [str(one.message) for one in caught] == ([] if use is None else ["the state lacks something (worker 'w')"])


def test_a_released_host_has_no_process_and_the_next_request_starts_one(hosted, gone):
    host = hosted(ProcessHost("w"))
    ask(host, make, 0, lasting=True)
    pid, starts = host.pid, host.starts
    host.release()
    assert host.pid is None
    assert gone(pid)
    ask(host, add, 1)
    assert (host.pid is not None, host.starts, host.restarts) == (True, starts + 1, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restarted_process_gives_what_an_undisturbed_one_gives(fault, hosted, tmp_path):
    host = hosted(ProcessHost("w", timeout_s=0.5, restart=True))
    ask(host, make, 0, lasting=True)
    assert ask(host, add, 5) == 5
    assert ask(host, faulty(add, 7, tmp_path / "runs", fault)) == 12
    assert ask(host, add, 1) == 13
    assert (host.restarts, (tmp_path / "runs").read_text()) == (1, "..")


@pytest.mark.parametrize("fault", ["SIGKILL", "raise"])
def test_a_new_process_makes_what_is_lasting_and_prepares_before_it_is_asked_again(fault, hosted, tmp_path):
    host = hosted(ProcessHost("w", restart=True))
    ask(host, faulty(make, 10, tmp_path / "making", fault), lasting=True)
    ask(host, scale, 3)
    request = faulty(add_scaled, 7, tmp_path / "adding", fault)
    assert ask(host, request, prepare=(scale, (3,))) == 10 + 3 * 7
    assert host.restarts == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_the_third_failure_in_a_row_is_an_error(fault, hosted, tmp_path):
    host = hosted(ProcessHost("w", timeout_s=0.3, restart=True))
    ask(host, make, 0, lasting=True)
    with pytest.raises(ValueError if fault == "raise" else WorkerDied) as caught:
        ask(host, faulty(add, 1, tmp_path / "runs", fault, times=9))
    assert (tmp_path / "runs").read_text() == "..."
    assert any(note.startswith("this was attempt 3 of the same request") for note in caught.value.__notes__)
    assert ask(host, make, 5, lasting=True) == "made"


@pytest.mark.parametrize("fault", FAULTS)
def test_without_restart_the_error_arrives_at_once_and_as_it_was(fault, hosted, tmp_path):
    host = hosted(ProcessHost("w", timeout_s=0.5))
    ask(host, make, 3, lasting=True)
    began = time.monotonic()
    with pytest.raises({"raise": ValueError, "hang": WorkerHangs}.get(fault, WorkerDied)) as caught:
        ask(host, faulty(add, 1, tmp_path / "runs", fault, times=9))
    assert time.monotonic() - began < (1.5 if fault == "hang" else 1.0)
    assert not any("attempt" in note for note in getattr(caught.value, "__notes__", ()))
    if fault == "raise":
        assert ask(host, add, 1) == 5


@pytest.mark.parametrize("restart", [False, True])
def test_a_process_that_is_killed_between_two_requests_is_found_dead_by_result(restart, hosted, gone):
    host = hosted(ProcessHost("w", restart=restart))
    ask(host, make, 0, lasting=True)
    ask(host, add, 5)
    pid = host.pid
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    host.submit(add, 1)
    if restart:
        assert host.result() == 6
    else:
        with pytest.raises(WorkerDied, match="was killed by signal 9"):
            host.result()


def make_two(objects):
    objects["counter"], objects["other"] = Counter(0), Counter(0)


def release_and_release(host):
    host.release()
    host.release()


FOUND_BY = {
    "a request": lambda host: host.submit(add, 1) and host.result(),
    "state": lambda host: host.state(),
    "release": release_and_release,
    "begin_release": lambda host: (host.begin_release(), host.release()),
}


@pytest.mark.parametrize("found_by", FOUND_BY)
def test_without_restart_a_state_that_ended_with_its_process_is_an_error_until_another_one_is_loaded(found_by, hosted, gone):
    """Also if nothing was in flight: a new process would repeat what the objects have done since their last known state."""
    host = hosted(ProcessHost("w"))
    ask(host, make_two, lasting=True)
    host.release()
    ask(host, add, 5)
    os.kill(host.pid, signal.SIGKILL)
    with contextlib.nullcontext() if "release" in found_by else pytest.raises(WorkerDied, match="was killed by signal 9"):
        FOUND_BY[found_by](host)
    lost = r"worker 'w' has ended before, and its state is lost: load a state.*was killed by signal 9"
    for use in (lambda: ask(host, add, 1), host.state, lambda: host.state("counter"), lambda: ask(host, make, 0, lasting=True)):
        for _ in range(2):
            with pytest.raises(WorkerDied, match=lost):
                use()
        assert host.pid is None
    host.load_state({"counter": {"total": 5}})
    assert host.state("counter") == {"counter": {"total": 5}}
    with pytest.raises(WorkerDied, match=lost):  # the state of the other one is still lost
        ask(host, add, 1)
    host.load_state({"other": {"total": 7}})
    assert ask(host, add, 1) == 6
    assert host.state() == {"counter": {"total": 6}, "other": {"total": 7}}


def test_a_state_is_loaded_into_a_process_that_has_died_unnoticed(hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make_two, lasting=True)
    os.kill(host.pid, signal.SIGKILL)
    host.load_state({"counter": {"total": 5}, "other": {"total": 7}})
    assert ask(host, add, 1) == 6
    assert host.state() == {"counter": {"total": 6}, "other": {"total": 7}}


def test_objects_without_a_state_do_not_begin_again_unnoticed(hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make_slow_to_close, lasting=True)
    os.kill(host.pid, signal.SIGKILL)
    for _ in range(3):
        with pytest.raises(WorkerDied):
            ask(host, echo, 1)


def test_a_state_that_was_lost_is_no_matter_of_discarded_objects(hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make, 0, lasting=True)
    made = host.submit(make_named, "a", lasting=True)
    host.result()
    os.kill(host.pid, signal.SIGKILL)
    host.discard(made.lasting, ["a"])
    host.load_state({"counter": {"total": 5}})
    assert ask(host, add, 1) == 6
    assert host.state() == {"counter": {"total": 6}}


class Killed(Counter):
    """Its process is killed when it loads a state for the first time."""

    def load_state_dict(self, state):
        if not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().load_state_dict(state)

    def close(self):
        pass


def make_killed(objects, path):
    objects["counter"] = Killed(0, path)


def test_a_process_that_dies_before_it_has_continued_loses_nothing(hosted, tmp_path):
    host = hosted(ProcessHost("w"))
    ask(host, make_killed, tmp_path / "killed", lasting=True)
    ask(host, add, 1)
    host.release()
    with pytest.raises(WorkerDied):
        ask(host, add, 1)
    assert (ask(host, add, 1), (tmp_path / "killed").exists()) == (2, True)


def test_a_host_that_is_closed_during_a_request_has_no_state(hosted):
    host = hosted(ProcessHost("w"))
    ask(host, make, 0, lasting=True)
    host.submit(sleep, 60)
    host.close()
    with pytest.raises(WorkerDied, match="it was closed during a request"):
        host.state()


class Choosy(Counter):
    """Refuses a negative number."""

    def load_state_dict(self, state):
        if state["total"] < 0:
            raise ValueError("negative")
        super().load_state_dict(state)


def make_choosy(objects, total):
    objects["counter"] = Choosy(total)


def test_of_several_hosts_none_is_changed_if_one_refuses_its_state_also_beside_a_lost_one(hosted):
    hosts = [hosted(ProcessHost(f"w{index}")) for index in range(3)]
    for index, host in enumerate(hosts):
        ask(host, make_choosy, index, lasting=True)
    os.kill(hosts[0].pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="negative"):
        load_states(hosts, "counter", [{"total": 10}, {"total": 11}, {"total": -1}])
    assert [ask(host, add, 0) for host in hosts[1:]] == [1, 2]
    with pytest.raises(WorkerDied, match="state is lost"):
        ask(hosts[0], add, 0)
    load_states(hosts, "counter", [{"total": 10}, {"total": 11}, {"total": 12}])
    assert [ask(host, add, 0) for host in hosts] == [10, 11, 12]


@pytest.mark.parametrize("restart", [False, True])
def test_a_wait_ends_when_nobody_waits_any_more(restart, hosted, gone):
    host = hosted(ProcessHost("w", restart=restart))
    ask(host, make, 3, lasting=True)
    pid, began = host.pid, time.monotonic()
    host.submit(sleep, 60)
    with pytest.raises(InterruptedError):
        host.result(lambda: time.monotonic() > began + 0.2)
    assert time.monotonic() - began < 1.5
    assert gone(pid)
    if not restart:
        with pytest.raises(WorkerDied, match=r"its state is lost: .* \(InterruptedError: worker 'w' was stopped during"):
            host.state()
        host.accept_loss()
    assert (ask(host, add, 1), host.restarts) == (4, 0)


def test_after_ctrl_c_the_next_request_works(hosted):
    def ctrl_c():
        asked.append(True)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return False

    asked, began = [], time.monotonic()
    hosts = [hosted(ProcessHost(f"w{index}")) for index in range(2)]
    requests = [host.submit(sleep, 60) for host in hosts]
    with pytest.raises(KeyboardInterrupt):
        gather_results(hosts, requests, ctrl_c)
    assert time.monotonic() - began < 10
    assert [ask(host, echo, 1) for host in hosts] == [1, 1]


@pytest.mark.parametrize("kind", HOSTS)
def test_an_error_of_one_host_leaves_the_others_without_an_answer_that_nobody_asked_for(kind, hosted):
    hosts = [hosted(HOSTS[kind]()) for _ in range(3)]
    requests = [host.submit(lambda objects, text: int(text), text) for host, text in zip(hosts, ["1", "two", "three"])]
    with pytest.raises(ValueError, match="'two'"):
        gather_results(hosts, requests)
    assert gather_results(hosts, [host.submit(echo, 4) for host in hosts]) == [4, 4, 4]


def test_several_requests_are_answered_in_order_and_what_nobody_wants_is_passed_over(hosted):
    host = hosted(ProcessHost("w", depth=4))
    first, unwanted, third = (host.submit(echo, value) for value in (1, 2, 3))
    host.forget(unwanted)
    assert [host.result(request=first), host.result(request=third)] == [1, 3]
    with pytest.raises(RuntimeError, match="nothing is in flight: take results in the order of submit"):
        host.result()


def test_a_result_out_of_order_is_refused_and_the_first_is_still_there(hosted):
    host = hosted(ProcessHost("w", depth=2))
    first, second = host.submit(echo, 1), host.submit(echo, 2)
    with pytest.raises(RuntimeError, match="another request is first"):
        host.result(request=second)
    assert host.result(request=first) == 1
    assert ask(host, echo, 3) == 3
    host.submit(echo, 4)
    with pytest.raises(RuntimeError, match="another request is first"):
        host.state()
    assert host.result() == 4


def test_a_wait_that_ends_amid_a_request_that_nobody_wants_is_told_as_that(hosted):
    host = hosted(ProcessHost("w", depth=2))
    host.forget(host.submit(sleep, 60))
    wanted = host.submit(echo, 1)
    with pytest.raises(InterruptedError):
        host.result(lambda: True, wanted)


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_in_flight_is_asked_again_of_a_new_process_in_order(restart, hosted):
    host = hosted(ProcessHost("w", restart=restart, depth=3))
    ask(host, make, 0, lasting=True)
    requests = [host.submit(slowly_add, 1) for _ in range(3)]
    os.kill(host.pid, signal.SIGKILL)
    if restart:
        assert [host.result(request=request) for request in requests] == [1, 2, 3]
    else:
        for request in requests:
            with pytest.raises(WorkerDied):
                host.result(request=request)


def count_and_hang(objects, path):
    with path.open("a") as file:
        file.write(".")
    time.sleep(60)


@pytest.mark.parametrize(("restart", "attempts"), [(False, 1), (True, 3)])
def test_hangs_of_many_hosts_with_many_requests_take_as_long_as_one(restart, attempts, hosted, tmp_path):
    """Each host makes its attempts at its first request, at the same time as the others, and none at those behind it."""
    hosts = [hosted(ProcessHost(f"w{index}", timeout_s=0.5, restart=restart, depth=4)) for index in range(4)]
    gather_results(hosts, [host.submit(echo, 1) for host in hosts])
    paths = [tmp_path / f"runs of {index}" for index in range(4)]
    rounds = [[host.submit(count_and_hang, path) for host, path in zip(hosts, paths)] for _ in range(4)]
    began = time.monotonic()
    with pytest.raises(WorkerHangs, match="worker 'w0' made no progress for 0.5 s"):
        gather_results(hosts, rounds[0])
    release_hosts(hosts)
    assert time.monotonic() - began < 12  # one after the other, 16 requests at 3 attempts of 0.5 s each are 24
    assert [path.read_text() for path in paths] == ["." * attempts] * 4
    assert [host.restarts for host in hosts] == [attempts - 1] * 4


def test_behind_a_request_that_is_given_up_each_fails_at_once_and_tells_why(hosted):
    host = hosted(ProcessHost("w", timeout_s=0.3, restart=True, depth=4))
    first, *rest = [host.submit(sleep, 60), *(host.submit(echo, value) for value in (1, 2, 3))]
    with pytest.raises(WorkerHangs):
        host.result(request=first)
    for request in rest:
        with pytest.raises(WorkerDied, match=r"^worker 'w' had ended before this request began: worker 'w' made no progress"):
            host.result(request=request)
    assert (host.restarts, ask(host, echo, 4)) == (2, 4)


def test_what_makes_objects_has_the_limit_of_the_start_and_is_not_tried_again(hosted, tmp_path):
    host = hosted(ProcessHost("w", timeout_s=0.2, start_timeout_s=1.5, restart=True))
    assert ask(host, slowly_made, lasting=True) == "made"
    with pytest.raises(WorkerHangs, match=r"made no progress for 1.5 s .*raise start_timeout_s=1.5\."):
        ask(host, count_and_hang, tmp_path / "runs", lasting=True)
    assert (host.restarts, (tmp_path / "runs").read_text()) == (0, ".")


def slowly_made(objects):
    time.sleep(0.4)
    return "made"


def test_hosts_are_given_back_side_by_side(hosted, gone):
    """All are told to end before any is waited for, and what one closes slowly is closed while others close theirs."""
    hosts = [hosted(ProcessHost(f"w{index}")) for index in range(4)]
    gather_results(hosts, [host.submit(make_slow_to_close, lasting=True) for host in hosts])
    pids = [host.pid for host in hosts]
    for host in hosts:
        host.begin_release()
    assert gone(*pids)
    release_hosts(hosts)
    assert [host.pid for host in hosts] == [None] * 4
    assert [ask(host, echo, 5) for host in hosts] == [5] * 4


class SlowToClose:
    def close(self):
        time.sleep(0.3)


def make_slow_to_close(objects):
    objects["slow"] = SlowToClose()
