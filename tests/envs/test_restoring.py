"""state_dict() and load_state_dict(): restored environments go on exactly as the saved ones, or are refused."""

import contextlib
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from slow_cases import mostly_slow

from ding_lite.data import flatten
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import EnvDataError, make_envs
from ding_lite.rollout import LocalWorker

EVERY = pytest.mark.parametrize("make", mostly_slow(["CartPole", "Pendulum", "Pong"], "CartPole", "Pendulum"), indirect=True)


@pytest.mark.parametrize(
    ("make", "num_steps"),
    [
        ("CartPole", 0),
        ("CartPole", 9),
        ("CartPole", 23),
        ("Pendulum", 1),
        ("Pendulum", 23),
        pytest.param("Pong", 23, marks=pytest.mark.slow),
    ],
    indirect=["make"],
)
def test_a_restored_environment_goes_on_as_the_saved_one(make, num_steps, known_actions, tmp_path):
    envs = make(2, 3)
    envs.reset()
    known_actions(envs, num_steps)
    path = save_checkpoint({"envs": envs.state_dict()}, tmp_path / "envs.pt")
    current, expected = envs.current.tolist(), known_actions(envs, 21, seed=1)

    restored = make(2, 99)
    restored.load_state_dict(load_checkpoint(path)["envs"])
    assert restored.current.tolist() == current
    assert known_actions(restored, 21, seed=1) == expected
    assert any(seen.episodes for seen in expected)


@EVERY
def test_a_restored_environment_can_be_saved_and_restored_again(make, known_actions):
    envs, expected = make(2, 3), make(2, 3)
    for part in range(3):
        assert known_actions(envs, 7, part) == known_actions(expected, 7, part)
        state = envs.state_dict()
        envs = make(2, 0)
        envs.load_state_dict(state)


def test_an_environment_that_was_not_begun_is_restored_as_such():
    restored = make_envs("CartPole-v1", 2, 99)
    restored.load_state_dict(make_envs("CartPole-v1", 2, 3).state_dict())
    assert restored.reset()[0].tolist() == make_envs("CartPole-v1", 2, 3).reset()[0].tolist()


@EVERY
def test_what_was_saved_does_not_change_afterwards(make, known_actions):
    envs = make(2, 3)
    known_actions(envs, 5)
    state, current = envs.state_dict(), envs.current.tolist()
    known_actions(envs, 30)
    restored = make(2, 3)
    restored.load_state_dict(state)
    assert restored.current.tolist() == current


class Remembering(gymnasium.Env):
    """Its observation is all that was done in the episode; it takes nested actions, and may change them."""

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32), keys=spaces.Tuple((spaces.MultiDiscrete([5, 5]),)))

    def __init__(self, changes_actions: bool) -> None:
        self.changes_actions = changes_actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = self.np_random.integers(100)
        return np.array([self.total], np.float32), {}

    def step(self, action):
        self.total = 1.5 * self.total % 1000 + action["push"].sum() + action["keys"][0].sum()
        if self.changes_actions:
            action["push"] *= 0
            action["keys"][0][:] = 4
        return np.array([self.total], np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("changes_actions", [False, True])
def test_nested_actions_are_restored_also_where_the_environment_changes_them_in_place(changes_actions, tmp_path):
    envs, restored = (make_envs(partial(Remembering, changes_actions), 2) for _ in range(2))
    envs.reset()
    for _ in range(5):
        envs.step(envs.action_space.sample())
    restored.load_state_dict(load_checkpoint(save_checkpoint(envs.state_dict(), tmp_path / "envs.pt")))
    assert restored.current.tolist() == envs.current.tolist()


def test_actions_that_the_caller_overwrites_later_are_restored():
    envs, restored = make_envs("Pendulum-v1", 2), make_envs("Pendulum-v1", 2)
    envs.reset()
    action = np.empty((2, 1), np.float32)
    for value in (1.0, -2.0, 0.5):
        action[:] = value
        envs.step(action)
    restored.load_state_dict(envs.state_dict())
    assert restored.current.tolist() == envs.current.tolist()


@pytest.mark.parametrize("layout", ["float32", "uint8", "dict", "tuple"])
def test_rollouts_go_on_in_a_restored_environment(counting_env, rule_policy, layout):
    class FromSeed(counting_env):
        """Counts, but the number of an episode comes from its seed."""

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.episode = seed % 100
            return self._observe(), {}

    envs, restored = (make_envs(partial(FromSeed, 0, [(4, "both"), (3, "terminated")], layout), 2, seed) for seed in (3, 0))
    worker = LocalWorker(envs, rule_policy(envs, layout).collect_mode)
    worker.collect(6)
    restored.load_state_dict(envs.state_dict())
    expected = worker.collect(9)
    found = LocalWorker(restored, rule_policy(restored, layout).collect_mode).collect(9)
    columns = dict(flatten(found.trajectories.columns))
    for path, column in flatten(expected.trajectories.columns):
        np.testing.assert_array_equal(columns[path], column)
    assert found.episodes == expected.episodes


@pytest.mark.parametrize("layout", ["float32", "discrete", "tuple"])
def test_an_environment_that_is_no_function_of_its_seed_is_refused(counting_env, layout):
    saved, restored = (
        make_envs(partial(counting_env, 0, layout=layout), 2),
        make_envs(partial(counting_env, 0, layout=layout), 2),
    )
    for _ in range(3):  # two would be played again
        saved.reset()  # it counts episodes, and a new environment counts from 0
    with pytest.raises(EnvDataError, match=r"environment 0 did not come back to its observation.*replayed from its seed"):
        restored.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("steps", [35, 41])  # in the first episode; at the start of the second one
def test_an_environment_with_a_shorter_time_limit_is_refused(steps, known_actions):
    saved = make_envs("Pendulum-v1", 2, max_episode_steps=41)
    saved.reset()
    known_actions(saved, steps)
    restored = make_envs("Pendulum-v1", 2, max_episode_steps=30)
    with pytest.raises(EnvDataError, match=rf"environment 0 .* ended in step 30, but the saved episode, with {steps} steps so"):
        restored.load_state_dict(saved.state_dict())


class Walk(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(4, np.float32), {}

    def step(self, action):
        return self.np_random.random(4, np.float32), 1.0, False, False, {}


class OtherWalk(Walk):
    pass


PLACES = [{}, {"workers": 2, "backend": "local"}, {"workers": 2, "backend": "process"}]
DIFFER = [
    (("CartPole-v1", {}), ("CartPole-v0", {}), "CartPole-v1 with at most 500 .*CartPole-v0 with at most 200 steps"),
    (
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 9}),
        "CartPole-v1 with at most 500 .*CartPole-v1 .* 9 steps",
    ),
    ((Walk, {}), (Walk, {"max_episode_steps": 9}), "Walk without a time limit, and goes on with Walk with at most 9 steps"),
    (
        (Walk, {"max_episode_steps": 9}),
        (OtherWalk, {"max_episode_steps": 9}),
        "Walk with at most 9 .* OtherWalk with at most",
    ),
]


