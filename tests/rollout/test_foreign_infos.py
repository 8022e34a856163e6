"""Columns of infos from vector environments of gymnasium itself, in each autoreset mode."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import Task
from ding_lite.envs import EnvDataError, stepper
from ding_lite.middleware import EpisodeCollector, StepCollector
from ding_lite.policy import DQNPolicy
from ding_lite.rollout import LocalWorker

MODES = list(AutoresetMode)


class Saying(gymnasium.Env):
    """Its observation is its step; infos have that step too, from the second step on an array, and in the third a late one."""

    observation_space, action_space = spaces.Box(-9, 99, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, ends=4):
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"step": -7}

    def step(self, action):
        self.steps += 1
        info = {"step": self.steps, "pair": np.array([self.steps, 1.0])} | ({"late": True} if self.steps == 3 else {})
        return np.full(1, self.steps, np.float32), 0.0, self.steps == self.ends, False, info


def vector(mode, ends=(4, 5, 6)):
    return SyncVectorEnv([lambda end=end: Saying(end) for end in ends], autoreset_mode=mode)


def policy_for(envs):
    return DQNPolicy(None, envs.single_observation_space, envs.single_action_space)


@pytest.mark.parametrize("mode", MODES)
def test_each_step_has_the_values_of_its_info_also_where_an_episode_ends(mode):
    envs = vector(mode)
    stepper(envs).record_infos(("step", "pair", "late"))
    trajectories = LocalWorker(envs, policy_for(envs).collect_mode).collect(14, eps=0.5).trajectories
    batch, valid = trajectories.batch, trajectories.valid
    valid = np.ones((14, 3), bool) if valid is None else np.asarray(valid)
    step, pair, late = (np.asarray(leaf) for leaf in (batch.info.step, batch.info.pair, batch.info.late))

    assert valid.all() == (mode is not AutoresetMode.NEXT_STEP)
    np.testing.assert_array_equal(step[valid], np.asarray(batch.next_obs)[..., 0][valid])
    np.testing.assert_array_equal(pair[..., 0][valid], step[valid])
    assert {4.0, 5.0, 6.0} <= set(step[np.asarray(batch.terminated)].tolist())
    np.testing.assert_array_equal(~np.isnan(late[valid]), step[valid] == 3)
    assert np.isnan(step[~valid]).all()
    assert pair.shape == (14, 3, 2)


@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_a_collector_records_the_names_in_the_configuration(collector):
    envs, cfg = vector(AutoresetMode.SAME_STEP), DQNConfig().override({"env.info_columns": ["step"]})
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(collector(cfg, policy_for(envs).collect_mode, envs, collect_kwargs={"eps": 0.5})).run(1)
    data = loop.ctx.trajectories if collector is StepCollector else loop.ctx.episodes
    assert "step" in data.columns["info"]


def test_a_name_that_is_in_no_info_is_named():
    envs = vector(AutoresetMode.NEXT_STEP)
    stepper(envs).record_infos(("stpe",))
    with pytest.warns(UserWarning, match=r"names 'stpe', .* so its column is NaN: did you mean 'step'"):
        LocalWorker(envs, policy_for(envs).collect_mode).collect(9, eps=0.5)


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_does_not_fit_is_refused_with_its_step(mode):
    class Odd(Saying):
        def step(self, action):
            *results, info = super().step(action)
            return (*results, {**info, "step": "last"} if self.steps == self.ends else info)

    envs = SyncVectorEnv([Odd, Odd], autoreset_mode=mode)
    stepper(envs).record_infos(("step",))
    with pytest.raises(EnvDataError, match=r"environment 0 .*'step' is 'last'.*step 3 of its episode 0"):
        LocalWorker(envs, policy_for(envs).collect_mode).collect(9, eps=0.5)


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        ({"step": [1, 2, 3]}, r"'step' is \[1, 2, 3\] of type list, expected an array with one row for each of its 3"),
        ({"step": np.ones(2)}, r"'step' is .*expected an array with one row"),
        ({"step": np.ones(3), "_step": True}, r"'_step' is True of type bool"),
    ],
)
def test_infos_that_are_not_arrays_of_all_environments_are_refused_by_name(infos, words):
    class Own(SyncVectorEnv):
        def step(self, actions):
            return (*super().step(actions)[:-1], infos)

    envs = Own([Saying] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    stepper(envs).record_infos(("step",))
    with pytest.raises(EnvDataError, match=words):
        LocalWorker(envs, policy_for(envs).collect_mode).collect(2, eps=0.5)


def test_one_string_is_refused():
    with pytest.raises(TypeError, match="wants several names"):
        stepper(vector(AutoresetMode.SAME_STEP)).record_infos("step")
