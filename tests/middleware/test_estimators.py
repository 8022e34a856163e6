"""Estimators: advantages and returns of rollouts and of whole episodes, against loops over each episode."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.trees import has_leaf
from ding_lite.engine import contract, contract_of
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    StepCollector,
    gae_estimator,
    montecarlo_return_estimator,
    multistep_trainer,
    trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

GAMMA = 0.9


def made(policy=PPOPolicy, config=PPOConfig, **settings):
    cfg = config().override({"policy.model.encoder_hidden_size_list": [16], **settings})
    envs = make_envs("CartPole-v1", 3, seed=0, max_episode_steps=23)  # so that some episodes are cut
    return cfg, envs, policy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def ppo(**settings):
    return made(**{"policy.collect.discount_factor": GAMMA, "policy.collect.n_episode": 7, **settings})


def values(policy, obs):
    with torch.no_grad():
        return policy.model.values(obs)


def collected(collector):
    ctx = OnlineRLContext()
    collector(ctx)
    return ctx


def returns(reward, terminated, after):
    """Discounted sums of one episode's rewards, and of what comes after where it is cut."""
    found, total = [], 0.0 if terminated else after
    for one in reversed(reward):
        total = one + GAMMA * total
        found.insert(0, total)
    return found


def expected_returns(episodes, policy=None):
    for episode in episodes:
        after = 0.0 if policy is None else float(values(policy, episode.next_obs[-1:]))
        yield returns(episode.reward.tolist(), bool(episode.terminated[-1]), after)


# Whole episodes.


@pytest.mark.parametrize("with_policy", [False, True])
def test_montecarlo_returns_of_whole_episodes_are_those_of_each_alone(with_policy):
    cfg, envs, policy = ppo()
    ctx = collected(EpisodeCollector(cfg, policy.collect_mode, envs))
    assert {bool(episode.truncated[-1]) for episode in ctx.episodes} == {True, False}
    montecarlo_return_estimator(cfg, policy.collect_mode if with_policy else None)(ctx)
    data = ctx.train_data

    assert data.return_.dtype == data.advantage.dtype == torch.float32
    assert torch.equal(data.valid, ctx.episodes.batch.valid)
    for number, expected in enumerate(expected_returns(ctx.episodes, policy if with_policy else None)):
        length = len(expected)
        np.testing.assert_allclose(data.return_[:length, number], expected, rtol=1e-5)
        value = values(policy, ctx.episodes[number].obs) if with_policy else 0
        np.testing.assert_allclose(data.advantage[:length, number], torch.tensor(expected) - value, rtol=1e-4, atol=1e-4)
        assert not data.return_[length:, number].any()
        assert not data.advantage[length:, number].any()
    assert ("value" in data.keys()) == with_policy  # noqa: SIM118  `in` asks the leaves of a tree


def test_advantages_of_whole_episodes_are_those_of_each_alone():
    cfg, envs, policy = ppo(**{"policy.collect.gae_lambda": 0.8})
    ctx = collected(EpisodeCollector(cfg, policy.collect_mode, envs))
    gae_estimator(cfg, policy.collect_mode)(ctx)

    for number, episode in enumerate(ctx.episodes):
        length = len(episode.reward)
        value, next_value = values(policy, episode.obs), values(policy, episode.next_obs)
        delta = episode.reward + GAMMA * next_value.masked_fill(episode.terminated, 0) - value
        advantage = [sum((GAMMA * 0.8) ** (k - t) * float(delta[k]) for k in range(t, length)) for t in range(length)]
        np.testing.assert_allclose(ctx.train_data.advantage[:length, number], advantage, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            ctx.train_data.return_[:length, number], torch.tensor(advantage) + value, rtol=1e-4, atol=1e-4
        )


def test_only_steps_of_episodes_are_learned_from():
    cfg, envs, policy = ppo(**{"policy.learn.epoch_per_collect": 1, "policy.learn.batch_size": 10})
    ctx = collected(EpisodeCollector(cfg, policy.collect_mode, envs))
    gae_estimator(cfg, policy.collect_mode)(ctx)
    multistep_trainer(cfg, policy.learn_mode)(ctx)

    assert ctx.train_iter == round(int(ctx.episodes.lengths.sum()) / 10)


