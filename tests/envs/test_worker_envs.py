"""SplitVectorEnv: however many pieces there are and whoever hosts them, it is one LocalVectorEnv with the same seed."""

import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import LocalVectorEnv
from ding_lite.envs.spaces import to_nested

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)

FORCE = spaces.Box(-1, 1, (2,), np.float32)
SPACES = {
    "Box, Discrete": (spaces.Box(-5, 5, (3,), np.float64), spaces.Discrete(4, start=2)),
    "image, Box": (spaces.Box(0, 255, (40, 40, 3), np.uint8), FORCE),
    "Discrete, MultiDiscrete": (spaces.Discrete(9, start=-3), spaces.MultiDiscrete([3, 5])),
    "Dict, Tuple": (
        spaces.Dict(place=spaces.Box(-1, 1, (2,), np.float32), bits=spaces.MultiBinary(3)),
        spaces.Tuple((spaces.Discrete(3), spaces.Dict(force=FORCE))),
    ),
    "Tuple, Dict": (
        spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 9, (2, 1), np.int32))),
        spaces.Dict(keys=spaces.MultiBinary(2), force=FORCE),
    ),
}


class Drawn(gymnasium.Env):
    """Everything that it tells is drawn from its seed; what it is asked to do and its options are in its reward."""

    def __init__(self, kind):
        space, self.action_space = SPACES[kind]
        self.observation_space = cloudpickle.loads(cloudpickle.dumps(space))  # with random numbers of its own

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.shift = float((options or {}).get("shift", 0))
        return self.observation_space.sample(), self._info()

    def step(self, action):
        assert self.action_space.contains(action)
        terminated, truncated = self.np_random.random(2) < 0.25
        reward = self.shift + float(np.sum(spaces.flatten(self.action_space, action))) + self.np_random.random()
        return self.observation_space.sample(), reward, bool(terminated), bool(truncated), self._info()

    def _info(self):
        return {"large": self.np_random.random(800), "deep": {"list": [self.np_random.random(800)]}, "text": "as it is"}

    def render(self):
        return [self.np_random.random((30, 30)), None]


def actions(kind, num_envs, count, seed=0):
    space = gymnasium.vector.utils.batch_space(SPACES[kind][1], num_envs)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def by_gymnasium(envs, asked, seed=None, options=None):
    return [envs.reset(seed=seed, options=options), *[envs.step(one) for one in asked]]


def by_rollouts(envs, asked, begins=True):
    results = []
    out = envs.new_obs()
    if begins:
        envs.begin(out)
        results = [(out, envs.infos, envs.restarted)]
    for action in asked:
        out = envs.new_obs()
        step = envs.advance(to_nested(envs.single_action_space, action), out)
        restarted = np.zeros(envs.num_envs, bool) if envs.restarted is None else envs.restarted
        results.append((out, step, envs.infos, envs.current, restarted))
    return results


def every(*numbers):
    kinds = [(number, backend) for number in numbers for backend in ("local", "process") if (number, backend) != (1, "local")]
    return pytest.mark.parametrize(("workers", "backend"), kinds)


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "workers", "backend"),
    [
        *((kind, 3, "process") for kind in SPACES),
        ("Box, Discrete", 3, "local"),
        ("Box, Discrete", 1, "process"),
        ("Dict, Tuple", 2, "local"),
    ],
)
def test_it_steps_as_one_local_vector_environment(made, digest, kind, workers, backend):
    local, split = (
        made(partial(Drawn, kind), 5, seed=3),
        made(partial(Drawn, kind), 5, seed=3, workers=workers, backend=backend),
    )
    assert type(local) is LocalVectorEnv
    assert type(split) is not LocalVectorEnv
    for name in ("num_envs", "single_observation_space", "single_action_space", "observation_space", "metadata", "run_seed"):
        assert getattr(split, name) == getattr(local, name), name
    assert split.single_observation_space.contains(SPACES[kind][0].sample())
    for call in (
        lambda envs: by_gymnasium(envs, actions(kind, 5, 12)),
        lambda envs: by_rollouts(envs, actions(kind, 5, 12, seed=1)),
        lambda envs: by_gymnasium(envs, actions(kind, 5, 7, seed=2), seed=8, options={"shift": 2}),
        lambda envs: envs.action_space.sample(),
    ):
        assert digest(call(split)) == digest(call(local))
    assert split.run_seed == local.run_seed == 8
    assert split.single_observation_space == local.single_observation_space


@pytest.mark.few
@every(1, 2)
def test_what_was_told_stays_as_it_was(made, digest, workers, backend):
    for kind in ("image, Box", "Dict, Tuple"):
        envs = made(partial(Drawn, kind), 3, workers=workers, backend=backend)
        asked = actions(kind, 3, 8)
        results = [envs.reset(), *map(envs.step, asked)], by_rollouts(envs, asked), envs.single_observation_space
        before = digest(results)
        by_gymnasium(envs, asked, seed=5)
        by_rollouts(envs, asked)
        assert digest(results) == before


