"""Seeds: integers from 0 to 2**63 - 1, of Python's or numpy's; all else is refused where it is given, by one rule."""

import numpy as np
import pytest

from ding_lite.basics import ConfigError, seed_of
from ding_lite.config import DQNConfig
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.policy import DQNPolicy

RULE = r"a seed is an integer, it is at least 0 and less than 2\*\*63\."
ACCEPTED = [0, 7, 2**32, 2**63 - 1, np.int64(7), np.uint8(7), np.uint64(2**63 - 1), np.array(7)]
REFUSED = [
    (-1, ValueError, rf"-1\)? is out of range: {RULE}"),
    (2**63, ValueError, rf"9223372036854775808\)? is out of range: {RULE}"),
    (2**64, ValueError, rf"18446744073709551616\)? is out of range: {RULE}"),
    (np.uint64(2**64 - 1), ValueError, rf"np.uint64\(18446744073709551615\)\)? is out of range: {RULE}"),
    (None, TypeError, rf"None\)?: {RULE} For a different seed each time, draw one: random.randrange\(2\*\*63\)\."),
    (True, TypeError, rf"True\)? is a bool: {RULE}"),
    (np.True_, TypeError, rf"True_?\)?\)? is a bool_?: {RULE}"),
    (7.0, TypeError, rf"7.0\)? is a float: {RULE}"),
    (np.float32(7), TypeError, rf"is a float32: {RULE}"),
    ("7", TypeError, rf"'7'\)? is a str: {RULE}"),
    ([1, 2], TypeError, rf"\[1, 2\]\)? is a list: {RULE}"),
]


class Pair:
    """An environment of two agents."""

    possible_agents = agents = ("x", "y")

    def observation_space(self, agent):
        return make_envs("CartPole-v1").single_observation_space

    def action_space(self, agent):
        return make_envs("CartPole-v1").single_action_space

    def reset(self, seed=None, options=None):
        return {agent: np.zeros(4, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        raise NotImplementedError


def policy_seed(seed):
    cfg = DQNConfig()
    cfg.policy.seed = seed
    envs = make_envs("CartPole-v1")
    return DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space).seed


def run_seed(seed):
    cfg = DQNConfig(seed=seed)
    envs = make_envs("CartPole-v1")
    assert DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space).seed == cfg.seed
    return cfg.seed


def reset(envs, seed):
    envs.reset(seed=seed)
    return envs.run_seed


PLACES = {
    "DQNConfig.seed = ": run_seed,
    "DQNPolicyConfig.seed = ": policy_seed,
    "make_envs(seed=": lambda seed: make_envs("CartPole-v1", 2, seed=seed).run_seed,
    "make_multi_agent_envs(seed=": lambda seed: make_multi_agent_envs(Pair, 2, seed=seed).run_seed,
    "reset(seed=": lambda seed: reset(make_envs("CartPole-v1", 2), seed),
    "ReplayBuffer(seed=": lambda seed: [ReplayBuffer(9, seed=seed), seed_of(seed, "")][1],
    "PrioritizedReplayBuffer(seed=": lambda seed: [PrioritizedReplayBuffer(9, seed=seed), seed_of(seed, "")][1],
}
MAY_BE_NONE = ("DQNPolicyConfig.seed = ", "reset(seed=")  # that of the run; the next episode


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", ACCEPTED, ids=repr)
def test_an_integer_is_a_seed_wherever_it_is_given(place, seed):
    found = PLACES[place](seed)
    assert (found, type(found)) == (int(seed), int)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("seed", "kind", "words"), REFUSED, ids=[repr(seed) for seed, *_ in REFUSED])
def test_what_is_no_seed_is_refused_where_it_is_given(place, seed, kind, words):
    if seed is None and place in MAY_BE_NONE:
        PLACES[place](seed)
        return
    with pytest.raises(kind, match=words) as caught:
        PLACES[place](seed)
    assert str(caught.value).startswith(place)


def test_a_refused_seed_changes_nothing():
    cfg = DQNConfig(seed=3)
    with pytest.raises(ConfigError, match="out of range"):
        cfg.seed = -1
    with pytest.raises(ConfigError, match="out of range"):
        cfg.override({"seed": 2**64, "max_step": 5})
    assert cfg == DQNConfig(seed=3)


def test_none_as_the_seed_of_a_policy_is_that_of_the_run():
    cfg = DQNConfig(seed=5)
    assert cfg.policy.seed == 5
    cfg.policy.seed = None
    assert cfg.policy.seed is None