# Rollouts.


def by_episode(trajectories):
    """(environment, first step, last step and one) of every piece of an episode in a rollout."""
    done = trajectories.columns["terminated"] | trajectories.columns["truncated"]
    for env in range(trajectories.num_envs):
        ends = [*(np.flatnonzero(done[:, env]) + 1), trajectories.num_steps]
        for begin, end in zip([0, *ends], ends):
            if begin < end:
                yield env, begin, end


@pytest.mark.parametrize("with_policy", [False, True])
def test_montecarlo_returns_of_a_rollout_end_with_the_critics_opinion_where_an_episode_goes_on(with_policy):
    cfg, envs, policy = ppo(**{"policy.collect.n_sample": 150})
    ctx = collected(StepCollector(cfg, policy.collect_mode, envs))
    montecarlo_return_estimator(cfg, policy.collect_mode if with_policy else None)(ctx)
    batch = ctx.trajectories.batch

    assert ctx.train_data.valid.all()
    for env, begin, end in by_episode(ctx.trajectories):
        after = float(values(policy, batch.next_obs[end - 1 : end, env])) if with_policy else 0.0
        expected = returns(batch.reward[begin:end, env].tolist(), bool(batch.terminated[end - 1, env]), after)
        np.testing.assert_allclose(ctx.train_data.return_[begin:end, env], expected, rtol=1e-5)


def advantages_of(estimate, transitions):
    ctx = OnlineRLContext()
    ctx.trajectories = transitions
    estimate(ctx)
    batch = ctx.train_data
    real = batch.valid if has_leaf(batch, "valid") else torch.ones_like(batch.terminated)
    return sorted(zip(batch.reward[real].tolist(), batch.advantage[real].tolist()))


@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_transitions_that_are_listed_twice_leave_the_advantages_of_the_others_alone(estimator):
    cfg, envs, policy = ppo()
    rollout = collected(StepCollector(cfg, policy.collect_mode, envs)).trajectories
    rollout = rollout.with_columns(reward=np.arange(len(rollout), dtype=np.float32).reshape(rollout.num_steps, -1))
    listed, estimate = list(rollout), estimator(cfg, policy.collect_mode)
    once = advantages_of(estimate, listed)
    twice = advantages_of(estimate, listed + listed[:3])

    assert once == advantages_of(estimate, rollout)
    assert twice == sorted([*once, *advantages_of(estimate, listed[:3])])


@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_other_columns_pass_through_as_copies(estimator):
    cfg, envs, policy = ppo(**{"policy.collect.n_sample": 30})
    ctx = collected(StepCollector(cfg, policy.collect_mode, envs))
    weight, words = np.random.default_rng(0).random((10, 3)).astype(np.float32), to_objects(["a"] * 30).reshape(10, 3)
    ctx.trajectories = ctx.trajectories.with_columns(weight=weight, words=words, deep={"x": weight})
    before = dict(ctx.trajectories.columns)
    estimator(cfg, policy.collect_mode)(ctx)

    assert ctx.trajectories.columns == before
    assert ctx.train_data.weight.tolist() == ctx.train_data.deep.x.tolist() == weight.tolist()
    assert ctx.train_data.words.tolist() == words.tolist()
    assert not np.shares_memory(ctx.train_data.weight.numpy(), weight)
    assert not np.shares_memory(ctx.train_data.deep.x.numpy(), weight)
    assert ctx.train_data.words is not words


@pytest.mark.few
@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "threads"])
def test_what_is_learned_from_may_be_changed_in_place_and_stays_out_of_what_was_collected(estimator, mode):
    cfg, envs, policy = ppo(**{"policy.collect.n_sample": 30})
    kept, learned = [], []

    @contract(reads=("train_data",), writes=("train_data",), stage="process")
    def scale(ctx):
        ctx.train_data.reward.mul_(10)
        ctx.train_data.obs.clamp_(-1, 1)
        learned.append(ctx.train_data.reward.sum().item())

    @contract(reads=("trajectories",), stage="record")
    def look(ctx):
        kept.append(float(ctx.trajectories.batch.reward.sum()))

    with Task().start(ctx=OnlineRLContext(), **mode) as loop:
        loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(estimator(cfg, policy.collect_mode)).use(scale).use(look)
        loop.run(3)
    assert kept == [30.0] * 3
    assert learned == [300.0] * 3


