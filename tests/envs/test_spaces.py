"""Spaces: their layout in arrays and back, and actions that reach each environment as elements of its action space."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.envs import SpaceError, make_envs
from ding_lite.envs.spaces import same_layout, space_spec, to_gymnasium, to_nested
from ding_lite.policy import PPOPolicy
from ding_lite.rollout import LocalWorker

BOX = spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict(
    z=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Dict(b=spaces.MultiBinary(3), a=spaces.MultiDiscrete([2, 5])))),
    image=spaces.Box(0, 255, (2, 2, 1), np.uint8),
    number=spaces.Box(-1, 1, (), np.float32),
)
SPACES = [
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(-5, 5, (2,), np.int16),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([[3, 4], [2, 2]], start=[[1, 1], [-5, 0]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
    spaces.Dict(b=spaces.Discrete(2), a=spaces.Box(-1, 1, (1,), np.float32)),
    spaces.Tuple((spaces.Discrete(2, start=5), spaces.Box(-1, 1, (2,), np.float32))),
    NESTED,
]


@pytest.mark.parametrize("space", [spaces.Dict({1: spaces.Discrete(2), 2: BOX}), spaces.Tuple((BOX, spaces.Dict({0: BOX})))])
def test_names_in_a_dict_that_are_no_strings_are_an_error_with_the_fix(space):
    words = r"a Dict space has a part with the name \d of type int, expected strings: rename it, spaces.Dict\(\{str\(name\)"
    with pytest.raises(SpaceError, match=words):
        space_spec(space)
    with pytest.raises(SpaceError, match=words):
        PPOPolicy({}, space, spaces.Discrete(2))


class Picky(gymnasium.Env):
    """Takes only elements of its action space, and keeps them."""

    observation_space = spaces.Discrete(2)

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space
        self.taken: list = []

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        return 1, 0.0, False, len(self.taken) % 3 == 0, {}


def assert_equal(one, other):
    """The same nesting of the same containers, and the same numbers."""
    assert isinstance(other, dict) == isinstance(one, dict)
    assert isinstance(other, tuple) == isinstance(one, tuple)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            assert_equal(left, right)
    else:
        np.testing.assert_array_equal(one, other)


def test_the_layout_of_a_space_is_that_of_its_elements():
    assert space_spec(spaces.Box(0, 1, (2, 3), np.float64)) == ((2, 3), np.float32)
    assert space_spec(spaces.Box(0, 255, (4,), np.uint8)) == ((4,), np.uint8)
    assert space_spec(spaces.Discrete(3, start=7)) == ((), np.int64)
    assert space_spec(spaces.MultiDiscrete([[2], [3]])) == ((2, 1), np.int64)
    assert space_spec(spaces.MultiBinary(4)) == ((4,), np.int8)
    assert space_spec(NESTED) == {
        "image": ((2, 2, 1), np.uint8),
        "number": ((), np.float32),
        "z": {"0": ((), np.int64), "1": {"a": ((2,), np.int64), "b": ((3,), np.int8)}},
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize(
    "nest", [lambda s: s, lambda s: spaces.Dict(x=s), lambda s: spaces.Tuple((s,))], ids=["", "Dict", "Tuple"]
)
def test_a_space_without_a_fixed_layout_is_refused(space, nest, faulty_env):
    with pytest.raises(SpaceError, match=f"{type(space).__name__}.* has no fixed layout: use Box"):
        space_spec(nest(space))
    with pytest.raises(SpaceError, match="has no fixed layout"):
        make_envs(partial(faulty_env, observation_space=nest(space)))


@pytest.mark.parametrize("space", SPACES, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), batch=st.booleans())
def test_to_gymnasium_undoes_to_nested(space, seed, batch):
    drawn = batch_space(space, 3) if batch else space
    drawn.seed(seed)
    element = drawn.sample()
    assert_equal(to_gymnasium(space, to_nested(space, element)), element)


def test_the_parts_of_a_tuple_are_named_by_their_positions():
    space = spaces.Tuple([spaces.Discrete(99)] * 11)
    assert list(to_nested(space, tuple(range(11))).items()) == [(str(i), i) for i in range(11)]
    assert to_nested(space, list(range(11))) == to_nested(space, tuple(range(11)))
    assert to_gymnasium(space, to_nested(space, tuple(range(11)))) == tuple(range(11))


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, r"must have the parts \['a'\], got \['b'\]"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": 1, "b": 1}, r"must have the parts \['a'\], got \['a', 'b'\]"),
        (spaces.Dict(a=spaces.Discrete(2)), 3, r"must have the parts \['a'\], got int"),
        (spaces.Tuple((spaces.Discrete(2),) * 2), (1,), r"must have the parts \['0', '1'\], got \['0'\]"),
        (spaces.Tuple((spaces.Discrete(2),) * 2), None, r"must have the parts \['0', '1'\], got NoneType"),
    ],
)
def test_an_element_with_other_parts_than_its_space_is_refused(space, value, words):
    with pytest.raises(SpaceError, match=words):
        to_nested(space, value)


def test_layouts_are_the_same_whatever_the_bounds():
    assert same_layout(spaces.Box(0, 1, (2,)), spaces.Box(-5, 9, (2,)))
    assert same_layout(spaces.Discrete(2), spaces.Discrete(7))
    assert not same_layout(spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)))
    assert not same_layout(spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,), np.uint8))
    assert not same_layout(spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_reach_each_environment_as_elements_of_its_action_space(space):
    envs = make_envs(partial(Picky, space), 3)
    envs.reset()
    sent = []
    for _ in range(4):
        actions = envs.action_space.sample()
        envs.step(actions)
        sent.append(list(gymnasium.vector.utils.iterate(envs.action_space, actions)))
    for index, env in enumerate(envs.envs):
        for taken, actions in zip(env.taken, sent, strict=True):
            assert_equal(taken, actions[index])


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("kind", ["ours", "sync"])
def test_the_actions_of_a_rollout_are_those_that_reached_the_environments(space, kind, rule_policy):
    envs = (
        make_envs(partial(Picky, space), 2)
        if kind == "ours"
        else SyncVectorEnv([partial(Picky, space)] * 2, autoreset_mode="Disabled")
    )
    trajectories = LocalWorker(envs, rule_policy(envs).collect_mode).collect(5, random=True).trajectories
    for index, env in enumerate(envs.envs):
        for t, taken in enumerate(env.taken):
            stored = to_nested(space, taken)
            found = trajectories.columns["action"]
            assert_equal(_at(found, t, index), stored)


def _at(columns, t, index):
    return {name: _at(column, t, index) for name, column in columns.items()} if isinstance(columns, dict) else columns[t, index]


@pytest.mark.parametrize("actions", [[], [0], [0, 1, 2, 3]])
def test_a_wrong_number_of_actions_is_refused(faulty_env, actions):
    envs = make_envs(faulty_env, 3)
    envs.reset()
    with pytest.raises(ValueError, match=f"expected 3 actions, one for each environment, got {len(actions)}"):
        envs.step(np.array(actions, np.int64))


def test_a_wrong_number_of_actions_in_one_part_is_refused(faulty_env):
    envs = make_envs(partial(faulty_env, action_space=spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))), 3)
    envs.reset()
    with pytest.raises(ValueError, match="actions"):
        envs.step({"a": np.zeros(3, np.int64), "b": np.zeros(2, np.int64)})


def test_actions_without_the_parts_of_their_space_are_refused(faulty_env):
    envs = make_envs(partial(faulty_env, action_space=spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))), 3)
    envs.reset()
    with pytest.raises(SpaceError, match=r"must have the parts \['a', 'b'\], got \['a'\]"):
        envs.step({"a": np.zeros(3, np.int64)})


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(2)], ids=str)
def test_fractions_as_actions_are_refused_where_integers_are_wanted(faulty_env, space):
    envs = make_envs(partial(faulty_env, action_space=space), 2)
    envs.reset()
    with pytest.raises((TypeError, ValueError), match="action"):
        envs.step(np.full_like(envs.action_space.sample(), 0.7, dtype=np.float32))
