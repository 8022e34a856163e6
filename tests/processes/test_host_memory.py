"""What hosts keep: nothing of it lies in shared memory, changes with its original, or hides why it cannot be had."""

import os
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest

from ding_lite.processes import Copied, LocalHost, ProcessHost, WorkerDied

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


def keep(objects, name, table):
    objects[name] = table


def total(objects, name):
    return float(objects[name].sum())


def echo(objects, value):
    return value


class Stubborn:
    """Gives no state from its second step on, or refuses to be made or loaded."""

    def __init__(self, refuses=lambda: False):
        self.steps = 0
        if refuses():
            raise ValueError("not today")

    def step(self):
        self.steps += 1
        return self.steps

    def state_dict(self):
        if self.steps > 1:
            raise RuntimeError("too long to be remembered")
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Table:
    def __init__(self, size):
        self.table = np.zeros(size)

    def state_dict(self):
        return {"table": self.table}

    def load_state_dict(self, state):
        self.table = state["table"]


def make_stubborn(objects, refuses=lambda: False):
    objects["it"] = Stubborn(refuses)


def step(objects):
    return objects["it"].step()


def ask(host, fn, *args, **kwargs):
    host.submit(fn, *args, **kwargs)
    return host.result()


@pytest.fixture(params=[False, True], ids=["", "restart"])
def host(request):
    host = ProcessHost("w", restart=request.param)
    yield host
    host.close()


def test_what_a_lasting_request_brought_is_not_overwritten_by_later_ones(host):
    table = np.arange(5000.0)
    ask(host, keep, "table", table, lasting=True)
    for value in range(3):
        ask(host, echo, np.full(6000, float(value)))
    assert ask(host, total, "table") == table.sum()


def test_what_a_lasting_request_brought_is_made_again_as_it_was_then(host):
    table = [np.arange(5000.0)]
    ask(host, lambda objects, table: keep(objects, "table", table[0]), table, lasting=True)
    table[0][:] = 0
    host.release()
    assert ask(host, total, "table") == np.arange(5000.0).sum()


def test_a_loaded_state_is_not_overwritten_by_later_requests(host):
    ask(host, lambda objects: keep(objects, "it", Table(5000)), lasting=True)
    state = {"it": {"table": np.arange(5000.0)}}
    host.load_state(state)
    for value in range(3):
        ask(host, echo, np.full(6000, float(value)))
    host.release()
    ask(host, echo, np.full(6000, 3.0))
    found = host.state()["it"]["table"]
    ask(host, echo, np.full(6000, 4.0))
    np.testing.assert_array_equal(found, np.arange(5000.0))


@pytest.mark.parametrize("make_host", [LocalHost, lambda: ProcessHost("w")])
def test_what_is_kept_stays_as_it_came(make_host):
    host = make_host()
    found = ask(host, lambda objects: Copied([{"deep": (np.arange(5000.0),)}])).value
    for value in range(3):
        ask(host, lambda objects, value: np.full(6000, value), float(value))
    host.close()
    np.testing.assert_array_equal(found[0]["deep"][0], np.arange(5000.0))


def test_a_request_keeps_what_was_sent_as_kept():
    class Mine:
        def __init__(self, table):
            self.table = table

    host = ProcessHost("w")
    ask(host, lambda objects, kept: keep(objects, "mine", kept.value), Copied(Mine(np.arange(5000.0))))
    for value in range(3):
        ask(host, echo, np.full(6000, float(value)))
    found = ask(host, lambda objects: objects["mine"].table.sum())
    host.close()
    assert found == np.arange(5000.0).sum()


def test_a_state_that_cannot_be_had_is_an_error_only_where_it_is_needed(host):
    ask(host, make_stubborn, lasting=True)
    assert [ask(host, step), ask(host, step), ask(host, step)] == [1, 2, 3]
    with pytest.raises(RuntimeError, match="is not known: RuntimeError: too long to be remembered"):
        host.state()
    assert ask(host, step) == 4
    host.release()
    words = "worker 'w' cannot continue, because the state of 'it' is not known: RuntimeError: too long to be remembered"
    with pytest.raises(RuntimeError, match=words):
        ask(host, step)


