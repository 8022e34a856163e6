"""ICM: its bonus and its losses against the equations, what its features hold, and what it saves."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import check_continuation, check_refusal

from ding_lite.data import nested, tree
from ding_lite.data.trees import map_leaves, with_leaves
from ding_lite.policy import NonFiniteError
from ding_lite.rewards import ICMRewardConfig, ICMRewardModel

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
OBS = {
    "a vector": VECTOR,
    "a category": spaces.Discrete(5, start=1),
    "an image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "parts and a mask": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4), "action_mask": spaces.MultiBinary(3)}),
}
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "Discrete from 2 on": spaces.Discrete(3, start=2),
    "Box": BOX,
    "parts": spaces.Dict({"kind": spaces.Discrete(2, start=-1), "force": spaces.Box(-2.0, 2.0, (1,), np.float32)}),
}


def made(obs=VECTOR, action=ACTIONS["Discrete"], seed=0, **settings):
    return ICMRewardModel(ICMRewardConfig(**{"hidden_size_list": [5], "feature_size": 4, **settings}), obs, action, seed=seed)


def sampled(space, count, seed):
    """Samples of a space, as arrays nested like it."""
    space.seed(seed)
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([row[name] for row in rows]) for name in space.spaces}
    return np.stack(rows)


def batch(seed=0, obs=VECTOR, action=ACTIONS["Discrete"], count=12):
    observed = {name: sampled(obs, count, 2 * seed + later) for later, name in enumerate(("obs", "next_obs"))}
    return tree({**observed, "action": sampled(action, count, seed), "reward": np.arange(count, dtype=np.float32)})


def in_time(batch, lead):
    """The rows of a batch as [*lead, ...]."""
    return tree(map_leaves(lambda leaf: leaf.unflatten(0, lead), nested(batch)))


class Oracle:
    """The losses for vectors in float64, from the equations of the paper; networks have one hidden layer."""

    def __init__(self, model, action):
        self.model, self.action = model, action
        self.seen, self.acted = [], []

    def update(self, given):
        self.seen.append(given.next_obs.double())
        self.acted.append(self.clipped(given))

    def clipped(self, given):
        bound = 1.0 if isinstance(self.action, spaces.Box) else math.inf
        return given.action.double().clamp(-bound, bound)

    @staticmethod
    def normal(x, seen):
        seen = torch.cat(seen)
        return ((x.double() - seen.mean(0)) / (seen.var(0, correction=0) + 1e-8).sqrt()).clamp(-5, 5)

    @staticmethod
    def network(module, x):
        w1, b1, w2, b2 = (param.double() for param in module.parameters())
        return (x @ w1.T + b1).relu() @ w2.T + b2

    def losses(self, given):
        """The loss of the inverse model, and the error of the forward model for each row."""
        phi, next_phi = (self.network(self.model.encoder, self.normal(x, self.seen)) for x in (given.obs, given.next_obs))
        guess = self.network(self.model.inverse_model, torch.cat([phi, next_phi], 1))
        if isinstance(self.action, spaces.Box):
            taken = self.normal(self.clipped(given), self.acted)
            (log_std,) = (param.double() for param in self.model.distribution.parameters())
            density = -0.5 * ((taken - guess) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
            log_prob = density.sum(1)
        else:
            index = given.action.long() - int(self.action.start)
            taken = torch.eye(3, dtype=torch.float64)[index]
            log_prob = (guess.softmax(1) * taken).sum(1).log()
        error = (self.network(self.model.forward_model, torch.cat([phi, taken], 1)) - next_phi).square().mean(1)
        return -log_prob.mean(), error


VECTORS = [it for it in ACTIONS.values() if not isinstance(it, spaces.Dict)]


@pytest.mark.parametrize("action", VECTORS, ids=str)
def test_the_bonus_is_the_error_of_the_forward_model_over_its_usual_size(action):
    model = made(action=action, bonus_weight=0.5, scale_decay=0.8, bonus_steps=None)
    oracle, usual = Oracle(model, action), None
    for seed in range(4):
        given = batch(seed, action=action)
        if action is BOX:
            given = with_leaves(given, action=given.action * 3)  # which the environment clips
        oracle.update(given)
        inverse, error = (it.detach() for it in oracle.losses(given))
        square = float(error.square().mean())
        usual = square if usual is None else 0.8 * usual + 0.2 * square
        logged = model.learn(given)
        np.testing.assert_allclose(logged["icm_inverse_loss"], inverse, rtol=1e-4)
        np.testing.assert_allclose(logged["icm_forward_loss"], error.mean(), rtol=1e-4)
        np.testing.assert_allclose(logged["icm_bonus"], error.mean() / math.sqrt(usual), rtol=1e-4)
    given = batch(9, action=action)
    estimated = model.estimate(given)
    expected = given.reward.double() + 0.5 * oracle.losses(given)[1].detach() / math.sqrt(usual)

    np.testing.assert_allclose(estimated.reward, expected, rtol=1e-4)
    assert torch.equal(estimated.raw_reward, given.reward)
    assert torch.equal(model.estimate(estimated).raw_reward, given.reward)
    assert "raw_reward" not in given.keys()  # noqa: SIM118  a tree's `in` asks its leaves


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("action", VECTORS, ids=str)
def test_the_gradient_is_that_of_the_weighted_losses(action, weight):
    model, given = made(action=action, forward_weight=weight), batch(action=action)
    oracle = Oracle(model, action)
    oracle.update(given)
    inverse, error = oracle.losses(given)
    params = list(model.networks.parameters())
    expected = torch.autograd.grad((1 - weight) * inverse + weight * error.mean(), params)
    model.learn(given)

    assert len(params) == 12 + (action is BOX)
    for param, gradient in zip(params, expected):
        torch.testing.assert_close(param.grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_what_actions_do_not_influence_gives_no_bonus():
    """The second number of an observation is noise; the paper's point is that features leave it out."""
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    model = made(space, hidden_size_list=[32], learning_rate=3e-3, scale_decay=1.0, forward_weight=0.2)
    rng = np.random.default_rng(0)

    def moved(count=128):
        action, obs = rng.integers(3, size=count), rng.normal(size=(count, 2))
        after = np.stack([obs[:, 0] + action - 1, rng.normal(size=count)], 1)
        return tree({"obs": np.float32(obs), "next_obs": np.float32(after), "action": action, "reward": np.zeros(count)})

    first = model.learn(moved())
    for _ in range(300):
        last = model.learn(moved())
    given = moved()
    noisy = with_leaves(given, next_obs=given.next_obs + torch.tensor([0.0, 2.0]))
    odd = with_leaves(given, next_obs=given.next_obs + torch.tensor([2.0, 0.0]))
    bonus, of_noise, of_moves = (float(model.estimate(it).reward.mean()) for it in (given, noisy, odd))

    assert last["icm_inverse_loss"] < 0.5 * first["icm_inverse_loss"]
    assert of_moves - bonus > 3 * abs(of_noise - bonus)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS.keys())
