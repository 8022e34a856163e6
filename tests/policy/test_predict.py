"""`Policy.predict`: one observation or a batch of any space, and actions that an environment takes."""

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from ding_lite.data import tree
from ding_lite.policy import (
    DecisionTransformerPolicy,
    DQNPolicy,
    ObservationError,
    PPOLSTMConfig,
    PPOPolicy,
    R2D2Policy,
    SACPolicy,
)

BOX = spaces.Box(-1, 1, (4,), np.float32)
SPACES = {
    "box": BOX,
    "number": spaces.Box(-1, 1, (), np.float32),
    "doubles": spaces.Box(-1, 1, (2, 3), np.float64),
    "discrete": spaces.Discrete(5),
    "from -1": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3)),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Tuple((spaces.Discrete(3),)))),
}
ACTIONS = {name: space for name, space in SPACES.items() if name not in ("number", "doubles")}


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return np.allclose(one, other, atol=1e-5)


def row(batch, index):
    """The action of one environment in a batch of actions."""
    if isinstance(batch, dict):
        return {name: row(part, index) for name, part in batch.items()}
    return tuple(row(part, index) for part in batch) if isinstance(batch, tuple) else batch[index]


@pytest.mark.few
@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_an_observation_gives_an_action_of_the_space_and_a_batch_gives_those_of_its_rows(space, action_space):
    policy = PPOPolicy({"seed": 0}, space, action_space)
    space.seed(1)
    several = [space.sample() for _ in range(3)]
    single = [policy.predict(obs)[0] for obs in several]
    explored = [policy.predict(obs, deterministic=False)[0] for obs in several]
    actions, state = policy.predict(concatenate(space, several, create_empty_array(space, 3)))

    assert all(map(action_space.contains, (*single, *explored)))
    assert all(equal(row(actions, index), one) for index, one in enumerate(single))
    assert state is None


def test_plain_lists_tensors_and_doubles_will_do():
    policy = DQNPolicy({"seed": 0}, BOX, spaces.Discrete(3))
    obs = [0.1, -0.2, 0.3, 0.4]
    expected = policy.eval_mode.forward(np.array([obs], np.float32))[0][0]

    for given in (obs, tuple(obs), np.array(obs), torch.tensor(obs), torch.tensor(obs, requires_grad=True)):
        assert policy.predict(given)[0] == expected
    assert policy.predict([obs, obs])[0].tolist() == [expected, expected]


@pytest.mark.parametrize("space", [BOX, spaces.Box(0, 255, (3, 40, 40), np.uint8)])
def test_flipped_observations_will_do(space):
    policy = DQNPolicy({"seed": 0}, spaces.Dict({"x": space}), spaces.Discrete(3))
    space.seed(0)
    given = np.stack([space.sample()[::-1] for _ in range(5)])
    expected = [policy.predict({"x": one.copy()})[0] for one in given]

    assert [policy.predict({"x": one[::-1][::-1]})[0] for one in given] == expected
    assert [policy.predict({"x": np.ascontiguousarray(one[::-1])[::-1]})[0] for one in given] == expected
    assert policy.predict({"x": given[::-1]})[0].tolist() == expected[::-1]


def test_actions_step_an_environment_and_are_clipped_to_its_bounds():
    env = gymnasium.make("Pendulum-v1")
    policy = SACPolicy({"seed": 0}, env.observation_space, env.action_space)
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        action, _ = policy.predict(obs, deterministic=False)
        assert env.action_space.contains(action)
        obs = env.step(action)[0]


@pytest.mark.parametrize("kind", ["ppo", "r2d2"])
def test_a_recurrent_state_is_passed_on_and_starts_anew_where_an_episode_does(kind):
    if kind == "ppo":
        policy = PPOPolicy(PPOLSTMConfig().policy, BOX, spaces.Box(-1, 1, (2,), np.float32))
    else:
        policy = R2D2Policy({"seed": 0}, BOX, spaces.Discrete(50))
    rng, mode = np.random.default_rng(0), policy.eval_mode
    obs = rng.normal(size=(4, 2, 4)).astype(np.float32)
    state, expected = mode.get_initial_state(2), []
    for one in obs:
        action, state, _ = mode.forward(one, state)
        expected.append(action)

    state, found = None, []
    for one in obs:
        action, state = policy.predict(one, state)
        found.append(action)
    assert np.array_equal(np.stack(found), np.stack(expected))

    state = None
    for step, one in enumerate(obs[:, 0]):  # one environment
        action, state = policy.predict(one, state)
        assert np.allclose(action, expected[step][0], atol=1e-6)

    _, one_step = policy.predict(obs[0])
    _, both = policy.predict(obs[1], one_step, episode_start=[True, False])
    _, fresh = policy.predict(obs[1])
    _, later = policy.predict(obs[1], one_step)
    for element, first, second in zip(both, fresh, later):
        assert torch.allclose(element[0], first[0])
        assert torch.allclose(element[1], second[1])
        assert not torch.allclose(element[0], second[0])
    with pytest.raises(TypeError, match=r"wants True or False. If this is the third argument as of Stable-Baselines3, name it"):
        policy.predict(obs[1], one_step, np.array([True, False]))


