"""IQN against eq. 3 of its paper, pair by pair of the quantiles that it drew."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import IQNPolicy, IQNPolicyConfig

OBS = spaces.Box(-1, 1, (5,), np.float32)
N, TARGETS, ACTING, GAMMA = 4, 3, 5, 0.9


def made(start: int = 0, double_precision: bool = True, **settings) -> IQNPolicy:
    settings = {
        "seed": 0, "discount_factor": GAMMA, "model.num_quantiles": N, "model.num_target_quantiles": TARGETS,
        "model.num_acting_quantiles": ACTING, "model.quantile_embedding_size": 6,
        "model.encoder_hidden_size_list": [8], "model.head_hidden_size_list": [7],
        **{key.replace("__", "."): v for key, v in settings.items()},
    }  # fmt: skip
    policy = IQNPolicy(IQNPolicyConfig().override(settings), OBS, spaces.Discrete(3, start=start))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def drawn_next(policy: IQNPolicy, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of the target's quantiles and of the prediction's that the next loss will ask for."""
    generator = torch.Generator()
    generator.set_state(policy.generator.get_state())
    return torch.rand(rows, TARGETS, generator=generator), torch.rand(rows, N, generator=generator)


def row_loss(value: list[float], target: list[float], tau: list[float], kappa: float) -> float:
    loss = 0.0
    for one, place in zip(value, tau):
        for aim in target:
            error = aim - one
            huber = error**2 / 2 if abs(error) <= kappa else kappa * (abs(error) - kappa / 2)
            loss += abs(place - (error < 0)) * huber / kappa / len(target)
    return loss


def by_definition(policy: IQNPolicy, batch: dict, start: int) -> tuple[list[float], list[float], list[float]]:
    """Loss, error of the mean and mean return of each row."""
    next_tau, tau = drawn_next(policy, len(batch["reward"]))
    acting = torch.tensor([(2 * i + 1) / (2 * ACTING) for i in range(ACTING)])
    losses, errors, means = [], [], []
    for i in range(len(batch["reward"])):
        obs, next_obs = batch["obs"][i : i + 1], batch["next_obs"][i : i + 1]
        chooser = policy.model if policy.cfg.double else policy.target_model
        q = [sum(quantiles) / ACTING for quantiles in chooser(next_obs, acting)[0].tolist()]
        discount = batch["discount"][i].item() if "discount" in batch else GAMMA
        discount = 0 if batch["terminated"][i] else discount
        judged = policy.target_model(next_obs, next_tau[i : i + 1])[0].tolist()[q.index(max(q))]
        target = [batch["reward"][i].item() + discount * value for value in judged]
        value = policy.model(obs, tau[i : i + 1])[0].tolist()[batch["action"][i].item() - start]
        losses.append(row_loss(value, target, tau[i].tolist(), policy.cfg.kappa))
        errors.append(abs(sum(target) / TARGETS - sum(value) / N))
        means.append(sum(value) / N)
    return losses, errors, means


@pytest.mark.few
@pytest.mark.parametrize(("start", "kappa", "dueling"), [(0, 1.0, False), (3, 0.3, True)])
@pytest.mark.parametrize("double", [False, True])
def test_the_loss_matches_its_equation_pair_by_pair(start, kappa, dueling, double, varied, moved_apart):
    policy, batch = moved_apart(made(start, double=double, model__dueling=dueling, kappa=kappa)), varied(start=start)
    losses, errors, means = by_definition(policy, batch, start)
    loss, stats = policy.loss(tree(batch))
    expected = np.mean(np.asarray(losses) * batch.get("weight", torch.ones(len(losses))).numpy())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose([stats["loss"], stats["q_value"]], [expected, np.mean(means)], rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    if "weight" in batch:
        np.testing.assert_allclose(stats["priority"], errors, rtol=1e-11)
    assert not any(stat.requires_grad for stat in stats.values())


def test_acting_draws_nothing_and_each_loss_draws_other_quantiles(transitions, same):
    policy, batch = made(), tree(transitions())
    before = policy.generator_state()
    values = [policy.q_values(batch.obs) for _ in range(2)]

    assert torch.equal(*values)
    assert same(policy.generator_state(), before)
    assert policy.loss(batch)[0] != policy.loss(batch)[0]


def test_the_quantile_function_of_a_known_distribution_is_learned():
    policy = made(
        double_precision=False, learn__learning_rate=0.01, kappa=0.05, model__encoder_hidden_size_list=[16],
        model__head_hidden_size_list=[32], model__num_quantiles=8,
    )  # fmt: skip
    n = 64
    batch = tree({
        "obs": torch.zeros(n, 5), "next_obs": torch.zeros(n, 5), "action": torch.zeros(n, dtype=torch.int64),
        "reward": torch.linspace(0, 1, n), "terminated": torch.ones(n, dtype=torch.bool),
    })  # fmt: skip
    for _ in range(200):
        policy.learn_mode.forward(batch)
    tau = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])

    np.testing.assert_allclose(policy.model(torch.zeros(1, 5), tau)[0, 0].detach(), tau, atol=0.06)