@pytest.mark.parametrize("obs", OBS.values(), ids=OBS.keys())
@pytest.mark.parametrize("lead", [(6,), (1, 3)])
def test_spaces_of_every_kind_and_rollouts_as_well_as_rows(obs, action, lead):
    given, model = in_time(batch(0, obs, action, int(np.prod(lead))), lead), made(obs, action)
    logged = model.learn(given)

    assert set(logged) == {"icm_inverse_loss", "icm_forward_loss", "icm_bonus"}
    assert all(value.isfinite() and value.ndim == 0 for value in logged.values())
    assert model.estimate(given).reward.shape == lead
    assert (model.estimate(given).reward > given.reward).all()


def test_it_goes_on_from_a_saved_state_bit_for_bit():
    one, other = made(), made(seed=7)
    check_continuation(one, other, map(batch, range(3)), map(batch, range(3, 6)))
    assert one.steps == 6


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("networks",), None, "this state of ICMRewardModel lacks 'networks', it has"),
        (("mean_square",), torch.tensor(-1.0), r"state\['mean_square'\] holds -1.0, expected a number, finite, at least 0"),
        (("obs_norm", "var"), -torch.ones(3).double(), r"state\['obs_norm'\]\['var'\] holds -1.0, .* at least 0"),
        (("steps",), -1, r"state\['steps'\] is -1, expected an integer from 0 to"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_key_and_changes_nothing(path, value, words):
    model = made()
    model.learn(batch())
    check_refusal(model, path, value, words)


def test_its_numbers_come_from_its_seed_alone():
    def learned(seed, everywhere):
        torch.manual_seed(everywhere)
        return made(seed=seed).learn(batch())["icm_forward_loss"]

    assert torch.equal(learned(0, 1), learned(0, 2))
    assert not torch.equal(learned(0, 1), learned(3, 1))


def test_rows_that_are_no_steps_do_not_count():
    given, valid = batch(), torch.arange(12) % 3 > 0
    steps = tree({name: given[name][valid] for name in ("obs", "next_obs", "action", "reward")})
    junk = given.next_obs.masked_fill(~valid[:, None], float("nan"))
    rollout = in_time(with_leaves(given, next_obs=junk, valid=valid), (4, 3))
    one, other = made(), made()

    assert torch.equal(one.learn(rollout)["icm_forward_loss"], other.learn(steps)["icm_forward_loss"])
    assert torch.equal(one.estimate(given).reward, other.estimate(given).reward)
    assert one.learn(with_leaves(rollout, valid=torch.zeros(4, 3, dtype=torch.bool))) == {}
    assert one.steps == 1


def test_a_loss_that_is_not_finite_is_an_error_and_leaves_the_networks_as_they_were():
    model, given = made(), batch()
    model.learn(given)
    networks, usual = str(model.networks.state_dict()), float(model.mean_square)
    with pytest.raises(NonFiniteError, match=r"ICMRewardModel.learn\(\) got NaN or infinity in obs, next_obs: find out"):
        model.learn(with_leaves(given, obs=given.obs * float("nan"), next_obs=given.next_obs * float("nan")))

    assert str(model.networks.state_dict()) == networks
    assert (float(model.mean_square), model.steps) == (usual, 1)


def test_before_it_has_learned_the_bonus_is_zero():
    model, given = made(), batch()

    assert torch.equal(model.estimate(given).reward, given.reward)
    model.learn(given)
    assert (model.estimate(given).reward > given.reward).all()