@pytest.mark.parametrize("place", PLACES, ids=["one", "split", "processes"])
@pytest.mark.parametrize(("before", "after", "words"), DIFFER, ids=["id", "limit", "own limit", "class"])
@pytest.mark.parametrize("steps", [0, 3])
def test_other_environments_or_another_time_limit_cause_one_warning(place, before, after, words, steps):
    with contextlib.ExitStack() as stack:
        saved, other, same = (
            stack.enter_context(contextlib.closing(make_envs(env, 2, **settings, **place)))
            for env, settings in (before, after, before)
        )
        if steps:
            saved.reset()
        for _ in range(steps):
            saved.step(np.zeros(2, np.int64))
        state = saved.state_dict()
        with pytest.warns(UserWarning, match=f"the saved run had the environments {words}") as caught:
            other.load_state_dict(state)
        assert len(caught) == 1

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same.load_state_dict(state)
            other.load_state_dict({name: part for name, part in state.items() if name != "made_as"})  # of earlier versions


def test_environments_in_one_piece_and_those_in_one_worker_load_each_others_states():
    def made(env_id, **place):
        envs = stack.enter_context(contextlib.closing(make_envs(env_id, 2, **place)))
        envs.reset()
        return envs

    worker = {"workers": 1, "backend": "process"}
    with contextlib.ExitStack() as stack:
        for first, second in (({}, worker), (worker, {})):
            with pytest.warns(UserWarning, match="the saved run had the environments CartPole-v1"):
                made("CartPole-v0", **second).load_state_dict(made("CartPole-v1", **first).state_dict())
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                made("CartPole-v1", **second).load_state_dict(made("CartPole-v1", **first).state_dict())


@pytest.mark.parametrize("wrong", [3, {}, {"name": "CartPole-v1"}])
@pytest.mark.parametrize("place", PLACES[:2], ids=["one", "split"])
def test_a_state_with_a_damaged_description_of_its_environments_is_refused(place, wrong):
    envs = make_envs("CartPole-v1", 2, **place)
    with pytest.raises(ValueError, match=r"made_as = .*, expected a dict of name, max_episode_steps"):
        envs.load_state_dict({**envs.state_dict(), "made_as": wrong})


def test_an_environment_that_ignores_its_seed_is_refused_with_the_usual_cause():
    class Unseeded(gymnasium.Env):
        observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.np_random.random(1, np.float32), {}

    saved, restored = (make_envs(Unseeded, 2) for _ in range(2))
    saved.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvDataError, match=r"reset\(\) lacks super\(\)\.reset\(seed=seed\)"):
            restored.load_state_dict(saved.state_dict())


def test_a_state_of_another_number_of_environments_is_refused():
    saved = make_envs("CartPole-v1", 2)
    saved.reset()
    with pytest.raises(ValueError, match="environments"):
        make_envs("CartPole-v1", 3).load_state_dict(saved.state_dict())


def test_an_episode_too_long_to_be_remembered_cannot_be_saved(monkeypatch, known_actions):
    monkeypatch.setattr("ding_lite.envs.episode_starts._LONGEST", 5)
    envs = make_envs("Pendulum-v1")
    known_actions(envs, 6)
    with pytest.raises(RuntimeError, match="environment 0 is in an episode of 5 steps or more, which cannot be saved"):
        envs.state_dict()
