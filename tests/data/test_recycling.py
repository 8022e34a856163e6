"""The recycler: an array is handed out again when nobody can see it any more, and never before."""

import random

import numpy as np
import pytest
import torch

from ding_lite.data import tree
from ding_lite.data.recycling import ArrayPool

COLUMN = np.zeros((10, 1000), np.float32)
ROWS = 100  # of this column are 400 kB

HOLDERS = {
    "the array": lambda array: array,
    "a part of the array": lambda array: array[3:5],
    "an array of another shape and type": lambda array: array.reshape(-1).view(np.uint8),
    "a tensor": torch.from_numpy,
    "a part of a tensor": lambda array: torch.from_numpy(array)[3:5, ::2],
    "the array of a part of a tensor": lambda array: torch.from_numpy(array)[3:5].numpy(),
    "a tensor after detach": lambda array: torch.from_numpy(array).detach(),
    "a leaf of a tree": lambda array: tree({"x": torch.from_numpy(array)}),
    "a part of a tree": lambda array: tree({"x": {"y": torch.from_numpy(array)}})[7],
    "a list in a dict": lambda array: {"x": [array]},
    "a memoryview": memoryview,
}


def handed_out(recycler: ArrayPool, rows: int = ROWS, column: np.ndarray = COLUMN) -> np.ndarray:
    array = recycler.like(column, rows)
    assert array is not None
    return array


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_an_array_has_the_shape_and_dtype_of_the_rows():
    array = handed_out(ArrayPool(), 70, np.zeros((10, 30, 40), np.uint8))

    assert (array.shape, array.dtype) == ((70, 30, 40), np.uint8)


@pytest.mark.parametrize("column", [np.zeros((10, 4), np.float32), np.zeros(10, bool), np.zeros((10, 0), np.float64)])
def test_numpy_may_make_small_arrays_itself(column):
    assert ArrayPool().like(column, 64) is None


def test_an_array_that_nobody_holds_is_handed_out_again():
    recycler = ArrayPool()
    array = handed_out(recycler)
    first = address(array)
    del array

    assert address(handed_out(recycler)) == first


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_an_array_is_not_handed_out_while_this_sees_it(hold):
    recycler = ArrayPool()
    array = handed_out(recycler)
    first, holder = address(array), hold(array)
    del array
    others = [handed_out(recycler) for _ in range(8)]
    assert first not in map(address, others)

    del holder, others
    assert address(handed_out(recycler)) == first


def test_arrays_of_another_shape_or_dtype_share_no_memory():
    recycler, columns = ArrayPool(), (COLUMN, COLUMN.view(np.int32), COLUMN.reshape(10, 10, 100))
    one = [handed_out(recycler, rows, column) for rows in (100, 101) for column in columns]

    assert len(set(map(address, one))) == 6


def test_no_holder_ever_sees_its_numbers_change():
    recycler, rng = ArrayPool(), random.Random(0)
    held: list[tuple[object, int]] = []
    for mark in range(150):
        array = handed_out(recycler)
        array.fill(mark)
        held.append((rng.choice([torch.from_numpy, lambda x: x, lambda x: torch.from_numpy(x)[5]])(array), mark))
        del array
        while len(held) > rng.randrange(9):
            held.pop(rng.randrange(len(held)))
        assert all((x == number).all() for x, number in held)
