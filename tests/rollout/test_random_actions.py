"""Actions drawn from the action space, and how probable they were."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.data import ReplayBuffer, flatten
from ding_lite.envs import make_envs
from ding_lite.envs.spaces import load_random_state, random_state, to_nested
from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.rollout import LocalWorker, make_worker
from ding_lite.rollout.random_actions import RandomActions, log_prob_of_sample

INF = np.inf
LOW, HIGH = np.array([-1, 2, -INF, -INF], np.float32), np.array([3, INF, 5, INF], np.float32)


def drawn(space, count=200):
    space.seed(0)
    samples = [to_nested(space, space.sample()) for _ in range(count)]
    if isinstance(samples[0], dict):
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    return np.stack(samples)


@pytest.mark.parametrize(
    ("space", "log_prob"),
    [
        (spaces.Discrete(5, start=-2), -math.log(5)),
        (spaces.MultiDiscrete([[2, 3], [4, 1]]), -math.log(24)),
        (spaces.MultiBinary((2, 3)), -6 * math.log(2)),
        (spaces.Box(-3, 4, (2,), np.int32), -2 * math.log(8)),
        (spaces.Box(-0.5, 1.5, (3, 2), np.float64), -6 * math.log(2)),
        (spaces.Tuple((spaces.Discrete(4), spaces.Dict(a=spaces.MultiBinary(2)))), -4 * math.log(2)),
    ],
)
def test_all_actions_of_a_bounded_space_are_equally_probable(space, log_prob):
    element = drawn(space, 7) if not isinstance(space, spaces.Tuple) else {"0": np.zeros(7), "1": {"a": np.zeros((7, 2))}}

    np.testing.assert_allclose(log_prob_of_sample(space, element), np.full(7, log_prob))


def test_open_sides_have_the_density_that_gymnasium_draws_from():
    space = spaces.Box(LOW, HIGH)
    element = torch.as_tensor(drawn(space)).double()
    x, y, z, w = element.unbind(1)
    wanted = (
        distributions.Uniform(-1.0, 3.0).log_prob(x)
        + distributions.Exponential(1.0).log_prob(y - 2)
        + distributions.Exponential(1.0).log_prob(5 - z)
        + distributions.Normal(0.0, 1.0).log_prob(w)
    )

    np.testing.assert_allclose(log_prob_of_sample(space, element.numpy()), wanted, rtol=1e-5)


def test_draws_are_those_of_the_space_and_leave_its_own_generator_alone():
    envs = make_envs("Pendulum-v1", 3, seed=0)
    actions = RandomActions(envs, 5)
    before = envs.action_space.np_random.bit_generator.state
    first, state = actions.draw(), actions.state_dict()
    second = actions.draw()
    actions.load_state_dict(state)

    assert envs.action_space.np_random.bit_generator.state == before
    assert first.shape == (3, 1)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(actions.draw(), second)
    np.testing.assert_allclose(actions.log_prob(first), np.full(3, -math.log(4)))


@pytest.mark.parametrize("change", [lambda it: None, lambda it: {}, lambda it: {**it, "state": 3}])
def test_a_random_state_that_is_not_valid_is_refused_and_changes_nothing(change):
    space = spaces.Dict(a=spaces.Discrete(4), b=spaces.Discrete(3))
    before = random_state(space)

    with pytest.raises(ValueError, match=r"^the random state\['b'\].* (is|has no) "):
        load_random_state(space, {"a": random_state(spaces.Discrete(4, seed=1)), "b": change(before["b"])})
    with pytest.raises(ValueError, match=r"^the random state is .*, expected a dict with \['a', 'b'\]"):
        load_random_state(space, {"a": before["a"]})
    assert random_state(space) == before


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_what_the_policy_gives_beside_actions_is_there_when_these_are_random(env_id):
    envs = make_envs(env_id, 2, seed=0)
    policy = PPOPolicy(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
    worker, buffer = LocalWorker(envs, policy.collect_mode), ReplayBuffer(100, seed=0)
    random, acted = worker.collect(8, random=True).trajectories, worker.collect(8).trajectories
    for rollout in (random, acted):
        buffer.push(rollout)

    assert len(buffer) == 32
    assert [path for path, _ in flatten(random.columns)] == [path for path, _ in flatten(acted.columns)]
    np.testing.assert_allclose(random.columns["log_prob"], -math.log(2 if env_id == "CartPole-v1" else 4))


def test_a_recurrent_policy_goes_on_while_actions_are_random():
    envs = make_envs("CartPole-v1", 2, seed=0)

    class Counting(PPOPolicy):
        def get_initial_state(self):
            return [0]

        def compute_actions(self, obs, state=(), **kwargs):
            action, _, outputs = super().compute_actions(obs, [], **kwargs)
            return action, [state[0] + 1], {**outputs, "count": state[0]}

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + 0 * batch.state_in_0.sum(), stats

    policy = Counting(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
    rollout = LocalWorker(envs, policy.collect_mode).collect(4, random=True).trajectories

    assert rollout.columns["count"][:, 0].tolist() == rollout.columns["state_in_0"][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("low", "high"), [(2, INF), (-INF, 5), (-INF, INF), (-2, 1)])
def test_integers_of_open_sides_have_the_probabilities_that_gymnasium_draws_with(low, high):
    space = spaces.Box(np.array([low]), np.array([high]), dtype=np.int32)
    values = np.arange(max(low, -40), min(high, 40) + 1)[:, None]
    probabilities = np.exp(log_prob_of_sample(space, values))
    samples = drawn(space, 20_000)

    assert probabilities.sum() == pytest.approx(1)
    for value, probability in zip(values[:, 0], probabilities):
        assert (samples == value).mean() == pytest.approx(probability, abs=0.015)
    assert np.isfinite(log_prob_of_sample(space, values)).all()


def test_random_actions_of_pieces_are_not_those_of_another_seed():
    def drawn_by(seed):
        cfg = DQNConfig()
        cfg.policy.seed = seed
        envs = make_envs("CartPole-v1", 8, workers=4, backend="local", seed=seed)
        policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        action = make_worker(envs, policy.collect_mode).collect(400, True).trajectories.batch.action
        return [action[:, at].tolist() for at in range(0, 8, 2)]  # of each piece

    found = [actions for seed in range(8) for actions in drawn_by(seed)]
    assert len({*map(tuple, found)}) == len(found)
