"""What goes to a worker and comes back from it: values, large arrays, functions, classes."""

import functools
import gc
import os
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from states import same

from ding_lite.processes import WorkerProcess

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)

DTYPES = [
    "?",
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "M8[s]",
    "m8[ms]",
    "S5",
    "U3",
    ">f8",
]


class Point:
    """A class of a test file, which no worker can import."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x

    __hash__ = None


def echo(objects, *args):
    return args


def describe(objects, array):
    return array.shape, array.dtype.str, array.flags.c_contiguous, array.flags.f_contiguous, array.tobytes()


@pytest.mark.parametrize("size", [0, 3, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_arrive_as_they_were(worker, dtype, size):
    array = np.arange(size).astype("i8" if dtype[0] in "Mm" else "f8").astype(dtype)
    assert worker.call(describe, array) == describe({}, array)
    (back,) = worker.call(echo, array)
    assert same(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(7.5),
        np.zeros((0, 4)),
        np.arange(60000.0).reshape(200, 300)[::2, ::3],
        np.arange(60000.0)[::-1],
        np.asfortranarray(np.arange(60000.0).reshape(200, 300)),
        np.arange(60000.0).reshape(200, 300).T,
        np.broadcast_to(np.float32(3), (100, 100)),
        np.rec.array([(1, 2.0)] * 2000, dtype=[("a", "i4"), ("b", "f8")]),
        np.ma.array(np.arange(3000), mask=np.arange(3000) % 2 == 0),
        np.array([{"a": 1}, None, "text"] * 2000, dtype=object),
    ],
    ids=["0-d", "empty", "strided", "reversed", "Fortran", "transposed", "broadcast", "records", "masked", "objects"],
)
def test_arrays_of_every_layout_arrive_with_their_values(worker, array):
    (back,) = worker.call(echo, array)
    assert type(back) is type(array)
    assert back.shape == array.shape
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    if array.dtype != object:
        assert worker.call(describe, array)[4] == array.tobytes()


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(max_size=9000),
    hnp.arrays(st.sampled_from([np.uint8, np.float32, np.int64]), hnp.array_shapes(max_dims=3, max_side=30)),
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(trees, max_size=3))
def test_nested_values_arrive_as_they_were(worker, values):
    assert same(worker.call(echo, *values), tuple(values))


@pytest.mark.slow
def test_segments_grow_as_need_be_and_serve_again(worker):
    for nbytes in (5000, 3_000_000, 10, 40_000_000, 2_000_000, 70_000_000):
        array = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
        assert worker.call(lambda objects, x: (int(x[0]), int(x[-1]), int(x.sum())), array) == (
            array[0],
            array[-1],
            int(array.sum()),
        )
        (back,) = worker.call(echo, array)
        assert np.array_equal(back, array)


def test_what_is_large_without_being_an_array_arrives_too(worker):
    for value in ("x" * 3_000_000, list(range(100_000)), b"y" * 5_000_000, [np.full(1000, i) for i in range(5000)]):
        assert same(worker.call(echo, value), (value,))


def test_arrays_are_valid_until_the_next_request_and_then_are_not(worker):
    def ones(objects, number):
        return np.full(10_000, number)

    first = worker.call(ones, 1)
    assert (first == 1).all()
    gc.collect()
    assert (first == 1).all()
    second = worker.call(ones, 2)
    assert (second == 2).all()
    assert (first == 2).all(), "documented: the memory is used again"


def test_arrays_are_writable_where_their_originals_were_and_lie_as_vector_code_likes_it(worker):
    def check(objects, array, fixed):
        array += 1
        return array.ctypes.data % 64, fixed.flags.writeable, array

    fixed = np.zeros(5000)
    fixed.flags.writeable = False
    offset, fixed_is_writable, back = worker.call(check, np.zeros(5001, np.uint8), fixed)
    assert (offset, fixed_is_writable) == (0, False)
    back += 1
    assert (back == 2).all()


def test_a_view_that_outlives_the_worker_is_still_memory(worker):
    with WorkerProcess("short") as short:
        (back,) = short.call(echo, np.arange(100_000))
    assert back.sum() == sum(range(100_000))


def test_objects_stay_in_the_worker(worker):
    def put(objects, name, value):
        objects[name] = value

    worker.call(put, "point", Point(3))
    assert worker.call(lambda objects: objects["point"].x) == 3


def test_functions_and_classes_of_the_script_travel_by_value(worker):
    factor = 7

    class Local(Point):
        pass

    assert worker.call(lambda objects, x: factor * x, 6) == 42
    assert worker.call(functools.partial(lambda first, objects, last: (first, last), 1), 2) == (1, 2)
    (back,) = worker.call(echo, Point(5))
    assert back == Point(5)
    (local,) = worker.call(echo, Local(5))
    assert type(local) is Local
    assert worker.call(lambda objects: Point(9)) == Point(9)


def test_requests_wait_for_each_other_only_in_their_own_worker():
    with WorkerProcess("one") as one, WorkerProcess("two") as two:
        for process in (one, two):
            process.submit(lambda objects: os.getpid())
        assert (two.result(), one.result()) == (two.pid, one.pid)


def test_a_second_request_waits_for_the_first_result(worker):
    worker.submit(echo, 1)
    with pytest.raises(RuntimeError, match=r"worker 'shared' got echo\(\) while a request is in flight: take its result"):
        worker.submit(echo, 2)
    assert worker.result() == (1,)
    with pytest.raises(RuntimeError, match=r"worker 'shared' has no request in flight: submit\(\) one"):
        worker.result()


def test_any_thread_may_use_a_worker(worker):
    results = []

    def use():
        results.append(worker.call(echo, 1))

    for _ in range(3):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(20)
    assert results == [(1,)] * 3


def test_a_worker_can_be_waited_for_beside_other_things(worker):
    from multiprocessing.connection import wait

    assert wait([worker.fileno()], 0) == []
    worker.submit(echo, 1)
    assert wait([worker.fileno()], 20) == [worker.fileno()]
    assert worker.result() == (1,)


def test_a_worker_runs_on_one_thread_with_random_numbers_of_its_own(worker):
    def look(objects):
        import random
        import sys

        import torch

        names = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
        numbers = np.random.random(), torch.rand(()).item(), random.random()  # noqa: NPY002 (it is the global one that matters)
        return names, torch.get_num_threads(), numbers, "gymnasium" in sys.modules

    before = dict(os.environ)
    with WorkerProcess("other") as other:
        looks = [process.call(look) for process in (worker, other)]
    assert dict(os.environ) == before
    for names, threads, _, is_preloaded in looks:
        assert (names, threads, is_preloaded) == (["1", "1"], 1, True)
    assert not set(looks[0][2]) & set(looks[1][2])
