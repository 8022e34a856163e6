"""sqil_data_pusher(): which rewards it stores, that the collected data stays as it was, and what it refuses."""

import numpy as np
import pytest

from ding_lite import Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, Episodes, PrioritizedReplayBuffer, ReplayBuffer, Trajectories
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    nstep_reward_enhancer,
    sqil_data_pusher,
)
from ding_lite.policy import DQNPolicy


def rollout(t=3, b=2, valid=None, dtype=np.float32):
    no = np.zeros((t, b), np.bool_)
    obs = np.arange(t * b, dtype=np.float32).reshape(t, b, 1)
    reward = np.full((t, b), np.nan, dtype)
    columns = {"obs": {"x": obs}, "next_obs": {"x": obs + b}, "action": no.astype(np.int64), "reward": reward}
    return Trajectories({**columns, "terminated": no, "truncated": no}, valid)


def pushed(ctx, expert=False, buffer_=None):
    buffer_ = buffer_ or ReplayBuffer(50)
    sqil_data_pusher(None, buffer_, expert)(ctx)
    return buffer_.state_dict()["columns"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize(("expert", "reward"), [(True, 1.0), (False, 0.0)])
def test_each_stored_transition_has_the_reward_of_the_one_who_acted(expert, reward, t, dtype):
    ctx = OnlineRLContext(trajectories=rollout(t, dtype=dtype))
    rows = pushed(ctx, expert)

    assert rows["reward"].tolist() == [reward] * (t * 2)  # even of a reward that is NaN
    assert sorted(rows["obs"]["x"][:, 0].tolist()) == list(range(t * 2))


def test_later_middleware_find_the_rewards_of_the_environment():
    before = rollout()
    before.columns["reward"][:] = [[1, 2], [3, 4], [5, 6]]
    ctx = OnlineRLContext(trajectories=before)
    pushed(ctx)
    pushed(ctx, expert=True)

    assert ctx.trajectories is before
    assert before.columns["reward"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_rows_that_are_no_steps_are_not_stored():
    valid = np.array([[True, True], [False, True], [True, False]])
    rows = pushed(OnlineRLContext(trajectories=rollout(valid=valid)), expert=True)

    assert sorted(rows["obs"]["x"][:, 0].tolist()) == [0, 1, 3, 4]
    assert rows["reward"].tolist() == [1.0] * 4


def test_whole_episodes_and_lists_of_transitions():
    rows = rollout(5, 1).rows()
    rows["terminated"] = np.array([False, True, False, False, True])
    episodes = Episodes(rows, [2, 3])

    assert pushed(OnlineRLContext(episodes=episodes), expert=True)["reward"].tolist() == [1.0] * 5
    assert np.isnan(episodes.rows()["reward"]).all()
    some = list(rollout())[:4]
    assert pushed(OnlineRLContext(trajectories=some), expert=True)["reward"].tolist() == [1.0] * 4
    assert all(np.isnan(float(one.reward)) for one in some)
    nothing = ReplayBuffer(5)
    sqil_data_pusher(None, nothing)(OnlineRLContext(episodes=[]))
    assert len(nothing) == 0


def test_a_buffer_of_episodes_keeps_the_episodes():
    rows = rollout(5, 1).rows()
    rows["terminated"] = np.array([False, True, False, False, True])
    of_episodes, of_rollout = EpisodeReplayBuffer(20), EpisodeReplayBuffer(20)

    assert pushed(OnlineRLContext(episodes=Episodes(rows, [2, 3])), True, of_episodes)["reward"].tolist() == [1.0] * 5
    assert pushed(OnlineRLContext(trajectories=rollout()), False, of_rollout)["reward"].tolist() == [0.0] * 6


@pytest.mark.filterwarnings("ignore:policy.nstep = .* is longer than a rollout")
def test_sums_of_rewards_are_refused():
    ctx = OnlineRLContext(trajectories=rollout())
    nstep_reward_enhancer(DQNConfig().override({"policy.nstep": 2}))(ctx)
    with pytest.raises(RuntimeError, match="sqil_data_pusher found the column 'discount'.*and set policy.nstep = 1"):
        pushed(ctx)


def test_what_is_no_buffer_and_no_answer_is_refused():
    with pytest.raises(TypeError, match="sqil_data_pusher"):
        sqil_data_pusher(None, [])
    with pytest.raises(TypeError, match=r"sqil_data_pusher\(expert=0.5\) wants True or False"):
        sqil_data_pusher(None, ReplayBuffer(5), 0.5)
    with pytest.raises(RuntimeError, match="sqil_data_pusher found neither ctx.trajectories nor ctx.episodes"):
        sqil_data_pusher(None, ReplayBuffer(5))(OnlineRLContext())


def run(async_mode):
    """A run in which an expert acts too; the buffers and the policy that learned from both."""
    small = {"policy.learn.batch_size": 8, "policy.learn.learning_starts": 8, "policy.learn.update_per_collect": 2}
    cfg = DQNConfig(seed=3).override({**small, "policy.model.encoder_hidden_size_list": [8], "policy.collect.n_sample": 8})
    envs, expert_envs = make_envs("CartPole-v1", 2, seed=0), make_envs("CartPole-v1", 2, seed=1)
    policy, expert = (DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space) for _ in range(2))
    buffer_, expert_buffer = ReplayBuffer(200, seed=0), ReplayBuffer(200, seed=1)
    task = Task()
    with task.start(async_mode=async_mode, max_lag=1, ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, expert.collect_mode, expert_envs, collect_kwargs={"eps": 0.0}))
        task.use(sqil_data_pusher(cfg, expert_buffer, expert=True))
        task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
        task.use(sqil_data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, [(expert_buffer, 0.5), (buffer_, 0.5)]))
        task.run(max_step=4)
    return [thing.state_dict() for thing in (policy, buffer_, expert_buffer)]


