"""DDPG against its equations row by row."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import DDPGPolicy, DDPGPolicyConfig

GAMMA = 0.8
ACTIONS = spaces.Box(np.array([-2.0, -1.0]), np.array([2.0, 3.0]), dtype=np.float64)


def made(double_precision: bool = True) -> DDPGPolicy:
    cfg = DDPGPolicyConfig().override({"seed": 0, "model.encoder_hidden_size_list": [8, 7], "discount_factor": GAMMA})
    policy = DDPGPolicy(cfg, spaces.Box(-1, 1, (5,)), ACTIONS)
    if double_precision:
        policy.model.double(), policy.target_model.double()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in policy.target_model.parameters():
            param.add_(0.3 * torch.randn(param.shape, generator=g))
    return policy


def transitions(n: int = 12, dtype=torch.float64, **columns) -> dict:
    g = torch.Generator().manual_seed(n)
    rows = {
        "obs": torch.randn(n, 5, generator=g, dtype=torch.float64),
        "next_obs": torch.randn(n, 5, generator=g, dtype=torch.float64),
        "action": torch.tensor([-2.0, -1.0]) + 4 * torch.rand(n, 2, generator=g, dtype=torch.float64),
        "reward": 3 * torch.randn(n, generator=g, dtype=torch.float64),
        "weight": torch.rand(n, generator=g, dtype=torch.float64),
        "discount": torch.rand(n, generator=g, dtype=torch.float64),
    }
    rows = {name: column.to(dtype) for name, column in rows.items() if name not in ("weight", "discount") or name in columns}
    flags = {name: torch.rand(n, generator=g) < 0.3 for name in ("terminated", "truncated")}
    return {**rows, **flags, **{name: column for name, column in columns.items() if column is not None}}


def layers(network) -> list:
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in network.layers]


def through(pairs, x):
    for k, (weight, bias) in enumerate(pairs):
        x = weight @ x + bias
        x = np.maximum(x, 0) if k < len(pairs) - 1 else x
    return x


def action_by_hand(model, obs):
    return np.tanh(through(layers(model.actor.network), obs.numpy()))


def value_by_hand(model, obs, unit) -> float:
    critics = model.critic.critics
    pairs = [(w[0].detach().numpy(), b[0, 0].detach().numpy()) for w, b in zip(critics.weights, critics.biases, strict=True)]
    return through(pairs, np.concatenate([obs.numpy(), unit])).item()


def losses_by_definition(policy, batch) -> tuple[float, float, list]:
    critic, actor, errors = [], [], []
    for i in range(len(batch["reward"])):
        obs, next_obs = batch["obs"][i], batch["next_obs"][i]
        target = batch["reward"][i].item()
        if not batch["terminated"][i]:
            discount = batch["discount"][i].item() if "discount" in batch else GAMMA
            target += discount * value_by_hand(policy.target_model, next_obs, action_by_hand(policy.target_model, next_obs))
        unit = (batch["action"][i].numpy() - np.array([0.0, 1.0])) / 2
        errors.append(abs(target - value_by_hand(policy.model, obs, unit)))
        critic.append(errors[-1] ** 2 / 2 * (batch["weight"][i].item() if "weight" in batch else 1))
        actor.append(-value_by_hand(policy.model, obs, action_by_hand(policy.model, obs)))
    return np.mean(critic), np.mean(actor), errors


ALL, NONE = torch.ones(12, dtype=torch.bool), torch.zeros(12, dtype=torch.bool)


@pytest.mark.parametrize(
    ("n", "columns"),
    [
        (12, {}),
        (1, {}),
        (12, {"terminated": ALL}),
        (12, {"terminated": NONE}),
        (12, {"terminated": NONE, "truncated": ALL}),
        (12, {"weight": None, "discount": None}),
    ],
    ids=["some end", "one row", "all terminated", "none ends", "all truncated", "weights and discounts"],
)
def test_the_losses_match_their_equations_row_by_row(n, columns):
    policy, batch = made(), transitions(n, **columns)
    loss, stats = policy.loss(tree(batch))
    critic, actor, errors = losses_by_definition(policy, batch)

    np.testing.assert_allclose(
        [loss.item(), stats["critic_loss"], stats["actor_loss"]], [critic + actor, critic, actor], rtol=1e-12
    )
    assert ("priority" in stats) == ("weight" in batch)
    np.testing.assert_allclose(stats.get("priority", errors), errors, rtol=1e-12)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_gradient_of_the_actor_climbs_the_value():
    policy, batch = made(), tree(transitions())
    before = policy.actor_loss(batch).item()
    policy.actor_loss(batch).backward()
    with torch.no_grad():
        for param in policy.model.actor.parameters():
            param.sub_(1e-4 * param.grad)

    assert policy.actor_loss(batch).item() < before


def test_every_step_moves_actor_critic_and_targets():
    policy = made(double_precision=False)
    nets = {"actor": policy.model.actor, "critic": policy.model.critic, "target": policy.target_model}
    before = {name: [param.detach().clone() for param in net.parameters()] for name, net in nets.items()}
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))

    for name, net in nets.items():
        assert not any(torch.equal(*pair) for pair in zip(before[name], net.parameters(), strict=True)), name
