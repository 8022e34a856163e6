"""compute_advantages() against its definition, trajectory by trajectory."""

import numpy as np
import pytest
import torch

from ding_lite.data import tree
from ding_lite.policy_check import ColumnError
from ding_lite.policy_parts import compute_advantages


def batch(seed=0, t=7, b=3):
    g = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, t, b, generator=g, dtype=torch.float64)
    terminated, truncated = torch.rand(2, t, b, generator=g) < 0.2
    return {"reward": reward, "value": value, "next_value": next_value, "terminated": terminated, "truncated": truncated}


def by_definition(leaves, last_r, gamma, lambda_, use_gae):
    """Each row by itself, to the end of its episode."""
    reward, value, next_value, terminated, truncated = (leaves[name].numpy() for name in leaves)
    t_end, b_end = reward.shape
    advantage, return_ = np.zeros(reward.shape), np.zeros(reward.shape)
    for t, b in np.ndindex(t_end, b_end):
        weight, total = 1.0, 0.0
        for k in range(t, t_end):
            last = k == t_end - 1
            if terminated[k, b]:
                beyond = 0.0
            elif last:
                beyond = last_r[b]
            elif truncated[k, b]:
                beyond = next_value[k, b] if use_gae else 0.0
            else:
                beyond = value[k + 1, b]
            ends = terminated[k, b] or truncated[k, b] or last
            if use_gae:
                total += weight * (reward[k, b] + gamma * beyond - value[k, b])
                weight *= gamma * lambda_
            else:
                total += weight * (reward[k, b] + (gamma * beyond if ends else 0.0))
                weight *= gamma
            if ends:
                break
        advantage[t, b] = total if use_gae else total - value[t, b]
        return_[t, b] = total + value[t, b] if use_gae else total
    return advantage, return_


@pytest.mark.parametrize("use_gae", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("t", [1, 2, 7])
def test_matches_the_definition(seed, use_gae, t):
    leaves, last_r = batch(seed, t), np.array([0.0, 1.5, -2.0])
    given = compute_advantages(tree(leaves), torch.from_numpy(last_r), 0.9, 0.8, use_gae)
    advantage, return_ = by_definition(leaves, last_r, 0.9, 0.8, use_gae)

    np.testing.assert_allclose(given.advantage, advantage, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(given.return_, return_, rtol=1e-12, atol=1e-14)


def test_a_trajectory_may_come_alone():
    leaves = batch(3)
    alone = compute_advantages(tree({name: leaf[:, 1] for name, leaf in leaves.items()}), 0.5, 0.9, use_gae=False)
    among = compute_advantages(tree(leaves), 0.5, 0.9, use_gae=False)

    assert torch.equal(alone.advantage, among.advantage[:, 1])


def test_without_a_critic_the_advantage_is_the_return():
    leaves = {name: leaf for name, leaf in batch().items() if "value" not in name}
    given = compute_advantages(tree(leaves), 0.0, 0.99, use_gae=False)

    assert torch.equal(given.advantage, given.return_)
    with pytest.raises(ColumnError, match="wants the column 'value'.*use_gae=False"):
        compute_advantages(tree(leaves), 0.0, 0.99, use_gae=True)


def test_the_batch_that_was_given_stays_as_it_is():
    leaves = batch()
    given = tree(leaves)
    compute_advantages(given)

    assert "advantage" not in given.keys()  # noqa: SIM118  a tree's `in` asks its leaves
    assert torch.equal(given.reward, batch()["reward"])


@pytest.mark.parametrize("use_gae", [True, False])
def test_values_may_have_the_name_that_rllib_gives_them(use_gae):
    leaves = batch()
    named = {**leaves, "vf_preds": leaves["value"]}
    del named["value"]
    expected, found = (compute_advantages(tree(it), 0.5, 0.9, 0.8, use_gae) for it in (leaves, named))

    assert torch.equal(found.advantage, expected.advantage)


@pytest.mark.parametrize("use_gae", [True, False])
def test_rewards_may_be_integers(use_gae):
    flags = torch.zeros(3, 1, dtype=torch.bool)
    leaves = {
        "reward": torch.ones(3, 1, dtype=torch.int64),
        "value": torch.zeros(3, 1),
        "terminated": flags,
        "truncated": flags,
    }
    found = compute_advantages(tree(leaves), 0.75, 1.0, 1.0, use_gae)

    assert found.advantage[:, 0].tolist() == [3.75, 2.75, 1.75]
