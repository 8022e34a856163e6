"""Columns of infos: recorded in rollouts and replay, the same in this process and in others, and after a resume."""

import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.config import DQNConfig, RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer, flatten
from ding_lite.engine import Task
from ding_lite.envs import EnvDataError, make_envs
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.middleware import EpisodeCollector, MultiAgentCollector, StepCollector, data_pusher
from ding_lite.policy import ColumnError, DQNPolicy, Policy
from ding_lite.rollout import LocalWorker, make_worker

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)
NAMES = ("step", "is_high", "forces", "speed", "late")
KINDS = [{}, {"workers": 2}, {"workers": 2, "backend": "process"}]


class Telling(gymnasium.Env):
    """Its infos have numbers, a bool and an array, and some that come late; the info of a reset has other ones."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, ends=5, odd=None):
        self.ends, self.odd, self.episode = ends, odd, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return np.zeros(2, np.float32), {"step": -1}

    def step(self, action):
        self.steps += 1
        height = self.np_random.normal()
        info = {"step": self.steps, "is_high": height > 0, "forces": np.array([height, 1.0, 2.0]), "speed": np.float64(height)}
        if self.steps == 3:
            info |= {"late": 7} if self.odd is None else self.odd
        return np.full(2, height, np.float32), 0.0, self.steps == self.ends, False, info


def made_envs(**settings):
    return make_envs(Telling, 3, 0, info_columns=NAMES, **settings)


def policy_for(envs, kind=DQNPolicy):
    return kind(None, envs.single_observation_space, envs.single_action_space)


def test_each_step_has_the_values_of_its_info_also_where_an_episode_ends():
    envs = made_envs()
    batch = LocalWorker(envs, policy_for(envs).collect_mode).collect(7, eps=0.5).trajectories.batch

    assert batch.info.step[:, 0].tolist() == [1, 2, 3, 4, 5, 1, 2]
    assert batch.info.step.dtype == batch.info.is_high.dtype == batch.info.forces.dtype == batch.reward.dtype
    assert batch.info.forces.shape == (7, 3, 3)
    assert (batch.info.is_high.bool() == (batch.next_obs[..., 0] > 0)).all()
    assert (batch.info.speed == batch.next_obs[..., 0]).all()
    assert (batch.info.forces[..., 0] == batch.next_obs[..., 0]).all()
    late = batch.info.late[:, 1]
    assert late.isnan().tolist() == [True, True, False, True, True, True, True]
    assert late[2] == 7


def test_without_names_there_is_no_column():
    envs = make_envs(Telling, 3, 0)
    assert "info" not in LocalWorker(envs, policy_for(envs).collect_mode).collect(3, eps=0.5).trajectories.columns


@pytest.mark.parametrize("collect", ["collect", "collect_episodes"])
def test_they_are_the_same_in_pieces_and_in_processes(collect):
    found = []
    for settings in KINDS[1:]:
        envs = made_envs(**settings)
        rollout = getattr(make_worker(envs, policy_for(envs).collect_mode), collect)(7, eps=0.5)
        data = getattr(rollout, "trajectories", None) or rollout.transitions
        found.append({path: leaf for path, leaf in flatten(data.rows()) if path[0] == "info"})
        envs.close()

    assert {path[1] for path in found[0]} == set(NAMES)
    assert found[0].keys() == found[1].keys()
    for path, leaf in found[0].items():
        np.testing.assert_array_equal(leaf, found[1][path])


def test_a_restored_environment_continues_with_the_same_columns():
    """Also if the next step lacks a value, so that its shape is known only from the saved state."""

    class Rare(Telling):
        def step(self, action):
            *results, info = super().step(action)
            return (*results, {"rare": np.ones(2)} if self.steps == 1 else {})

    def rest(envs):
        return LocalWorker(envs, policy_for(envs).collect_mode).collect(5, eps=0.5).trajectories.columns["info"]["rare"]

    envs, restored = (make_envs(Rare, 2, 0, info_columns=("rare",)) for _ in range(2))
    LocalWorker(envs, policy_for(envs).collect_mode).collect(2, eps=0.5)
    restored.load_state_dict(envs.state_dict())
    np.testing.assert_array_equal(rest(restored), rest(envs))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (
            {"step": "high"},
            "environment 0 returned an info in which 'step' is 'high', expected a number.*step 2 of its episode 0",
        ),
        ({"forces": np.ones(2)}, r"'forces' is an array of float64 of shape \[2\], expected float32 of shape \[3\]"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(odd, words):
    envs = make_envs(partial(Telling, odd=odd), 2, 0, info_columns=NAMES)
    with pytest.raises(EnvDataError, match=words):
        LocalWorker(envs, policy_for(envs).collect_mode).collect(4, eps=0.5)


def test_the_place_of_a_value_in_the_last_step_of_an_episode_is_that_step():
    class Late(Telling):
        def step(self, action):
            *results, info = super().step(action)
            return (*results, {**info, "step": "last"} if self.steps == self.ends and self.episode == 1 else info)

    envs = make_envs(partial(Late, ends=3), 2, 0, info_columns=NAMES)
    with pytest.raises(EnvDataError, match=r"'step' is 'last'.*It was in step 2 of its episode 1, which began") as caught:
        LocalWorker(envs, policy_for(envs).collect_mode).collect(9, eps=0.5)
    place = caught.value.env_location
    assert (place.env, place.episode, place.step, len(place.actions), place.seed) == (0, 1, 2, 3, episode_seed(0, 0, 1))


def test_integers_cannot_be_missing():
    class Counting(Telling):
        def step(self, action):
            *results, info = super().step(action)
            return (*results, {"seen": np.ones(2, np.int64)} if self.steps != 3 else {"sene": 1})

    envs = make_envs(Counting, 2, 0, info_columns=("seen",))
    with pytest.raises(EnvDataError, match="environment 0 .*'seen' is missing: did you mean 'sene'.* only columns of floats"):
        LocalWorker(envs, policy_for(envs).collect_mode).collect(4, eps=0.5)


class BySpeed(DQNPolicy):
    derived = {**Policy.derived, "info.speed": ()}

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss, {**stats, "speed": batch.info.speed.mean()}


@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_a_loss_uses_them_from_replay(collector):
    envs = made_envs()
    policy, cfg, buffer_ = policy_for(envs, BySpeed), DQNConfig().override({"env.info_columns": NAMES}), ReplayBuffer(99)
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(collector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5})).use(data_pusher(cfg, buffer_)).run(2)
    batch = buffer_.sample(40)

    assert "info" in policy.columns
    assert policy.learn_mode.forward(batch)["speed"] == batch.info.speed.mean()
    assert (batch.info.speed == batch.next_obs[:, 0]).all()


def test_a_policy_that_reads_infos_without_declaring_them_is_told_how():
    class Undeclared(DQNPolicy):
        def loss(self, batch):
            return super().loss(batch)[0] + batch.info.speed.mean()

    with pytest.raises(ColumnError, match=r"declare them as derived = \{\*\*Policy.derived, 'info.x_position': \(\)\}"):
        policy_for(made_envs(), Undeclared).dry_run()


@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_a_setting_that_the_environments_do_not_follow_is_refused(collector):
    cfg = RunConfig().override({"env.info_columns": ["speed"]})
    envs = make_envs(Telling, 2)
    with pytest.raises(ValueError, match=rf"{collector.__name__} got environments that do not record 'speed'.*env.options\(\)"):
        collector(cfg, policy_for(envs).collect_mode, envs)
    with pytest.raises(ValueError, match=r"MultiAgentCollector got .* make_multi_agent_envs\(\.\.\., info_columns="):
        MultiAgentCollector(cfg, {"a": policy_for(envs).collect_mode}, envs, {})
    collector(cfg, policy_for(envs).collect_mode, made_envs(), collect_kwargs={"eps": 0.1})


def test_a_name_that_is_in_no_info_of_the_first_episode_is_named_once():
    envs = make_envs(Telling, 2, 0, info_columns=("speed", "spede"))
    worker = LocalWorker(envs, policy_for(envs).collect_mode)
    with pytest.warns(UserWarning, match="names 'spede', .* of Telling, so its column is NaN: did you mean 'speed'") as caught:
        batch = worker.collect(13, eps=0.5).trajectories.batch
    assert len(caught) == 1
    assert batch.info.spede.isnan().all()


def test_names_that_are_one_string_are_refused():
    with pytest.raises(TypeError, match="wants several names"):
        make_envs(Telling, 2, info_columns="speed")


class Various(Telling):
    """Its n-th environment has arrays of its own dtype or shape."""

    made = 0

    def __init__(self, forces):
        super().__init__()
        self.forces = forces[Various.made % len(forces)]
        Various.made += 1

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {"forces": self.forces}


@pytest.mark.parametrize(
    "forces",
    [(np.zeros(2, np.uint8), np.zeros(2, np.float32)), (np.zeros(2, np.float32), np.zeros(3, np.float32)), (np.zeros(2), None)],
)
def test_arrays_that_differ_between_workers_are_refused_by_name(forces):
    Various.made = 0
    envs = make_envs(partial(Various, forces), 2, 0, workers=2, info_columns=("forces",))
    worker = make_worker(envs, policy_for(envs).collect_mode)
    with pytest.raises(
        EnvDataError, match=r"the column 'forces' of infos is .* in one worker, and .* in another: return arrays"
    ):
        worker.collect(4, eps=0.5)
    with pytest.raises(EnvDataError, match="the column 'forces' of infos"):
        worker.collect_episodes(2, eps=0.5)
    envs.begin(envs.new_obs())
    envs.advance(np.zeros(2, np.int64), envs.new_obs())
    with pytest.raises(EnvDataError, match="the column 'forces' of infos"):
        envs.step_info()
    envs.close()


class InPlace(gymnasium.Env):
    """Returns the same info object in each step, as SyncVectorEnv allows; the reset changes it too."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.info = {"step": 0, "pair": np.zeros(2, np.float32), "nested": {"step": 0}, "list": [0]}

    def told(self):
        self.info["step"] = self.info["nested"]["step"] = self.info["list"][0] = self.steps
        self.info["pair"][:] = self.steps
        return np.full(1, self.steps, np.float32), self.info

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.told()

    def step(self, action):
        self.steps += 1
        obs, info = self.told()
        return obs, 1.0, self.steps == 3, False, info


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"log_info": ("step",)}])
def test_an_environment_may_change_its_info_in_place(settings):
    envs = make_envs(InPlace, 2, 0, info_columns=("step", "pair"), **settings)
    rollout = make_worker(envs, policy_for(envs).collect_mode).collect(7, eps=0.5)
    batch = rollout.trajectories.batch

    assert (batch.info.step == batch.next_obs[..., 0]).all()
    assert (batch.info.pair == batch.next_obs).all()
    mean = 2.0 if "log_info" in settings else 3
    assert len(rollout.episodes) == 4
    for episode in rollout.episodes:
        info = episode.info
        assert (info["step"], info["pair"].tolist(), info["nested"], info["list"]) == (mean, [3, 3], {"step": 3}, [3])