def test_an_expert_that_acts_in_the_same_pipeline_has_a_buffer_of_its_own(digest):
    _, buffer_, expert_buffer = states = run(async_mode=False)

    assert set(buffer_["columns"]["reward"].tolist()) == {0.0}
    assert set(expert_buffer["columns"]["reward"].tolist()) == {1.0}
    assert digest(run(async_mode=True)) == digest(states)


@pytest.mark.few
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, EpisodeReplayBuffer])
def test_an_expert_without_the_rewards_of_sqil_is_named_before_the_run(kind, recwarn):
    cfg = DQNConfig().override({"policy.learn.learning_starts": 4, "policy.learn.batch_size": 4, "policy.collect.n_sample": 4})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    rng = np.random.default_rng(0)
    obs, ends = rng.normal(size=(21, 4)).astype(np.float32), np.arange(20) == 19
    rows = {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": rng.integers(2, size=20),
        "terminated": ends,
        "truncated": ends & False,
    }

    def run(*rewards):
        buffer_, expert_buffer, task = ReplayBuffer(50), kind(50), Task()
        reward = np.ones(20, np.float32)
        reward[: len(rewards)] = rewards
        pushed = {**rows, "reward": reward}
        expert_buffer.push(Episodes(pushed, [20]) if kind is EpisodeReplayBuffer else pushed)
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            task.use(sqil_data_pusher(cfg, buffer_))
            task.use(OffPolicyLearner(cfg, policy.learn_mode, [(expert_buffer, 0.5), (buffer_, 0.5)]))
            task.run(1)

    words = rf"none of the 20 rewards in the {kind.__name__} .* is above 0, so .* Fill it with expert_buffer\.push.*np\.ones"
    for reward in (0.0, -1.0):  # such as those of MountainCar-v0
        with pytest.warns(UserWarning, match=words):
            run(*20 * [reward])
    recwarn.clear()
    run(0.0, 3.0)  # such as the expert's rewards on another scale
    run()
    assert not recwarn.list


def test_earlier_transitions_of_the_policy_may_have_the_reward_0():
    cfg = DQNConfig().override({"policy.learn.learning_starts": 4, "policy.learn.batch_size": 4, "policy.collect.n_sample": 4})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, expert_buffer, earlier, task = ReplayBuffer(50), ReplayBuffer(50), ReplayBuffer(50), Task()
    obs, ends = np.zeros((21, 4), np.float32), np.arange(20) == 19
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.zeros(20, int), "terminated": ends, "truncated": ends & False}
    earlier.push({**rows, "reward": np.zeros(20, np.float32)})
    expert_buffer.push({**rows, "reward": np.ones(20, np.float32)})
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
        task.use(sqil_data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, [(expert_buffer, 0.5), (buffer_, 0.25), (earlier, 0.25)]))
        task.run(1)
