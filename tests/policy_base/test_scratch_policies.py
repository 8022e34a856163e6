"""Policies written from scratch, without networks: they act, carry a state, emit what they like, learn, and are acted with."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import tree
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, StepCollector, interaction_evaluator, multistep_trainer, onpolicy_data_fetcher
from ding_lite.policy import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class CustomPolicy(Policy):
    """The document's example, word for word where the field's names allow it."""

    def __init__(self, observation_space, action_space, config):
        Policy.__init__(self, observation_space, action_space, config)
        # example parameter
        self.w = 1.0

    def get_initial_state(self):
        return [0, "foo"]

    def compute_actions(
        self, obs_batch, state_batches, prev_action_batch=None, prev_reward_batch=None, info_batch=None, episodes=None, **kwargs
    ):
        assert len(state_batches) == len(self.get_initial_state())
        new_state_batches = [[t + 1 for t in state_batches[0]], [word + "!" for word in state_batches[1]]]
        action_info_batch = {"some_value": ["foo" for _ in obs_batch], "other_value": [12345 for _ in obs_batch]}
        return [self.action_space.sample() for _ in obs_batch], new_state_batches, action_info_batch

    def learn_on_batch(self, samples):
        for name in ("state_in_0", "state_out_0", "state_in_1", "some_value", "other_value"):
            assert name in samples.keys()  # noqa: SIM118  a tree's `in` asks its leaves
        self.w += float(samples["reward"].sum())
        return {"w": self.w}

    def get_weights(self):
        return {"w": self.w}

    def set_weights(self, weights):
        self.w = weights["w"]


def cartpole(count=2, **options):
    return make_envs("CartPole-v1", count, seed=0, **options)


def custom(envs=None):
    if envs is None:
        return CustomPolicy(BOX, DISCRETE, {})
    return CustomPolicy(envs.single_observation_space, envs.single_action_space, {})


def config(folder, n_sample=20):
    cfg = RunConfig(exp_name=folder, seed=0).override({"env.stop_value": None, "env.n_evaluator_episode": 2})
    cfg.policy.collect.n_sample = n_sample
    cfg.policy.eval.evaluator.eval_freq = 3
    return cfg


@pytest.mark.parametrize("workers", [{}, {"workers": 2, "backend": "process"}])
def test_the_documents_example_runs_in_a_pipeline(tmp_path, workers):
    cfg, envs = config(tmp_path), cartpole(**workers)
    policy, batches = custom(envs), []
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(interaction_evaluator(cfg, policy.eval_mode, cartpole()))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(onpolicy_data_fetcher(cfg))
        loop.use(lambda ctx: batches.append(ctx.train_data))
        loop.use(multistep_trainer(cfg, policy.learn_mode))
        loop.use(CkptSaver(policy, cfg.exp_name, train_freq=2))
        loop.run(max_step=4)
    envs.close()

    assert policy.w == 1.0 + 4 * 20
    assert loop.ctx.train_iter == policy.train_iter == 4
    assert loop.ctx.eval_weights == {"w": 81.0}  # the final weights, once the run has ended
    assert batches[0].some_value.tolist() == [["foo"] * 2] * 10
    assert batches[0].other_value.tolist() == [[12345] * 2] * 10


def test_a_state_counts_the_steps_of_each_episode(tmp_path):
    envs = cartpole(3)
    policy = custom(envs)
    collector = StepCollector(config(tmp_path, 300), policy.collect_mode, envs)
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(collector)
        loop.run(max_step=1)
        first = loop.ctx.trajectories
        loop.run(max_step=1)
    expected = np.zeros(3, np.int64)
    for trajectories in (first, loop.ctx.trajectories):
        columns = trajectories.columns
        for t in range(trajectories.num_steps):
            np.testing.assert_array_equal(columns["state_in_0"][t], expected)
            np.testing.assert_array_equal(columns["state_out_0"][t], expected + 1)
            assert list(columns["state_in_1"][t]) == ["foo" + "!" * count for count in expected]
            expected = np.where(columns["terminated"][t] | columns["truncated"][t], 0, expected + 1)


def test_the_acting_copies_act_with_the_weights_they_are_given_and_do_not_share_them():
    class Table(CustomPolicy):
        def __init__(self, *args):
            super().__init__(*args)
            self.table = {"best": [0]}

        def get_initial_state(self):
            return []

        def compute_actions(self, obs_batch, state_batches, **kwargs):
            return [self.table["best"][0]] * len(obs_batch), [], {}

        def learn_on_batch(self, samples):
            self.table["best"][0] += 1
            return {}

        def get_weights(self):
            return self.table

        def set_weights(self, weights):
            self.table = weights

    policy = Table(BOX, DISCRETE, {})
    obs, batch = np.zeros((2, 4), np.float32), tree({"reward": torch.zeros(1)})
    snapshots = [policy.snapshot()]
    for expected in range(3):
        assert policy.collect_mode.forward(obs)[0].tolist() == [expected] * 2
        policy.learn_mode.forward(batch)
        snapshots.append(policy.snapshot())
    policy.collect_mode.load_snapshot(snapshots[1])

    assert policy.collect_mode.forward(obs)[0].tolist() == [1, 1]
    assert policy.eval_mode.forward(obs)[0].tolist() == [3, 3]
    assert [snapshot.values["best"] for snapshot in snapshots] == [[0], [1], [2], [3]]


def test_the_state_of_a_policy_without_networks_is_its_weights(tmp_path):
    policy, other = custom(), custom()
    policy.w = 7.5
    policy.train_iter = 3
    save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    other.load_state_dict(load_checkpoint(tmp_path / "policy.pt"))

    assert (other.w, other.train_iter) == (7.5, 3)
    other.load_state_dict({"model": {"w": 2.0}})
    assert other.w == 2.0


def test_what_was_done_and_earned_before_is_given_to_who_asks(tmp_path):
    seen = []

    class Watching(CustomPolicy):
        def get_initial_state(self):
            return []

        def compute_actions(self, obs_batch, state_batches, prev_action_batch=None, prev_reward_batch=None, **kwargs):
            seen.append((np.copy(prev_action_batch), np.copy(prev_reward_batch)))
            return [self.action_space.sample() for _ in obs_batch], [], {}

    envs = cartpole()
    policy = Watching(envs.single_observation_space, envs.single_action_space, {})
    collector = StepCollector(config(tmp_path, 80), policy.collect_mode, envs)
    seen.clear()
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(collector)
        loop.run(max_step=1)
    columns = loop.ctx.trajectories.columns
    action, reward = np.zeros(2), np.zeros(2)
    for t, (prev_action, prev_reward) in enumerate(seen):
        np.testing.assert_array_equal(prev_action, action)
        np.testing.assert_array_equal(prev_reward, reward)
        done = columns["terminated"][t] | columns["truncated"][t]
        action = np.where(done, 0, columns["action"][t])
        reward = np.where(done, 0, columns["reward"][t])
    assert len(seen) == 40


def test_the_policy_may_keep_what_it_is_given():
    policy = custom()
    weights = policy.get_weights()
    copied = copy.deepcopy(policy)

    assert copied.get_weights() == weights
    assert policy.collect_mode.get_weights() == {"w": 1.0}
