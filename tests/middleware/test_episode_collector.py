"""EpisodeCollector: whole episodes in the context, what is counted, and pipelines on top of it."""

import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task, contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
    termination_checker,
)
from ding_lite.policy import DQNPolicy, PPOPolicy


def made(num_envs=3, n_episode=7, policy=PPOPolicy, config=PPOConfig, **settings):
    cfg = config().override({"policy.collect.n_episode": n_episode, "policy.model.encoder_hidden_size_list": [16]})
    envs = make_envs("CartPole-v1", num_envs, seed=0, **settings)
    return cfg, envs, policy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def run(middleware, steps, **settings):
    task, seen = Task(), []
    with task.start(ctx=OnlineRLContext(), **settings):
        for one in middleware:
            task.use(one)

        @contract(reads=("episodes", "env_step", "env_episode"), may_read=("trajectories", "finished_episodes"), stage="record")
        def see(ctx):
            seen.append(ctx)

        task.use(see).run(max_step=steps)
    return seen


def test_each_call_collects_whole_episodes_and_counts_them():
    cfg, envs, policy = made()
    contexts = run([EpisodeCollector(cfg, policy.collect_mode, envs)], 4)

    env_step = 0
    for number, ctx in enumerate(contexts):
        env_step += int(ctx.episodes.lengths.sum())
        assert isinstance(ctx.episodes, Episodes)
        assert (len(ctx.episodes), ctx.env_episode, ctx.env_step) == (7, 7 * (number + 1), env_step)
        assert [episode.env for episode in ctx.finished_episodes] == [0, 0, 0, 1, 1, 2, 2]
        assert [episode.length for episode in ctx.finished_episodes] == ctx.episodes.lengths.tolist()
        assert (ctx.trajectories, ctx.policy_version) == (None, 0)
    for before, after in zip(contexts, contexts[1:]):
        last = {episode.env: episode.number for episode in before.finished_episodes}
        assert [episode.number for episode in after.finished_episodes if episode.env == 1] == [last[1] + 1, last[1] + 2]


def test_what_was_collected_is_told_in_the_metrics():
    cfg, envs, policy = made(policy=DQNPolicy, config=DQNConfig)
    for ctx in run([eps_greedy_handler(cfg), EpisodeCollector(cfg, policy.collect_mode, envs)], 2):
        collected, kwargs, *_ = ctx.collect_metrics
        assert collected["env_steps"].peek() == ctx.episodes.lengths.sum()
        assert "time" in collected
        assert kwargs["eps"].peek() == ctx.collect_kwargs["eps"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({}, {"async_mode": True, "max_lag": 1}),
        ({"workers": 2}, {"async_mode": True, "max_lag": 1}),
        ({"workers": 2, "backend": "process"}, {}),
        ({"workers": 2, "backend": "process"}, {"async_mode": True, "max_lag": 1}),
    ],
)
def test_a_pipeline_learns_from_whole_episodes_wherever_they_come_from(settings, how, digest):
    def result(settings, how):
        cfg, envs, policy = made(n_episode=5, **settings)
        cfg.override({"policy.learn.epoch_per_collect": 1})
        try:
            contexts = run(
                [
                    EpisodeCollector(cfg, policy.collect_mode, envs),
                    gae_estimator(cfg, policy.collect_mode),
                    multistep_trainer(cfg, policy.learn_mode),
                    termination_checker(max_env_step=10**9),
                ],
                5,
                **how,
            )
        finally:
            envs.close()
        told = [(ctx.env_step, ctx.env_episode, ctx.policy_version, ctx.episodes.rows()) for ctx in contexts]
        assert contexts[-1].train_iter == policy.version > 0
        assert contexts[-1].env_step == sum(int(ctx.episodes.lengths.sum()) for ctx in contexts)
        assert contexts[-1].env_episode == 25
        return digest(told, policy.get_weights())

    lag = {"async_mode": False, "max_lag": how.get("max_lag", 0)}
    assert result(settings, how) == result({**settings, "backend": "local"} if settings else {}, lag)


def test_an_explorer_that_reads_the_steps_sees_them_in_an_asynchronous_run_with_processes():
    cfg, envs, policy = made(policy=DQNPolicy, config=DQNConfig, workers=2, backend="process")
    cfg.override({"policy.other.eps": {"decay": 300}})
    middleware = [eps_greedy_handler(cfg), EpisodeCollector(cfg, policy.collect_mode, envs)]
    eps = []

    @contract(reads=("collect_kwargs", "env_step"), stage="record")
    def see(ctx):
        eps.append((ctx.collect_kwargs["eps"], ctx.env_step))

    try:
        run([*middleware, see], 6, async_mode=True, max_lag=1)
    finally:
        envs.close()
    handle = eps_greedy_handler(cfg)
    for number, (found, _) in enumerate(eps):
        ctx = OnlineRLContext()
        ctx.env_step = eps[number - 2][1] if number > 1 else 0
        handle(ctx)
        assert found == ctx.collect_kwargs["eps"]


