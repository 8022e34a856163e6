"""Hindsight experience replay in pipelines: goals of the same episode only, and the same run wherever its parts run."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from states import same

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig, HERConfig, HindsightConfig, RainbowConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, GoalRewards, PrioritizedReplayBuffer, ReplayBuffer, nested
from ding_lite.engine import contract, contract_of
from ding_lite.envs import goal_rewards, make_envs
from ding_lite.envs.bit_flip import BIT_FLIP
from ding_lite.middleware import (
    EpisodeCollector,
    HERLearner,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    her_data_enhancer,
    nstep_reward_enhancer,
    trainer,
)
from ding_lite.policy import DQNPolicy, RainbowPolicy

SMALL = {
    "policy.collect": {"n_sample": 48, "n_episode": 6},
    "policy.model.encoder_hidden_size_list": [8],
    "policy.learn": {"learning_starts": 2, "update_per_collect": 3, "batch_size": 32},
    "policy.other.replay_buffer_size": 300,
}
BITS = {"n_bits": 5}


class Diary(gymnasium.Env):
    """Its achieved goal says which episode and step it is; the desired one is step 50 of the same episode."""

    goal = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    observation_space = spaces.Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.at = int(self.np_random.integers(1 << 22)), 0
        return self.obs(), {}

    def obs(self):
        achieved, desired = (np.array([self.episode, step], np.float32) for step in (self.at, 50))
        return {"observation": achieved, "achieved_goal": achieved, "desired_goal": desired}

    def step(self, action):
        self.at += 1
        ends = self.np_random.random(2) < 0.1
        reward = self.compute_reward(self.obs()["achieved_goal"], self.obs()["desired_goal"], {})
        return self.obs(), float(reward), bool(ends[0]), bool(ends[1]), {}

    def compute_reward(self, achieved, desired, info):
        """A number above 99 for goals of different episodes."""
        return achieved[..., 1] - desired[..., 1] + 100 * (achieved[..., 0] != desired[..., 0])


class Run:
    """A pipeline with hindsight, its batches, and the state that it ends with."""

    def __init__(self, env=BIT_FLIP, workers=1, backend="local", episodes=False, middleware="learner", **changes):
        self.cfg = cfg = HERConfig(seed=3).override({**SMALL, **changes})
        self.envs = make_envs(env, 4, seed=3, env_config=BITS if env == BIT_FLIP else None, workers=workers, backend=backend)
        self.policy = DQNPolicy(cfg.policy, self.envs.single_observation_space, self.envs.single_action_space)
        self.buffer = EpisodeReplayBuffer(cfg.policy.other.replay_buffer_size, seed=4)
        self.collect = (EpisodeCollector if episodes else StepCollector)(cfg, self.policy.collect_mode, self.envs)
        rewards = goal_rewards(self.envs)
        if middleware == "learner":
            self.learn = [HERLearner(cfg, self.policy.learn_mode, self.buffer, rewards, prefetch=True)]
        else:
            self.learn = [her_data_enhancer(cfg, self.buffer, rewards), trainer(cfg, self.policy.learn_mode)]
        self.task, self.batches = Task(), []

    def go(self, iterations=5, state=None, at_end=None, **mode):
        @contract(reads=("train_data",), stage="learn")
        def note(ctx):
            if ctx.train_data is not None:
                self.batches.append(nested(ctx.train_data))

        with self.task.start(ctx=OnlineRLContext(), **mode):
            self.task.use(eps_greedy_handler(self.cfg))
            self.task.use(self.collect)
            self.task.use(data_pusher(self.cfg, self.buffer))
            for one in self.learn:
                self.task.use(one)
            self.task.use(note)
            if state is not None:
                self.task.load_state_dict(state)
            self.task.run(max_step=iterations, final=at_end is None)
            if at_end is not None:
                at_end.append(self.task.state_dict())
        return self

    def result(self):
        return self.policy.state_dict()["model"], self.buffer.state_dict(), self.batches


@pytest.mark.few
@pytest.mark.parametrize(
    ("strategy", "episodes", "n_sample"),
    [
        *(("future", False, 4), ("future", True, 48), ("final", False, 48)),
        *(("final", True, 4), ("episode", False, 4), ("episode", True, 48)),
    ],
)
def test_no_goal_is_of_another_episode(strategy, episodes, n_sample):
    changes = {"policy.collect.n_sample": n_sample, "her.strategy": strategy, "policy.other.replay_buffer_size": 60}
    run = Run(Diary, episodes=episodes, **changes).go(iterations=20 if n_sample == 4 else 6)
    later = 0
    for batch in run.batches:
        obs, after = batch["obs"], batch["next_obs"]
        (episode, step), goal = obs["achieved_goal"].numpy().T, obs["desired_goal"].numpy()
        np.testing.assert_array_equal(goal[:, 0], episode)
        np.testing.assert_array_equal(after["desired_goal"], goal)
        np.testing.assert_array_equal(after["achieved_goal"][:, 1], step + 1)
        np.testing.assert_array_equal(batch["reward"], step + 1 - goal[:, 1])
        assert (goal[:, 1] > step).all() or strategy == "episode"
        later += (goal[:, 1] > step + 1).sum() - (goal[:, 1] == 50).sum()
    assert len(run.batches) > 4
    assert later > 0


@pytest.mark.parametrize("max_lag", [1, 2])
def test_an_asynchronous_run_equals_the_one_on_one_thread(max_lag):
    oracle, found = (Run().go(async_mode=mode, max_lag=max_lag) for mode in (False, True))

    assert oracle.task.ctx.train_iter > 0
    assert same(found.result(), oracle.result())


def test_worker_processes_give_the_run_of_local_ones():
    local, split = (Run(workers=2, backend=backend).go() for backend in ("local", "process"))

    assert same(split.result(), local.result())


@pytest.mark.parametrize("mode", [{}, {"async_mode": True, "max_lag": 1}])
def test_a_resumed_run_equals_the_unbroken_one(mode):
    whole, saved = Run().go(6, **mode), []
    Run().go(3, at_end=saved, **mode)
    resumed = Run().go(6, state=saved[0], **mode)

    assert len(resumed.batches) < len(whole.batches)
    assert same(resumed.result()[:2], whole.result()[:2])
    assert same(resumed.batches, whole.batches[-len(resumed.batches) :])


def test_the_enhancer_and_a_trainer_learn_like_the_learner():
    changes = {"policy.learn.update_per_collect": 1}
    learner, enhancer = (Run(middleware=it, **changes).go() for it in ("learner", "enhancer"))

    assert learner.task.ctx.train_iter == enhancer.task.ctx.train_iter > 0
    assert same(enhancer.result()[:2], learner.result()[:2])


def test_a_ratio_of_zero_learns_from_what_was_collected():
    """All columns are those of the buffer."""
    run = Run(**{"her.ratio": 0.0}).go()
    for batch in run.batches:
        reached = (batch["next_obs"]["achieved_goal"] == batch["next_obs"]["desired_goal"]).all(-1)
        np.testing.assert_array_equal(batch["terminated"], reached)
        np.testing.assert_array_equal(batch["reward"], reached.float() - 1)


def test_reached_goals_end_the_task():
    run = Run(**{"her.ratio": 1.0}).go()
    ends = 0
    for batch in run.batches:
        reached = (batch["next_obs"]["achieved_goal"] == batch["obs"]["desired_goal"]).all(-1)
        np.testing.assert_array_equal(batch["terminated"], reached)
        ends += int(reached.sum())
    assert ends > 10


@dataclasses.dataclass
class RainbowHERConfig(RainbowConfig):
    """Rainbow, of which three steps are the default."""

    her: HindsightConfig = dataclasses.field(default_factory=HindsightConfig)


def arguments():
    cfg = HERConfig().override(SMALL)
    envs = make_envs(BIT_FLIP, 1, env_config=BITS)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    return cfg, policy, EpisodeReplayBuffer(300), envs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cfg, buffer, rewards: (cfg, ReplayBuffer(300), rewards), "wants an EpisodeReplayBuffer.*got a ReplayBuffer"),
        (lambda cfg, buffer, rewards: (cfg, PrioritizedReplayBuffer(300), rewards), "Prioritised replay is not possible"),
        (lambda cfg, buffer, rewards: (cfg, [(buffer, 1.0)], rewards), "wants an EpisodeReplayBuffer"),
        (lambda cfg, buffer, rewards: (cfg, buffer, arguments()[3]), r"pass goal_rewards\(env\)"),
        (lambda cfg, buffer, rewards: (cfg, buffer, None), r"use goal_rewards\(env\)"),
        (lambda cfg, buffer, rewards: (DQNConfig().override(SMALL), buffer, rewards), "such as HERConfig.*no 'her.strategy'"),
        (lambda cfg, buffer, rewards: (cfg.override({"policy.nstep": 3}), buffer, rewards), r"policy.nstep = 3: set"),
    ],
)
@pytest.mark.parametrize("name", ["HERLearner", "her_data_enhancer"])
def test_what_does_not_fit_is_refused_before_the_run(name, change, words):
    cfg, policy, buffer, envs = arguments()
    cfg, buffer, rewards = change(cfg, buffer, goal_rewards(envs))
    with pytest.raises((TypeError, ValueError), match=f"{name} .*{words}"):
        HERLearner(cfg, policy.learn_mode, buffer, rewards) if name == "HERLearner" else her_data_enhancer(cfg, buffer, rewards)


def test_the_steps_of_rainbow_have_to_be_single():
    cfg = RainbowHERConfig().override(SMALL)
    envs = make_envs(BIT_FLIP, 1, env_config=BITS)
    policy = RainbowPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ValueError, match="nstep = 3"):
        HERLearner(cfg, policy.learn_mode, EpisodeReplayBuffer(300), goal_rewards(envs))


def test_sums_of_several_steps_are_refused():
    run = Run()
    run.collect = _both(run.collect, nstep_reward_enhancer(run.cfg.override({"policy.nstep": 2})))
    with pytest.raises(ValueError, match="column 'discount'"):
        run.go()


def _both(collect, enhance):
    def both(ctx):
        collect(ctx)
        enhance(ctx)

    return both


def test_environments_without_goals_are_refused_in_the_first_batch():
    cfg = HERConfig().override({**SMALL, "env.id": "CartPole-v1", "env.env_config": {}})
    envs = make_envs("CartPole-v1", 2)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer, task = EpisodeReplayBuffer(300), Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(HERLearner(cfg, policy.learn_mode, buffer, lambda achieved, desired, info: achieved[:, 0]))
        with pytest.raises(ValueError, match="the replayed obs has no parts"):
            task.run(max_step=2)


def test_the_contracts_are_those_of_plain_replay():
    cfg, policy, buffer, envs = arguments()
    rewards = goal_rewards(envs)
    learner, plain = HERLearner(cfg, policy.learn_mode, buffer, rewards), OffPolicyLearner(cfg, policy.learn_mode, buffer)

    for name in ("reads", "writes", "may_read", "may_write", "draws", "stage"):
        assert getattr(contract_of(learner), name) == getattr(contract_of(plain), name)
    assert contract_of(her_data_enhancer(cfg, buffer, rewards)).draws == (buffer,)


def test_a_learner_without_a_pusher_is_refused():
    cfg, policy, buffer, envs = arguments()
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(HERLearner(cfg, policy.learn_mode, buffer, GoalRewards(len)))
        with pytest.raises(PipelineError, match="data_pusher"):
            task.run(max_step=1)
