"""Odd batches: columns [B, 1], small dtypes of integers, numbers out of range, no rows; each is learned or named."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.policy import (
    A2CPolicy,
    BCPolicy,
    C51Policy,
    CQLPolicy,
    DecisionTransformerPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    IQLPolicy,
    PPOPolicy,
    REINFORCEPolicy,
    TD3BCPolicy,
)
from ding_lite.policy_check import NonFiniteError

OBS, BOX = spaces.Box(-9, 9, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"seed": 0, "model.encoder_hidden_size_list": [8]}
DISCRETE = [BCPolicy, DQNPolicy, C51Policy, DiscreteCQLPolicy, DiscreteIQLPolicy]
WITH_WEIGHTS = [*((kind, spaces.Discrete(2)) for kind in DISCRETE), *((kind, BOX) for kind in (BCPolicy, IQLPolicy, CQLPolicy))]


def rows(observation_space, action_space, count=6, **changes):
    """A batch of transitions, each with elements of the spaces."""
    found = {}
    for name, space in (("obs", observation_space), ("next_obs", observation_space), ("action", action_space)):
        space.seed(len(name))
        found[name] = torch.as_tensor(np.stack([np.asarray(space.sample()) for _ in range(count)]))
    ends = torch.zeros(count, dtype=torch.bool)
    return {**found, "reward": torch.linspace(-1, 1, count), "terminated": ends, "truncated": ends, **changes}


def learned(kind, action_space, batch, observation_space=OBS):
    policy = kind(SMALL, observation_space, action_space)
    return {name: float(value) for name, value in policy.learn_mode.forward(batch).items() if value.ndim == 0}


@pytest.mark.parametrize(("kind", "space"), WITH_WEIGHTS, ids=lambda it: getattr(it, "__name__", type(it).__name__))
def test_a_weight_of_one_number_for_each_row_is_not_broadcast(kind, space):
    weight = torch.linspace(0, 1, 6)
    assert all(map(np.isfinite, learned(kind, space, rows(OBS, space, weight=weight)).values()))
    with pytest.raises(
        ValueError, match=r"cannot learn from this batch: batch.weight is .* \[6, 1\], expected \[6\]: .*squeeze"
    ):
        learned(kind, space, rows(OBS, space, weight=weight[:, None]))


@pytest.mark.few
@pytest.mark.parametrize(("kind", "space"), WITH_WEIGHTS, ids=lambda it: getattr(it, "__name__", type(it).__name__))
def test_the_column_weight_has_the_weights_of_the_loss(kind, space):
    def step(weight):
        policy = kind({**SMALL, "learn.optimizer_eps": 1e-3}, OBS, space)
        policy.learn_mode.forward(rows(OBS, space, weight=weight) if weight is not None else rows(OBS, space))
        return torch.cat([param.flatten() for param in policy.params])

    one, half = torch.ones(6), torch.tensor([1.0, 0, 1, 0, 0, 1])
    assert torch.equal(step(None), step(one))
    assert not torch.equal(step(one), step(half))


class OwnLoss(BCPolicy):
    def loss(self, batch):
        return (self.model.logits(batch.obs).sum(-1) * batch.reward * batch.weight).mean(), {}


@pytest.mark.parametrize("name", ["reward", "weight"])
def test_a_column_that_an_own_loss_broadcasts_is_a_warning(name):
    batch = rows(OBS, BOX, weight=torch.ones(6))
    batch[name] = batch[name][:, None]
    with pytest.warns(UserWarning, match=rf"maybe by broadcasting: batch.{name} is float32 \[6, 1\], expected \[6\]"):
        OwnLoss(SMALL, OBS, BOX).learn_mode.forward(batch)


def test_a_column_of_two_heads_is_no_warning():
    batch = rows(OBS, BOX, weight=torch.ones(6), log_prob=torch.ones(6, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OwnLoss(SMALL, OBS, BOX).learn_mode.forward(batch)


@pytest.mark.few
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint64])
@pytest.mark.parametrize("kind", DISCRETE)
@pytest.mark.parametrize("start", [0, 2])
def test_actions_of_all_dtypes_of_integers_are_learned_alike(kind, dtype, start):
    space = spaces.Discrete(3, start=start)
    batch = rows(OBS, space)
    assert learned(kind, space, {**batch, "action": batch["action"].to(dtype)}) == learned(kind, space, batch)


def test_small_integers_are_learned_by_a_decision_transformer():
    space = spaces.Discrete(3, start=1)
    found = []
    for dtype in (torch.int64, torch.uint8):
        policy = DecisionTransformerPolicy({"seed": 0, "model.size": 8, "context_length": 2}, OBS, space)
        windows = policy.dummy_batch(rows(OBS, space))
        windows["action"] = windows["action"].to(dtype)
        found.append(float(policy.learn_mode.forward(windows)["loss"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [1, 6])
def test_an_observation_out_of_range_is_not_that_of_another_part(count):
    space = spaces.MultiDiscrete([2, 3])
    batch = rows(space, BOX, count)
    batch["obs"][0] = torch.tensor([2, 1])
    with pytest.raises(ValueError, match=r"batch.obs\[0, 0\] is 2, and MultiDiscrete.* has 0 to 1 there"):
        learned(BCPolicy, BOX, batch, space)
    with pytest.raises(ValueError, match=r"cannot act on these observations: obs\[0, 0\] is 2"):
        BCPolicy(SMALL, space, BOX).eval_mode.forward(batch["obs"].numpy())


def test_a_bit_is_0_or_1():
    space = spaces.MultiBinary(3)
    batch = rows(OBS, space)
    batch["action"][1, 2] = 2
    with pytest.raises(ValueError, match=r"batch.action\[1, 2\] is 2, and MultiBinary\(3\) has 0 to 1 there"):
        learned(BCPolicy, space, batch)


@pytest.mark.parametrize("kind", [BCPolicy, IQLPolicy, TD3BCPolicy])
def test_a_batch_without_rows_is_named(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot learn from this batch: it has no rows"):
        learned(kind, BOX, {name: leaf[:0] for name, leaf in rows(OBS, BOX).items()})


@pytest.mark.parametrize("kind", [BCPolicy, IQLPolicy])
def test_another_precision_is_named_with_the_fix(kind):
    batch = rows(OBS, BOX)
    with pytest.raises(ValueError, match=r"obs of it is float64, .* give float32, batch\.obs\.float\(\)\."):
        learned(kind, BOX, {**batch, "obs": batch["obs"].double()})


@pytest.mark.parametrize(("value", "what"), [(float("inf"), "an infinite number"), (float("nan"), "NaN")])
def test_observations_that_are_not_finite_are_named(value, what):
    batch = rows(OBS, BOX)
    batch["obs"][2, 1] = value
    with pytest.raises(NonFiniteError, match=f": obs of the batch it learns from holds {what}. Find out where"):
        learned(BCPolicy, BOX, batch)


@pytest.mark.parametrize("path", ["runs/x", "runs/x/best.pt"])
def test_weights_are_no_path(path):
    with pytest.raises(
        TypeError, match=rf"BCPolicy.set_weights wants weights .* got the path '{path}': load_policy\('{path}'\)"
    ):
        BCPolicy(SMALL, OBS, BOX).set_weights(path)


MEMORIES = {"": {}, ", LSTM": {"model.lstm_size": 4}, ", attention": {"model.attention_window": 3}}
OF_ROLLOUTS = {
    "A2C": (A2CPolicy, {}),
    "REINFORCE": (REINFORCEPolicy, {}),
    **{f"PPO{name}": (PPOPolicy, it) for name, it in MEMORIES.items()},
}


@pytest.mark.parametrize("case", OF_ROLLOUTS)
def test_a_rollout_without_a_valid_step_is_named(case):
    kind, settings = OF_ROLLOUTS[case]
    policy = kind({**SMALL, **settings}, OBS, spaces.Discrete(2))
    batch = {name: column.unflatten(0, (3, 2)) for name, column in rows(OBS, spaces.Discrete(2)).items()}
    batch |= dict.fromkeys(("log_prob", "value", "next_value", "advantage", "return_"), batch["reward"])
    for index, element in enumerate(policy.collect_mode.get_initial_state(2)):
        batch[f"state_in_{index}"] = element.expand(3, *element.shape).clone()
    words = f"{kind.__name__} cannot learn from this batch: `valid` is False for all of its 6 rows, .* Collect more steps"
    with pytest.raises(ValueError, match=words):
        policy.learn_mode.forward({**batch, "valid": torch.zeros(3, 2, dtype=torch.bool)})
    assert policy.train_iter == 0
    assert policy.learn_mode.forward({**batch, "valid": torch.ones(3, 2, dtype=torch.bool)})
