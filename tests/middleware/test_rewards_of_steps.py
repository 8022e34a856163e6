"""Rewards that are sums of several steps, or scaled already, are refused by who takes them for those of single steps."""

import numpy as np
import pytest

from ding_lite.config import DQNConfig, IMPALAConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    gae_estimator,
    montecarlo_return_estimator,
    nstep_reward_enhancer,
    offpolicy_data_fetcher,
    onpolicy_data_fetcher,
    reward_estimator,
    reward_normalizer,
    trainer,
)
from ding_lite.policy import DQNPolicy, IMPALAPolicy, PPOPolicy

SMALL = {"policy.model.encoder_hidden_size_list": [16]}
FOUND = "found the column 'discount', which nstep_reward_enhancer adds.*"


def made(policy=PPOPolicy, config=PPOConfig, **settings):
    cfg = config().override({**SMALL, **settings})
    envs = make_envs("CartPole-v1", 2, seed=0)
    return cfg, envs, policy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def run(*middleware):
    ctx = OnlineRLContext()
    for fn in middleware:
        fn(ctx)
    return ctx


def enhancer():
    return nstep_reward_enhancer(DQNConfig().override({"policy.nstep": 3}))


@pytest.mark.few
@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_an_estimator_refuses_rewards_of_several_steps(estimator, collector):
    cfg, envs, policy = made(**{"policy.collect.n_episode": 2})
    collect = collector(cfg, policy.collect_mode, envs)
    with pytest.raises(RuntimeError, match=estimator.__name__ + " " + FOUND + "Leave nstep_reward_enhancer out"):
        run(collect, enhancer(), estimator(cfg, policy.collect_mode))


def test_a_policy_that_makes_returns_itself_refuses_rewards_of_several_steps():
    cfg, envs, policy = made(IMPALAPolicy, IMPALAConfig)
    collect, train = StepCollector(cfg, policy.collect_mode, envs), trainer(cfg, policy.learn_mode)
    run(collect, onpolicy_data_fetcher(cfg), train)
    with pytest.raises(RuntimeError, match=FOUND + "reads reward without it.*Leave nstep_reward_enhancer out"):
        run(collect, enhancer(), onpolicy_data_fetcher(cfg), train)


class Model:
    """A reward model that counts the batches that it learned from."""

    learned = 0

    def learn(self, batch):
        self.learned += 1

    def estimate(self, batch):
        return with_leaves(batch, reward=batch.reward + 1)


@pytest.mark.parametrize("of", ["train_data", "trajectories", "OffPolicyLearner"])
@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_reward_models_are_given_rewards_of_single_steps(of, collector):
    cfg, envs, policy = made(
        DQNPolicy,
        DQNConfig,
        **{"policy.nstep": 3, "policy.learn.learning_starts": 8, "policy.learn.batch_size": 8, "policy.collect.n_episode": 2},
    )
    buffer, model, collect = ReplayBuffer(1000), Model(), collector(cfg, policy.collect_mode, envs)
    push, fetch = data_pusher(cfg, buffer), offpolicy_data_fetcher(cfg, buffer, policy.learn_mode, model)
    chains = {
        "train_data": [enhancer(), push, fetch, reward_estimator(cfg, model)],
        "trajectories": [enhancer(), reward_estimator(cfg, model, of="trajectories")],
        "OffPolicyLearner": [enhancer(), push, OffPolicyLearner(cfg, policy.learn_mode, buffer, reward_model=model)],
    }
    who = of if of == "OffPolicyLearner" else "reward_estimator"
    with pytest.raises(RuntimeError, match=f"{who} {FOUND}Leave nstep_reward_enhancer out and set policy.nstep = 1, or put"):
        run(collect, *chains[of])
    assert not model.learned
    run(collect, reward_estimator(cfg, model, of="trajectories"), enhancer())
    assert model.learned == 1


@pytest.mark.parametrize("gamma", [0.99, 1.0])
def test_sums_are_refused_in_each_part_of_a_batch_and_whatever_the_discount_factor_is(gamma):
    small = {"policy.learn.learning_starts": 8, "policy.learn.batch_size": 8}
    cfg, envs, policy = made(DQNPolicy, DQNConfig, **small, **{"policy.nstep": 3, "policy.discount_factor": gamma})
    parts, model = {"own": ReplayBuffer(1000), "demos": ReplayBuffer(1000)}, Model()
    pushers = [data_pusher(cfg, buffer) for buffer in parts.values()]
    run(StepCollector(cfg, policy.collect_mode, envs), nstep_reward_enhancer(cfg), *pushers)
    with pytest.raises(RuntimeError, match="reward_estimator " + FOUND):
        run(offpolicy_data_fetcher(cfg, parts), reward_estimator(cfg, model))
    assert not model.learned


def test_single_steps_stay_single_steps_after_the_discount_factor_has_changed():
    cfg, envs, policy = made(DQNPolicy, DQNConfig, **{"policy.learn.learning_starts": 8, "policy.learn.batch_size": 8})
    buffer, model = ReplayBuffer(1000), Model()
    collect = [StepCollector(cfg, policy.collect_mode, envs), nstep_reward_enhancer(cfg), data_pusher(cfg, buffer)]
    run(*collect)
    policy.reset_config({"discount_factor": 0.9})
    run(*collect, OffPolicyLearner(cfg, policy.learn_mode, buffer, reward_model=model))
    assert model.learned


@pytest.mark.parametrize("of", ["train_data", "trajectories"])
def test_reward_models_take_single_steps_that_the_enhancer_has_left_as_they_are(of):
    cfg, envs, policy = made(DQNPolicy, DQNConfig, **{"policy.learn.learning_starts": 8, "policy.learn.batch_size": 8})
    buffer, model, collect = ReplayBuffer(1000), Model(), StepCollector(cfg, policy.collect_mode, envs)
    enhance, estimate = nstep_reward_enhancer(cfg), reward_estimator(cfg, model, of=of)
    fetch = offpolicy_data_fetcher(cfg, buffer, policy.learn_mode, model)
    chain = [enhance, data_pusher(cfg, buffer), fetch] if of == "train_data" else [enhance]
    run(collect, *chain, estimate)
    assert (cfg.policy.nstep, model.learned) == (1, 1)


def test_rewards_are_not_scaled_where_that_changes_nothing_or_twice_or_when_they_are_sums():
    cfg, envs, policy = made()
    collect, normalize = StepCollector(cfg, policy.collect_mode, envs), reward_normalizer(cfg, policy.learn_mode)
    estimate = gae_estimator(cfg, policy.collect_mode)
    assert np.isfinite(run(collect, normalize, estimate).train_data.reward.numpy()).all()
    with pytest.raises(RuntimeError, match=r"reward_normalizer found ctx.train_data.*put it before the middleware"):
        run(collect, estimate, normalize)
    with pytest.raises(RuntimeError, match=r"reward_normalizer found rewards that are scaled already.*into the pipeline once"):
        run(collect, normalize, normalize)
    with pytest.raises(RuntimeError, match="reward_normalizer " + FOUND + "Put reward_normalizer before nstep_reward_enhancer"):
        run(collect, enhancer(), normalize)
    run(collect, normalize, enhancer())