@pytest.mark.parametrize("settings", [{}, {"workers": 2, "backend": "process"}])
def test_a_column_has_the_values_of_the_steps_also_if_log_info_adds_means_of_the_same_name(settings):
    envs = make_envs(Telling, 2, 0, info_columns=("step",), log_info=("step",), **settings)
    rollout = make_worker(envs, policy_for(envs).collect_mode).collect(7, eps=0.5)
    envs.close()

    assert rollout.trajectories.batch.info.step[:, 0].tolist() == [1, 2, 3, 4, 5, 1, 2]
    assert [episode.info["step"] for episode in rollout.episodes] == [3.0, 3.0]  # the means


def test_whole_episodes_have_columns_of_arrays_that_infos_of_resets_hold_in_another_shape():
    class Other(Telling):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"forces": np.zeros(0), "step": "none yet"}

    lengths = iter([1, 2, 4])
    envs = make_envs(lambda: Other(ends=next(lengths)), 3, 0, info_columns=("forces", "step"))
    rows = LocalWorker(envs, policy_for(envs).collect_mode).collect_episodes(3, eps=0.5).transitions.rows()

    assert rows["info"]["step"].tolist() == [1, 1, 2, 1, 2, 3, 4]
    np.testing.assert_array_equal(rows["info"]["forces"][:, 0], rows["next_obs"][:, 0])


def test_an_integer_that_is_too_large_for_a_float_is_infinite():
    class Large(Telling):
        def step(self, action):
            *results, info = super().step(action)
            return *results, {"step": 10**400 if self.steps == 2 else self.steps}

    envs = make_envs(Large, 2, 0, info_columns=("step",))
    batch = LocalWorker(envs, policy_for(envs).collect_mode).collect(3, eps=0.5).trajectories.batch
    assert batch.info.step[:, 0].tolist() == [1, np.inf, 3]


def test_names_may_come_from_a_generator():
    envs = make_envs(Telling, 2, 0, info_columns=(name for name in ("step", "speed")))
    batch = LocalWorker(envs, policy_for(envs).collect_mode).collect(2, eps=0.5).trajectories.batch
    assert envs.info_columns == ("step", "speed")
    assert batch.info.step[:, 0].tolist() == [1, 2]
