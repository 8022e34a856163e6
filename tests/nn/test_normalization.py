"""Running statistics against those of all that was seen at once, and which observations go through them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.nn import RunningNorm, make_actor_critic, make_normalizer

SHAPES = [(), (3,), (2, 3)]


def parts(shape, seed=0, counts=(1, 7, 2, 30)):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(5 * rng.normal(size=(n, *shape)) - 2) for n in counts]


def fed(shape, batches) -> RunningNorm:
    norm = RunningNorm(shape)
    for batch in batches:
        norm.update(batch)
    return norm


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_are_those_of_everything_at_once(shape):
    batches = parts(shape)
    norm, everything = fed(shape, batches), torch.cat(batches).numpy()

    np.testing.assert_allclose(norm.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.var, everything.var(0), rtol=1e-12)
    assert norm.count == len(everything)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_and_the_cut_of_batches_do_not_matter(shape):
    batches = parts(shape)
    expected = fed(shape, batches).state_dict()
    singly = [row.unsqueeze(0) for batch in reversed(batches) for row in batch]

    for other in (fed(shape, singly), fed(shape, [torch.cat(batches)]), fed(shape, [torch.cat(batches).unsqueeze(1)])):
        torch.testing.assert_close(other.state_dict(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_seen_comes_out_with_mean_0_and_deviation_1(shape):
    everything = torch.cat(parts(shape))
    normalised = fed(shape, [everything])(everything).numpy()

    np.testing.assert_allclose(normalised.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(normalised.std(0), 1, rtol=1e-8)


def test_numbers_far_from_zero_keep_their_variance():
    x = 1e6 + torch.arange(8.0).repeat(1000).reshape(-1, 1)  # exact in float32, and its squares are not
    norm = fed((1,), x.split(17))

    assert norm.var.item() == pytest.approx(5.25, rel=1e-9)
    assert norm(torch.tensor([[1e6 + 3.5]])).item() == pytest.approx(0, abs=1e-6)


def test_an_element_with_a_number_that_is_not_finite_is_left_out_whole():
    good = torch.cat(parts((3,)))
    bad = good.clone()[:3]
    bad[0, 1], bad[1, 0], bad[2, 2] = torch.nan, torch.inf, -torch.inf

    assert_same(fed((3,), [torch.cat([good[:5], bad, good[5:]])]), fed((3,), [good]))
    assert_same(fed((3,), [bad]), RunningNorm((3,)))


def assert_same(one, other):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_before_the_first_update_and_after_an_empty_one_inputs_stay_as_they_are():
    norm, x = RunningNorm((3,)), torch.randn(4, 3)
    norm.update(torch.zeros(0, 3))

    torch.testing.assert_close(norm(x), x)
    assert norm.count == 0


def test_the_output_is_clipped_and_a_number_that_never_changed_is_no_division_by_zero():
    norm = fed((2,), [torch.tensor([[5.0, 0.0], [5.0, 1.0]])])

    assert norm(torch.tensor([[5.0, 1e9], [6.0, -1e9], [-1e9, 0.5]])).tolist() == [[0, 10], [10, -10], [-10, 0]]


def test_only_update_changes_the_statistics_and_dtypes_are_kept():
    norm = fed((3,), parts((3,)))
    before = {name: leaf.clone() for name, leaf in norm.state_dict().items()}
    norm.train()

    assert norm(torch.randn(4, 3)).dtype is torch.float32
    assert norm(torch.randn(4, 3).double()).dtype is torch.float64
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)
    assert not list(norm.parameters())


def test_a_state_round_trip_is_exact():
    norm, other = fed((3,), parts((3,))), RunningNorm((3,))
    other.load_state_dict(norm.state_dict())
    for batch in parts((3,), seed=1):
        norm.update(batch)
        other.update(batch)

    assert_same(norm, other)


NESTED = spaces.Dict(
    {
        "x": spaces.Box(-1, 1, (2,), np.float32),
        "grid": spaces.Box(-1, 1, (2, 2), np.float64),
        "keys": spaces.Discrete(4),
        "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-9, 9, (), np.float32))),
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "film": spaces.Box(0, 1, (8, 8, 3), np.float32),
        "bytes": spaces.Box(0, 255, (5,), np.uint8),
    }
)


def test_float_vectors_of_nested_observations_are_normalised_and_all_else_passes_through():
    rng = np.random.default_rng(0)
    floats = {"x": (2,), "grid": (2, 2), "film": (8, 8, 3)}
    obs = {name: torch.from_numpy(rng.normal(3, 2, (50, *shape)).astype(np.float32)) for name, shape in floats.items()}
    obs |= {"keys": torch.arange(50) % 4, "image": torch.zeros(50, 8, 8, 3, dtype=torch.uint8)}
    obs |= {"bytes": torch.full((50, 5), 7, dtype=torch.uint8)}
    obs["pair"] = {"0": torch.ones(50, 2, dtype=torch.int8), "1": torch.from_numpy(rng.normal(3, 2, 50).astype(np.float32))}
    norm = make_normalizer(NESTED)
    norm.update(obs)
    found = norm(obs)

    assert found.keys() == obs.keys()
    for moved in (found["x"], found["grid"], found["pair"]["1"]):
        np.testing.assert_allclose(moved.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(moved.std(0, correction=0), 1, rtol=1e-4)
    for name in ("keys", "image", "film", "bytes"):
        assert found[name] is obs[name]
    assert found["pair"]["0"] is obs["pair"]["0"]


@pytest.mark.parametrize("share_encoder", [False, True])
def test_actor_and_critic_see_normalised_observations(share_encoder):
    space, actions = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = make_actor_critic(space, actions, [8], share_encoder=share_encoder)
        torch.manual_seed(0)
        model = make_actor_critic(space, actions, [8], share_encoder=share_encoder, normalize_obs=True)
    obs = torch.randn(20, 3) * 4 + 1
    model.normalizer.update(obs)
    normalised = (obs - obs.mean(0)) / obs.std(0, correction=0)

    for found, expected in zip((*model(obs), model.logits(obs), model.values(obs)), (*plain(normalised),) * 2):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
