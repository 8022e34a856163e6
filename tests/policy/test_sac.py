"""SAC against its equations row by row, and its temperature."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import SACPolicy, SACPolicyConfig

GAMMA, ALPHA = 0.8, 0.3
OBS, ACTIONS = spaces.Box(-1, 1, (5,)), spaces.Box(np.array([-2.0, -1.0]), np.array([2.0, 3.0]), dtype=np.float64)


def made(double_precision: bool = True, **settings) -> SACPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], "discount_factor": GAMMA, "learn.alpha": ALPHA, **settings}
    policy = SACPolicy(SACPolicyConfig().override(settings), OBS, ACTIONS)
    if double_precision:
        policy.model.double(), policy.target_model.double()
        with torch.no_grad():
            for i, param in enumerate(policy.target_model.parameters()):
                param.add_(torch.linspace(-0.5, 0.6, param.numel(), dtype=param.dtype).reshape(param.shape) * (-1) ** i)
    return policy


def transitions(n: int = 12, dtype=torch.float64, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)
    numbers = torch.randn(n, 13, generator=g, dtype=torch.float64).to(dtype)
    return {
        "obs": numbers[:, :5],
        "next_obs": numbers[:, 5:10],
        "action": numbers[:, 10:12].tanh() * 2 + torch.tensor([0.0, 1.0], dtype=dtype),
        "reward": 3 * numbers[:, 12],
        "terminated": torch.rand(n, generator=g) < 0.3,
        "truncated": torch.rand(n, generator=g) < 0.3,
    }


def value(critic, k: int, obs, unit) -> float:
    x, critics = torch.cat([obs, unit]), critic.critics
    for layer, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
        x = (x if layer == 0 else x.clamp(min=0)) @ weight[k].T + bias[k, 0]
    return x.item()


def drawn(policy, obs, noise) -> tuple[torch.Tensor, float]:
    """The action for this noise, and its log-density by the change of variables."""
    hidden, last = policy.model.actor.network.layers
    numbers = last(hidden(obs).clamp(min=0)).tolist()
    action, log_prob = [], 0.0
    for mean, log_std, one in zip(numbers[:2], numbers[2:], noise.tolist(), strict=True):
        raw = mean + math.exp(log_std) * one
        action.append(math.tanh(raw))
        normal = math.exp(-(((raw - mean) / math.exp(log_std)) ** 2) / 2) / (math.exp(log_std) * math.sqrt(2 * math.pi))
        log_prob += math.log(normal) - math.log(1 / math.cosh(raw) ** 2)
    return torch.tensor(action, dtype=torch.float64), log_prob


def losses_by_definition(policy, batch, alpha: float) -> tuple[float, float, list, list]:
    g = torch.Generator()
    g.set_state(policy.generator.get_state())
    n = len(batch["reward"])
    next_noise, noise = (torch.randn(n, 2, generator=g, dtype=torch.float64) for _ in range(2))
    critic, actor, priority, log_probs = [], [], [], []
    for i in range(n):
        target = batch["reward"][i].item()
        if not batch["terminated"][i]:
            action, log_prob = drawn(policy, batch["next_obs"][i], next_noise[i])
            judged = min(value(policy.target_model, k, batch["next_obs"][i], action) for k in (0, 1))
            target += (batch["discount"][i].item() if "discount" in batch else GAMMA) * (judged - alpha * log_prob)
        unit = (batch["action"][i] - torch.tensor([0.0, 1.0])) / 2
        errors = [target - value(policy.model.critic, k, batch["obs"][i], unit) for k in (0, 1)]
        critic.append((errors[0] ** 2 + errors[1] ** 2) / 2 * (batch["weight"][i].item() if "weight" in batch else 1))
        priority.append((abs(errors[0]) + abs(errors[1])) / 2)
        action, log_prob = drawn(policy, batch["obs"][i], noise[i])
        actor.append(alpha * log_prob - min(value(policy.model.critic, k, batch["obs"][i], action) for k in (0, 1)))
        log_probs.append(log_prob)
    return np.mean(critic), np.mean(actor), priority, log_probs


@pytest.mark.parametrize("ends", ["some", "all", "none", "truncated"])
@pytest.mark.parametrize(("n", "replayed"), [(12, False), (12, True), (1, False)])
def test_the_losses_match_their_equations_row_by_row(n, replayed, ends):
    policy, batch = made(), transitions(n)
    if ends != "some":
        batch["terminated"][:], batch["truncated"][:] = ends == "all", ends == "truncated"
    if replayed:
        batch |= {"weight": torch.linspace(0.1, 1, n).double(), "discount": torch.linspace(0.5, 0.9, n).double()}
    alpha = policy.model.log_alpha.exp().item()
    critic, actor, priority, log_probs = losses_by_definition(policy, batch, alpha)
    loss, stats = policy.loss(tree(batch))
    total = critic + actor - alpha * (np.mean(log_probs) - 2)

    np.testing.assert_allclose([stats["critic_loss"], stats["actor_loss"], loss.item()], [critic, actor, total], rtol=1e-12)
    np.testing.assert_allclose([stats["alpha"], stats["entropy"]], [alpha, -np.mean(log_probs)], rtol=1e-12)
    np.testing.assert_allclose(stats["priority"] if replayed else priority, priority, rtol=1e-12)
    assert ("priority" in stats) == replayed
    assert not any(stat.requires_grad for stat in stats.values())


@pytest.mark.parametrize(("target_entropy", "rises"), [(5.0, True), (-9.0, False)])
def test_the_temperature_rises_where_the_entropy_is_below_its_target(target_entropy, rises):
    policy = made(double_precision=False, **{"learn.target_entropy": target_entropy})
    before = policy.model.log_alpha.item()
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))

    assert (policy.model.log_alpha.item() > before) == rises


def test_a_temperature_that_does_not_adapt_stays_as_it_was_set():
    policy = made(double_precision=False, **{"learn.auto_alpha": False})
    for seed in range(3):
        stats = policy.learn_mode.forward(tree(transitions(dtype=torch.float32, seed=seed)))

    np.testing.assert_allclose(stats["alpha"], ALPHA, rtol=1e-6)
    np.testing.assert_allclose(policy.model.log_alpha.item(), math.log(ALPHA), rtol=1e-6)


def test_the_temperature_learns_at_its_own_rate():
    policy = made(double_precision=False, **{"learn.learning_rate_alpha": 0.1, "learn.learning_rate": 0.0})
    before = policy.model.log_alpha.item()
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))

    np.testing.assert_allclose(abs(policy.model.log_alpha.item() - before), 0.1, rtol=1e-3)  # Adam's first step


@pytest.mark.slow
def test_the_entropy_comes_to_its_target():
    policy = made(double_precision=False, **{"learn.target_entropy": -1.0, "learn.learning_rate": 0.01})
    batch = transitions(256, torch.float32)
    batch["reward"] = -5 * policy.model.bounds.to_unit(batch["action"]).square().sum(-1)
    batch["terminated"][:] = True
    entropy = [policy.learn_mode.forward(tree(batch))["entropy"].item() for _ in range(400)]

    np.testing.assert_allclose(np.mean(entropy[-50:]), -1.0, atol=0.5)


def test_targets_have_no_actor_and_take_none():
    policy = made()

    assert {name.split(".")[0] for name, _ in policy.target_model.named_parameters()} == {"critics"}


def test_evaluating_takes_the_squashed_mean():
    policy, obs = made(double_precision=False), np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    mean, _ = policy.model.actor(torch.from_numpy(obs))
    expected = np.array([0.0, 1.0]) + 2 * np.tanh(mean.detach().numpy())

    np.testing.assert_allclose(policy.eval_mode.forward(obs)[0], expected, rtol=1e-4, atol=1e-5)


def test_what_it_draws_has_the_density_that_its_loss_takes():
    policy, obs = made(double_precision=False), np.zeros((4000, 5), np.float32)
    taken = (policy.collect_mode.forward(obs)[0] - np.array([0.0, 1.0])) / 2
    sampled, log_prob = policy.model.actor.sample(torch.from_numpy(obs), policy.generator)
    sampled = sampled.detach().numpy()

    np.testing.assert_allclose(taken.mean(0), sampled.mean(0), atol=0.05)
    np.testing.assert_allclose(taken.std(0), sampled.std(0), atol=0.03)
    # The entropy once more, from a histogram of each number of the action, which are independent of each other.
    width = 0.1
    counts = [np.histogram(column, np.arange(-1, 1 + width / 2, width))[0] / len(column) for column in sampled.T]
    entropy = sum(-(p[p > 0] * np.log(p[p > 0] / width)).sum() for p in counts)
    np.testing.assert_allclose(-log_prob.mean().item(), entropy, atol=0.1)
