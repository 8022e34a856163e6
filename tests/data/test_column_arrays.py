"""Columns: their shape, dtype and size, and the memory that is left for them."""

import sys

import numpy as np
import pytest
import torch

from ding_lite.data import LeafSpec, allocate, tree
from ding_lite.data.column_arrays import available_bytes, spec_bytes, spec_like, stack_rows, to_objects
from ding_lite.data.trees import map_leaves

FLOAT, BYTE = np.dtype(np.float32), np.dtype(np.uint8)
SPEC = {"obs": {"image": LeafSpec((3, 4), BYTE), "speed": LeafSpec((), FLOAT)}, "reward": LeafSpec((), np.dtype(np.float64))}


@pytest.mark.parametrize("lead", [(), (5,), (5, 2), (0, 2)])
def test_allocate_makes_an_array_for_each_leaf(lead):
    columns = allocate(SPEC, *lead)

    assert columns["obs"]["image"].shape == (*lead, 3, 4)
    assert columns["obs"]["speed"].shape == columns["reward"].shape == lead
    assert map_leaves(lambda array: array.dtype, columns) == {"obs": {"image": BYTE, "speed": FLOAT}, "reward": np.float64}


def test_allocate_makes_one_array_for_one_leaf():
    column = allocate(LeafSpec((3,), FLOAT), 7)

    assert (column.shape, column.dtype) == ((7, 3), FLOAT)


def test_columns_share_no_memory():
    columns = allocate({"a": LeafSpec((), BYTE), "b": LeafSpec((), BYTE)}, 4)

    assert not np.shares_memory(columns["a"], columns["b"])
    assert not np.shares_memory(allocate(LeafSpec((), BYTE), 4), allocate(LeafSpec((), BYTE), 4))


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_spec_like_reads_back_what_allocate_made(lead):
    shape = (5, 2)[:lead]

    assert spec_like(allocate(SPEC, *shape), lead) == SPEC


def test_spec_like_reads_tensors_and_trees():
    assert spec_like({"x": torch.ones(8, 3), "y": torch.ones(8, dtype=torch.uint8)}) == {
        "x": LeafSpec((3,), FLOAT),
        "y": LeafSpec((), BYTE),
    }
    assert spec_like(torch.ones(8, 2, 3, dtype=torch.bool), lead=2) == LeafSpec((3,), np.dtype(bool))


def test_spec_bytes_is_what_one_element_takes():
    assert spec_bytes(SPEC) == 3 * 4 + 4 + 8
    assert spec_bytes(LeafSpec((3, 0), FLOAT)) == 0
    assert spec_bytes(LeafSpec((), FLOAT)) == 4
    assert spec_bytes({}) == 0


def test_spec_bytes_does_not_overflow():
    assert spec_bytes(LeafSpec((2**31, 2**31), FLOAT)) == 2**64


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/meminfo is Linux's")
def test_the_memory_left_is_a_plausible_number_of_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) * 1024

    assert 1 << 20 < available_bytes() <= total


def test_columns_are_a_batch_of_a_tree():
    assert tree(allocate(SPEC, 5))[2].obs.image.shape == (3, 4)


def test_text_is_kept_as_objects_which_have_no_longest_length():
    assert spec_like(np.array([["a"], ["bc"]])) == LeafSpec((1,), np.dtype(object))
    column = allocate(spec_like(np.array(["a"])), 2)
    column[0], column[1] = "a", "much longer than the first"

    assert column.tolist() == ["a", "much longer than the first"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 2, 3], np.array([1, 2, 3])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.ones((2, 3), np.int8)] * 4, np.ones((4, 2, 3), np.int8)),
        ([torch.ones(2), torch.zeros(2)], np.array([[1, 1], [0, 0]], np.float32)),
        ([torch.tensor(3), torch.tensor(4)], np.array([3, 4])),
    ],
)
def test_rows_of_numbers_are_stacked_to_one_array(rows, expected):
    stacked = stack_rows(rows)

    assert stacked.dtype == expected.dtype
    np.testing.assert_array_equal(stacked, expected)


@pytest.mark.parametrize(
    "rows",
    [
        ["a", "longer"],
        [None, 1],
        [[1, 2], [3, 4]],
        [(1, 2), (3, 4)],
        [{"a": 1}, {}],
        [np.str_("x"), "y"],
        [1, "a"],
    ],
)
def test_rows_of_anything_else_are_an_array_of_these_objects(rows):
    stacked = stack_rows(rows)

    assert (stacked.dtype, stacked.shape) == (object, (len(rows),))
    assert all(one is other for one, other in zip(stacked, rows))
    boxed = [stacked[place, ...] for place in range(len(rows))]
    assert all(one is other for one, other in zip(stack_rows(boxed), rows))


def test_arrays_of_different_shapes_are_objects():
    rows = [np.ones(2), np.ones(3)]

    assert [row.shape for row in stack_rows(rows)] == [(2,), (3,)]
    assert to_objects([]).shape == (0,)
