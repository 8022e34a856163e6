"""QR-DQN against eq. 10 of its paper, pair by pair of quantiles."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import QRDQNPolicy, QRDQNPolicyConfig

OBS = spaces.Box(-1, 1, (5,), np.float32)
N, GAMMA = 4, 0.9


def made(start: int = 0, double_precision: bool = True, **settings) -> QRDQNPolicy:
    settings = {
        "seed": 0, "discount_factor": GAMMA, "model.num_quantiles": N,
        "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()},
    }  # fmt: skip
    policy = QRDQNPolicy(QRDQNPolicyConfig().override(settings), OBS, spaces.Discrete(3, start=start))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def row_loss(theta: list[float], target: list[float], kappa: float) -> float:
    loss = 0.0
    for i, value in enumerate(theta):
        for one in target:
            error = one - value
            if kappa == 0:
                huber = abs(error)
            else:
                huber = error**2 / 2 / kappa if abs(error) <= kappa else abs(error) - kappa / 2
            loss += abs((2 * i + 1) / (2 * len(theta)) - (error < 0)) * huber / len(target)
    return loss


def by_definition(policy: QRDQNPolicy, batch: dict, start: int) -> tuple[list[float], list[float], list[float]]:
    """Loss, error of the mean and mean return of each row."""
    losses, errors, means = [], [], []
    for i in range(len(batch["reward"])):
        online, judged, now = (
            network(batch[name][i : i + 1])[0].tolist()
            for network, name in ((policy.model, "next_obs"), (policy.target_model, "next_obs"), (policy.model, "obs"))
        )
        q = [sum(quantiles) / N for quantiles in (online if policy.cfg.double else judged)]
        discount = batch["discount"][i].item() if "discount" in batch else GAMMA
        discount = 0 if batch["terminated"][i] else discount
        target = [batch["reward"][i].item() + discount * value for value in judged[q.index(max(q))]]
        theta = now[batch["action"][i].item() - start]
        losses.append(row_loss(theta, target, policy.cfg.kappa))
        errors.append(abs(sum(target) - sum(theta)) / N)
        means.append(sum(theta) / N)
    return losses, errors, means


@pytest.mark.parametrize(("start", "kappa", "dueling"), [(0, 1.0, False), (3, 0.3, True), (-2, 0.0, False)])
@pytest.mark.parametrize("double", [False, True])
def test_the_loss_matches_its_equation_pair_by_pair(start, kappa, dueling, double, varied, moved_apart):
    policy, batch = moved_apart(made(start, double=double, model__dueling=dueling, kappa=kappa)), varied(start=start)
    loss, stats = policy.loss(tree(batch))
    losses, errors, means = by_definition(policy, batch, start)
    expected = np.mean(np.asarray(losses) * batch.get("weight", torch.ones(len(losses))).numpy())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose([stats["loss"], stats["q_value"]], [expected, np.mean(means)], rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    if "weight" in batch:
        np.testing.assert_allclose(stats["priority"], errors, rtol=1e-11)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_value_of_an_action_is_the_mean_of_its_quantiles():
    policy, obs = made(), torch.randn(6, 5, dtype=torch.float64)
    expected = [[sum(x.tolist()) / N for x in row] for row in policy.model(obs)]

    np.testing.assert_allclose(policy.q_values(obs).detach(), expected, rtol=1e-12)


def test_the_quantiles_of_a_known_distribution_are_learned():
    policy = made(double_precision=False, learn__learning_rate=0.02, kappa=0.01)
    n = 64
    batch = tree({
        "obs": torch.zeros(n, 5), "next_obs": torch.zeros(n, 5), "action": torch.zeros(n, dtype=torch.int64),
        "reward": torch.linspace(0, 1, n), "terminated": torch.ones(n, dtype=torch.bool),
    })  # fmt: skip
    for _ in range(200):
        policy.learn_mode.forward(batch)

    np.testing.assert_allclose(policy.model(torch.zeros(1, 5))[0, 0].detach(), [1 / 8, 3 / 8, 5 / 8, 7 / 8], atol=0.03)
