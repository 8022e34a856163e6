"""Rewards divided by the spread of returns, against a loop over steps; its state in the policy's; the same when overlapped."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import A2CConfig, PPOConfig, SACConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer, reward_normalizer
from ding_lite.policy import A2CPolicy, PPOPolicy, SACPolicy

GAMMA = 0.9


def made():
    cfg = A2CConfig().override({"policy.collect.discount_factor": GAMMA, "policy.model.encoder_hidden_size_list": [8]})
    return cfg, A2CPolicy(cfg.policy, spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))


def rollouts(seed=0, sizes=((5, 3), (1, 3), (8, 3)), p_end=0.2, resets=False):
    rng = np.random.default_rng(seed)
    for size in sizes:
        terminated, truncated = rng.random((2, *size)) < p_end
        columns = {"reward": (3 * rng.normal(size=size) + 1).astype(np.float32), "terminated": terminated}
        yield Trajectories({**columns, "truncated": truncated}, rng.random(size) < 0.8 if resets else None)


def normalised(middleware, rollout):
    ctx = OnlineRLContext(trajectories=rollout)
    middleware(ctx)
    return ctx.trajectories


def by_definition(parts):
    """Every rollout's rewards, scaled; one step of one environment after the other, and the spread of all returns so far."""
    seen, running, found = [], {}, []
    for rollout in parts:
        columns = rollout.columns
        for t, b in np.ndindex(columns["reward"].shape):
            if rollout.valid is None or rollout.valid[t, b]:
                running[b] = running.get(b, 0.0) * GAMMA + float(columns["reward"][t, b])
                seen.append(running[b])
            if columns["terminated"][t, b] or columns["truncated"][t, b]:
                running[b] = 0.0
        mean = math.fsum(seen) / len(seen)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in seen) / len(seen) + 1e-8)
        found.append(np.clip(columns["reward"].astype(np.float64) / std, -10, 10))
    return found


@pytest.mark.parametrize("p_end", [0.0, 0.2, 1.0])
def test_rewards_are_divided_by_the_spread_of_all_returns_so_far(p_end):
    cfg, policy = made()
    middleware = reward_normalizer(cfg, policy.learn_mode)

    for rollout, expected in zip(rollouts(p_end=p_end), by_definition(rollouts(p_end=p_end)), strict=True):
        found = normalised(middleware, rollout)
        np.testing.assert_allclose(found.columns["reward"], expected, rtol=1e-6)
        assert found.columns["reward"].dtype == np.float32


def test_policies_that_replay_have_their_discount_factor_elsewhere():
    cfg = SACConfig().override({"policy.discount_factor": GAMMA, "policy.model.encoder_hidden_size_list": [8]})
    policy = SACPolicy(cfg.policy, spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32))
    middleware = reward_normalizer(cfg, policy.learn_mode)

    for rollout, expected in zip(rollouts(), by_definition(rollouts()), strict=True):
        np.testing.assert_allclose(normalised(middleware, rollout).columns["reward"], expected, rtol=1e-6)


def test_the_reward_as_it_was_stays_beside_it_and_the_rollout_is_untouched():
    cfg, policy = made()
    (rollout,) = rollouts(sizes=[(4, 2)])
    before = copy.deepcopy(rollout.columns)
    found = normalised(reward_normalizer(cfg, policy.learn_mode), rollout)

    np.testing.assert_array_equal(found.columns["raw_reward"], before["reward"])
    assert rollout.columns.keys() == before.keys()
    assert all(np.array_equal(rollout.columns[name], before[name]) for name in before)


def with_resets(junk: float):
    """Rollouts in which some steps were only a reset, which follows the end of an episode, and hold junk."""
    for rollout in rollouts(resets=True):
        done = rollout.columns["terminated"] | rollout.columns["truncated"]
        rollout.valid[0] = True
        rollout.valid[1:] |= ~done[:-1]
        yield rollout.with_columns(reward=np.where(rollout.valid, rollout.columns["reward"], junk))


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan])
def test_steps_that_were_only_a_reset_do_not_count(junk):
    cfg, policy = made()
    middleware, resets = reward_normalizer(cfg, policy.learn_mode), 0

    for rollout, expected in zip(with_resets(junk), by_definition(with_resets(0.0)), strict=True):
        found = normalised(middleware, rollout).columns["reward"]
        np.testing.assert_allclose(found[rollout.valid], expected[rollout.valid], rtol=1e-6)
        resets += np.count_nonzero(~rollout.valid)
    assert resets


def test_a_return_does_not_go_on_after_a_reset_of_the_environments():
    cfg, _ = made()
    cfg.policy.collect.n_sample = 6
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = A2CPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    collector, middleware = StepCollector(cfg, policy.collect_mode, envs), reward_normalizer(cfg, policy.learn_mode)
    for _ in range(2):
        envs.reset()
        ctx = OnlineRLContext()
        collector(ctx)
        middleware(ctx)  # three steps with a reward of 1
        carried = policy.state_dict()["attached"]["reward_normalizer"]["carried"]

        np.testing.assert_allclose(carried, GAMMA + GAMMA**2 + GAMMA**3, rtol=1e-12)


def test_a_reward_that_is_no_number_spoils_nothing_but_itself():
    cfg, policy = made()
    middleware, (first, second) = reward_normalizer(cfg, policy.learn_mode), rollouts(sizes=[(6, 2), (6, 2)])
    first.columns["reward"][2, 0] = np.nan
    found = normalised(middleware, first).columns["reward"]

    assert np.isnan(found).sum() == 1
    assert np.isfinite(normalised(middleware, second).columns["reward"]).all()