def test_the_state_of_one_object_can_be_had_where_that_of_another_cannot(host):
    ask(host, lambda objects: objects.update(it=Stubborn(), table=Table(3)), lasting=True)
    assert [ask(host, step), ask(host, step)] == [1, 2]
    np.testing.assert_array_equal(host.state("table")["table"]["table"], np.zeros(3))
    host.load_state({"table": {"table": np.ones(3)}})
    assert list(host.state("table")) == ["table"]
    with pytest.raises(RuntimeError, match="is not known: RuntimeError: too long to be remembered"):
        host.state("it", "table")
    host.load_state({"it": {"steps": 0}})
    host.release()
    assert host.state("it") == {"it": {"steps": 0}}
    assert (ask(host, step), host.state("table")["table"]["table"].tolist()) == (1, [1, 1, 1])


class Thing:
    """Of a class of this file, and equal to none."""


def test_objects_in_a_state_travel_as_what_they_are(host):
    ask(host, lambda objects: keep(objects, "it", Table(3)), lasting=True)
    host.load_state({"it": {"table": [Thing(), {1, 2}, np.arange(3), b"x"]}})
    for _ in range(2):
        thing, *others = host.state("it")["it"]["table"]
        assert type(thing) is Thing
        assert [type(other) for other in others] == [set, np.ndarray, bytes]
        host.release()
        ask(host, echo, 1)


def test_objects_that_cannot_be_made_again_are_an_error_and_leave_no_process(host, tmp_path):
    ask(host, make_stubborn, (tmp_path / "refuse").exists, lasting=True)
    host.release()
    (tmp_path / "refuse").touch()
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            ask(host, step)
        assert host.pid is None
    (tmp_path / "refuse").unlink()
    assert ask(host, step) == 1


def test_what_cannot_be_sent_is_an_error_with_a_note_and_the_host_is_as_before(host):
    ask(host, keep, "table", np.ones(3), lasting=True)
    for lasting in (False, True):
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            ask(host, echo, threading.Lock(), lasting=lasting)
        assert any("pickled by cloudpickle" in note for note in caught.value.__notes__)
    assert ask(host, total, "table") == 3


def test_a_request_in_the_wrong_order_is_refused_with_the_mend(host):
    host.submit(echo, 1)
    with pytest.raises(RuntimeError, match=r"worker 'w' got echo\(\) while a request is in flight: take its result"):
        host.submit(echo, 2)
    assert host.result() == 1
    host.close()
    host.close()
    with pytest.raises(RuntimeError, match=r"worker 'w' is closed, and cannot run echo\(\): make a new one."):
        host.submit(echo, 3)


def test_release_waits_for_what_is_in_flight_and_close_does_not(host):
    ask(host, make_stubborn, lasting=True)
    host.submit(step)
    host.release()
    assert (host.pid, host.state()) == (None, {"it": {"steps": 1}})
    host.submit(lambda objects: time.sleep(60))
    host.close()
    assert (host.pid, host.state()) == (None, {"it": {"steps": 1}})


def test_a_local_request_sees_whether_anybody_waits_for_it():
    host = LocalHost()
    host.submit(lambda objects: objects["is_stopping"]())
    assert host.result() is False
    host.submit(echo, 1)
    with pytest.raises(InterruptedError, match=r"echo\(\) was not begun"):
        host.result(lambda: True)
    assert ask(host, echo, 2) == 2


def test_an_error_of_a_restart_tells_what_it_began_with(tmp_path):
    host = ProcessHost("w", restart=True)
    ask(host, make_stubborn, (tmp_path / "refuse").exists, lasting=True)
    (tmp_path / "refuse").touch()
    with pytest.raises(ValueError, match="not today") as caught:
        ask(host, lambda objects: os._exit(3))
    host.close()
    assert any(
        "attempt 3" in note and "the first ended with WorkerDied: worker 'w' exited" in note for note in caught.value.__notes__
    )
    assert not isinstance(caught.value, WorkerDied)