def test_predictions_follow_the_newest_weights_and_change_nothing_in_training():
    def trained(predicts):
        policy = DQNPolicy({"seed": 0, "lr": 0.1}, BOX, spaces.Discrete(3))
        zeros, acted = torch.zeros(8), []
        columns = {"obs": torch.ones(8, 4), "next_obs": torch.ones(8, 4), "action": torch.arange(8) % 3, "reward": zeros + 1}
        batch = tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()})
        for _ in range(4):
            policy.learn_mode.forward(batch)
            if predicts:
                policy.predict(np.ones(4, np.float32), deterministic=False, eps=0.5)
            acted.append(policy.collect_mode.forward(np.ones((5, 4), np.float32), eps=0.5)[0].tolist())
        return policy, acted

    (policy, acted), (other, alone) = trained(True), trained(False)
    assert acted == alone
    for obs in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        assert policy.predict(obs)[0] == other.eval_mode.forward(obs[None])[0][0]


def test_exploring_predictions_differ_and_those_of_equal_seeds_are_equal():
    def actions(deterministic):
        policy = PPOPolicy({"seed": 0}, BOX, spaces.Discrete(50))
        return [int(policy.predict(np.zeros(4, np.float32), deterministic=deterministic)[0]) for _ in range(10)]

    assert len(set(actions(True))) == 1
    assert len(set(actions(False))) > 1
    assert actions(False) == actions(False)


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (np.zeros(3, np.float32), r"obs is float32 \[1, 3\], expected float32 \[B, 4\]"),
        (
            np.zeros((2, 3, 4), np.float32),
            r"wants an observation of Box.*, or a batch \[B, \.\.\.\] of them, got shape \(2, 3, 4\)",
        ),
        ("text", "could not convert string"),
        ({"a": 1}, "wants an observation of Box"),
        (np.full(4, np.nan, np.float32), "is NaN"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(obs, words):
    with pytest.raises(ObservationError, match=words):
        PPOPolicy({"seed": 0}, BOX, spaces.Discrete(2)).predict(obs)
    with pytest.raises(ObservationError, match="parts"):
        PPOPolicy({"seed": 0}, SPACES["dict"], spaces.Discrete(2)).predict({"a": np.zeros(2, np.float32)})


def test_a_setting_that_a_policy_does_not_use_is_named_with_the_nearest_one():
    obs = np.zeros(4, np.float32)
    policy = DQNPolicy(None, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    with pytest.raises(TypeError, match="DQNPolicy does not use the setting 'determinstic': did you mean 'deterministic'"):
        policy.predict(obs, determinstic=False)
    assert policy.predict(obs, deterministic=False, eps=1.0)[1] is None

    class Own(DQNPolicy):
        def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
            return super().compute_actions(obs, state, explore=explore, eps=kwargs.get("mine", 0.0))

    assert Own(None, spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).predict(obs, mine=0.5)[1] is None


class Recalls(DQNPolicy):
    """Takes the last action, one higher for each reward; its state, if it has one, is the number of steps."""

    is_recurrent = True

    def get_initial_state(self):
        return [torch.zeros(())] if self.is_recurrent else []

    def compute_actions(self, obs, state=(), *, prev_action_batch, prev_reward_batch=None, bonus=0, explore=True, **kwargs):
        assert all(isinstance(part, np.ndarray) for part in (prev_action_batch, prev_reward_batch))
        return prev_action_batch + prev_reward_batch.astype(int), [part + 1 for part in state], {}


class Forgets(Recalls):
    is_recurrent = False


def recalling(kind):
    return kind({"seed": 0}, BOX, spaces.Discrete(9))


def test_the_last_action_and_reward_are_wanted_with_a_state_and_are_zeros_where_an_episode_starts():
    policy, one, two = recalling(Recalls), np.zeros(4, np.float32), np.zeros((2, 4), np.float32)
    action, state = policy.predict(one, prev_action_batch=5, prev_reward_batch=3.0)  # of the episode before
    assert action == 0
    assert policy.predict(one, state, prev_action_batch=np.int64(5), prev_reward_batch=torch.tensor(2.0))[0] == 7
    with pytest.raises(ValueError, match=r"Recalls acts on the last action of the episode.*prev_action_batch=action\)"):
        policy.predict(one, state, prev_reward_batch=1.0)
    with pytest.raises(ValueError, match="acts on the last action and reward of the episode"):
        policy.predict(one, state)
    assert policy.predict(one, state, episode_start=True)[0] == 0

    _, state = policy.predict(two)
    last = {"prev_action_batch": [4, 5], "prev_reward_batch": np.ones(2)}
    assert policy.predict(two, state, **last)[0].tolist() == [5, 6]
    assert policy.predict(two, state, episode_start=[True, False], **last)[0].tolist() == [0, 6]
    with pytest.raises(ValueError, match="acts on the last"):
        policy.predict(two, state, episode_start=[True, False])
    with pytest.raises(ValueError, match=r"prev_reward_batch=\.\.\.\) wants a batch of 2, as there are observations, got .*3"):
        policy.predict(two, state, **{**last, "prev_reward_batch": np.ones(3)})
    with pytest.raises(ValueError, match=r"wants one or a batch of 1"):
        policy.predict(one, None, prev_action_batch=[1, 2])


def test_a_decorator_that_passes_them_on_gets_the_last_action_and_reward_and_one_that_has_them_does_not():
    class PassesOn(Forgets):
        @functools.wraps(Recalls.compute_actions)
        def compute_actions(self, *args, **kwargs):
            return super().compute_actions(*args, **kwargs)

    class HasThem(Forgets):
        @functools.wraps(Recalls.compute_actions)
        def compute_actions(self, obs, state=(), *, explore=True):
            zeros = np.zeros(len(obs), int)
            return super().compute_actions(obs, state, prev_action_batch=zeros, prev_reward_batch=zeros, explore=explore)

    assert recalling(PassesOn).previous == ("prev_action_batch", "prev_reward_batch")
    assert recalling(HasThem).previous == ()
    assert recalling(HasThem).predict(np.zeros(4, np.float32))[0] == 0


def test_a_policy_without_state_is_warned_once_that_its_last_step_is_missing():
    policy, obs = recalling(Forgets), np.zeros(4, np.float32)
    with pytest.warns(UserWarning, match="acts on the last action and reward.*It acts with zeros now") as caught:
        assert [policy.predict(obs)[0] for _ in range(3)] == [0] * 3
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert policy.predict(obs, prev_action_batch=3, prev_reward_batch=1.0)[0] == 4
    assert policy.predict(obs, episode_start=True)[0] == 0


def test_the_default_of_a_parameter_is_used_for_a_last_reward_that_is_not_given():
    class Rewarded(PPOPolicy):
        def get_initial_state(self):
            return [torch.zeros(())]

        def compute_actions(self, obs, state=(), *, prev_reward_batch=2.0, explore=True, **kwargs):
            return np.full(len(obs), int(prev_reward_batch)), state, {}

    policy = Rewarded({"seed": 0}, BOX, spaces.Discrete(9))
    action, state = policy.predict(np.zeros(4, np.float32))
    assert (action, policy.predict(np.zeros(4, np.float32), state)[0]) == (2, 2)


def test_exploring_does_not_last():
    policy = SACPolicy({"seed": 0}, BOX, BOX)
    obs = np.zeros((5, 4), np.float32)
    expected = policy.predict(obs)[0]
    policy.predict(obs, deterministic=False)
    assert np.array_equal(policy.predict_mode.forward(obs)[0], expected)


@pytest.mark.parametrize("state", [True, "state", np.zeros(2)])
def test_a_state_that_is_none_is_named(state):
    policy = DQNPolicy({"seed": 0}, BOX, spaces.Discrete(3))
    with pytest.raises(TypeError, match=r"wants the recurrent state that an earlier call returned.*deterministic=False"):
        policy.predict(np.zeros(4, np.float32), state)


def test_its_generator_is_saved_once_it_was_used():
    policy, other = (PPOPolicy({"seed": seed}, BOX, spaces.Discrete(50)) for seed in range(2))
    obs = np.ones(4, np.float32)
    assert "predict" not in policy.state_dict()
    other.load_state_dict(policy.state_dict())
    for _ in range(3):
        policy.predict(obs, deterministic=False)
    other.load_state_dict(policy.state_dict())

    def drawn(policy):
        return [int(policy.predict(obs, deterministic=False)[0]) for _ in range(10)]

    assert drawn(policy) == drawn(other)


def test_one_flag_or_one_for_each_observation_says_where_episodes_start():
    class Counting(PPOPolicy):
        def get_initial_state(self):
            return [{"n": 0}]

        def compute_actions(self, obs, state=(), *, explore=True, **settings):
            for one in state[0]:
                one["n"] += 1
            return self.drawn(self.model.logits(obs), state, explore)

    policy, obs = Counting(None, BOX, spaces.Discrete(3)), np.ones((3, 4), np.float32)
    state = policy.predict(obs)[1]
    for starts, counted in ((True, [1, 1, 1]), (False, [2, 2, 2]), ([True, False, True], [1, 2, 1])):
        found = policy.predict(obs, [[{"n": 1} for _ in range(3)]], episode_start=starts)[1]
        assert [one["n"] for one in found[0]] == counted
    with pytest.raises(ValueError, match="got 2 flags for a batch of 3 observations: give one, or 3"):
        policy.predict(obs, state, episode_start=[True, False])


RECURRENT = {
    "LSTM": lambda: PPOPolicy(PPOLSTMConfig().policy, BOX, spaces.Discrete(3)),
    "attention": lambda: PPOPolicy({"model.attention_window": 4}, BOX, spaces.Discrete(3)),
    "R2D2": lambda: R2D2Policy(None, BOX, spaces.Discrete(3)),
    "noise": lambda: SACPolicy({"collect.noise_correlation": 0.5}, BOX, spaces.Box(-1, 1, (2,))),
    "Decision Transformer": lambda: DecisionTransformerPolicy({"context_length": 3}, BOX, spaces.Discrete(3)),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_of_other_episodes_is_refused_with_both_numbers(kind):
    policy = RECURRENT[kind]()
    obs, given = np.zeros((3, 4), np.float32), {"prev_reward_batch": np.zeros(3)} if kind == "Decision Transformer" else {}
    _, state = policy.predict(obs[:1])
    length = len(state)
    for starts in (None, [False, True, False]):
        with pytest.raises(ValueError, match="got 1 rows in element 0 of the state, for a batch of 3 observations: pass"):
            policy.predict(obs, state, episode_start=starts, **given)
        with pytest.raises(
            ValueError, match=rf"a state of {length + 1} elements, and that of \w+ has {length}: pass the whole"
        ):
            policy.predict(obs, [*state, state[0]], episode_start=starts, **given)
    with pytest.raises(ValueError, match="got no rows in element 0"):
        policy.predict(obs, [torch.zeros(())] * length, **given)
    with pytest.raises(ValueError, match="a state of 1 elements, and that of DQNPolicy has 0: pass"):
        DQNPolicy(None, BOX, spaces.Discrete(3)).predict(obs[0], state[:1])
    _, state = policy.predict(obs)
    assert len(policy.predict(obs, state, **given)[0]) == 3


def test_integers_and_half_precision_will_do_for_floats():
    policy = DQNPolicy({"seed": 0}, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(50))
    numbers = [3, -2, 1, 0]
    expected = policy.predict(np.array(numbers, np.float32))[0]

    given = [np.array(numbers), np.array(numbers, np.int8), torch.tensor(numbers), torch.tensor(numbers, dtype=torch.bfloat16)]
    assert [policy.predict(obs)[0] for obs in given] == [expected] * 4
    mask = np.array([True, False, True, True])
    assert policy.predict(mask)[0] == policy.predict(mask.astype(np.float32))[0]


def test_flags_of_episodes_cause_no_warning():
    """In a process of its own, because torch warns only once."""
    code = """
import numpy as np
from gymnasium import spaces
from ding_lite.policy import PPOLSTMConfig, PPOPolicy
policy = PPOPolicy(PPOLSTMConfig().policy, spaces.Box(-1, 1, (4,)), spaces.Discrete(3))
obs = np.zeros((3, 4), np.float32)
for starts in (np.array([True, False, True]), True):
    policy.predict(obs, policy.predict(obs)[1], episode_start=starts)
"""
    subprocess.run([sys.executable, "-W", "error:The given NumPy", "-c", code], check=True)
