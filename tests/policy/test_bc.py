"""Behaviour cloning against the likelihood written out, for actions of every space."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.basics import ConfigError
from ding_lite.data import tree
from ding_lite.policy import BCPolicy

OBS = spaces.Box(-1, 1, (3,))
PARTS = spaces.Dict(
    g=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1.0, 3.0, (2,)))),
    m=spaces.MultiDiscrete([2, 3]),
    b=spaces.MultiBinary(2),
)
ACTIONS = {
    "one of n": spaces.Discrete(3, start=-1),
    "several": spaces.MultiDiscrete([2, 4]),
    "bits": spaces.MultiBinary(3),
    "a bounded vector": spaces.Box(-1.0, 3.0, (2,), np.float32),
    "an endless matrix": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    "parts": PARTS,
}
each = pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS.keys())


def made(space, **settings):
    policy = BCPolicy({"seed": 0, "model.encoder_hidden_size_list": [8], **settings}, OBS, space)
    with torch.no_grad():
        for i, param in enumerate(policy.params):  # the actor starts near uniform, which would hide mistakes
            param.add_(torch.linspace(-0.5, 0.6, param.numel()).reshape(param.shape) * (-1) ** i)
    policy.model.double()
    return policy


def rows(space, elements, n=8, seed=0):
    action = elements(space, n, seed=seed)
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all():
        action[::2] = space.high  # exactly at a bound
    obs = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"obs": obs, "action": action}


def log_likelihoods(space, numbers, log_stds, action):
    """For each element of an action, in the order of the space: its log-likelihood, whether it is discrete, and its error.

    Args:
        numbers, log_stds: the parameters of the distribution, which are taken one by one.
    """
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from log_likelihoods(part, numbers, log_stds, action[name])
    elif isinstance(space, spaces.Tuple):
        for at, part in enumerate(space.spaces):
            yield from log_likelihoods(part, numbers, log_stds, action[str(at)])
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec
        chosen = np.asarray(action).ravel() - np.asarray(space.start).ravel()
        for size, index in zip(sizes, chosen, strict=True):
            logit = [next(numbers) for _ in range(size)]
            wrong = float(logit.index(max(logit)) != index)
            yield logit[index] - math.log(sum(math.exp(one) for one in logit)), True, wrong
    elif isinstance(space, spaces.MultiBinary):
        for bit in np.asarray(action).ravel():
            chance = 1 / (1 + math.exp(-next(numbers)))
            yield math.log(chance if bit else 1 - chance), True, float((chance > 0.5) != bool(bit))
    else:
        for x in np.asarray(action, np.float64).ravel():
            mean, log_std = next(numbers), next(log_stds)
            density = math.exp(-(((x - mean) / math.exp(log_std)) ** 2) / 2) / (math.exp(log_std) * math.sqrt(2 * math.pi))
            yield math.log(density), False, (x - mean) ** 2


def row(action, i):
    return {name: row(part, i) for name, part in action.items()} if isinstance(action, dict) else action[i]


@each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "seed"), [(8, 0), (8, 1), (1, 2)])
def test_the_loss_is_the_negated_mean_log_likelihood(space, weighted, n, seed, elements):
    policy, batch = made(space), rows(space, elements, n, seed)
    weight = torch.linspace(0.1, 2, n, dtype=torch.float64)
    log_std = [param for name, param in policy.model.named_parameters() if name.endswith("log_std")]
    losses, wrongs, squares = [], [], []
    for i in range(n):
        numbers, log_stds = (
            iter(policy.model.logits(batch["obs"])[i].tolist()),
            iter(torch.cat(log_std).tolist() if log_std else []),
        )
        found = list(log_likelihoods(space, numbers, log_stds, row(batch["action"], i)))
        losses.append(-sum(one for one, _, _ in found) * (weight[i].item() if weighted else 1))
        wrongs += [error for _, is_discrete, error in found if is_discrete]
        squares += [error for _, is_discrete, error in found if not is_discrete]
    loss, stats = policy.loss(tree({**batch, "weight": weight} if weighted else batch))

    np.testing.assert_allclose([loss.item(), stats["loss"]], [np.mean(losses)] * 2, rtol=1e-9)
    assert set(stats) == {"loss", "entropy", *(["accuracy"] if wrongs else []), *(["mse"] if squares else [])}
    if wrongs:
        np.testing.assert_allclose(stats["accuracy"], 1 - np.mean(wrongs), rtol=1e-6)
    if squares:
        np.testing.assert_allclose(stats["mse"], np.mean(squares), rtol=1e-6)
    assert not any(stat.requires_grad for stat in stats.values())


def test_it_has_an_actor_and_no_critic():
    policy = BCPolicy(None, OBS, ACTIONS["one of n"])

    assert policy.model.critic is None
    assert set(policy.columns) == {"obs", "action", "weight"}
    with pytest.raises(TypeError, match="BCPolicy has no critic"):
        policy.collect_mode.with_values(tree({"obs": torch.zeros(1, 1, 3)}))


def test_an_action_that_a_mask_does_not_allow_is_never_taken():
    space = spaces.Dict(x=OBS, action_mask=spaces.MultiBinary(3))
    policy = BCPolicy({"seed": 0}, space, ACTIONS["one of n"])
    obs = {"x": np.zeros((100, 3), np.float32), "action_mask": np.tile(np.array([[0, 1, 0], [1, 0, 1]], np.int8), (50, 1))}

    assert set(policy.collect_mode.forward(obs)[0][::2].tolist()) == {0}
    assert set(policy.collect_mode.forward(obs)[0][1::2].tolist()) == {-1, 1}
    assert 0 not in policy.eval_mode.forward(obs)[0][1::2]


@pytest.mark.parametrize("name", ["one of n", "a bounded vector"])
def test_it_learns_to_act_as_the_data(name):
    g = torch.Generator().manual_seed(0)
    obs = torch.randn(512, 3, generator=g)
    action = (obs[:, 0] > 0).long() - 1 if name == "one of n" else torch.stack([obs[:, 1].sin(), obs[:, 0] > 0], 1)
    policy = BCPolicy({"seed": 0, "model.encoder_hidden_size_list": [32], "learn.learning_rate": 0.01}, OBS, ACTIONS[name])
    for _ in range(150):
        stats = policy.learn_mode.forward(tree({"obs": obs, "action": action}))
    found = policy.eval_mode.forward(obs.numpy())[0]

    if name == "one of n":
        assert stats["accuracy"] > 0.97
        assert (found == action.numpy()).mean() > 0.97
    else:
        assert stats["mse"] < 0.05
        assert np.abs(found[:, 0] - obs[:, 1].sin().numpy()).mean() < 0.2


def test_a_mixture_finds_one_of_two_good_actions_where_a_gaussian_is_between_them():
    g = torch.Generator().manual_seed(0)
    obs = torch.randn(512, 3, generator=g)
    way = torch.where(torch.rand(512, 1, generator=g) < 0.6, 0.7, -0.7)  # 6 of 10 pass the obstacle on one side
    action = way + 0.05 * torch.randn(512, 1, generator=g)
    space, settings = spaces.Box(-1, 1, (1,)), {"model.encoder_hidden_size_list": [32], "learn.learning_rate": 0.01}
    found = {}
    for components in (0, 2):
        policy = BCPolicy({"seed": 0, **settings, "model.mixture_components": components}, OBS, space)
        for _ in range(200):
            stats = policy.learn_mode.forward(tree({"obs": obs, "action": action}))
        found[components] = policy.eval_mode.forward(obs.numpy())[0]

    off = {components: np.abs(np.abs(actions) - 0.7) for components, actions in found.items()}  # from the nearest good action
    assert np.median(off[0]) > 0.3
    assert np.quantile(off[2], 0.95) < 0.1
    assert stats["loss"] == pytest.approx(math.log(0.05) + 0.5 * (1 + math.log(2 * math.pi)) + 0.67, abs=0.3)  # 0.67: which way


def test_a_mixture_needs_a_box_action():
    settings = {"model.mixture_components": 3}
    with pytest.raises(ConfigError, match=r"mixture_components = 3 is for Box actions.*Discrete\(3.*: set it to 0"):
        BCPolicy(settings, OBS, ACTIONS["one of n"])

    assert BCPolicy({**settings, "seed": 0}, OBS, PARTS).model.distribution.width == 3 + 3 * 5 + 5 + 2


def test_a_network_of_the_users_gets_the_mixture_of_the_configuration():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Linear(3, 2 * 5)

    policy = BCPolicy({"seed": 0, "model.mixture_components": 2}, OBS, ACTIONS["a bounded vector"], model=Net())

    assert policy.eval_mode.forward(np.zeros((4, 3), np.float32))[0].shape == (4, 2)