def test_steps_that_were_only_resets_have_no_return():
    valid = np.array([[True, True], [True, False], [True, True]])
    done = np.array([[True, True], [False, False], [False, True]])
    columns = {"reward": np.array([[1, 2], [4, 0], [8, 16]], np.float32), "terminated": done, "truncated": done & False}
    ctx = OnlineRLContext()
    ctx.trajectories = Trajectories(columns, valid)
    cfg, _, _ = ppo()
    montecarlo_return_estimator(cfg)(ctx)

    np.testing.assert_allclose(ctx.train_data.return_, [[1, 2], [4 + GAMMA * 8, 0], [8, 16]], rtol=1e-6)
    assert ctx.train_data.valid.tolist() == valid.tolist()


# Configurations and policies.


def test_a_policy_may_stand_in_the_place_of_the_configuration():
    cfg, envs, policy = ppo()
    ctx = collected(EpisodeCollector(cfg, policy.collect_mode, envs))
    found = []
    for estimate in (montecarlo_return_estimator(policy.collect_mode), montecarlo_return_estimator(cfg)):
        estimate(ctx)
        found.append(ctx.train_data)

    assert torch.equal(found[0].return_, found[1].return_)
    assert torch.equal(found[0].advantage, found[0].return_)


def test_the_discount_factor_may_stand_beside_the_collectors_settings_and_a_policy_needs_no_critic():
    cfg, envs, policy = made(DQNPolicy, DQNConfig, **{"policy.discount_factor": GAMMA, "policy.collect.n_episode": 4})
    ctx = collected(EpisodeCollector(cfg, policy.collect_mode, envs))
    for estimate in (montecarlo_return_estimator(cfg, policy.collect_mode), montecarlo_return_estimator(policy.collect_mode)):
        estimate(ctx)
        for number, expected in enumerate(expected_returns(ctx.episodes)):
            np.testing.assert_allclose(ctx.train_data.return_[: len(expected), number], expected, rtol=1e-5)
        assert torch.equal(ctx.train_data.advantage, ctx.train_data.return_)


def test_a_configuration_without_a_discount_factor_is_refused_by_name():
    words = r"wants a configuration with policy.collect.discount_factor or policy.discount_factor.*SimpleNamespace, which has"
    with pytest.raises(TypeError, match=words):
        montecarlo_return_estimator(SimpleNamespace(policy=SimpleNamespace(collect=SimpleNamespace())))


def test_the_contract_names_the_learner_only_where_its_critic_is_asked():
    cfg, _, policy = ppo()
    assert contract_of(montecarlo_return_estimator(cfg)).uses == ()
    assert contract_of(montecarlo_return_estimator(policy.collect_mode)).uses == ()
    assert contract_of(montecarlo_return_estimator(cfg, policy.collect_mode)).uses == (policy.learn_mode,)


# Pipelines.


@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_a_pipeline_without_a_collector_is_refused_with_the_fix(estimator):
    cfg, _, policy = ppo()
    task = Task()
    words = f"{estimator.__name__} reads ctx.trajectories, but no earlier middleware writes it: add a collector such as"
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match=words):
        task.use(estimator(cfg, policy.collect_mode)).use(trainer(cfg, policy.learn_mode)).run(max_step=1)


@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_each_estimator_takes_what_either_collector_gives(collector, estimator):
    cfg, envs, policy = ppo(**{"policy.collect.n_sample": 60, "policy.learn.epoch_per_collect": 1})
    task, seen = Task(), []
    with task.start(ctx=OnlineRLContext()):
        task.use(collector(cfg, policy.collect_mode, envs))
        task.use(estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(seen.append).run(max_step=2)

    assert seen[-1].train_iter == policy.version > 0
    width = 3 if collector is StepCollector else 7
    assert seen[-1].train_data.return_.shape[1] == width


@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_an_iteration_in_which_nothing_was_collected_is_an_error_with_the_fix(estimator):
    cfg, _, policy = ppo()
    with pytest.raises(RuntimeError, match=f"{estimator.__name__} found neither ctx.trajectories nor ctx.episodes: put a"):
        estimator(cfg, policy.collect_mode)(OnlineRLContext())
