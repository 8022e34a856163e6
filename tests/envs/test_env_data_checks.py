"""Wrong observations are refused where they enter, by environment, by what was found and by what was expected."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ding_lite.data import LeafSpec
from ding_lite.envs import EnvDataError, make_envs
from ding_lite.envs.env_data_checks import require_finite, to_leaf
from ding_lite.envs.vector_adapters import VectorEnvAdapter

FLOATS = spaces.Box(-10, 10, (2,), np.float32)
DOUBLES = spaces.Box(-10, 10, (2,), np.float64)
PIXELS = spaces.Box(0, 255, (2,), np.uint8)
HALVES = spaces.Box(-np.inf, np.inf, (2,), np.float16)
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
COUNT = spaces.Discrete(5)
GRID = spaces.MultiDiscrete([9, 9])
PARTS = spaces.Dict(eye=FLOATS, touch=spaces.Tuple((COUNT, PIXELS)))

REFUSED = [
    (FLOATS, np.zeros(3, np.float32), r"environment 1, obs has shape \(3,\), its space has \(2,\)"),
    (FLOATS, np.zeros((1, 2), np.float32), r"environment 1, obs has shape \(1, 2\), its space has \(2,\)"),
    (FLOATS, np.float32(0), r"environment 1, obs has shape \(\), its space has \(2,\)"),
    (FLOATS, None, r"environment 1, obs has shape \(\), its space has \(2,\)"),
    (FLOATS, [1.0, "two"], "environment 1, obs has dtype .*U.*, its space has float32"),
    (FLOATS, [1.0, None], "environment 1, obs has dtype object, its space has float32"),
    (FLOATS, np.ones(2, np.complex64), "environment 1, obs has dtype complex64, its space has float32"),
    (FLOATS, np.array([1, np.nan], np.float32), r"environment 1.*obs.*1. +nan.*not finite"),
    (FLOATS, np.array([-np.inf, 1], np.float32), "environment 1.*obs.*-inf.*not finite"),
    (FLOATS, np.array([1, np.nan]), "environment 1.*obs.*nan.*not finite"),
    (FLOATS, np.array([np.inf, 1]), "environment 1.*obs.*inf.*not finite"),
    (FLOATS, np.array([1, 1e300]), r"environment 1, obs is 1e\+300, which float32 cannot"),
    (DOUBLES, np.array([1, -1e39]), r"environment 1, obs is -1e\+39, which float32 cannot"),
    (HALVES, np.array([1, 1e5], np.float32), "environment 1, obs is 100000.0, which float16 cannot"),
    (PIXELS, np.array([1, 300]), "environment 1, obs is 300, which uint8 cannot"),
    (PIXELS, np.array([-1, 3], np.int8), "environment 1, obs is -1, which uint8 cannot"),
    (PIXELS, np.array([-3.7, 3]), "environment 1, obs has dtype float64, its space has uint8"),
    (PIXELS, np.array([3.0, 3.0], np.float32), "environment 1, obs has dtype float32, its space has uint8"),
    (COUNT, 1.0, "environment 1, obs has dtype float64, its space has int64"),
    (COUNT, np.uint64(2**63), "environment 1, obs is 9223372036854775808, which int64 cannot"),
    (COUNT, np.array([1]), r"environment 1, obs has shape \(1,\), its space has \(\)"),
    (GRID, np.array([0.5, 1]), "environment 1, obs has dtype float64, its space has int64"),
    (PARTS, {"eye": np.zeros(2), "touch": (0, np.array([1, 300]))}, r"environment 1, obs\['touch'\]\['1'\] is 300"),
    (PARTS, {"eye": np.zeros(3), "touch": (0, np.zeros(2, np.uint8))}, r"environment 1, obs\['eye'\] has shape \(3,\)"),
    (PARTS, {"eye": np.array([0, np.nan]), "touch": (0, np.zeros(2, np.uint8))}, r"environment 1.*obs\['eye'\].*nan"),
]

ACCEPTED = [
    (FLOATS, np.array([1, -3.5])),
    (FLOATS, [1, -3.5]),
    (FLOATS, np.array([1, -3])),
    (FLOATS, np.array([True, False])),
    (UNBOUNDED, np.array([1e38, -3e38], np.float32)),
    (UNBOUNDED, np.array([1e38, -3e38])),
    (FLOATS, np.array([1, 2], ">f4")),
    (DOUBLES, np.array([1.5, 2])),
    (HALVES, np.array([1, 6e4])),
    (PIXELS, np.array([0, 255])),
    (PIXELS, [7, 8]),
    (COUNT, 3),
    (COUNT, np.int8(3)),
    (COUNT, np.array(3)),
    (GRID, np.array([1, 2], np.uint8)),
]


@pytest.fixture
def second_wrong(faulty_env):
    """Two environments, the second of which returns this observation at its `at`-th step, or its first reset where it is 0."""

    def make(space, obs, at, **flags):
        made = iter([faulty_env(-1, observation_space=space), faulty_env(at, observation_space=space, obs=obs, **flags)])
        return make_envs(lambda: next(made), 2)

    return make


@pytest.mark.few
@pytest.mark.parametrize(("space", "obs", "words"), REFUSED, ids=[f"{obs!r:.50}" for _, obs, _ in REFUSED])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("is_last", [False, True], ids=["in an episode", "the last of an episode"])
def test_a_wrong_observation_is_refused_in_its_step(second_wrong, space, obs, words, at, is_last):
    envs = second_wrong(space, obs, at, truncated=is_last)
    envs.reset()
    for _ in range(at - 1):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(EnvDataError, match=words):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.few
@pytest.mark.parametrize(("space", "obs", "words"), REFUSED, ids=[f"{obs!r:.50}" for _, obs, _ in REFUSED])
def test_a_wrong_observation_is_refused_in_reset(second_wrong, space, obs, words):
    with pytest.raises(EnvDataError, match=words):
        second_wrong(space, obs, 0).reset()


@pytest.mark.parametrize("obs", [{"eye": np.zeros(2)}, {"eye": np.zeros(2), "touch": (0,)}, np.zeros(2)])
def test_an_observation_without_the_parts_of_its_space_is_refused(second_wrong, obs):
    with pytest.raises(EnvDataError, match=r"environment 1.* must have the parts .*, got") as caught:
        second_wrong(PARTS, obs, 0).reset()
    assert "eye" in str(caught.value) or "Tuple" in str(caught.value)


@pytest.mark.parametrize(("space", "obs"), ACCEPTED, ids=[f"{obs!r:.50}" for _, obs in ACCEPTED])
@pytest.mark.parametrize("at", [0, 1])
def test_an_observation_that_its_space_can_hold_keeps_its_numbers(second_wrong, space, obs, at):
    envs = second_wrong(space, obs, at)
    found = envs.reset()[0]
    if at:
        found = envs.step(np.zeros(2, np.int64))[0]
    stored = np.float32 if space.dtype == np.float64 else space.dtype
    assert found.dtype == stored
    np.testing.assert_array_equal(found[1], np.asarray(obs).astype(stored))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("obs", [np.array([1e38, 1], np.float32), np.full(2, 3e38, np.float32), np.array([-1e20, 1e20])])
def test_huge_but_finite_values_pass_without_a_warning(second_wrong, obs):
    second_wrong(UNBOUNDED, obs, 0).reset()


integers = st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])


@given(st.data(), integers, st.one_of(integers, st.just(np.float32), st.just(np.float64)))
def test_integers_are_never_wrapped(data, wanted, given_dtype):
    values = data.draw(hnp.arrays(given_dtype, 3))
    leaf, info = LeafSpec((3,), np.dtype(wanted)), np.iinfo(wanted)
    if np.issubdtype(given_dtype, np.floating) or any(not info.min <= int(value) <= info.max for value in values):
        with pytest.raises(EnvDataError, match=r"obs (is|has dtype)"):
            to_leaf(values, leaf, "environment 0, obs")
    else:
        found = to_leaf(values, leaf, "environment 0, obs")
        assert found.dtype == wanted
        assert [int(value) for value in found] == [int(value) for value in values]


@given(hnp.arrays(np.float64, 3, elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles_are_rounded_to_float32_or_refused(values):
    leaf = LeafSpec((3,), np.dtype(np.float32))
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    if np.isfinite(rounded).all():
        np.testing.assert_array_equal(to_leaf(values, leaf, "obs"), rounded)
    else:
        with pytest.raises(EnvDataError, match="which float32 cannot"):
            to_leaf(values, leaf, "obs")


@given(hnp.arrays(np.float32, (3, 2), elements=st.floats(width=32)))
def test_only_what_is_not_finite_is_refused_as_such(values):
    wrong = [index for index in range(3) if not all(np.isfinite(value) for value in values[index])]
    if wrong:
        with pytest.raises(EnvDataError, match=f"environment {wrong[0]} returned obs"):
            require_finite(values, "obs")
    else:
        require_finite(values, "obs")


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (spaces.Discrete(4), 7, "obs 7, its space allows 0 to 3"),
        (spaces.Discrete(4, start=2), 1, "obs 1, its space allows 2 to 5"),
        (spaces.MultiDiscrete([2, 3]), np.array([2, 0]), r"obs \[2 0\], its space allows \[0 0\] to \[1 2\]"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, -1]), "its space allows"),
        (spaces.MultiBinary(3), np.array([0, 2, 0], np.int8), r"obs \[0 2 0\], its space allows 0 to 1"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (1,))), {"a": 2, "b": np.zeros(1)}, r"obs\['a'\] 2, its space"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [0, 1])
def test_an_integer_that_its_space_does_not_have_is_refused(second_wrong, space, obs, words, at):
    envs = second_wrong(space, obs, at)
    if at:
        envs.reset()
    with pytest.raises(EnvDataError, match=rf"environment 1 .*{words}"):
        envs.step(np.zeros(2, np.int64)) if at else envs.reset()


def test_a_foreign_environment_is_held_to_its_integers_too(faulty_env):
    env = gymnasium.vector.SyncVectorEnv([partial(faulty_env, 1, observation_space=spaces.Discrete(4), obs=4)])
    stepper = VectorEnvAdapter(env)
    stepper.begin(np.empty(1, np.int64))
    with pytest.raises(EnvDataError, match="environment 0 returned obs 4, its space allows 0 to 3"):
        stepper.advance(np.zeros(1, np.int64), np.empty(1, np.int64))
