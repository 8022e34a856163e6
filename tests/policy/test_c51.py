"""C51 against algorithm 1 of its paper, row by row and atom by atom."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import C51Policy, C51PolicyConfig

OBS = spaces.Box(-1, 1, (5,), np.float32)
V_MIN, V_MAX, N, GAMMA = -3.0, 5.0, 7, 0.9


def made(start: int = 0, double_precision: bool = True, **settings) -> C51Policy:
    settings = {
        "seed": 0, "discount_factor": GAMMA, "model.n_atom": N, "model.v_min": V_MIN, "model.v_max": V_MAX,
        "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()},
    }  # fmt: skip
    policy = C51Policy(C51PolicyConfig().override(settings), OBS, spaces.Discrete(3, start=start))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def softmax(logit: list[float]) -> list[float]:
    whole = sum(math.exp(x) for x in logit)
    return [math.exp(x) / whole for x in logit]


def projected(prob: list[float], reward: float, discount: float) -> list[float]:
    step = (V_MAX - V_MIN) / (N - 1)
    out = [0.0] * N
    for j, p in enumerate(prob):
        place = (min(max(reward + discount * (V_MIN + j * step), V_MIN), V_MAX) - V_MIN) / step
        low, high = math.floor(place), math.ceil(place)
        out[low] += p * (high - place if high > low else 1)
        out[high] += p * (place - low)
    return out


def by_definition(policy: C51Policy, batch: dict, start: int) -> tuple[list[float], list[float], list[float]]:
    """Loss, divergence and mean return of each row."""
    atoms = np.linspace(V_MIN, V_MAX, N)
    losses, divergences, means = [], [], []
    for i in range(len(batch["reward"])):
        online, judged, now = (
            [softmax(action.tolist()) for action in network(batch[name][i : i + 1])[0]]
            for network, name in ((policy.model, "next_obs"), (policy.target_model, "next_obs"), (policy.model, "obs"))
        )
        q = [float(np.dot(atoms, prob)) for prob in (online if policy.cfg.double else judged)]
        discount = batch["discount"][i].item() if "discount" in batch else GAMMA
        target = projected(judged[q.index(max(q))], batch["reward"][i].item(), 0 if batch["terminated"][i] else discount)
        prob = now[batch["action"][i].item() - start]
        losses.append(-sum(t * math.log(p) for t, p in zip(target, prob)))
        divergences.append(sum(t * math.log(t / p) for t, p in zip(target, prob) if t > 0))
        means.append(float(np.dot(atoms, prob)))
    return losses, divergences, means


@pytest.mark.few
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_the_loss_matches_the_algorithm_row_by_row(start, double, dueling, varied, moved_apart):
    policy, batch = moved_apart(made(start, double=double, model__dueling=dueling)), varied(start=start)
    loss, stats = policy.loss(tree(batch))
    losses, divergences, means = by_definition(policy, batch, start)
    expected = np.mean(np.asarray(losses) * batch.get("weight", torch.ones(len(losses))).numpy())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose([stats["loss"], stats["q_value"]], [expected, np.mean(means)], rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    if "weight" in batch:
        np.testing.assert_allclose(stats["priority"], divergences, rtol=1e-11)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_value_of_an_action_is_the_mean_of_its_returns():
    policy, obs = made(), torch.randn(6, 5, dtype=torch.float64)
    expected = [[np.dot(np.linspace(V_MIN, V_MAX, N), softmax(x.tolist())) for x in row] for row in policy.model(obs)]

    np.testing.assert_allclose(policy.q_values(obs).detach(), expected, rtol=1e-12)


def test_a_coin_that_pays_one_or_nothing_is_learned_as_a_coin():
    policy = made(double_precision=False, learn__learning_rate=0.1, model__v_min=0.0, model__v_max=2.0, model__n_atom=3)
    n = 64
    batch = tree({
        "obs": torch.zeros(n, 5), "next_obs": torch.zeros(n, 5), "action": torch.zeros(n, dtype=torch.int64),
        "reward": (torch.arange(n) % 4 == 0).float(), "terminated": torch.ones(n, dtype=torch.bool),
    })  # fmt: skip
    for _ in range(150):
        policy.learn_mode.forward(batch)

    np.testing.assert_allclose(policy.model(torch.zeros(1, 5))[0, 0].softmax(-1).detach(), [0.75, 0.25, 0], atol=0.01)


@pytest.mark.parametrize(("v_min", "v_max"), [(1.0, 1.0), (2.0, -2.0)])
def test_atoms_without_extent_are_refused_when_the_policy_is_made(v_min, v_max):
    with pytest.raises(ValueError, match="v_min"):
        made(model__v_min=v_min, model__v_max=v_max)
