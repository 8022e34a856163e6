"""What all policies with distributions over returns keep: actions, targets, saved states, columns, spaces."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.envs import SpaceError
from ding_lite.policy import C51Policy, IQNPolicy, QRDQNPolicy, RainbowPolicy

OBS = spaces.Box(-1, 1, (5,), np.float32)
KINDS = (C51Policy, IQNPolicy, QRDQNPolicy, RainbowPolicy)
each = pytest.mark.parametrize("kind", KINDS)


def made(kind, action_space=None, observation_space=OBS, seed: int = 0, **settings):
    cfg = kind.config_type().override({"seed": seed, "model.encoder_hidden_size_list": [8], **settings})
    return kind(cfg, observation_space, action_space or spaces.Discrete(3))


def rows(transitions, seed: int = 0) -> dict:
    return transitions(dtype=torch.float32, seed=seed)


@each
@pytest.mark.parametrize("start", [0, 3, -2])
def test_evaluation_takes_the_action_of_highest_mean_return(kind, start):
    policy, obs = made(kind, spaces.Discrete(4, start=start)), np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    with torch.no_grad():
        for param in policy.params:
            param.mul_(3)  # so that no action is the best everywhere
        best = policy.q_values(torch.from_numpy(obs)).argmax(-1).numpy() + start
    action = policy.eval_mode.forward(obs, eps=1.0)[0]

    np.testing.assert_array_equal(action, best)
    assert action.dtype == np.int64
    assert len(np.unique(best)) > 1


@pytest.mark.parametrize("kind", [C51Policy, IQNPolicy, QRDQNPolicy])
def test_actions_are_random_with_probability_eps(kind):
    policy, obs = made(kind, spaces.Discrete(4)), np.ones((40, 5), np.float32)
    greedy = policy.eval_mode.forward(obs)[0][0]
    np.testing.assert_array_equal(policy.collect_mode.forward(obs)[0], greedy)
    drawn = np.concatenate([policy.collect_mode.forward(obs, eps=0.25)[0] for _ in range(100)])
    expected = np.full(4, len(drawn) / 16) + 0.75 * len(drawn) * (np.arange(4) == greedy)

    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 16.3  # passed once in 1000 by chance


@each
def test_the_columns_that_are_fetched_are_those_of_its_loss(kind):
    assert set(made(kind).columns) == {"obs", "action", "reward", "next_obs", "terminated", "weight", "discount"}


@each
def test_learning_changes_every_weight_and_not_the_target_until_its_turn(kind, transitions):
    policy = made(kind, **{"learn.target_update_freq": 3})
    first = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    for step in range(1, 4):
        policy.learn_mode.forward(tree(rows(transitions, step)))
        assert all(param.grad is None for param in policy.target_model.parameters())
        moved = [not torch.equal(tensor, first[name]) for name, tensor in policy.target_model.state_dict().items()]
        assert any(moved) == (step == 3)
    now = policy.model.state_dict()

    assert not any(torch.equal(tensor, first[name]) for name, tensor in now.items())
    assert all(torch.equal(tensor, policy.target_model.state_dict()[name]) for name, tensor in now.items())


@pytest.mark.few
@each
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_next_obs_of_terminated_steps_has_no_influence(kind, double, junk, transitions):
    first, other = made(kind, double=double), made(kind, double=double)
    batch = rows(transitions)
    batch["terminated"][:2] = True
    first.learn_mode.forward(tree(batch))
    batch["next_obs"] = batch["next_obs"].clone()
    batch["next_obs"][:2] = junk
    other.learn_mode.forward(tree(batch))

    for mine, theirs in zip(first.params, other.params, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.few
@each
def test_a_saved_policy_goes_on_bit_for_bit(kind, transitions, same):
    policy, other = made(kind, **{"learn.target_update_freq": 2}), made(kind, seed=1, **{"learn.target_update_freq": 2})
    obs = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    for step in range(3):
        policy.learn_mode.forward(tree(rows(transitions, step)))
        policy.collect_mode.forward(obs, eps=0.3)
    other.load_state_dict(policy.state_dict())

    assert same(other.state_dict(), policy.state_dict())
    for step in range(5):
        batch = {**rows(transitions, step), "weight": torch.linspace(0.1, 1, 12)}
        one, two = (it.learn_mode.forward(tree(batch)) for it in (policy, other))
        assert same(one, two)
        assert same(*(it.collect_mode.forward(obs, eps=0.3)[0] for it in (policy, other)))
    assert same(other.state_dict(), policy.state_dict())


@each
def test_two_policies_of_one_seed_are_the_same_and_of_another_seed_are_not(kind, transitions, same):
    one, two, three = made(kind), made(kind), made(kind, seed=1)
    for policy in (one, two, three):
        policy.learn_mode.forward(tree(rows(transitions)))

    assert same(one.state_dict(), two.state_dict())
    assert not same(one.model.state_dict(), three.model.state_dict())


@pytest.mark.few
@each
@pytest.mark.parametrize("dueling", [False, True])
def test_images_and_nested_observations_are_taken(kind, dueling, elements, transitions):
    space = spaces.Dict({"image": spaces.Box(0, 255, (12, 12, 3), np.uint8), "place": spaces.Discrete(3)})
    policy = made(kind, observation_space=space, **{"model.dueling": dueling})
    obs = elements(space, 12)
    batch = {**rows(transitions), "obs": obs, "next_obs": obs}

    assert policy.collect_mode.forward(obs)[0].shape == (12,)
    assert torch.isfinite(policy.learn_mode.forward(tree(batch))["loss"])


@each
@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])])
def test_actions_that_are_not_discrete_are_refused(kind, space):
    with pytest.raises(SpaceError, match=rf"{kind.__name__} wants Discrete actions, got "):
        made(kind, space)


LENGTH, GAMMA = 4, 0.9


@pytest.mark.few
@each
@pytest.mark.parametrize("nstep", [1, 2])
def test_a_chain_that_terminates_is_worth_the_sum_to_its_end(kind, nstep):
    """Reward 1 a step, whatever the action; with nstep 2, two rewards at once."""
    rate, steps, freq = (0.02, 250, 10) if kind is IQNPolicy else (0.05, 110, 5)  # IQN learns from random quantiles
    settings = {"discount_factor": GAMMA, "learn.learning_rate": rate, "learn.target_update_freq": freq}
    if kind in (C51Policy, RainbowPolicy):
        settings |= {"model.v_min": 0.0, "model.v_max": 5.0, "model.n_atom": 21}
    policy = made(kind, spaces.Discrete(2), spaces.Discrete(LENGTH + 1), **settings)
    step = torch.arange(LENGTH).repeat_interleave(2)
    ahead = torch.clamp(step + nstep, max=LENGTH)
    batch = tree({
        "obs": step, "next_obs": ahead, "action": torch.arange(2).repeat(LENGTH),
        "reward": sum(GAMMA**k * (step + k < LENGTH).float() for k in range(nstep)),
        "discount": GAMMA ** (ahead - step).float(), "terminated": ahead == LENGTH,
    })  # fmt: skip
    for _ in range(steps):
        policy.learn_mode.forward(batch)
    expected = [[sum(GAMMA**k for k in range(LENGTH - t))] * 2 for t in range(LENGTH)]

    np.testing.assert_allclose(policy.q_values(torch.arange(LENGTH)).detach(), expected, atol=0.15)
