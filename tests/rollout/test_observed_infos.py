"""info_batch and episodes in compute_actions: those of the current observations, everywhere and after a resume."""

import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.policy import Policy, Postprocessing, PPOPolicy, SampleBatch, build_policy, compute_advantages
from ding_lite.policy_check import HookError
from ding_lite.rollout import LocalWorker, MultiAgentWorker, SplitMultiAgentWorker, make_multi_agent_worker, make_worker

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


class Counting(gymnasium.Env):
    """Its observation is hidden in its info."""

    observation_space, action_space = spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.start = 0, int(self.np_random.integers(50))
        return self._observe(), {"place": self.start}

    def step(self, action):
        self.steps += 1
        return self._observe(), 2.0, self.steps == 4, False, {"place": self.start + self.steps}

    def _observe(self):
        return np.array([self.start + self.steps], np.float32)


class Telling(Policy):
    """Acts by its infos, and returns what it knows of the episodes."""

    def compute_actions(self, obs, state=None, *, info_batch=None, episodes=None, **kwargs):
        action = [int(info["place"]) for info in info_batch]
        rows = [[episode.env, episode.number, episode.length, episode.total_reward] for episode in episodes]
        return action, state, {"rows": np.array(rows)}


def policy_for(envs):
    return Telling(None, envs.single_observation_space, envs.single_action_space)


def require_right(batch):
    assert (batch.action == batch.obs[..., 0]).all()
    for env in range(batch.rows.shape[1]):
        expected, number, length = [], 0, 0
        for ends in (batch.terminated | batch.truncated)[:, env].tolist():
            expected.append([env, number, length, 2.0 * length])
            number, length = (number + 1, 0) if ends else (number, length + 1)
        assert batch.rows[:, env].tolist() == expected


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "backend": "process"}])
def test_they_are_those_of_the_current_observations(options):
    envs = make_envs(Counting, 3, 0, **options)
    worker = make_worker(envs, policy_for(envs).collect_mode)
    batch = worker.collect(11).trajectories.batch
    envs.close()

    require_right(batch)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_vector_environments_of_other_libraries_have_them_too(mode):
    envs = SyncVectorEnv([Counting] * 3, autoreset_mode=mode)
    require_right(LocalWorker(envs, policy_for(envs).collect_mode).collect(11).trajectories.batch)


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_a_restored_environment_has_its_infos(steps, options):
    envs, restored = (make_envs(Counting, 2, seed, **options) for seed in (0, 9))
    make_worker(envs, policy_for(envs).collect_mode).collect(steps)
    restored.load_state_dict(envs.state_dict())
    found = make_worker(restored, policy_for(restored).collect_mode).collect(3).trajectories.batch
    expected = make_worker(envs, policy_for(envs).collect_mode).collect(3).trajectories.batch

    assert options or restored.infos == envs.infos
    for name in ("action", "rows"):
        assert found[name].tolist() == expected[name].tolist()


class Pair:
    """Two agents for three steps."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Box(0, 99, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(100)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = self.possible_agents, 0
        return self._told()

    def step(self, actions):
        self.steps += 1
        obs, infos = self._told()
        ends = self.steps == 3
        self.agents = () if ends else self.agents
        return obs, dict.fromkeys("ab", 1.0), dict.fromkeys("ab", ends), dict.fromkeys("ab", False), infos

    def _told(self):
        places = {"a": self.steps, "b": 50 + self.steps}
        obs = {agent: np.array([place], np.float32) for agent, place in places.items()}
        return obs, {agent: {"place": place} for agent, place in places.items()}


@pytest.mark.parametrize("make", [MultiAgentWorker, make_multi_agent_worker])
@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_each_agent_has_its_own(options, make):
    envs = make_multi_agent_envs(Pair, 2, **options)
    policy = Telling(None, envs.observation_space("a"), envs.action_space("a"))
    worker = make(envs, {"p": policy.collect_mode}, {"a": "p", "b": "p"})
    batch = worker.collect(7).trajectories["p"].batch

    assert (batch.action == batch.obs[..., 0]).all()
    assert batch.rows[:, 3].tolist() == [[1, t // 3, t % 3, 2.0 * (t % 3)] for t in range(7)]
    if isinstance(worker, SplitMultiAgentWorker):
        return
    assert [episode.agent_id for episode in envs.slots_of["p"].running_episodes] == ["a", "b", "a", "b"]
    assert envs.slots_of["p"].running_episodes[2].episode_id == (1, 2)


def loss_fn(policy, model, dist_class, train_batch):
    logit, _ = model.from_batch(train_batch)
    logp = dist_class(logit, model).logp(train_batch[SampleBatch.ACTIONS])
    return -(logp * train_batch[Postprocessing.ADVANTAGES]).mean()


def test_the_functions_of_the_source_document_run_with_the_names_of_columns():
    def postprocess_advantages(policy, sample_batch, other_agent_batches=None, episode=None):
        return compute_advantages(sample_batch, 0.0, policy.config["gamma"], use_gae=False)

    envs = make_envs("CartPole-v1", 2, 0)
    kind = build_policy("Named", loss_fn=loss_fn, postprocess_fn=postprocess_advantages)
    policy = kind(None, envs.single_observation_space, envs.single_action_space)
    batch = LocalWorker(envs, policy.collect_mode).collect(5).trajectories.batch
    policy.learn_mode.forward(batch)

    names = [getattr(SampleBatch, name) for name in ("OBS", "NEXT_OBS", "ACTIONS", "REWARDS", "TERMINATEDS", "TRUNCATEDS")]
    assert set(names) <= set(batch.keys())
    assert SampleBatch.ACTION_LOGP in LocalWorker(
        envs, PPOPolicy(None, envs.single_observation_space, envs.single_action_space).collect_mode
    ).act(envs.current)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda others, episode: others.values(), "uses 'other_agent_batches', which does not exist here.*ctx.parts"),
        (lambda others, episode: others["agent"], "'other_agent_batches'"),
        (lambda others, episode: list(others), "'other_agent_batches'"),
        (lambda others, episode: episode.total_reward, "uses 'episode', which does not exist here.*batch.terminated"),
        (lambda others, episode: not episode, "'episode'"),
    ],
)
def test_arguments_that_do_not_exist_here_are_refused_before_the_run_with_what_replaces_them(use, words):
    def postprocess(policy, batch, other_agent_batches=None, episode=None):
        use(other_agent_batches, episode)
        return batch

    envs = make_envs("CartPole-v1", 2, 0)
    kind = build_policy("Using", loss_fn=loss_fn, postprocess_fn=postprocess)
    with pytest.raises(HookError, match=words):
        kind(None, envs.single_observation_space, envs.single_action_space).dry_run()
