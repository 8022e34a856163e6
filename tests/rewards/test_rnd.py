"""Random network distillation: what it adds to the reward, that what is known loses its bonus, and what it saves."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import check_continuation, check_refusal

from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {
    "a vector": VECTOR,
    "a category": spaces.Discrete(5, start=1),
    "an image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "parts": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4)}),
}


def made(space=VECTOR, **settings):
    return RNDRewardModel(RNDRewardConfig(**settings), space, seed=0)


def batch(seed=0, n=16, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    return tree({"next_obs": torch.randn(n, 3, generator=g) + shift, "reward": torch.randn(n, generator=g)})


def forward(module, rows):
    """A network of two hidden layers, written out in float64."""
    weights = [param.detach().double().numpy() for param in module.parameters()]
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2]):
        rows = np.maximum(rows @ weight.T + bias, 0)
    return rows @ weights[-2].T + weights[-1]


def test_the_bonus_is_the_error_over_its_usual_size():
    model = made(bonus_weight=0.5, scale_decay=0.8, bonus_steps=None)
    seen, usual = [], None
    for seed in range(4):
        rows = batch(seed).next_obs.double().numpy()
        seen.append(rows)
        mean, std = np.concatenate(seen).mean(0), np.concatenate(seen).std(0)
        normal = np.clip((rows - mean) / np.sqrt(std**2 + 1e-8), -5, 5)
        square = np.square(np.square(forward(model.predictor, normal) - forward(model.random, normal)).mean(1)).mean()
        usual = square if usual is None else 0.8 * usual + 0.2 * square
        model.learn(batch(seed))
    given = batch(9)
    estimated = model.estimate(given)
    normal = np.clip((given.next_obs.double().numpy() - mean) / np.sqrt(std**2 + 1e-8), -5, 5)
    error = np.square(forward(model.predictor, normal) - forward(model.random, normal)).mean(1)
    expected = given.reward.double().numpy() + 0.5 * error / np.sqrt(usual)

    np.testing.assert_allclose(estimated.reward, expected, rtol=1e-4)
    assert torch.equal(estimated.raw_reward, given.reward)
    assert torch.equal(model.estimate(estimated).raw_reward, given.reward)
    assert "raw_reward" not in given.keys()  # noqa: SIM118  a tree's `in` asks its leaves


@pytest.mark.slow
def test_what_is_known_loses_its_bonus_and_what_is_new_keeps_it():
    model, known, new = made(learning_rate=1e-3), batch(0, 256), batch(1, 256, shift=4.0)
    before = model.learn(known)["rnd_loss"]
    for _ in range(300):
        after = model.learn(known)["rnd_loss"]
    bonus = [float((model.estimate(it).reward - it.reward).mean()) for it in (known, new)]

    assert after < 0.1 * before
    assert bonus[1] > 5 * bonus[0]


def test_only_the_predictor_learns():
    model = made()
    random, predictor = ([p.clone() for p in net.parameters()] for net in (model.random, model.predictor))
    model.learn(batch())
    model.estimate(batch())

    assert all(torch.equal(a, b) for a, b in zip(random, model.random.parameters()))
    assert not any(torch.equal(a, b) for a, b in zip(predictor, model.predictor.parameters()))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize("lead", [(6,), (3, 2)])
def test_observations_of_every_space_and_rollouts_as_well_as_rows(space, lead):
    space.seed(0)
    count = int(np.prod(lead))
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        obs = {name: np.stack([row[name] for row in rows]) for name in space.spaces}
        obs = {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in obs.items()}
    else:
        obs = np.stack(rows).reshape(*lead, *space.shape)
    given, model = tree({"next_obs": obs, "reward": np.zeros(lead, np.float32)}), made(space)
    logged = model.learn(given)

    assert all(value.isfinite() and value.ndim == 0 for value in logged.values())
    assert model.estimate(given).reward.shape == lead
    assert (model.estimate(given).reward > 0).all()


def test_it_goes_on_from_a_saved_state_bit_for_bit():
    one, other = made(), RNDRewardModel(RNDRewardConfig(), VECTOR, seed=7)
    check_continuation(one, other, map(batch, range(3)), map(batch, range(3, 6)))
    assert one.steps == 6


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("predictor",), None, "this state of RNDRewardModel lacks 'predictor', it has"),
        (("optimizer", "param_groups", 0, "lr"), -1.0, r"\['lr'\] is -1.0, which Adam does not allow"),
        (("mean_square",), torch.tensor(float("nan")), r"\['mean_square'\] holds numbers that are not finite"),
        (
            ("mean_square",),
            torch.tensor(-1.0),
            r"state\['mean_square'\] holds -1.0, expected a number, finite, at least 0",
        ),
        (("obs_norm", "var"), -torch.ones(3).double(), r"state\['obs_norm'\]\['var'\] holds -1.0, .* at least 0"),
        (("steps",), -1, r"state\['steps'\] is -1, expected an integer from 0 to"),
        (("predictor", "layers.0.weight"), torch.zeros(2), r"\['predictor'\]\['layers.0.weight'\] is float32 \[2\]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_key_and_changes_nothing(path, value, words):
    model = made()
    model.learn(batch())
    check_refusal(model, path, value, words)


def test_its_weights_come_from_its_seed_alone():
    torch.manual_seed(1)
    first = made()
    torch.manual_seed(2)
    second = made()

    assert all(torch.equal(a, b) for a, b in zip(first.random.parameters(), second.random.parameters()))


def test_the_bonus_may_fade_with_the_gradient_steps():
    model, shares = made(bonus_weight=0.5, bonus_steps=4), []
    for _ in range(6):
        shares.append(model.weight)
        model.learn(batch())
    faded = model.estimate(batch())

    assert shares == [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]
    assert torch.equal(faded.reward, batch().reward)


def test_rows_that_are_no_steps_do_not_count():
    given, valid = batch(0, 12), torch.arange(12) % 3 > 0
    steps = tree({"next_obs": given.next_obs[valid], "reward": given.reward[valid]})
    junk = given.next_obs.masked_fill(~valid[:, None], 1e6)
    rollout = tree(
        {name: leaf.unflatten(0, (4, 3)) for name, leaf in {"next_obs": junk, "reward": given.reward, "valid": valid}.items()}
    )
    one, other = made(), made()

    assert torch.equal(one.learn(rollout)["rnd_loss"], other.learn(steps)["rnd_loss"])
    assert torch.equal(one.estimate(given).reward, other.estimate(given).reward)
    assert one.learn(with_leaves(rollout, valid=torch.zeros(4, 3, dtype=torch.bool))) == {}
    assert one.steps == 1


def test_the_optimizer_follows_the_configuration():
    saved, same, other = made(), made(), made(learning_rate=0.25)
    saved.learn(batch())
    saved.optimizer.param_groups[0]["lr"] = 0.125  # as a schedule of torch does
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.load_state_dict(saved.state_dict())
    with pytest.warns(UserWarning, match="RNDRewardModel learns with .*: lr is 0.25, and was 0.0001"):
        other.load_state_dict(saved.state_dict())
    assert (same.optimizer.param_groups[0]["lr"], other.optimizer.param_groups[0]["lr"]) == (0.125, 0.25)


def test_before_it_has_learned_the_bonus_is_zero():
    model, given = made(), batch()
    estimated = model.estimate(given)

    assert torch.equal(estimated.reward, given.reward)
    assert torch.equal(estimated.raw_reward, given.reward)
    model.learn(given)
    assert (model.estimate(given).reward > given.reward).all()
