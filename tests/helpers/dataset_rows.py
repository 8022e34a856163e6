"""Rows of datasets for policies that learn from them, and networks evaluated row by row."""

import math

import numpy as np
import torch
from gymnasium import spaces

OBS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Box(np.array([-2.0, -1.0]), np.array([2.0, 3.0]), dtype=np.float64)
MIDDLE = torch.tensor([0.0, 1.0], dtype=torch.float64)  # a unit action is (action - MIDDLE) / 2
KINDS = ("mixed", "one row", "all terminated", "none terminated", "several steps", "by priority")


def box_rows(kind="mixed", seed=0, n=6, dtype=torch.float64):
    """Random rows [n, ...] with actions inside of the bounds and, in every second row, exactly at them."""
    n = 1 if kind == "one row" else n
    g = torch.Generator().manual_seed(seed)
    numbers = torch.randn(n, 9, generator=g, dtype=torch.float64)
    unit = numbers[:, 6:8].tanh()
    unit[::2] = unit[::2].sign()
    batch = {
        "obs": numbers[:, :3].to(dtype),
        "next_obs": numbers[:, 3:6].to(dtype),
        "action": (2 * unit + MIDDLE).to(dtype),
        "reward": (3 * numbers[:, 8]).to(dtype),
        "terminated": torch.rand(n, generator=g) < 0.4,
    }
    if kind in ("all terminated", "none terminated"):
        batch["terminated"] = torch.full((n,), kind == "all terminated")
    if kind == "several steps":
        batch["discount"] = torch.rand(n, generator=g, dtype=torch.float64).to(dtype)
    if kind == "by priority":
        batch["weight"] = torch.rand(n, generator=g, dtype=torch.float64).to(dtype)
    return batch


def in_double_precision(policy):
    """The policy with float64, and with a target network unlike the online one."""
    policy.model.double(), policy.target_model.double()
    with torch.no_grad():
        for i, param in enumerate(policy.target_model.parameters()):
            param.add_(torch.linspace(-0.5, 0.6, param.numel(), dtype=param.dtype).reshape(param.shape) * (-1) ** i)
    return policy


def twin(generator):
    """A generator that draws the same numbers."""
    other = torch.Generator()
    other.set_state(generator.get_state())
    return other


def outputs(network, x):
    """The numbers that a network with relu layers returns for one row."""
    layers = list(network.layers)
    for i, layer in enumerate(layers):
        x = layer(x if i == 0 else x.clamp(min=0))
    return x.tolist()


def q_values(critics, k, *inputs):
    """The numbers that member k of an ensemble returns for one row."""
    x = torch.cat(inputs)
    for i, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
        x = (x if i == 0 else x.clamp(min=0)) @ weight[k].T + bias[k, 0]
    return x.tolist()


def discount_of(batch, i, gamma):
    """The factor of the next value of row i."""
    return 0.0 if batch["terminated"][i] else batch["discount"][i].item() if "discount" in batch else gamma


def weight_of(batch, i):
    """The weight of row i."""
    return batch["weight"][i].item() if "weight" in batch else 1.0


def normal_log_density(x, mean, std):
    return math.log(math.exp(-(((x - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi)))


def bandit(discrete, n=256, seed=0):
    """One-step episodes in two states, -1 and 1. Of the actions in the data, the better one is the rarer one.

    Args:
        discrete: actions 0 and 1 of Discrete(3), of which action 2 is not in the data; or one number near -0.5 or 0.5.
    """
    g = torch.Generator().manual_seed(seed)
    side = 2.0 * (torch.rand(n, generator=g) < 0.5) - 1
    is_good = torch.rand(n, generator=g) < 0.3
    chosen = torch.where(is_good, side, -side)
    obs = side.unsqueeze(-1)
    if discrete:
        action = (chosen > 0).long()
    else:
        action = (0.5 * chosen + 0.05 * torch.randn(n, generator=g)).unsqueeze(-1)
    return {
        "obs": obs,
        "next_obs": obs,
        "action": action,
        "reward": is_good.float(),
        "terminated": torch.ones(n, dtype=torch.bool),
    }


BANDIT_OBS, BANDIT_BOX, BANDIT_DISCRETE = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(3)
STATES = np.array([[-1.0], [1.0]], np.float32)