def test_its_state_is_in_the_policys_also_where_that_is_loaded_before_it_is_made():
    cfg, policy = made()
    middleware = reward_normalizer(cfg, policy.learn_mode)
    *before, after = rollouts(sizes=[(5, 3), (4, 3), (6, 3)])
    for rollout in before:
        normalised(middleware, rollout)
    state = policy.state_dict()
    expected = normalised(middleware, after).columns["reward"]

    later, earlier = made()[1], made()[1]
    later.load_state_dict(state)
    made_later = reward_normalizer(cfg, later.learn_mode)
    made_earlier = reward_normalizer(cfg, earlier.learn_mode)
    earlier.load_state_dict(state)
    for one in (made_later, made_earlier):
        np.testing.assert_array_equal(normalised(one, after).columns["reward"], expected)


def test_with_another_number_of_environments_the_spread_is_kept_and_returns_begin_anew():
    cfg, policy = made()
    middleware = reward_normalizer(cfg, policy.learn_mode)
    first, second = rollouts(sizes=[(5, 3), (4, 2)])
    normalised(middleware, first)

    assert np.isfinite(normalised(middleware, second).columns["reward"]).all()
    assert policy.state_dict()["attached"]["reward_normalizer"]["count"] == 15 + 8


def test_without_a_rollout_it_says_what_it_wants():
    cfg, policy = made()
    with pytest.raises(RuntimeError, match="reward_normalizer found no ctx.trajectories: put a StepCollector before it"):
        reward_normalizer(cfg, policy.learn_mode)(OnlineRLContext())
    with pytest.raises(TypeError, match="reward_normalizer wants policy.learn_mode"):
        reward_normalizer(cfg, policy.collect_mode)


def run(async_mode, max_lag, **envs_options):
    cfg = PPOConfig(seed=3).override(
        {
            "policy.collect.n_sample": 32,
            "policy.learn": {"epoch_per_collect": 2, "batch_size": 16},
            "policy.model.normalize_obs": True,
        }
    )
    envs = make_envs("CartPole-v1", 4, seed=3, **envs_options)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    loop = Task()
    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(reward_normalizer(cfg, policy.learn_mode))
        loop.use(gae_estimator(cfg, policy.collect_mode))
        loop.use(multistep_trainer(cfg, policy.learn_mode))
        loop.run(max_step=5)
    envs.close()
    state = policy.state_dict()
    assert state["attached"]["reward_normalizer"]["count"] == state["model"]["normalizer.count"] == 5 * 32
    return state


@pytest.mark.few
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_with_both_normalisations_an_asynchronous_run_is_the_one_on_one_thread(max_lag, digest):
    expected = digest(run(False, max_lag))

    assert {digest(run(True, max_lag)) for _ in range(2)} == {expected}


def test_with_both_normalisations_worker_processes_are_as_many_workers_here(digest):
    assert digest(run(True, 1, workers=2, backend="process")) == digest(run(False, 1, workers=2))


def test_observations_are_counted_after_learning_so_that_it_begins_with_the_network_that_collected():
    cfg = (
        PPOConfig()
        .override({"policy.model.normalize_obs": True, "policy.learn": {"epoch_per_collect": 1, "batch_size": 999}})
        .override({"policy.collect.n_sample": 64})
    )
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    kls = []

    def watch(ctx):
        kls.append(float(ctx.train_output["kl"]))

    with (loop := Task()).start(ctx=OnlineRLContext()):
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(gae_estimator(cfg, policy.collect_mode))
        loop.use(multistep_trainer(cfg, policy.learn_mode))
        loop.use(watch)
        loop.run(max_step=3)

    assert kls == pytest.approx([0, 0, 0], abs=1e-9)
    assert torch.isfinite(policy.model.normalizer.mean).all()
    assert policy.model.normalizer.mean.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"carried": None}, r"has 'carried', a tensor \[B\] of floats, got None"),
        ({"carried": torch.zeros(2, 2)}, r"a tensor \[B\] of floats, got tensor"),
        ({"carried": torch.tensor([math.nan])}, r"has carried = \[nan\], which is not finite"),
        ({"mean": torch.tensor(math.inf)}, "has mean = inf, which is not finite"),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(change, words):
    cfg, policy = made()
    middleware = reward_normalizer(cfg, policy.learn_mode)
    normalised(middleware, next(rollouts()))
    part = copy.deepcopy(policy.state_dict()["attached"]["reward_normalizer"])
    with pytest.raises(ValueError, match=words):
        policy._attached["reward_normalizer"].load_state_dict({**part, **change})

    assert policy.state_dict()["attached"]["reward_normalizer"]["carried"].tolist() == part["carried"].tolist()


def test_an_infinite_reward_stays_for_the_check_of_the_loss():
    cfg, policy = made()
    middleware, (first,) = reward_normalizer(cfg, policy.learn_mode), rollouts(sizes=[(6, 2)])
    first.columns["reward"][2] = np.inf, -np.inf
    found = normalised(middleware, first).columns["reward"]

    assert found[2].tolist() == [np.inf, -np.inf]
    assert np.isfinite(np.delete(found, 2, axis=0)).all()


def test_a_discount_factor_that_changes_in_a_run_counts_from_the_next_rollout_on():
    cfg, policy = made()
    cfg.policy.collect.discount_factor = 0.5
    middleware = reward_normalizer(cfg, policy.learn_mode)
    cfg.policy.collect.discount_factor = GAMMA
    parts = [*rollouts()]
    found = [normalised(middleware, rollout).columns["reward"] for rollout in parts]
    for one, expected in zip(found, by_definition(parts)):
        np.testing.assert_allclose(one, expected, rtol=1e-5)
