"""sequence_pusher(): what it refuses, and steps that were only a reset. What it pushes is tested with R2D2."""

import numpy as np
import pytest

from ding_lite import Task
from ding_lite.config import DQNConfig, R2D2Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, Trajectories
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, nstep_reward_enhancer, sequence_pusher
from ding_lite.policy import R2D2Policy


def pushed(*rollouts: Trajectories, burn_in: int = 2, unroll_len: int = 3) -> ReplayBuffer:
    cfg = R2D2Config().override({"policy.learn": {"burn_in": burn_in, "unroll_len": unroll_len}})
    buffer_, ctx = ReplayBuffer(100), OnlineRLContext()
    push = sequence_pusher(cfg, buffer_)
    for rollout in rollouts:
        ctx.trajectories = rollout
        push(ctx)
    return buffer_


def rollout(num_steps: int, first: int = 0, valid: np.ndarray | None = None) -> Trajectories:
    number = np.arange(first, first + num_steps)[:, None]
    no = np.zeros((num_steps, 1), np.bool_)
    return Trajectories({"number": number, "terminated": no, "truncated": no, "state_in_0": number}, valid)


def test_without_burn_in_every_step_is_in_one_sequence():
    batch = pushed(rollout(6), rollout(3, 6), burn_in=0)

    assert sorted(batch.sample(200).number.unique(dim=0).tolist()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_burn_in_longer_than_a_rollout_reaches_over_several():
    buffer_ = pushed(*(rollout(3, first) for first in (0, 3, 6, 9)), burn_in=5)

    assert sorted(buffer_.sample(200).number.unique(dim=0).tolist()) == [[1, 2, 3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8, 9, 10, 11]]
    assert set(buffer_.sample(200).state_in_0.tolist()) == {1, 4}


def test_a_long_first_rollout_is_cut_too_so_that_the_next_ones_sequences_follow_on():
    batch = pushed(rollout(9), rollout(3, 9)).sample(400)

    assert sorted(batch.number.unique(dim=0).tolist()) == [[1, 2, 3, 4, 5], [4, 5, 6, 7, 8], [7, 8, 9, 10, 11]]
    assert set(batch.state_in_0.tolist()) == {1, 4, 7}


@pytest.mark.filterwarnings("ignore:policy.nstep = .* is longer than a rollout")
def test_rewards_that_were_summed_up_already_are_refused():
    no = np.zeros((3, 1), np.bool_)
    done = Trajectories(
        {"reward": np.ones((3, 1), np.float32), "terminated": no, "truncated": no, "next_obs": np.zeros((3, 1))}
    )
    ctx = OnlineRLContext(trajectories=done)
    nstep_reward_enhancer(R2D2Config())(ctx)
    with pytest.raises(
        ValueError, match=r"found a column 'discount': .* itself sums policy.nstep .* Leave nstep_reward_enhancer out"
    ):
        pushed(ctx.trajectories)


def test_resets_are_marked_also_where_only_some_rollouts_have_any():
    valid = np.array([[True], [False], [True]])
    buffer_ = pushed(rollout(3), rollout(3, 3, valid), burn_in=0)

    assert sorted(buffer_.sample(200).valid.unique(dim=0).tolist()) == [[True, False, True], [True, True, True]]


def test_a_rollout_that_is_not_of_whole_sequences_is_refused():
    with pytest.raises(ValueError, match="4 steps cannot be cut into sequences of 3"):
        pushed(rollout(4), burn_in=0)


def test_no_rollout_is_refused_with_what_brings_one():
    with pytest.raises(RuntimeError, match="put a StepCollector before it"):
        pushed(None)


def test_what_cannot_be_pushed_to_and_a_configuration_without_sequences_are_refused():
    with pytest.raises(TypeError, match="sequence_pusher wants a ReplayBuffer"):
        sequence_pusher(R2D2Config(), [])
    with pytest.raises(TypeError, match="such as R2D2Config"):
        sequence_pusher(DQNConfig(), ReplayBuffer(10))


def test_sequences_without_a_step_to_learn_from_are_left_out():
    valid = np.ones((9, 1), np.bool_)
    valid[2:8] = False  # the second sequence has valid steps in its burn-in alone
    buffer_ = pushed(rollout(9, valid=valid), burn_in=0)
    assert sorted(buffer_.sample(200).number.unique(dim=0).tolist()) == [[0, 1, 2], [6, 7, 8]]

    valid = np.array([[True], [True], [False], [False], [False]])
    buffer_ = pushed(rollout(5, valid=valid), rollout(3, 5))
    assert buffer_.sample(200).number.unique(dim=0).tolist() == [[3, 4, 5, 6, 7]]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_reset_between_two_runs_ends_the_episode_in_its_sequence(is_reset):
    cfg = R2D2Config().override({"policy.learn": {"burn_in": 2, "unroll_len": 4}, "policy.collect.n_sample": 4})
    envs = make_envs("MountainCar-v0", 1, seed=0)
    policy = R2D2Policy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_, seen, task = ReplayBuffer(10), [], Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0}))
        task.use(lambda ctx: seen.append(ctx.trajectories.begins.copy()))
        task.use(sequence_pusher(cfg, buffer_))
        task.run(max_step=2)
        if is_reset:
            envs.reset(seed=5)
        task.run(max_step=1)
    envs.close()
    stored = buffer_.state_dict()["columns"]
    ends = (stored["terminated"] | stored["truncated"])[-1, :3].tolist()

    assert seen[-1].tolist() == [is_reset]
    assert ends == [False, is_reset, False]


def test_resets_do_not_count_in_the_initial_priority():
    cfg = R2D2Config().override({"policy.learn": {"burn_in": 1, "unroll_len": 4, "priority_eta": 0.0}})
    buffer_, ctx = PrioritizedReplayBuffer(10, alpha=1.0, eps=1e-6), OnlineRLContext()
    valid = np.array([True, True, True, False, True])[:, None]
    priority = np.array([9.0, 3.0, 1.0, 0.0, 2.0], np.float32)[:, None]
    ctx.trajectories = rollout(5, valid=valid).with_columns(priority=priority)
    sequence_pusher(cfg, buffer_)(ctx)

    assert buffer_.state_dict()["scaled"].tolist() == pytest.approx([2.0 + 1e-6])