def test_episodes_are_pushed_into_replay_as_rollouts_are():
    cfg, envs, policy = made(policy=DQNPolicy, config=DQNConfig)
    buffer = ReplayBuffer(10_000)
    collector = EpisodeCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0})
    contexts = run([collector, data_pusher(cfg, buffer)], 3)
    assert len(buffer) == contexts[-1].env_step


def test_step_and_episode_collectors_take_turns_in_the_same_environments():
    cfg, envs, policy = made(num_envs=2, n_episode=2)
    cfg.override({"policy.collect.n_sample": 6})
    contexts = run([StepCollector(cfg, policy.collect_mode, envs), EpisodeCollector(cfg, policy.collect_mode, envs)], 3)

    total = 0
    for ctx in contexts:
        total += 6 + int(ctx.episodes.lengths.sum())
        assert ctx.env_step == total
        assert all((episode.terminated | episode.truncated)[-1] for episode in ctx.episodes)
        assert ctx.trajectories is None


@pytest.mark.few
@pytest.mark.parametrize("settings", [{}, {"workers": 2, "backend": "process"}])
@pytest.mark.parametrize("how", [{}, {"async_mode": True, "max_lag": 1}])
def test_whole_episodes_with_at_least_a_number_of_steps_are_collected_in_every_mode(settings, how, digest):
    def told(settings, how):
        cfg, envs, policy = made(num_envs=4, **settings)
        cfg.override({"policy.collect.n_sample": 130, "policy.learn.epoch_per_collect": 1})
        collector = EpisodeCollector(cfg, policy.collect_mode, envs, unit="steps")
        learn = [gae_estimator(cfg, policy.collect_mode), multistep_trainer(cfg, policy.learn_mode)]
        try:
            contexts = run([collector, *learn], 4, **how)
        finally:
            envs.close()
        for ctx in contexts:
            by_env = [sum(one.length for one in ctx.finished_episodes if one.env == env) for env in range(4)]
            last = [[one.length for one in ctx.finished_episodes if one.env == env][-1] for env in range(4)]
            for steps, length, share in zip(by_env, last, (33, 33, 32, 32)):
                assert steps - length < share <= steps
        return digest([(ctx.env_step, ctx.env_episode, ctx.episodes.rows()) for ctx in contexts], policy.get_weights())

    lag = {"async_mode": False, "max_lag": how.get("max_lag", 0)}
    assert told(settings, how) == told({**settings, "backend": "local"} if settings else {}, lag)


def test_another_unit_is_refused():
    cfg, envs, policy = made()
    with pytest.raises(ValueError, match=r"EpisodeCollector\(unit='frames'\): unknown unit, use 'episodes' or 'steps'"):
        EpisodeCollector(cfg, policy.collect_mode, envs, unit="frames")


def test_environments_made_elsewhere_count_what_could_not_be_avoided():
    import gymnasium

    cfg, _, policy = made()
    envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    (ctx,) = run([EpisodeCollector(cfg, policy.collect_mode, envs)], 1)

    assert len(ctx.episodes) == ctx.env_episode == 7
    assert ctx.env_step > ctx.episodes.lengths.sum()


def test_a_pipeline_that_reads_episodes_without_a_collector_of_them_is_refused_with_the_fix():
    cfg, envs, policy = made()
    with pytest.raises(PipelineError, match=r"see reads ctx.episodes.*add a collector such as EpisodeCollector before it"):
        run([StepCollector(cfg, policy.collect_mode, envs)], 1)


def test_an_evaluator_and_a_logger_work_beside_it(tmp_path):
    cfg, envs, policy = made(n_episode=3)
    cfg.override({"exp_name": str(tmp_path / "run"), "env.n_evaluator_episode": 2})
    contexts = run(
        [
            interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 2, seed=1)),
            EpisodeCollector(cfg, policy.collect_mode, envs),
            gae_estimator(cfg, policy.collect_mode),
            multistep_trainer(cfg, policy.learn_mode),
            online_logger(cfg, sinks=()),
        ],
        2,
    )
    assert np.isfinite(contexts[0].eval_value)
    assert torch.isfinite(contexts[-1].train_output["total_loss"])