def test_finished_episodes_bear_the_index_among_all_environments(made, counting_env):
    envs = made(partial(counting_env, 0, [(2, "terminated")]), 3, workers=2, backend="process")
    *_, last = by_rollouts(envs, [np.zeros(3, np.int64)] * 2)
    assert [(episode.env, episode.number, episode.length) for episode in last[1].finished] == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
    assert sorted(last[1].final_obs) == [0, 1, 2]


@pytest.mark.few
@pytest.mark.parametrize("num_steps", [0, 13])
@every(1, 2)
def test_a_restored_environment_goes_on_as_the_saved_one(made, digest, tmp_path, num_steps, workers, backend):
    make = partial(made, partial(Drawn, "Dict, Tuple"), 3, workers=workers, backend=backend)
    saved, restored = make(seed=4), make(seed=9)
    by_gymnasium(saved, actions("Dict, Tuple", 3, num_steps), options={"shift": 5})
    path = save_checkpoint(saved.state_dict(), tmp_path / "envs.pt")
    expected = by_rollouts(saved, actions("Dict, Tuple", 3, 9), begins=False)
    restored.load_state_dict(load_checkpoint(path))
    assert restored.run_seed == 4
    assert digest(by_rollouts(restored, actions("Dict, Tuple", 3, 9), begins=False)) == digest(expected)


@every(2)
def test_an_environment_that_was_not_begun_is_restored_as_such(made, digest, workers, backend):
    make = partial(made, partial(Drawn, "Box, Discrete"), 2, workers=workers, backend=backend)
    restored = make(seed=9)
    restored.reset()
    restored.load_state_dict(make(seed=4).state_dict())
    assert restored.current is None
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        restored.step(np.full(2, 2))
    assert digest(restored.reset()) == digest(make(seed=4).reset())


def test_one_worker_and_none_go_on_from_each_others_state_and_two_do_not(made):
    make = partial(made, "CartPole-v1", 2)
    plain, one, two = make(), make(workers=1, backend="process"), make(workers=2, backend="process")
    for envs in (plain, one, two):
        by_rollouts(envs, [np.array([0, 1])] * 3)
    states = plain.state_dict(), one.state_dict()
    plain.load_state_dict(states[1])
    one.load_state_dict(states[0])
    np.testing.assert_array_equal(one.current, plain.current)
    for envs in (plain, one):
        with pytest.raises(ValueError, match=r"the state of environments in 2 pieces does not fit .*workers=2"):
            envs.load_state_dict(two.state_dict())
        with pytest.raises(ValueError, match=r"the state of environments in 1 piece does not fit 2: .*workers=1"):
            two.load_state_dict(envs.state_dict())


def test_a_released_environment_goes_on_where_it_was(made, digest):
    make = partial(made, partial(Drawn, "Dict, Tuple"), 3, seed=4, workers=2)
    local, split = make(), make(backend="process")
    for part in range(3):
        asked = actions("Dict, Tuple", 3, 6, seed=part)
        begins = part == 0
        assert digest(by_rollouts(split, asked, begins)) == digest(by_rollouts(local, asked, begins))
        split.release()
        assert [host.pid for host in split.hosts] == [None, None]
    local.reset(options={"shift": 3})
    split.reset(options={"shift": 3})
    split.release()
    asked = actions("Dict, Tuple", 3, 6)
    assert digest(by_rollouts(split, asked, False)) == digest(by_rollouts(local, asked, False))


@every(2)
def test_close_closes_every_environment(made, tmp_path, counting_env, workers, backend):
    class Closing(counting_env):
        def __init__(self, folder):
            super().__init__()
            self.path = folder / f"{len(list(folder.iterdir()))}-{id(self)}-{np.random.default_rng().integers(2**60)}"

        def close(self):
            self.path.touch()

    envs = made(partial(Closing, tmp_path), 4, workers=workers, backend=backend)
    envs.reset()
    envs.close()
    assert len(list(tmp_path.iterdir())) == 4
    if backend == "process":
        with pytest.raises(RuntimeError, match="is closed"):
            envs.reset()


@every(2)
def test_frames_come_as_they_are_and_stay_so(made, digest, workers, backend):
    local, split = (
        made(partial(Drawn, "image, Box"), 3, **kwargs) for kwargs in ({}, {"workers": workers, "backend": backend})
    )
    frames = []
    for envs in (local, split):
        by_gymnasium(envs, actions("image, Box", 3, 2))
        frames.append([envs.render() for _ in range(3)])
    assert digest(frames[0]) == digest(frames[1])
    assert frames[0][0][0][1] is None


def test_a_list_of_actions_is_accepted_and_a_wrong_number_of_them_is_refused(made):
    envs = made("CartPole-v1", 3, workers=2, backend="process")
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        envs.step([0, 1, 1])
    envs.reset()
    assert envs.step([0, 1, 1])[1].tolist() == [1, 1, 1]
    for wrong in ([0, 1], [0, 1, 1, 0]):
        with pytest.raises(ValueError, match=f"expected 3 actions, one for each environment, got {len(wrong)}"):
            envs.step(wrong)
    assert envs.step([0, 1, 1])[1].tolist() == [1, 1, 1]
