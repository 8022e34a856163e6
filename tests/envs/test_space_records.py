"""Space records: a recorded space equals the original, also after JSON and a checkpoint, and old records can be read."""

import copy
import json
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.basics import load_checkpoint, save_checkpoint
from ding_lite.envs import SpaceError
from ding_lite.envs.space_records import recorded_space, same_elements, space_from
from ding_lite.envs.spaces import hidden_difference, same_layout, same_space

INTEGERS = [np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4")]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64", ">f4")]
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
NAMES = st.lists(st.text("xyz", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)


@st.composite
def boxes(draw):
    shape, dtype = draw(SHAPES), draw(st.sampled_from([*INTEGERS, *FLOATS, np.dtype(bool)]))
    if dtype.kind == "f":
        low, high = draw(st.sampled_from([(-np.inf, np.inf), (-1, 1), (0.1, np.inf), (-5.5, 1 / 3)]))
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = draw(st.sampled_from([(0, 7), (np.iinfo(dtype).min, np.iinfo(dtype).max)]))
    low, high = (np.full(shape, bound, dtype) for bound in (low, high))
    if draw(st.booleans()) and low.size:
        low.flat[0] = high.flat[0]  # bounds that differ
    return spaces.Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw):
    shape, dtype = draw(SHAPES.filter(bool)), draw(st.sampled_from(INTEGERS))
    nvec = np.reshape(draw(st.lists(st.integers(1, 9), min_size=27, max_size=27)), -1)[: np.prod(shape)].reshape(shape)
    start = draw(st.integers(0 if dtype.kind == "u" else -4, 4))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=np.full(shape, start))


LEAVES = st.one_of(
    boxes(),
    multi_discretes(),
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(0, 5), dtype=st.sampled_from(INTEGERS)),
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
    st.builds(spaces.MultiBinary, st.integers(1, 5) | SHAPES.filter(bool)),
    st.builds(spaces.Text, st.integers(3, 9), min_length=st.integers(0, 3), charset=st.sampled_from(["ab", "é✓z"])),
)
PARTS = st.sampled_from([spaces.Box(0, 1, (2,)), spaces.Discrete(3, dtype=np.int32)])
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(tuple).map(spaces.Tuple),
        st.lists(inner, min_size=1, max_size=3).map(tuple).map(spaces.OneOf),
        NAMES.flatmap(lambda names: st.tuples(*(st.tuples(st.just(name), inner) for name in names)).map(spaces.Dict)),
        st.builds(spaces.Sequence, inner),
        st.builds(spaces.Sequence, PARTS, stack=st.just(True)),
        st.builds(spaces.Graph, PARTS, PARTS | st.none()),
    ),
    max_leaves=5,
)


def require_equal(made, space):
    assert type(made) is type(space)
    assert made == space
    assert (made.dtype, made.shape) == (space.dtype, space.shape)
    for name in ("start", "n", "nvec", "low", "high", "stack"):
        here, there = getattr(made, name, None), getattr(space, name, None)
        assert np.array_equal(here, there)
        assert getattr(here, "dtype", None) == getattr(there, "dtype", None)
    if isinstance(space, (spaces.Dict, spaces.Tuple, spaces.OneOf)):
        inner, others = (dict(it.spaces) if isinstance(it.spaces, dict) else dict(enumerate(it.spaces)) for it in (made, space))
        assert list(inner) == list(others)  # the order too, which == of Dict ignores
        for name in others:
            require_equal(inner[name], others[name])


@settings(deadline=None, max_examples=150)
@given(SPACES)
def test_a_recorded_space_equals_the_original(space):
    require_equal(space_from(recorded_space(space)), space)
    require_equal(space_from(json.loads(json.dumps(recorded_space(space)))), space)


def test_a_recorded_space_equals_the_original_after_a_checkpoint(tmp_path):
    space = spaces.Dict(
        [
            ("z", spaces.MultiDiscrete([3, 2], dtype=np.int32)),
            ("a", spaces.Discrete(3, start=2, dtype=np.uint8)),
            ("b", spaces.Text(4)),
        ]
    )
    save_checkpoint({"space": recorded_space(space)}, tmp_path / "it.pt")

    require_equal(space_from(load_checkpoint(tmp_path / "it.pt")["space"]), space)


