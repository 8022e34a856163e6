"""What goes wrong in a worker that lives on: the same exception in the parent, or as much of it as can be had."""

import sys
import threading
import traceback

import cloudpickle
import numpy as np
import pytest

from ding_lite.basics.messages import add_note
from ding_lite.processes import WorkerDied, WorkerError, WorkerHangs, WorkerProcess, WorkerTraceback

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


class ModuleError(ValueError):
    pass


class ThreeArguments(Exception):
    def __init__(self, env, step, action):
        super().__init__(f"env {env}, step {step}, action {action}")


class Locked(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def fail(objects, error):
    deeper(error)


def deeper(error):
    raise error


def make_and_fail(objects, cls, *args, note=""):
    error = cls(*args)
    add_note(error, "env 3")
    raise error


@pytest.fixture(autouse=True)
def usable_afterwards(worker):
    yield
    assert worker.call(lambda objects: "well") == "well"


def test_an_exception_comes_with_type_arguments_attributes_notes_and_traceback(worker):
    error = ModuleError("bad action", 7)
    error.step = 31
    add_note(error, "environment 5")
    with pytest.raises(ModuleError) as caught:
        worker.call(fail, error)
    assert type(caught.value) is ModuleError
    assert caught.value.args == ("bad action", 7)
    assert caught.value.step == 31
    assert caught.value.__notes__ == ["environment 5", "It was raised in worker 'shared'."]
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    printed = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "in fail\n" in printed
    assert "in deeper\n" in printed
    assert "in _run" not in printed
    assert printed.index("in deeper") < printed.index("The above exception was the direct cause")


def test_the_traceback_tells_what_an_exception_followed(worker):
    def chained(objects):
        try:
            {}["missing"]
        except KeyError as error:
            raise ModuleError("outer") from error

    with pytest.raises(ModuleError) as caught:
        worker.call(chained)
    assert "KeyError: 'missing'" in str(caught.value.__cause__)


def test_an_exception_of_a_class_that_a_function_defines_arrives(worker):
    class Local(Exception):
        pass

    with pytest.raises(Local, match="here"):
        worker.call(make_and_fail, Local, "here")


@pytest.mark.parametrize(
    "error",
    [KeyError("k"), FileNotFoundError(2, "none", "x.txt"), StopIteration(3), UnicodeDecodeError("utf-8", b"a", 0, 1, "r")],
)
def test_builtin_exceptions_arrive(worker, error):
    with pytest.raises(type(error)) as caught:
        worker.call(fail, error)
    assert caught.value.args == error.args
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("cls", "args", "message", "why"),
    [
        (ThreeArguments, (1, 2, 3), "env 1, step 2, action 3", "missing 2 required positional arguments"),
        (Locked, ("held",), "held", "cannot pickle '_thread.lock' object"),
        (Unspeakable, (), "<its __str__ raised RuntimeError>", ""),
    ],
)
def test_an_error_that_cannot_be_pickled_arrives_as_text(worker, cls, args, message, why):
    with pytest.raises((WorkerError, Unspeakable)) as caught:
        worker.call(make_and_fail, cls, *args)
    error = caught.value
    assert "env 3" in error.__notes__
    assert "It was raised in worker 'shared'." in error.__notes__
    assert "make_and_fail" in str(error.__cause__)
    if cls is Unspeakable:
        return
    assert type(error) is WorkerError
    assert str(error).startswith(f"worker 'shared' raised {__name__}.{cls.__name__}: {message} (")
    assert why in str(error)
    assert (error.type_name, error.notes) == (f"{__name__}.{cls.__name__}", ("env 3",))
    assert "make_and_fail" in error.traceback


@pytest.mark.parametrize("cls", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_the_parent_comes_as_a_worker_error(worker, cls):
    with pytest.raises(WorkerError, match=f"worker 'shared' raised {cls.__name__}: 3") as caught:
        worker.call(make_and_fail, cls, 3)
    assert caught.value.type_name == cls.__name__


def test_a_result_that_cannot_be_pickled_is_an_error_that_names_it(worker):
    def give_lock(objects):
        return {"big": np.zeros(10_000), "lock": threading.Lock()}

    with pytest.raises(WorkerError, match=r"worker 'shared': the result of give_lock\(\), a dict, cannot be sent: TypeError: "):
        worker.call(give_lock)


def test_a_result_that_cannot_be_unpickled_is_an_error(worker):
    class Trap:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(WorkerError, match="worker 'shared' sent a result that cannot be loaded here: ValueError: "):
        worker.call(lambda objects: Trap())


def test_a_request_that_cannot_be_pickled_is_not_sent(worker):
    with pytest.raises(TypeError, match="lock") as caught:
        worker.submit(fail, threading.Lock())
    assert caught.value.__notes__ == ["fail() and its arguments were pickled by cloudpickle, to send them to worker 'shared'."]


def test_a_request_that_refers_to_the_worker_is_told_so(worker):
    with pytest.raises(TypeError, match="worker 'shared' cannot be sent to another process"):
        worker.submit(lambda objects: worker.call(fail))


def test_a_request_that_cannot_be_unpickled_is_an_error_there(worker):
    class Trap:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ValueError, match="no number") as caught:
        worker.call(fail, Trap())
    assert "could not load its request" in caught.value.__notes__[0]


def test_wrong_arguments_are_refused():
    with pytest.raises(
        ValueError, match=r"worker 'w' wants progress_size >= 0 and timeout_s > 0, got progress_size=-1, timeout_s=60.0"
    ):
        WorkerProcess("w", progress_size=-1)
    with pytest.raises(ValueError, match="timeout_s=0"):
        WorkerProcess("w", timeout_s=0)


def test_errors_of_workers_are_pickled_whole():
    import pickle

    for error in (WorkerError("a", "T", ("n",), "tb"), WorkerDied("b", -9), WorkerHangs("c", -9)):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    assert isinstance(WorkerHangs("c"), TimeoutError)


def test_a_worker_of_a_worker_is_refused(worker):
    def nest(objects):
        from ding_lite.processes import WorkerProcess

        WorkerProcess("inner")

    with pytest.raises(RuntimeError, match="worker 'inner' cannot be started here: shared is itself a daemon process"):
        worker.call(nest)
