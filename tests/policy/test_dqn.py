"""DQN against its equations row by row, its target network, its exploration, and a chain whose value is known."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.envs import SpaceError
from ding_lite.policy import DQNPolicy, DQNPolicyConfig

OBS, B = spaces.Box(-1, 1, (5,), np.float32), 12


def made(action_space=None, observation_space=OBS, double_precision: bool = False, **settings) -> DQNPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    policy = DQNPolicy(DQNPolicyConfig().override(settings), observation_space, action_space or spaces.Discrete(3))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def transitions(n: int = B, num_actions: int = 3, start: int = 0, dtype=torch.float64, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 5, generator=g, dtype=torch.float64).to(dtype),
        "next_obs": torch.randn(n, 5, generator=g, dtype=torch.float64).to(dtype),
        "action": torch.randint(num_actions, (n,), generator=g) + start,
        "reward": 3 * torch.randn(n, generator=g, dtype=torch.float64).to(dtype),
        "terminated": torch.rand(n, generator=g) < 0.3,
        "truncated": torch.rand(n, generator=g) < 0.3,
    }


def moved_apart(policy: DQNPolicy) -> DQNPolicy:
    """With a target network unlike the online one."""
    with torch.no_grad():
        for i, param in enumerate(policy.target_model.parameters()):
            param.add_(torch.linspace(-0.5, 0.6, param.numel(), dtype=param.dtype).reshape(param.shape) * (-1) ** i)
    return policy


def loss_by_definition(policy: DQNPolicy, batch: dict, double: bool, gamma: float, start: int) -> float:
    terms = []
    for i in range(len(batch["reward"])):
        q = policy.model(batch["obs"][i : i + 1])[0].tolist()
        online = policy.model(batch["next_obs"][i : i + 1])[0].tolist()
        judged = policy.target_model(batch["next_obs"][i : i + 1])[0].tolist()
        future = judged[online.index(max(online))] if double else max(judged)
        target = batch["reward"][i].item() + (0 if batch["terminated"][i] else gamma * future)
        error = abs(q[batch["action"][i].item() - start] - target)
        terms.append(0.5 * error**2 if error < 1 else error - 0.5)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_the_loss_matches_its_equation_row_by_row(start, double, dueling):
    policy = made(
        spaces.Discrete(3, start=start), double_precision=True, double=double, discount_factor=0.8, model__dueling=dueling
    )
    batch = transitions(start=start)
    loss, stats = moved_apart(policy).loss(tree(batch))
    expected = loss_by_definition(policy, batch, double, 0.8, start)
    rows = zip(batch["obs"], batch["action"].tolist(), strict=True)
    q_value = [policy.model(obs.unsqueeze(0))[0, action - start].item() for obs, action in rows]

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose([stats["loss"], stats["q_value"]], [expected, np.mean(q_value)], rtol=1e-12)
    assert not any(stat.requires_grad for stat in stats.values())


def test_double_q_learning_differs_from_the_plain_one():
    plain, double = (
        moved_apart(made(double=double)).loss(tree(transitions(dtype=torch.float32)))[0] for double in (False, True)
    )

    assert plain.item() != double.item()


@pytest.mark.parametrize("double", [False, True])
def test_only_a_termination_cuts_the_bootstrap(double):
    policy, batch = made(double_precision=True, double=double), transitions()
    loss = policy.loss(tree(batch))[0]
    flipped = {**batch, "truncated": ~batch["truncated"]}
    without = {name: leaf for name, leaf in batch.items() if name != "truncated"}

    assert policy.loss(tree(flipped))[0] == policy.loss(tree(without))[0] == loss
    assert policy.loss(tree({**batch, "terminated": ~batch["terminated"]}))[0] != loss


def test_the_target_has_no_gradient():
    policy = made()
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))

    assert all(param.grad is None and not param.requires_grad for param in policy.target_model.parameters())


def states(policy: DQNPolicy) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return tuple([param.detach().clone() for param in net.parameters()] for net in (policy.model, policy.target_model))


@pytest.mark.parametrize("theta", [1.0, 0.1, 0.0])
@pytest.mark.parametrize("freq", [1, 3])
def test_the_target_network_moves_when_its_turn_comes_and_as_far_as_asked(freq, theta):
    policy = made(learn__target_update_freq=freq, learn__target_update_theta=theta, learn__learning_rate=0.05)
    _, expected = states(policy)
    for step in range(1, 8):
        policy.learn_mode.forward(tree(transitions(dtype=torch.float32, seed=step)))
        online, target = states(policy)
        if step % freq == 0:
            expected = [(1 - theta) * old + theta * new for old, new in zip(expected, online, strict=True)]
        for found, wanted in zip(target, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0 if theta in (0, 1) else 1e-5, atol=0 if theta in (0, 1) else 1e-7)


def test_the_target_network_begins_as_a_copy_of_its_own():
    policy = made()
    online, target = states(policy)

    assert all(torch.equal(one, two) for one, two in zip(online, target, strict=True))
    memory = [{param.data_ptr() for param in net.parameters()} for net in (policy.model, policy.target_model)]
    assert not memory[0] & memory[1]


def test_a_dueling_network_centres_its_advantages():
    policy, obs = made(model__dueling=True, model__encoder_hidden_size_list=[8, 7]), torch.rand(6, 5)
    encoder, head = policy.model

    torch.testing.assert_close(policy.model(obs).mean(-1, keepdim=True), head.value(encoder(obs)))
    assert encoder(obs).shape == (6, 7)
    assert made().model(obs).shape == (6, 3)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_network_without_hidden_layers_is_linear_or_refused(dueling):
    if dueling:
        with pytest.raises(ValueError, match="encoder_hidden_size_list"):
            made(model__dueling=True, model__encoder_hidden_size_list=[])
    else:
        network = made(model__encoder_hidden_size_list=[]).model
        x = torch.rand(4, 5)
        torch.testing.assert_close(network(x) + network(-x), 2 * network(0 * x).expand(4, 3))


@pytest.mark.parametrize("start", [0, 3, -2])
def test_without_exploration_the_action_is_the_best_one(start):
    policy, obs = made(spaces.Discrete(4, start=start)), np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    best = policy.model(torch.from_numpy(obs)).argmax(-1).numpy() + start

    for action in (
        policy.collect_mode.forward(obs)[0],
        policy.collect_mode.forward(obs, eps=0.0)[0],
        policy.eval_mode.forward(obs, eps=1.0)[0],
    ):
        np.testing.assert_array_equal(action, best)
        assert action.dtype == np.int64


@pytest.mark.parametrize("eps", [0.25, 1.0])
@pytest.mark.parametrize("start", [0, 3])
def test_actions_are_random_with_probability_eps(start, eps):
    policy, obs = made(spaces.Discrete(4, start=start)), np.ones((40, 5), np.float32)
    greedy = policy.eval_mode.forward(obs)[0][0] - start
    drawn = np.concatenate([policy.collect_mode.forward(obs, eps=eps)[0] for _ in range(500)]) - start
    expected = np.full(4, len(drawn) * eps / 4) + (1 - eps) * len(drawn) * (np.arange(4) == greedy)

    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 16.3  # passed once in 1000 by chance


def test_the_state_holds_the_target_network(same):
    policy, other = moved_apart(made()), made(seed=1)
    other.load_state_dict(policy.state_dict())

    assert same(states(other), states(policy))


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_actions_that_are_not_discrete_are_refused_with_what_takes_them(space):
    with pytest.raises(SpaceError, match=r"DQNPolicy wants Discrete actions, got .*use PPOPolicy"):
        made(space)


def test_asking_for_values_is_refused_with_what_has_them():
    with pytest.raises(TypeError, match=r"DQNPolicy has no critic.*use a PPOPolicy"):
        made().collect_mode.with_values(tree(transitions()))


LENGTH, GAMMA = 5, 0.9


def learned_chain(observation_space, obs, next_obs, **ends) -> DQNPolicy:
    """What DQN learns of episodes of LENGTH steps with reward 1 each, whatever the action."""
    policy = made(
        spaces.Discrete(2), observation_space, discount_factor=GAMMA, model__encoder_hidden_size_list=[],
        learn__learning_rate=0.05, learn__target_update_freq=8,
    )  # fmt: skip
    no = torch.zeros(2 * LENGTH, dtype=torch.bool)
    action = torch.arange(2).repeat(LENGTH)
    rows = {
        "obs": obs,
        "next_obs": next_obs,
        "action": action,
        "reward": torch.ones(2 * LENGTH),
        "terminated": no,
        "truncated": no,
    }
    batch = tree({**rows, **ends})
    for _ in range(450):
        policy.learn_mode.forward(batch)
    return policy


def last() -> torch.Tensor:
    return torch.arange(2 * LENGTH) >= 2 * (LENGTH - 1)


def test_a_chain_cut_by_a_time_limit_is_worth_the_endless_sum():
    one = torch.ones(2 * LENGTH, 1)
    policy = learned_chain(spaces.Box(0, 1, (1,)), one, one, truncated=last())

    np.testing.assert_allclose(policy.model(one[:1]).detach(), [[1 / (1 - GAMMA)] * 2], rtol=0.02)


def test_a_chain_that_terminates_is_worth_the_sum_to_its_end():
    step = torch.arange(LENGTH).repeat_interleave(2)
    policy = learned_chain(spaces.Discrete(LENGTH + 1), step, step + 1, terminated=last())
    expected = [[sum(GAMMA**k for k in range(LENGTH - t))] * 2 for t in range(LENGTH)]

    np.testing.assert_allclose(policy.model(torch.arange(LENGTH)).detach(), expected, rtol=0.02)
