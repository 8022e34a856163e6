"""Rollouts with action masks: random actions, states without an allowed action, and rows whose action has no effect."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from masked_envs import MaskedEnv

from ding_lite.data import ReplayBuffer
from ding_lite.envs import ActionMaskError, make_envs, make_multi_agent_envs
from ding_lite.policy import C51Policy, DQNPolicy, IQNPolicy, PPOPolicy, QRDQNPolicy, R2D2Policy, RainbowPolicy
from ding_lite.rollout import LocalWorker, MultiAgentWorker, make_multi_agent_worker, make_worker

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


@pytest.mark.parametrize("make", [MultiAgentWorker, make_multi_agent_worker])
@pytest.mark.parametrize("workers", [1, 2])
def test_agents_that_have_left_need_no_allowed_action(workers, make):
    envs = make_multi_agent_envs(Leaving, 2, seed=0, workers=workers)
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

    envs = make_multi_agent_envs(Stuck, 2, seed=0, workers=2)
    cfg = PPOPolicy.config_type().override(SMALL)
    policy = PPOPolicy(cfg, envs.observation_space("a"), envs.action_space("a"))
    with pytest.raises(ActionMaskError, match="agent 'b' of environment 0 has"):
        MultiAgentWorker(envs, {"all": policy.collect_mode}, lambda agent: "all").collect(5)


def test_the_taxi_only_moves_where_it_can():
    envs = make_envs("Taxi-v4", 2, seed=0, action_mask=True)
    bare = gymnasium.make("Taxi-v4").unwrapped
    batch = LocalWorker(envs, ppo_for(envs).collect_mode).collect(50).trajectories.batch
    allowed = partial(np.take_along_axis, batch.obs.action_mask.numpy(), axis=-1)

    assert (allowed(batch.action.numpy()[..., None]) == 1).all()
    for state, mask in zip(batch.obs.obs.flatten().tolist(), batch.obs.action_mask.flatten(0, 1)):
        assert mask.tolist() == bare.action_mask(state).tolist()


class Cut(MaskedEnv):
    """Every episode is truncated in step 3; with `is_blank`, with a mask that allows nothing."""

    def __init__(self, is_blank=True):
        super().__init__()
        self.is_blank = is_blank

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        if self.t == 4 and self.is_blank:
            obs = {**obs, "action_mask": np.zeros_like(obs["action_mask"])}
        return obs, reward, False, self.t == 4, info

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = 99
        return found


def dqn_for(envs, kind=DQNPolicy):
    return kind(kind.config_type().override(SMALL), envs.single_observation_space, envs.single_action_space)


CUT = (
    r"environment 1 in step 3 of its episode 0.* was truncated with a final observation whose 'action_mask' allows no action\. "
    r"DQNPolicy learns from the value of the best allowed action.*or set terminated instead of truncated"
)


@pytest.mark.parametrize("collect", ["collect", "collect_episodes"])
def test_a_truncated_state_without_an_allowed_action_is_an_error_for_targets_that_need_one(collect):
    makers = iter([False, True])
    envs = make_envs(lambda: Cut(next(makers)), 2)
    with pytest.raises(ActionMaskError, match=CUT):
        getattr(LocalWorker(envs, dqn_for(envs).collect_mode), collect)(12, eps=0.5)
    envs.begin(envs.new_obs(), 1)
    with pytest.raises(ActionMaskError, match=CUT):
        LocalWorker(envs, dqn_for(envs).collect_mode).collect(12, random=True)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_same_holds_in_environments_of_gymnasium(mode):
    makers = iter([False, True])
    envs = SyncVectorEnv([lambda: Cut(next(makers))] * 2, autoreset_mode=mode)
    with pytest.raises(ActionMaskError, match=CUT):
        LocalWorker(envs, dqn_for(envs).collect_mode).collect(12, eps=0.5)


def test_a_critic_of_states_needs_no_mask_of_a_truncated_state():
    envs = make_envs(Cut, 2)
    policy = ppo_for(envs)
    batch = policy.with_values(LocalWorker(envs, policy.collect_mode).collect(12).trajectories.batch)
    assert batch.truncated.any()
    assert batch.next_value.isfinite().all()
    LocalWorker(envs, dqn_for(envs).eval_mode).play_episodes(2)  # nothing is learned from an evaluation


@pytest.mark.parametrize("kind", [DQNPolicy, C51Policy, RainbowPolicy, QRDQNPolicy, IQNPolicy, R2D2Policy])
def test_all_policies_with_such_targets_ask_for_a_mask(kind):
    envs = make_envs(Cut, 2)
    policy = dqn_for(envs, kind)
    assert policy.collect_mode.bootstraps_from_actions
    assert not PPOPolicy.bootstraps_from_actions
    settings = {} if kind is RainbowPolicy else {"eps": 0.5}
    with pytest.raises(ActionMaskError, match="was truncated"):
        LocalWorker(envs, policy.collect_mode).collect(5, **settings)


@pytest.mark.parametrize("kind", [DQNPolicy, C51Policy, RainbowPolicy, QRDQNPolicy, IQNPolicy])
def test_a_target_from_other_data_without_an_allowed_action_is_finite(kind):
    envs = make_envs(partial(Cut, is_blank=False), 2)
    policy = dqn_for(envs, kind)
    settings = {} if kind is RainbowPolicy else {"eps": 0.5}
    batch = LocalWorker(envs, policy.collect_mode).collect(8, **settings).trajectories.rows()
    batch["next_obs"]["action_mask"][:] = 0
    buffer = ReplayBuffer(100, seed=0)
    buffer.push(batch)
    assert policy.loss(buffer.sample(32))[0].isfinite()


def test_an_agent_that_is_truncated_without_an_allowed_action_is_named_with_its_step():
    class Two:
        """The second agent leaves in step 1."""

        possible_agents = ("first", "second")

        def observation_space(self, agent):
            return spaces.Dict({"obs": spaces.Box(0, 9, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})

        def action_space(self, agent):
            return spaces.Discrete(2)

        def see(self):
            masks = {agent: np.full(2, agent in self.agents, np.int8) for agent in self.possible_agents}
            return {agent: {"obs": np.zeros(1, np.float32), "action_mask": mask} for agent, mask in masks.items()}

        def reset(self, seed=None, options=None):
            self.t, self.agents = 0, list(self.possible_agents)
            return self.see(), {}

        def step(self, actions):
            self.t += 1
            ended = {agent: self.t == (2 if agent == "second" else 5) for agent in actions}
            self.agents = [agent for agent in self.agents if not ended[agent]]
            return self.see(), dict.fromkeys(actions, 0.0), dict.fromkeys(actions, False), ended, {}

    env = make_multi_agent_envs(Two, 2)
    policy = DQNPolicy(DQNPolicy.config_type().override(SMALL), env.observation_space("first"), env.action_space("first"))
    worker = MultiAgentWorker(env, {"all": policy.collect_mode}, lambda agent: "all")
    with pytest.raises(ActionMaskError, match="agent 'second' of environment 0 in step 1 of its episode 0 was truncated"):
        worker.collect(4, eps=0.5)
