"""Epsilon-greedy actions: as often and as evenly random as asked for, and the same after a restored state."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.policy import DQNPolicy
from ding_lite.policy_parts import EpsilonGreedy


def made(num_actions: int = 4, seed: int = 0) -> EpsilonGreedy:
    return EpsilonGreedy(num_actions, np.random.default_rng(seed))


def p_value(count: np.ndarray, expected: np.ndarray) -> float:
    """Of Pearson's chi-square test; bins that cannot be hit have to be empty."""
    assert not count[expected == 0].any()
    count, expected = count[expected > 0], expected[expected > 0]
    chi_square = ((count - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor(max(len(count) - 1, 1) / 2), torch.tensor(chi_square / 2)).item()


@pytest.mark.parametrize("eps", [0.01, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(("num_actions", "greedy"), [(4, 2), (2, 0), (18, 17), (1, 0)])
def test_actions_are_random_with_probability_eps_and_then_uniform(num_actions, greedy, eps):
    exploration = made(num_actions)
    mixed = np.concatenate([exploration.mix(np.full(50, greedy), eps) for _ in range(1000)])
    probability = np.full(num_actions, eps / num_actions)
    probability[greedy] += 1 - eps
    count = np.bincount(mixed, minlength=num_actions)

    assert len(count) == num_actions
    assert p_value(count, len(mixed) * probability) > 1e-3


def test_the_environments_and_the_steps_are_drawn_independently_of_each_other():
    exploration = made(2)
    mixed = np.stack([exploration.mix(np.zeros(4, int), 1.0) for _ in range(10_000)])
    pairs = {
        "neighbours": mixed[:, :2],
        "steps": np.stack([mixed[:-1, 0], mixed[1:, 0]], 1),
        "blocks": np.stack([mixed[:-16, 3], mixed[16:, 3]], 1),
    }

    for pair in pairs.values():
        assert p_value(np.bincount(pair @ [2, 1], minlength=4), np.full(4, len(pair) / 4)) > 1e-3


def test_whether_an_action_is_random_does_not_depend_on_the_greedy_one():
    exploration, greedy = made(), np.arange(4).repeat(500)
    kept = np.mean([exploration.mix(greedy, 0.5) == greedy for _ in range(100)], axis=0).reshape(4, 500).mean(1)

    np.testing.assert_allclose(kept, 0.5 + 0.5 / 4, atol=0.01)


def test_the_greedy_actions_that_were_given_stay_as_they_are():
    greedy = np.array([3, 1, 2])
    made().mix(greedy, 1.0)

    assert greedy.tolist() == [3, 1, 2]


@pytest.mark.parametrize("before", [0, 1, 5, 16, 20])
def test_a_restored_state_goes_on_in_the_middle_of_a_block(before, tmp_path):
    straight, greedy = made(), np.zeros(3, int)
    for _ in range(before):
        straight.mix(greedy, 0.5)
    state = {"exploration": straight.state_dict(), "rng": straight.rng.bit_generator.state}
    state = load_checkpoint(save_checkpoint(state, tmp_path / "exploration.pt"))
    expected = [straight.mix(greedy, eps).tolist() for eps in [0.5] * 30 + [0.2] * 20]

    resumed = made(seed=9)
    resumed.mix(greedy, 0.3)
    resumed.load_state_dict(state["exploration"])
    resumed.rng.bit_generator.state = state["rng"]
    assert [resumed.mix(greedy, eps).tolist() for eps in [0.5] * 30 + [0.2] * 20] == expected


def test_the_number_of_environments_and_eps_may_change_at_any_step():
    exploration = made()
    for n, eps in [(3, 0.5), (5, 0.5), (5, 0.1), (0, 0.5), (1, 1.0)]:
        assert exploration.mix(np.zeros(n, int), eps).shape == (n,)


def test_the_seed_decides_the_actions():
    one, again, other = (
        [mixer.mix(np.zeros(20, int), 1.0).tolist() for _ in range(3)] for mixer in (made(), made(), made(seed=1))
    )

    assert one == again
    assert one != other


@pytest.mark.parametrize("eps", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), 1, True, torch.tensor(1)])
def test_eps_may_be_any_single_number_and_its_state_is_loaded_again(eps, tmp_path):
    obs = np.zeros((20, 4), np.float32)
    mode, plain = (DQNPolicy({"seed": 0}, spaces.Box(-1, 1, (4,)), spaces.Discrete(3)).collect_mode for _ in range(2))
    for _ in range(3):
        np.testing.assert_array_equal(mode.forward(obs, eps=eps)[0], plain.forward(obs, eps=float(eps))[0])
    path = save_checkpoint({"mode": mode.state_dict()}, tmp_path / "mode.pt")
    mode.load_state_dict(load_checkpoint(path)["mode"])
    np.testing.assert_array_equal(mode.forward(obs, eps=eps)[0], plain.forward(obs, eps=float(eps))[0])


@pytest.mark.parametrize("eps", ["0.5", None, [0.5], np.array([0.5, 0.5]), torch.tensor([0.5])])
def test_anything_else_is_named(eps):
    mode = DQNPolicy({"seed": 0}, spaces.Box(-1, 1, (4,)), spaces.Discrete(3)).collect_mode
    with pytest.raises(TypeError, match="eps is .*expected a probability, a number in"):
        mode.forward(np.zeros((2, 4), np.float32), eps=eps)
    with pytest.raises(ValueError, match="eps is 1.5, expected a probability, a number in"):
        mode.forward(np.zeros((2, 4), np.float32), eps=torch.tensor(1.5))
