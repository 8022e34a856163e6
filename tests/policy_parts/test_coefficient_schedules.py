"""Schedules and the adapted KL weight: what they do to learning, and that checkpoints hold them."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.basics import ConfigError
from ding_lite.data import tree
from ding_lite.policy import (
    AWACPolicy,
    BCPolicy,
    BoxActionMixin,
    C51Policy,
    CQLPolicy,
    DDPGPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    IQLPolicy,
    IQNPolicy,
    PPOPolicy,
    PPOPolicyConfig,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    SACPolicy,
    TD3BCPolicy,
    TD3Policy,
)
from ding_lite.policy_base import build_policy
from ding_lite.policy_parts import EntropyCoeffSchedule, KLCoeffMixin, LearningRateSchedule

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
T, B = 8, 2


def entropy_loss(policy, model, dist_class, batch):
    logit, _ = model.from_batch(batch)
    return (model.values(batch.obs) - batch.reward).square().mean() - policy.entropy_coeff * dist_class(logit).entropy().mean()


def rows(n=6):
    g = torch.Generator().manual_seed(0)
    return tree({"obs": torch.randn(n, 4, generator=g), "action": torch.arange(n) % 3, "reward": torch.randn(n, generator=g)})


def ppo(**settings):
    return PPOPolicy(PPOPolicyConfig(seed=0).override({"learn.epoch_per_collect": 4, **settings}), BOX, DISCRETE)


def rollout(policy, seed=0):
    g = torch.Generator().manual_seed(seed)
    obs, signals = torch.randn(T, B, 4, generator=g), torch.randn(3, T, B, generator=g)
    action = torch.randint(3, (T, B), generator=g)
    with torch.no_grad():
        logit = policy.model.logits(obs.flatten(0, 1))
        log_prob = policy.dist_class(logit).logp(action.flatten()).reshape(T, B)
    names = ("value", "advantage", "return_")
    return tree({"obs": obs, "action": action, "log_prob": log_prob, **dict(zip(names, signals))})


def test_both_schedules_are_linear_between_their_points_and_constant_beyond():
    settings = {"lr_schedule": [(0, 0.8), (4, 0.0)], "entropy_coeff_schedule": [(1, 0.5), (3, 0.1)], "seed": 0}
    kind = build_policy("Scheduled", loss_fn=entropy_loss, mixins=[LearningRateSchedule, EntropyCoeffSchedule])
    policy = kind(settings, BOX, DISCRETE)
    seen = []
    for _ in range(6):
        policy.learn_mode.forward(rows())
        seen.append((round(policy.cur_lr, 6), round(policy.entropy_coeff, 6), policy.optimizer.param_groups[0]["lr"]))

    assert [pair[:2] for pair in seen] == [(0.8, 0.5), (0.6, 0.5), (0.4, 0.3), (0.2, 0.1), (0.0, 0.1), (0.0, 0.1)]
    assert [round(rate, 6) for *_, rate in seen] == [0.8, 0.6, 0.4, 0.2, 0.0, 0.0]


def replayed(kind, **settings):
    """A policy that learns from replay, and rows that it learns from."""
    is_box = issubclass(kind, BoxActionMixin)
    small = {"seed": 0, "model.encoder_hidden_size_list": [4], "learn.learning_rate": 0.1}
    small |= {"learn.burn_in": 0, "learn.unroll_len": 2, "model.lstm_size": 3} if kind is R2D2Policy else {}
    policy = kind({**small, **settings}, BOX, spaces.Box(-1, 1, (2,), np.float32) if is_box else DISCRETE)
    lead = (6, 2) if kind is R2D2Policy else (6,)
    flags = {name: torch.zeros(lead, dtype=torch.bool) for name in ("terminated", "truncated")}
    batch = {"obs": torch.ones(*lead, 4), "next_obs": torch.ones(*lead, 4), "reward": torch.ones(lead), **flags}
    batch["action"] = torch.zeros(*lead, 2) if is_box else torch.zeros(lead, dtype=torch.int64)
    if kind is R2D2Policy:
        batch |= {f"state_in_{k}": torch.zeros(6, 3) for k in range(2)}
        batch["valid"] = torch.ones(lead, dtype=torch.bool)
    return policy, tree(batch)


REPLAYING = (DQNPolicy, C51Policy, QRDQNPolicy, IQNPolicy, RainbowPolicy, R2D2Policy, DDPGPolicy, TD3Policy, SACPolicy)
REPLAYING += (AWACPolicy, BCPolicy, CQLPolicy, DiscreteCQLPolicy, DiscreteIQLPolicy, IQLPolicy, TD3BCPolicy)


@pytest.mark.few
@pytest.mark.parametrize("kind", REPLAYING)
def test_policies_that_learn_from_replay_follow_a_learning_rate_and_log_it(kind):
    policy, batch = replayed(kind, **{"learn.lr_schedule": [(0, 0.2), (2, 0.1), (2, 0.05), (4, 0.0)]})
    logged = [policy.learn_mode.forward(batch)["cur_lr"].item() for _ in range(5)]

    assert logged == pytest.approx([0.2, 0.15, 0.05, 0.025, 0.0])
    assert policy.optimizer.param_groups[0]["lr"] == 0.0
    constant, batch = replayed(kind)
    assert [constant.learn_mode.forward(batch)["cur_lr"].item() for _ in range(2)] == pytest.approx([0.1, 0.1])


def test_rates_of_their_own_keep_their_ratio_to_the_learning_rate():
    settings = {"learn.learning_rate_actor": 0.05, "learn.learning_rate_alpha": 0.2, "learn.lr_schedule": [(0, 0.4), (4, 0.0)]}
    policy, batch = replayed(SACPolicy, **settings)
    seen = []
    for _ in range(5):
        policy.learn_mode.forward(batch)
        seen.append([group["lr"] for group in policy.optimizer.param_groups])

    assert seen == [pytest.approx([rate, rate / 2, 2 * rate]) for rate in (0.4, 0.3, 0.2, 0.1, 0.0)]
    with pytest.raises(ConfigError, match=r"learn.learning_rate = 0 with a learn.lr_schedule, and another rate is 0.2"):
        replayed(SACPolicy, **{**settings, "learn.learning_rate": 0.0})


def test_without_a_schedule_both_stay():
    policy = build_policy("Still", loss_fn=entropy_loss, mixins=[LearningRateSchedule, EntropyCoeffSchedule])(
        {"lr": 0.25, "entropy_coeff": 0.125}, BOX, DISCRETE
    )
    policy.learn_mode.forward(rows())

    assert (policy.cur_lr, policy.entropy_coeff) == (0.25, 0.125)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0, 0.5), (0.0049, 0.5), (0.005, 1.0), (0.01, 1.0), (0.02, 1.0), (0.0201, 1.5), (9.0, 1.5)]
)
def test_the_weight_of_the_kl_divergence_goes_after_its_target(kl, factor):
    policy = ppo(**{"learn.kl_coeff": 0.2, "learn.kl_target": 0.01})

    assert policy.update_kl(kl) == pytest.approx(0.2 * factor)
    assert policy.kl_coeff == pytest.approx(0.2 * factor)


def test_the_weight_of_the_kl_divergence_grows_again_after_many_small_ones():
    policy = ppo(**{"learn.kl_coeff": 0.2, "learn.kl_target": 0.01})
    for _ in range(2000):
        policy.update_kl(0.0)
    assert policy.kl_coeff == 1e-8
    assert policy.update_kl(1.0) == pytest.approx(1.5e-8)
    for coeff in (0.0, 1e-9):  # of the configuration, below the limit
        policy = ppo(**{"learn.kl_coeff": coeff})
        assert policy.update_kl(0.0) == coeff


def test_a_loss_without_a_kl_divergence_is_a_warning_once(recwarn):
    def only_loss(policy, model, dist_class, batch):
        return PPOPolicy.loss(policy, batch)[0]

    kind = PPOPolicy.with_updates("OnlyLoss", loss_fn=only_loss)
    for coeff in (0.0, 0.25):
        policy = kind({"kl_coeff": coeff, "seed": 0}, BOX, DISCRETE)
        for seed in range(2):
            policy.learn_mode.forward(rollout(policy, seed))

    words = 'kl_coeff of OnlyLoss stays 0.25: it is adapted to the KL divergence, and learning returns no "kl". Return it from'
    assert [str(it.message)[: len(words)] for it in recwarn] == [words]


def test_rollouts_of_which_no_step_is_taken_are_no_loss_without_a_kl_divergence():
    policy = ppo(**{"learn.kl_coeff": 0.25, "learn.on_nonfinite": "skip"})
    batch = rollout(policy)
    batch.advantage = batch.advantage * torch.nan
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        output = policy.learn_mode.forward(batch)

    assert output["skipped_fraction"] == 1
    assert not [it for it in shown if "kl_coeff" in str(it.message)]
    assert policy.kl_coeff == 0.25


def test_a_kl_divergence_with_gradients_adapts_it_in_silence(recwarn):
    def with_kl(policy, model, dist_class, batch):
        loss = model.values(batch.obs).square().mean()
        return loss, {"kl": 100 + loss}

    policy = build_policy("WithKL", loss_fn=with_kl, mixins=[KLCoeffMixin])({"kl_coeff": 0.25}, BOX, DISCRETE)
    output = policy.learn_mode.forward(rows())

    assert policy.kl_coeff == 0.25 * 1.5
    assert not output["kl"].requires_grad
    assert not recwarn.list


def test_ppo_adapts_it_after_each_rollout_and_logs_all_eight_statistics():
    policy = ppo(**{"learn.kl_coeff": 0.2, "learn.kl_target": 1e-9, "learn.learning_rate": 0.01})
    first = policy.learn_mode.forward(rollout(policy))
    second = policy.learn_mode.forward(rollout(policy, 1))

    names = {"cur_kl_coeff", "cur_lr", "total_loss", "policy_loss", "vf_loss", "vf_explained_var", "kl", "entropy"}
    assert names <= first.keys()
    assert (float(first["cur_kl_coeff"]), float(second["cur_kl_coeff"])) == pytest.approx((0.2, 0.3))
    assert policy.kl_coeff == pytest.approx(0.45)
    assert float(first["cur_lr"]) == pytest.approx(0.01)


def test_the_kl_penalty_is_in_the_loss_with_its_weight():
    policy = ppo(**{"learn.kl_coeff": 0.7, "learn.entropy_weight": 0.1, "learn.adv_norm": False})
    batch = tree({name: leaf.flatten(0, 1) for name, leaf in rollout(policy).items()})
    with torch.no_grad():
        for param in policy.params:
            param += 0.05 * torch.randn(param.shape, generator=torch.Generator().manual_seed(param.numel()))
    loss, stats = policy.loss(batch)
    expected = stats["policy_loss"] + 0.5 * stats["vf_loss"] - 0.1 * stats["entropy"] + 0.7 * stats["kl"]

    assert stats["kl"] > 1e-3
    torch.testing.assert_close(loss.detach(), expected)


def test_the_gradient_of_the_penalty_is_that_of_the_divergence_on_average():
    # The estimator is unbiased in value and gradient: over all actions, weighted by the old policy, both are exact.
    policy = ppo(**{"learn.kl_coeff": 1.0})
    old = torch.tensor([0.2, 0.5, 0.3]).log()
    logit = torch.tensor([0.3, -0.4, 0.9], requires_grad=True)
    new = logit.log_softmax(-1)
    ratio = (new - old).exp()
    estimate = (old.exp() * (ratio - 1 - (new - old))).sum()
    exact = (old.exp() * (old - new)).sum()
    by_estimate, by_definition = (torch.autograd.grad(x, logit, retain_graph=True)[0] for x in (estimate, exact))

    torch.testing.assert_close(estimate, exact)
    torch.testing.assert_close(by_estimate, by_definition)
    assert policy.kl_coeff == 1.0


def test_a_checkpoint_holds_what_the_mixins_have_come_to():
    schedules = {"learn.lr_schedule": [(0, 0.01), (100, 0.0)], "learn.entropy_schedule": [(0, 0.1), (100, 0.0)]}
    policy = ppo(**{"learn.kl_coeff": 0.2, "learn.kl_target": 1e-9, **schedules})
    for seed in range(3):
        policy.learn_mode.forward(rollout(policy, seed))
    other = ppo(**{"learn.kl_coeff": 0.2, "learn.kl_target": 1e-9, **schedules})
    other.load_state_dict(policy.state_dict())

    assert (other.kl_coeff, other.cur_lr, other.entropy_coeff) == (policy.kl_coeff, policy.cur_lr, policy.entropy_coeff)
    for seed in range(3, 5):
        batch = rollout(policy, seed)
        one, two = policy.learn_mode.forward(batch), other.learn_mode.forward(batch)
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(a, b) for a, b in zip(policy.params, other.params))


def test_a_state_from_before_there_were_mixins_can_be_loaded():
    policy = ppo()
    state = {name: part for name, part in policy.state_dict().items() if name not in ("kl_coeff", "entropy_coeff")}
    policy.load_state_dict(state)

    assert policy.kl_coeff == 0.0


def test_kl_is_left_alone_where_its_weight_is_zero():
    assert KLCoeffMixin in PPOPolicy.__mro__
    policy = ppo(**{"learn.kl_target": 1e-9})
    policy.learn_mode.forward(rollout(policy))

    assert policy.kl_coeff == 0.0
