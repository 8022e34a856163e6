"""Gradient steps that are not finite: "raise", "skip" and "restore" of cfg.policy.learn.on_nonfinite."""

import copy
import json
import math
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.config import DQNConfig, PPOConfig, SACConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, tree
from ding_lite.data.trees import with_leaves
from ding_lite.engine import Task, load_checkpoint, save_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
    offpolicy_data_fetcher,
    online_logger,
    trainer,
)
from ding_lite.policy import DQNPolicy, NonFiniteError, PPOPolicy, SACPolicy

OBS, DISCRETE, BOX = spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32)


def rows(seed=0, action=DISCRETE, **changed):
    g = torch.Generator().manual_seed(seed)
    actions = torch.randint(2, (16,), generator=g) if action is DISCRETE else torch.rand(16, 1, generator=g)
    batch = {
        "obs": torch.randn(16, 3, generator=g),
        "next_obs": torch.randn(16, 3, generator=g),
        "action": actions,
        "reward": torch.randn(16, generator=g),
        "terminated": torch.zeros(16, dtype=torch.bool),
    }
    return tree({**batch, **changed})


NAN, INF = torch.full((16,), math.nan), torch.full((16,), math.inf)


def dqn(mode, **settings):
    return DQNPolicy(DQNConfig().override({"policy.learn.on_nonfinite": mode, **settings}).policy, OBS, DISCRETE)


def learned(policy):
    """Weights, target networks and optimizers, as a copy."""
    state = copy.deepcopy({**policy.state_dict(), "attached": {**policy.state_dict()["attached"]}})
    state["attached"].pop("nonfinite_steps", None)
    return {name: state[name] for name in ("model", "optimizer", "target_model", "attached") if name in state}


def learn(policy, *batches):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the run continues")
        return [policy.learn_mode.forward(batch) for batch in batches]


