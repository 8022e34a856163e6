"""Odd batches: NaN, infinity and numbers that are too large are refused and change nothing; rewards may be integers."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import same

from ding_lite.data import tree
from ding_lite.policy import NonFiniteError
from ding_lite.rewards import (
    GAILRewardConfig,
    GAILRewardModel,
    ICMRewardConfig,
    ICMRewardModel,
    RNDRewardConfig,
    RNDRewardModel,
)

OBS, ACTION = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
PICTURE = spaces.Box(-np.inf, np.inf, (12, 12, 1), np.float32)  # not normalised


def batch(seed=0, shape=(2,)):
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(32, *shape, generator=g)  # noqa: E731
    return {"obs": noise(*shape), "next_obs": noise(*shape), "action": noise(1), "reward": noise()}


def expert(**changes):
    rng = np.random.default_rng(0)
    found = {"obs": rng.normal(size=(40, 2)).astype("f"), "action": rng.normal(size=(40, 1)).astype("f")}
    found |= {"next_obs": np.roll(found["obs"], -1, 0), "reward": np.zeros(40, "f"), "terminated": np.arange(40) == 39}
    return {**found, "truncated": np.zeros(40, bool), **changes}


def made(kind, space=OBS):
    if kind == "rnd":
        return RNDRewardModel(RNDRewardConfig(), space)
    if kind == "icm":
        return ICMRewardModel(ICMRewardConfig(), space, ACTION)
    return GAILRewardModel(GAILRewardConfig(), space, ACTION, expert())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("kind", "column"),
    [("rnd", "next_obs"), ("icm", "obs"), ("icm", "action"), ("icm", "next_obs"), ("gail", "obs"), ("gail", "action")],
)
def test_a_batch_with_nan_or_infinity_is_refused_and_changes_nothing(kind, column, bad):
    model, rows = made(kind), batch(1)
    model.learn(tree(batch()))
    before = copy.deepcopy(model.state_dict())
    rows[column][7] = bad

    with pytest.raises(NonFiniteError, match=rf"{type(model).__name__}.learn\(\) got NaN or infinity in {column}: find out"):
        model.learn(tree(rows))
    assert same(model.state_dict(), before)


@pytest.mark.parametrize(("kind", "large"), [("rnd", 1e30), ("rnd", 1e15), ("icm", 1e30), ("icm", 1e15)])
def test_numbers_with_which_the_loss_overflows_are_refused_and_change_nothing(kind, large):
    model, rows = made(kind, PICTURE), batch(1, PICTURE.shape)
    model.learn(tree(batch(0, PICTURE.shape)))
    before = copy.deepcopy(model.state_dict())
    rows["next_obs"][7] = large
    rows["action"][7] = 0.7

    with pytest.raises(NonFiniteError, match=f"{type(model).__name__}.learn"):
        model.learn(tree(rows))
    assert same(model.state_dict(), before)


def test_columns_that_are_not_read_may_be_anything():
    for kind in ("rnd", "icm", "gail"):
        rows = batch()
        rows["reward"][0] = math.nan

        assert made(kind).learn(tree(rows))


@pytest.mark.parametrize("kind", ["rnd", "icm", "gail"])
def test_integer_rewards_give_the_same_rewards_as_floats(kind):
    model, rows = made(kind), batch(1)
    model.learn(tree(batch()))
    ints = torch.randint(0, 5, (32,), generator=torch.Generator().manual_seed(0))
    expected, estimated = (model.estimate(tree({**rows, "reward": reward})) for reward in (ints.float(), ints))

    assert (expected.reward % 1 != 0).any()
    torch.testing.assert_close(estimated.reward, expected.reward, rtol=0, atol=0)
    assert torch.equal(estimated.raw_reward, ints)


def test_an_expert_with_infinity_is_refused():
    obs = expert()["obs"]
    obs[3] = np.inf

    with pytest.raises(ValueError, match="has NaN or infinity in obs: record the expert again"):
        GAILRewardModel(GAILRewardConfig(), OBS, ACTION, expert(obs=obs, next_obs=np.roll(obs, -1, 0)))
