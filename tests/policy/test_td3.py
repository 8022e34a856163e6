"""TD3 against its equations row by row, and its delays."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import TD3Policy, TD3PolicyConfig

GAMMA, NOISE, CLIP = 0.8, 0.4, 0.3
OBS, ACTIONS = spaces.Box(-1, 1, (5,)), spaces.Box(np.array([-2.0, -1.0]), np.array([2.0, 3.0]), dtype=np.float64)


def made(double_precision: bool = True, **settings) -> TD3Policy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], "discount_factor": GAMMA, **settings}
    settings |= {"learn.target_noise": NOISE, "learn.target_noise_clip": CLIP}
    policy = TD3Policy(TD3PolicyConfig().override(settings), OBS, ACTIONS)
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


def value(model, k: int, obs, unit) -> float:
    x, critics = torch.cat([obs, unit]), model.critic.critics
    for layer, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
        x = (x if layer == 0 else x.clamp(min=0)) @ weight[k].T + bias[k, 0]
    return x.item()


def action(model, obs) -> torch.Tensor:
    hidden, last = model.actor.network.layers
    return torch.tanh(last(hidden(obs).clamp(min=0)))


def losses_by_definition(policy, batch) -> tuple[float, float, list]:
    drawn = torch.Generator()
    drawn.set_state(policy.generator.get_state())
    noise = torch.randn(len(batch["reward"]), 2, generator=drawn, dtype=torch.float64)
    critic, actor, priority = [], [], []
    for i in range(len(batch["reward"])):
        aim = action(policy.target_model, batch["next_obs"][i])
        added = torch.tensor([min(max(NOISE * one, -CLIP), CLIP) for one in noise[i].tolist()], dtype=torch.float64)
        near = torch.tensor([min(max(one, -1.0), 1.0) for one in (aim + added).tolist()], dtype=torch.float64)
        target = batch["reward"][i].item()
        if not batch["terminated"][i]:
            discount = batch["discount"][i].item() if "discount" in batch else GAMMA
            target += discount * min(value(policy.target_model, k, batch["next_obs"][i], near) for k in (0, 1))
        unit = (batch["action"][i] - torch.tensor([0.0, 1.0])) / 2
        errors = [target - value(policy.model, k, batch["obs"][i], unit) for k in (0, 1)]
        critic.append((errors[0] ** 2 + errors[1] ** 2) / 2 * (batch["weight"][i].item() if "weight" in batch else 1))
        priority.append((abs(errors[0]) + abs(errors[1])) / 2)
        actor.append(-value(policy.model, 0, batch["obs"][i], action(policy.model, batch["obs"][i])))
    return np.mean(critic), np.mean(actor), priority


@pytest.mark.parametrize("ends", ["some", "all", "none", "truncated"])
@pytest.mark.parametrize(("n", "replayed"), [(12, False), (12, True), (1, False)])
def test_the_losses_match_their_equations_row_by_row(n, replayed, ends):
    policy, batch = made(), transitions(n)
    if ends != "some":
        batch["terminated"][:], batch["truncated"][:] = ends == "all", ends == "truncated"
    if replayed:
        batch |= {"weight": torch.linspace(0.1, 1, n).double(), "discount": torch.linspace(0.5, 0.9, n).double()}
    critic, actor, priority = losses_by_definition(policy, batch)
    loss, stats = policy.loss(tree(batch))

    np.testing.assert_allclose(
        [stats["critic_loss"], stats["actor_loss"], loss.item()], [critic, actor, critic + actor], rtol=1e-12
    )
    np.testing.assert_allclose(stats["priority"] if replayed else priority, priority, rtol=1e-12)
    assert ("priority" in stats) == replayed


def test_the_actor_learns_in_every_second_step_and_the_critics_in_each():
    policy = made(double_precision=False)
    moved = {"actor": [], "critic": [], "target": []}
    nets = {"actor": policy.model.actor, "critic": policy.model.critic, "target": policy.target_model}
    for step in range(6):
        before = {name: [param.detach().clone() for param in net.parameters()] for name, net in nets.items()}
        stats = policy.learn_mode.forward(tree(transitions(dtype=torch.float32, seed=step)))
        for name, net in nets.items():
            moved[name].append(not all(torch.equal(*pair) for pair in zip(before[name], net.parameters(), strict=True)))
        assert ("actor_loss" in stats) == moved["actor"][-1]

    assert moved == {"actor": [True, False] * 3, "critic": [True] * 6, "target": [False, True] * 3}


def test_the_delay_is_counted_by_the_saved_gradient_steps():
    policy, other = (made(double_precision=False, **{"learn.actor_update_freq": 3}) for _ in range(2))
    for _ in range(2):
        policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))
    other.load_state_dict(policy.state_dict())
    turns = ["actor_loss" in other.learn_mode.forward(tree(transitions(dtype=torch.float32))) for _ in range(4)]

    assert turns == [False, True, False, False]