@pytest.mark.parametrize("reward", [NAN, INF], ids=["NaN", "infinity"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_skip_skips_the_step_and_nothing_else(digest, reward, prioritized):
    policy, other = dqn("skip"), dqn("raise")
    weight = {"weight": torch.ones(16)} if prioritized else {}
    before = learned(policy)
    (output,) = learn(policy, rows(0, reward=reward, **weight))

    assert output == {"skipped_fraction": 1.0, "cur_lr": torch.tensor(1e-3)}
    assert digest(learned(policy)) == digest(before)
    assert (policy.train_iter, policy.version) == (0, 0)
    assert all(param.grad is None for param in policy.params)
    good = [rows(seed, **weight) for seed in range(1, 6)]
    outputs = learn(policy, *good[:3], rows(0, reward=reward, **weight), *good[3:])
    assert [output["skipped_fraction"] for output in outputs] == [0, 0, 0, 1, 0, 0]
    learn(other, *good)
    assert digest(learned(policy)) == digest(learned(other))
    assert (policy.train_iter, policy.version) == (other.train_iter, other.version)


def test_skip_works_for_policies_with_several_networks(digest):
    cfg = SACConfig().override({"policy.learn.on_nonfinite": "skip"})
    policy = SACPolicy(cfg.policy, OBS, BOX)
    learn(policy, rows(1, BOX))
    before = learned(policy)
    learn(policy, rows(0, BOX, reward=NAN))
    assert digest(learned(policy)) == digest(before)


class Spoiled(DQNPolicy):
    """Its gradient is NaN in the calls of its loss that `spoiled` names, although the loss is finite."""

    calls, spoiled = 0, ()

    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.calls += 1
        zero = next(self.model.parameters()).sum() * 0
        return loss + (zero.sqrt() if self.calls - 1 in self.spoiled else zero), stats


@pytest.mark.parametrize("clip", [None, 10.0])
def test_skip_skips_a_step_whose_gradient_alone_is_not_finite(digest, clip):
    policy = Spoiled(
        DQNConfig().override({"policy.learn.on_nonfinite": "skip", "policy.learn.grad_clip_norm": clip}).policy, OBS, DISCRETE
    )
    policy.learn_mode.dry_run()
    policy.calls, policy.spoiled = 0, {1}
    learn(policy, rows(1))
    before = learned(policy)
    assert learn(policy, rows(2))[0]["skipped_fraction"] == 1
    assert digest(learned(policy)) == digest(before)
    assert learn(policy, rows(2))[0]["skipped_fraction"] == 0
    assert digest(learned(policy)) != digest(before)


def test_skip_keeps_the_buffers_that_the_loss_has_changed(digest):
    class Normalizing(DQNPolicy):
        def make_model(self):
            model = super().make_model()
            model.seen = nn.BatchNorm1d(3)
            return model

        def loss(self, batch):
            self.model.seen(batch.obs)
            loss, stats = super().loss(batch)
            return loss, stats

    policy = Normalizing(DQNConfig().override({"policy.learn.on_nonfinite": "skip"}).policy, OBS, DISCRETE)
    policy.learn_mode.dry_run()
    before = learned(policy)
    learn(policy, rows(0, obs=torch.full((16, 3), math.nan)))
    assert digest(learned(policy)) == digest(before)


def test_the_first_skipped_step_is_a_warning_and_too_many_in_a_row_are_an_error():
    policy = dqn("skip")
    with pytest.warns(UserWarning, match=r"loss of DQNPolicy is nan in gradient step 0: the step is skipped, and the run"):
        policy.learn_mode.forward(rows(reward=NAN))
    learn(policy, *[rows(reward=NAN)] * 9, rows())
    learn(policy, *[rows(reward=NAN)] * 10)
    with pytest.raises(
        NonFiniteError, match="11 gradient steps in a row were not finite; the last time, the loss .* reward of"
    ):
        learn(policy, rows(reward=NAN))


def test_raise_is_the_default():
    assert DQNConfig().policy.learn.on_nonfinite == "raise"
    with pytest.raises(NonFiniteError, match="is nan in gradient step 0"):
        dqn("raise").learn_mode.forward(rows(reward=NAN))


def test_restore_goes_back_to_the_weights_of_the_last_hundredth_step(digest):
    policy = dqn("restore", **{"policy.learn.target_update_freq": 7})
    for step in range(150):
        if step == 100:
            before = learned(policy)
        learn(policy, rows(step))
    version = policy.version
    (output,) = learn(policy, rows(0, reward=NAN))

    assert output == {"skipped_fraction": 1.0, "cur_lr": torch.tensor(1e-3)}
    assert digest(learned(policy)) == digest(before)
    assert policy.train_iter == 150
    assert policy.version > version
    acted = policy.collect_mode.forward(np.zeros((1, 3), np.float32))[0]
    assert acted.shape == (1,)


def test_restore_goes_back_after_a_step_that_made_the_weights_infinite(digest):
    policy = dqn("restore")
    before = learned(policy)
    learn(policy, rows(1))
    for group in policy.optimizer.param_groups:
        group["lr"] = math.inf
    assert learn(policy, rows(2))[0]["skipped_fraction"] == 1
    assert digest(learned(policy)) == digest(before)
    assert learn(policy, rows(2))[0]["skipped_fraction"] == 0


def test_restore_includes_networks_in_lists():
    class Twins(DQNPolicy):
        def after_init(self):
            self.twins = [copy.deepcopy(self.model) for _ in range(2)]

        def after_step(self):
            super().after_step()
            with torch.no_grad():
                for twin in self.twins:
                    for param in twin.parameters():
                        param.add_(1)

    policy = Twins(DQNConfig().override({"policy.learn.on_nonfinite": "restore"}).policy, OBS, DISCRETE)
    before = copy.deepcopy([twin.state_dict() for twin in policy.twins])
    learn(policy, rows(1), rows(0, reward=NAN))
    for twin, state in zip(policy.twins, before):
        assert all(torch.equal(param, state[name]) for name, param in twin.named_parameters())


def test_restore_raises_if_three_restores_brought_no_progress():
    policy = dqn("restore")
    learn(policy, rows(1))
    for step in range(3):
        learn(policy, rows(0, reward=NAN), rows(step))
    with pytest.raises(
        NonFiniteError, match="the weights of gradient step 0 were restored 3 times; the last time, the loss of DQ"
    ):
        learn(policy, rows(0, reward=NAN))
    policy = dqn("restore")
    for step in range(220):  # a hundred good steps are progress
        learn(policy, rows(0, reward=NAN) if step % 50 == 7 else rows(step))


def test_restore_keeps_weights_that_were_loaded(digest):
    policy, other = dqn("restore"), dqn("raise")
    learn(policy, rows(1))
    learn(other, *map(rows, range(5)))
    policy.load_state_dict(other.state_dict())
    learn(policy, rows(0, reward=NAN))
    assert digest(learned(policy)) == digest(learned(other))


def test_restore_keeps_weights_that_were_loaded_from_a_state_without_a_copy(digest):
    policy, source = dqn("restore"), dqn("raise", **{"policy.seed": 9})
    learn(policy, *map(rows, range(5)))
    learn(source, *map(rows, range(5)))
    assert policy.version == source.version
    policy.load_state_dict(source.state_dict())
    learn(policy, rows(0, reward=NAN))

    assert digest(policy.model.state_dict()) == digest(source.model.state_dict())


@pytest.mark.parametrize("mode", ["skip", "restore"])
def test_a_saved_policy_goes_on_in_the_same_way(mode, digest, tmp_path):
    one, other = dqn(mode), dqn(mode)
    learn(one, *map(rows, range(20)), *[rows(0, reward=NAN)] * 3)
    other.load_state_dict(load_checkpoint(save_checkpoint(one.state_dict(), tmp_path / "one.pt")))
    bad = [rows(1), *[rows(0, reward=NAN)] * (10 if mode == "skip" else 0)]
    learn(one, *bad)
    learn(other, *bad)
    assert digest(one.state_dict()) == digest(other.state_dict())
    for policy in (one, other):
        with pytest.raises(NonFiniteError, match="in a row" if mode == "skip" else "restored 3 times"):
            learn(policy, rows(0, reward=NAN))


def test_states_fit_policies_with_another_setting(digest):
    for one, other in (("raise", "restore"), ("restore", "raise"), ("skip", "restore")):
        saved, policy = dqn(one), dqn(other)
        learn(saved, rows(1))
        policy.load_state_dict(saved.state_dict())
        learn(policy, rows(2))
        learn(saved, rows(2))
        assert digest(learned(policy)["model"]) == digest(learned(saved)["model"])


@pytest.mark.parametrize("all_bad", [False, True])
def test_the_minibatches_of_a_rollout_are_skipped_one_by_one(digest, all_bad):
    cfg = PPOConfig().override(
        {"policy.learn.on_nonfinite": "skip", "policy.learn.batch_size": 32, "policy.learn.epoch_per_collect": 2}
    )
    cfg.policy.learn.adv_norm = False
    policy = PPOPolicy(cfg.policy, OBS, DISCRETE)
    batch = {
        "obs": torch.randn(16, 4, 3),
        "action": torch.randint(2, (16, 4)),
        **{name: torch.rand(16, 4) for name in ("advantage", "value", "return_")},
        "log_prob": torch.full((16, 4), -0.7),
    }
    batch["advantage"][slice(None) if all_bad else 3, slice(None) if all_bad else 2] = math.nan
    before = learned(policy)
    (output,) = learn(policy, tree(batch))

    taken = 0 if all_bad else 2
    assert (policy.train_iter, policy.version) == (taken, taken)
    assert float(output["skipped_fraction"]) == 1 - taken / 4
    assert (digest(learned(policy)) == digest(before)) == all_bad
    assert ("total_loss" in output) != all_bad
    assert all_bad or math.isfinite(output["total_loss"])


class CountingBuffer(PrioritizedReplayBuffer):
    updates = 0

    def update_priority(self, index, priority):
        super().update_priority(index, priority)
        self.updates += 1


@pytest.mark.parametrize("how", ["learner", "fetcher"])
def test_a_skipped_step_changes_no_priorities(how, digest):
    cfg = DQNConfig().override(
        {"policy.learn.on_nonfinite": "skip", "policy.learn.learning_starts": 16, "policy.learn.update_per_collect": 1}
    )
    envs = make_envs("CartPole-v1", 4, seed=0)
    policy = Spoiled(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_ = CountingBuffer(1000, seed=0)
    seen = []
    loop = Task()
    with loop.start(ctx=OnlineRLContext()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the run continues")
        loop.use(eps_greedy_handler(cfg))
        loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
        if how == "learner":
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        else:
            loop.use(offpolicy_data_fetcher(cfg, buffer_, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
        policy.calls, policy.spoiled = 0, {2, 3}
        for _ in range(7):
            loop.run(max_step=1)
            seen.append((policy.train_iter, buffer_.updates))
    assert seen == [(1, 1), (2, 2), (2, 2), (2, 2), (3, 3), (4, 4), (5, 5)]


@pytest.mark.few
@pytest.mark.parametrize(("mode", "max_lag"), [("skip", 0), ("skip", 2), ("restore", 1)])
def test_overlapping_iterations_have_the_same_result(mode, max_lag, digest, tmp_path):
    def train(async_mode):
        folder = tmp_path / f"{async_mode}"
        cfg = DQNConfig(exp_name=str(folder)).override(
            {
                "policy.learn.on_nonfinite": mode,
                "policy.learn.learning_starts": 16,
                "policy.learn.update_per_collect": 3,
                "policy.collect.n_sample": 16,
                "policy.model.encoder_hidden_size_list": [16],
            }
        )
        envs = make_envs("CartPole-v1", 4, seed=0)
        policy = Spoiled(cfg.policy, envs.single_observation_space, envs.single_action_space)
        buffer_ = ReplayBuffer(10_000, seed=0)
        loop = Task()
        with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*the run continues")
            loop.use(eps_greedy_handler(cfg))
            loop.use(StepCollector(cfg, policy.collect_mode, envs))
            loop.use(data_pusher(cfg, buffer_))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
            loop.use(online_logger(cfg, train_show_freq=1))
            policy.calls, policy.spoiled = 0, {3, 4, 17}
            loop.run(max_step=12)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        name = "learn/skipped_steps" if mode == "skip" else "learn/restores"
        return digest(learned(policy)), policy.train_iter, [(row["train_iter"], row[name]) for row in rows if name in row]

    result = train(async_mode=False)
    assert train(async_mode=True) == result
    assert result[1] == 12 * 3 - 3
    assert result[2][-1] == (33, 3)


def test_a_whole_ppo_run_goes_on_after_bad_rewards():
    cfg = PPOConfig().override({"policy.learn.on_nonfinite": "skip", "policy.learn.epoch_per_collect": 1})
    envs = make_envs("CartPole-v1", 4, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

    def spoil(ctx):
        if ctx.total_step == 1:
            ctx.train_data = with_leaves(ctx.train_data, advantage=ctx.train_data.advantage * math.nan)

    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(gae_estimator(cfg, policy.collect_mode))
        loop.use(spoil).use(multistep_trainer(cfg, policy.learn_mode))
        with pytest.warns(UserWarning, match="the run continues"):
            loop.run(max_step=3)
    assert policy.train_iter == loop.ctx.train_iter == 2 * 4