def test_a_box_without_numbers_is_recorded():
    space = spaces.Box(0, 1, (0, 2))

    require_equal(space_from(recorded_space(space)), space)


OLD = {
    "kind": "Dict",
    "parts": {
        "a": {"kind": "MultiDiscrete", "nvec": [3, 2], "start": [0, 0]},
        "b": {"kind": "Discrete", "n": 4, "start": 1},
        "c": {"kind": "MultiBinary", "shape": [2, 2]},
    },
}


def made(dtype, nvec=(3, 2)):
    return spaces.Dict(
        a=spaces.MultiDiscrete(nvec, dtype=dtype), b=spaces.Discrete(4, start=1, dtype=dtype), c=spaces.MultiBinary((2, 2))
    )


@pytest.mark.parametrize("copied", [lambda it: it, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_an_old_record_without_a_dtype_becomes_int64_and_any_integer_dtype_fits(copied):
    space = copied(space_from(OLD))

    assert space == made(np.int64)
    assert recorded_space(space)["parts"]["a"] == OLD["parts"]["a"]  # still unknown
    for dtype in (np.int64, np.int32, np.uint8):
        assert same_layout(made(dtype), space)
        assert same_layout(space, made(dtype))
        assert same_space(made(dtype), space)
        assert same_space(space, made(dtype))
        assert same_elements(made(dtype), space)
    assert not same_space(made(np.int32, (2, 3)), space)
    assert not same_layout(made(np.int32, (2, 3, 1)), space)
    assert not same_space(spaces.Discrete(3), space)
    assert not same_layout(spaces.Discrete(3), space)


def test_a_known_dtype_counts():
    space = space_from(recorded_space(made(np.int32)))

    assert same_space(space, made(np.int32))
    assert not same_space(space, made(np.int64))
    assert not same_layout(space, made(np.int64))


MANY = np.arange(3000, dtype=np.float64)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (made(np.int32), made(np.int64), "MultiDiscrete([3 2]), but the dtype is int32 in the first and int64 in the second)"),
        (
            spaces.Box(0, MANY, dtype=np.float64),
            spaces.Box(0, np.where(MANY == 1500, 1501, MANY), dtype=np.float64),
            "but the high[1500] is 1500.0 in the first and 1501.0 in the second)",
        ),
    ],
)
def test_a_difference_that_does_not_show_in_print_is_named(one, other, found):
    assert found in hidden_difference(one, other)


def test_spaces_that_print_differently_need_no_more_words():
    assert hidden_difference(spaces.Discrete(3), spaces.Discrete(4)) == ""
    assert hidden_difference(spaces.Discrete(3), spaces.Discrete(3)) == ""


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "Discrete"},
        {"kind": "Discrete", "n": 0, "start": 0},
        {"kind": "Discrete", "n": 10**400, "start": 0},
        {"kind": "Discrete", "n": 2, "start": 0, "dtype": "nothing"},
        {"kind": "MultiDiscrete", "nvec": "x", "start": []},
        {"kind": "Box", "shape": [2]},
        {"kind": "Box", "shape": [2], "dtype": "float32", "low": [1, 2, 3], "high": 4},
        {"kind": "Box", "shape": 2, "dtype": "float32", "low": 1, "high": 4},
        {"kind": "MultiBinary"},
        {"kind": "Dict", "parts": {"a": {}}},
        {"kind": "Dict", "parts": 5},
        {"kind": "Dict"},
        {"kind": "Graph", "parts": {}},
        {"kind": "Text", "shape": []},
        {"kind": "Another", "shape": []},
        {"kind": ["Box"]},
        None,
    ],
    ids=str,
)
def test_a_damaged_record_is_a_space_error(record):
    with pytest.raises(SpaceError, match="take the spaces of the environment instead"):
        space_from(record)
