"""same_values() against a naive comparison of every number with its place."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.basics.comparisons import same_values

NAN = math.nan
EYE, FLOAT8 = torch.eye(2), torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)


@dataclasses.dataclass
class Rows:
    numbers: object
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class Unset(Rows):
    unset: object = dataclasses.field(init=False)


NUMBERS = st.sampled_from([0, 1, 2, 0.5, -1.0, NAN, math.inf, True])
SHAPES = st.sampled_from([(), (1,), (2,), (2, 1), (0,), (0, 2)])


@st.composite
def plain_arrays(draw):
    """A nested list of numbers with a shape, marked as an array."""
    shape = draw(SHAPES)
    size = math.prod(shape)
    return ("array", shape, draw(st.lists(NUMBERS, min_size=size, max_size=size)))


NESTED = st.recursive(
    NUMBERS | st.sampled_from(["a", "b", None, b"a"]) | plain_arrays(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", 3]), inner, max_size=3),
    max_leaves=6,
)


def is_array(value):
    return isinstance(value, tuple)


def made(draw, value):
    """The value in one of its forms: arrays as tensors or arrays, also of objects; lists as tuples."""
    if is_array(value):
        _, shape, numbers = value
        array = np.array(numbers, np.float64).reshape(shape)
        form = draw(st.sampled_from(["numpy", "torch", "float32", "objects", "noncontiguous"]))
        if form == "torch":
            return torch.tensor(array).requires_grad_()
        if form == "float32":
            return torch.tensor(array, dtype=torch.float32)
        if form == "noncontiguous":
            return torch.stack([torch.tensor(array)] * 2, -1)[..., 0]
        return array if form == "numpy" else array.astype(object)
    if isinstance(value, list):
        return draw(st.sampled_from([list, tuple]))([made(draw, item) for item in value])
    if isinstance(value, dict):
        names = draw(st.permutations([*value]))
        return {name: made(draw, value[name]) for name in names}
    return value


def naive(one, other):
    """Whether two unmade values are equal, number by number."""
    if is_array(one) or is_array(other):
        if not (is_array(one) and is_array(other)) or one[1] != other[1]:
            return False
        return all(map(naive, one[2], other[2]))
    if isinstance(one, list) or isinstance(other, list):
        return isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and all(map(naive, one, other))
    if isinstance(one, dict) or isinstance(other, dict):
        if not (isinstance(one, dict) and isinstance(other, dict)) or set(one) != set(other):
            return False
        return all(naive(one[name], other[name]) for name in one)
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or one == other


def like_an_array(value):
    """Whether a value that is no array may equal one: a number, or a list of such values."""
    return isinstance(value, (bool, int, float)) or (isinstance(value, list) and all(map(like_an_array, value)))


def may_mix(one, other):
    """Whether an array stands where the other value has numbers or lists, which the naive comparison tells apart."""
    if is_array(one) or is_array(other):
        return is_array(one) != is_array(other) and (like_an_array(one) or like_an_array(other))
    if isinstance(one, list) and isinstance(other, list):
        return any(map(may_mix, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return any(may_mix(one[name], other[name]) for name in one if name in other)
    return False


@given(data=st.data())
def test_two_random_values_are_compared_number_by_number(data):
    first = data.draw(NESTED)
    second = data.draw(st.just(first) | NESTED)
    one, other = made(data.draw, first), made(data.draw, second)
    if not may_mix(first, second):
        assert same_values(one, other) == same_values(other, one) == naive(first, second)


@given(data=st.data())
def test_a_change_of_one_number_is_seen(data):
    inner = data.draw(NESTED)
    first, second = ([inner, ("array", (2,), [1.0, 2.0])], [inner, ("array", (2,), [1.0, NAN])])
    assert same_values(made(data.draw, first), made(data.draw, first))
    assert not same_values(made(data.draw, first), made(data.draw, second))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2], np.array([1, 2]), True),
        (torch.tensor([1, 2]), [1, 2], True),
        (torch.tensor(1.0, dtype=torch.bfloat16), np.float64(1.0), True),
        ([[1], [2, 3]], np.array([1, 2]), False),
        (np.array([[1, 2]]), [1, 2], False),
        (np.array(["a", "b"]), ["a", "b"], True),
        (np.array([np.ones(2), np.ones(3)], object), [np.ones(2), np.ones(3)], True),
        ([np.ones(2), {"a": np.ones(3)}], (torch.ones(2), {"a": np.ones(3)}), True),
        (np.array([None, "a"], object), np.array([None, "a"], object), True),
        ({"a": 1}, [("a", 1)], False),
        (None, np.array([]), False),
        (2**200, 2**200 + 1, False),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        ({1, 2}, {2, 1}, True),
        (EYE.to_sparse(), EYE.to_sparse(), True),
        (EYE.to_sparse(), EYE.to_sparse_csr(), True),
        (EYE.to_sparse(), 2 * EYE.to_sparse(), False),
        (EYE.to_sparse(), np.eye(2), True),
        (FLOAT8, FLOAT8.clone(), True),
        (FLOAT8, np.array([1.0, 2.0]), True),
        (FLOAT8, np.array([1.0, 3.0]), False),
        (torch.tensor([1 + 2j]).conj(), np.array([1 - 2j]), True),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.nested.nested_tensor([torch.ones(1), EYE[0]]), torch.nested.nested_tensor([torch.ones(1), EYE[0]]), True),
        (torch.nested.nested_tensor([torch.ones(1)]), torch.ones(1, 1), False),
        (torch.nested.nested_tensor([torch.ones(1)]), np.ones((1, 1)), False),
        (None, torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), False),
        (torch.ones(2, device="meta"), torch.ones(2, device="meta"), True),
        (torch.ones(2, device="meta"), torch.ones(3, device="meta"), False),
        (torch.ones(2, device="meta"), torch.ones(2), False),
        (np.ones(2), torch.ones(2, device="meta"), False),
        (torch.tensor([1 + 2j], dtype=torch.complex32), np.array([1 + 2j]), True),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), np.zeros(2, [("a", "f4"), ("b", "i4")]), True),
        (np.full(2, NAN, [("a", "f4")]), np.full(2, NAN, [("a", "f8")]), True),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), np.zeros(2, [("a", "f4")]), False),
        (np.zeros(2, [("a", "f4")]), np.zeros(2), False),
        (Rows(np.ones(2)), Rows(np.ones(2), "other"), True),
        (Rows(np.ones(2)), Rows(np.zeros(2)), False),
        (Rows(1), 1, False),
        (Unset(1), Unset(1), True),
        (Unset(1), Unset(2), False),
    ],
)
def test_values_of_several_kinds(one, other, expected):
    assert same_values(one, other) is same_values(other, one) is expected


def test_dtypes_of_tensors_count_only_if_asked():
    one, other = {"a": [torch.ones(2)]}, {"a": [torch.ones(2, dtype=torch.float64)]}

    assert same_values(one, other)
    assert not same_values(one, other, dtypes=True)
    assert same_values(one, {"a": [torch.ones(2)]}, dtypes=True)
