"""Rollouts with action masks: random actions, states without an allowed action, and rows whose action has no effect."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from masked_envs import MaskedEnv

from ding_lite.data import ReplayBuffer
from ding_lite.envs import ActionMaskError, make_agent_envs, make_envs
from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.rollout import AgentWorker, LocalWorker, make_agent_worker, make_worker

SMALL = {"seed": 0, "model.encoder_hidden_size_list": [8]}


def ppo_for(envs):
    cfg = PPOPolicy.config_type().override(SMALL)
    return PPOPolicy(cfg, envs.single_observation_space, envs.single_action_space)


@pytest.mark.parametrize("env_id", ["MaskedInInfo-v0", "MaskedMulti-v0"])
def test_random_actions_are_allowed_and_have_their_log_prob(env_id):
    envs = make_envs(env_id, 3, seed=2, action_mask=True)
    sizes = envs.envs[0].unwrapped.sizes
    batch = LocalWorker(envs, ppo_for(envs).collect_mode).collect(30, random=True).trajectories.batch
    masks = np.split(batch.obs.action_mask.numpy(), np.cumsum(sizes)[:-1], -1)

    np.testing.assert_allclose(batch.log_prob, -sum(np.log(mask.sum(-1)) for mask in masks), atol=1e-6)


def test_a_state_without_an_allowed_action_is_an_error_that_names_its_environment():
    makers = iter([False, False, True])
    envs = make_envs(lambda: MaskedEnv(is_stuck=next(makers)), 3)
    for random in (False, True):
        envs.begin(envs.new_obs(), 1)
        with pytest.raises(ActionMaskError, match=r"environment 2 has an observation whose 'action_mask' allows no action"):
            LocalWorker(envs, ppo_for(envs).collect_mode).collect(20, random=random)


def test_workers_name_the_environment_by_its_index_in_all_pieces():
    makers = iter([False, False, False, True])
    envs = make_envs(lambda: MaskedEnv(is_stuck=next(makers)), 4, workers=2)
    with pytest.raises(ActionMaskError, match="environment 3 has"):
        make_worker(envs, ppo_for(envs).collect_mode).collect(20)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_environments_of_gymnasium_may_allow_nothing_in_a_terminal_state(mode):
    envs = SyncVectorEnv([MaskedEnv] * 3, autoreset_mode=mode)
    rollout = LocalWorker(envs, ppo_for(envs).collect_mode).collect(40)
    batch = rollout.trajectories.batch

    assert batch.terminated.any()
    assert not batch.next_obs.action_mask[batch.terminated].any()
    assert len(rollout.episodes) > 5


def test_a_step_in_one_environment_may_be_a_whole_rollout():
    envs = make_envs(MaskedEnv, 1)
    worker = LocalWorker(envs, ppo_for(envs).collect_mode)
    assert [worker.collect(1).trajectories.batch.action.shape for _ in range(20)] == [(1, 1)] * 20


def test_masks_travel_through_replay():
    envs = make_envs(MaskedEnv, 2, seed=3)
    cfg = DQNPolicy.config_type().override(SMALL)
    policy = DQNPolicy(cfg, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(100, seed=0)
    trajectories = LocalWorker(envs, policy.collect_mode).collect(20, eps=0.5).trajectories
    buffer.push(trajectories)
    batch = buffer.sample(64)
    chosen = np.take_along_axis(batch.obs.action_mask.numpy(), batch.action.numpy()[:, None] - 2, 1)

    assert (chosen == 1).all()
    assert policy.loss(batch)[0].isfinite()


class Leaving:
    """Agent a leaves after two steps, in a state that allows nothing; agent b stays for five."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Dict(x=spaces.Box(-9, 9, (2,)), action_mask=spaces.MultiBinary(3))

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng, self.t, self.agents = np.random.default_rng(seed), 0, ["a", "b"]
        return self.see(self.agents), {agent: {} for agent in self.agents}

    def see(self, agents):
        self.masks = {agent: np.eye(3, dtype=np.int8)[self.rng.integers(3)] for agent in agents}
        if self.t == 2:
            self.masks["a"] = np.zeros(3, np.int8)
        return {agent: {"x": np.zeros(2, np.float32), "action_mask": self.masks[agent]} for agent in agents}

    def step(self, actions):
        assert all(self.masks[agent][action] for agent, action in actions.items())
        self.t += 1
        agents = self.agents
        left = [agent for agent in agents if self.t >= (2 if agent == "a" else 5)]
        obs = self.see(agents)
        self.agents = [agent for agent in agents if agent not in left]
        ends = {agent: agent in left for agent in agents}
        return obs, dict.fromkeys(agents, 1.0), ends, dict.fromkeys(agents, False), {agent: {} for agent in agents}


@pytest.mark.parametrize("make", [AgentWorker, make_agent_worker])
@pytest.mark.parametrize("workers", [1, 2])
def test_agents_that_have_left_need_no_allowed_action(workers, make):
    envs = make_agent_envs(Leaving, 2, seed=0, workers=workers)
    spaces_of = envs.observation_space("a"), envs.action_space("a")
    cfg = PPOPolicy.config_type().override(SMALL)
    worker = make(envs, {"all": PPOPolicy(cfg, *spaces_of).collect_mode}, lambda agent: "all")
    batch = worker.collect(12).trajectories["all"].batch

    assert not batch.valid.all()
    assert not batch.obs.action_mask[~batch.valid].any()


def test_acting_where_an_agent_takes_part_and_has_no_choice_is_an_error():
    class Stuck(Leaving):
        def see(self, agents):
            obs = super().see(agents)
            if self.t == 1:
                obs["b"]["action_mask"] = np.zeros(3, np.int8)
            return obs

    envs = make_agent_envs(Stuck, 2, seed=0, workers=2)
    cfg = PPOPolicy.config_type().override(SMALL)
    policy = PPOPolicy(cfg, envs.observation_space("a"), envs.action_space("a"))
    with pytest.raises(ActionMaskError, match="agent 'b' of environment 0 has"):
        AgentWorker(envs, {"all": policy.collect_mode}, lambda agent: "all").collect(5)


def test_the_taxi_only_moves_where_it_can():
    envs = make_envs("Taxi-v4", 2, seed=0, action_mask=True)
    bare = gymnasium.make("Taxi-v4").unwrapped
    batch = LocalWorker(envs, ppo_for(envs).collect_mode).collect(50).trajectories.batch
    allowed = partial(np.take_along_axis, batch.obs.action_mask.numpy(), axis=-1)

    assert (allowed(batch.action.numpy()[..., None]) == 1).all()
    for state, mask in zip(batch.obs.obs.flatten().tolist(), batch.obs.action_mask.flatten(0, 1)):
        assert mask.tolist() == bare.action_mask(state).tolist()
