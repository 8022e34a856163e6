"""Every stored transition is one step of one episode, in each of gymnasium's autoreset modes and in our own environments.

The oracle plays each environment by itself in a plain loop, and reads where it is from the environment, not from observations.
"""

import itertools
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.middleware import StepCollector
from ding_lite.rollout import LocalWorker

MODES = list(AutoresetMode)
KINDS = ["ours", *(f"{kind} {mode.value}" for kind in ("sync", "sync without copies") for mode in MODES)]
ENDINGS = [
    [(3, "terminated"), (4, "truncated")],
    [(1, "truncated"), (2, "both"), (1, "terminated")],
    [(5, "both")],
    [(1, "terminated")],
]


class Played(NamedTuple):
    """What a plain loop saw of one environment."""

    rows: list[tuple[Any, ...]]
    """(place, action, reward, next place, terminated, truncated)"""
    episodes: list[tuple[int, int, float, int]]
    """(env, number, return, length)"""


def play(env, rule, num_steps: int, resets_take_a_step: bool) -> Played:
    rows, episodes = [], []
    env.reset()
    total, starts_anew = 0.0, False
    for _ in range(num_steps):
        if starts_anew:
            env.reset()
            starts_anew = False
            if resets_take_a_step:
                continue
        place = env.place
        action = int(rule(np.array(place)))
        _, reward, terminated, truncated, _ = env.step(action)
        rows.append((place, action, reward, env.place, terminated, truncated and not terminated))
        total += reward
        if terminated or truncated:
            episodes.append((env.index, env.episode, total, env.t))
            total, starts_anew = 0.0, True
    return Played(rows, episodes)


def rows_of(columns, decode) -> list[tuple[Any, ...]]:
    """Transitions [N, ...] as the oracle gives them."""
    places, next_places = decode(columns["obs"]).tolist(), decode(columns["next_obs"]).tolist()
    rest = (np.asarray(columns[name]).tolist() for name in ("action", "reward", "terminated", "truncated"))
    return [(tuple(p), a, r, tuple(q), te, tr) for p, q, a, r, te, tr in zip(places, next_places, *rest, strict=True)]


@pytest.fixture(scope="session")
def prove(vector, counting_env, layouts, rule_policy, action_rule):
    """A function that collects rollouts of these lengths, and compares every row, flag, count and episode with the oracle."""

    def run(kind: str, endings, chunks: list[int], layout: str = "float32", in_place: bool = False) -> None:
        factories = [partial(counting_env, index, ends, layout, in_place) for index, ends in enumerate(endings)]
        decode = layouts[layout].decode
        next_step = kind.endswith(AutoresetMode.NEXT_STEP.value)
        expected = [play(counting_env(i, ends, layout), action_rule, sum(chunks), next_step) for i, ends in enumerate(endings)]
        envs = vector(kind, factories)
        try:
            worker = LocalWorker(envs, rule_policy(envs, layout).collect_mode)
            rollouts = [worker.collect(chunk) for chunk in chunks]
        finally:
            envs.close()

        found = [row for rollout in rollouts for row in rows_of(rollout.trajectories.rows(), decode)]
        assert Counter(found) == Counter(row for one in expected for row in one.rows)

        in_sequence: list[list[Any]] = [[] for _ in endings]
        for trajectories, _ in rollouts:
            for transition in trajectories:
                row = rows_of({name: transition[name].unsqueeze(0) for name in trajectories.columns}, decode)[0]
                in_sequence[row[0][0]].append(row)
        assert in_sequence == [one.rows for one in expected]
        assert sum(len(rollout.trajectories) for rollout in rollouts) == sum(len(one.rows) for one in expected)

        finished = [tuple(episode)[:4] for rollout in rollouts for episode in rollout.episodes]
        assert sorted(finished) == sorted(episode for one in expected for episode in one.episodes)

    return run


@pytest.mark.few
@pytest.mark.parametrize("chunks", [[7] * 4, [1] * 20, [2, 5, 1, 1, 9]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_transition_is_one_step_of_one_episode(prove, kind, chunks):
    prove(kind, ENDINGS, chunks)


@pytest.mark.few
@pytest.mark.parametrize("layout", ["float64", "uint8", "discrete", "dict", "tuple"])
@pytest.mark.parametrize("kind", KINDS[:4])
def test_every_transition_is_right_whatever_the_observation_space(prove, kind, layout):
    prove(kind, ENDINGS, [7, 1, 6], layout)


@pytest.mark.parametrize(
    ("mode", "layout", "chunks"), [*zip(MODES, ["float32", "tuple", "dict"], [[1] * 9, [7, 7], [7, 1, 5]])]
)
def test_every_transition_from_other_processes_is_right(prove, mode, layout, chunks):
    prove(f"async {mode.value}", ENDINGS[:2], chunks, layout)


@pytest.mark.few
@pytest.mark.parametrize("layout", ["float32", "uint8", "dict", "tuple"])
@pytest.mark.parametrize("kind", ["ours", "sync NextStep", "sync Disabled"])
def test_an_environment_that_writes_all_observations_into_one_array_gives_right_transitions(prove, kind, layout):
    prove(kind, ENDINGS, [1, 7, 1, 1, 4], layout, in_place=True)


ends = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS[:4]),
    endings=st.lists(ends, min_size=1, max_size=3),
    chunks=st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
def test_every_transition_is_right_for_any_ends_of_episodes_and_rollouts(prove, kind, endings, chunks):
    prove(kind, endings, chunks)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_env_step_counts_real_steps_only(kind, vector, counting_env, rule_policy, action_rule):
    envs = vector(kind, [partial(counting_env, index, ends) for index, ends in enumerate(ENDINGS)])
    cfg = DQNConfig().override({"policy.collect.n_sample": 7 * len(ENDINGS)})
    collector, ctx = StepCollector(cfg, rule_policy(envs).collect_mode, envs), OnlineRLContext()
    collector(ctx)
    collector(ctx)

    played = [play(counting_env(i, ends), action_rule, 14, kind == "sync NextStep") for i, ends in enumerate(ENDINGS)]
    assert (ctx.env_step, ctx.env_episode) == (sum(len(one.rows) for one in played), sum(len(one.episodes) for one in played))


@pytest.mark.parametrize("kind", KINDS[:4])
def test_end_idx_points_to_the_last_transition_of_each_environment(kind, vector, counting_env, rule_policy):
    envs = vector(kind, [partial(counting_env, index, ends) for index, ends in enumerate(ENDINGS)])
    worker = LocalWorker(envs, rule_policy(envs).collect_mode)
    for _ in range(5):
        trajectories = worker.collect(4).trajectories
        indices = [int(transition.obs[0]) for transition in trajectories]
        assert trajectories.end_idx == [len(indices) - 1 - indices[::-1].index(index) for index in range(len(ENDINGS))]


def test_steps_that_only_reset_are_marked_in_the_batch(vector, counting_env, rule_policy):
    envs = vector("sync NextStep", [partial(counting_env, 0, [(2, "terminated")])])
    trajectories = LocalWorker(envs, rule_policy(envs).collect_mode).collect(7).trajectories

    assert trajectories.valid[:, 0].tolist() == list(itertools.islice(itertools.cycle([True, True, False]), 7))
    assert not trajectories.batch.terminated[~trajectories.valid].any()


class Fixed(gymnasium.Env):
    """Four steps an episode, each worth 1; its observation is 0, or the step."""

    observation_space, action_space = spaces.Discrete(10**6), spaces.Discrete(4)

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.int64(0), {}

    def step(self, action):
        self.t += 1
        is_over = self.t == 4
        if self.ending == "terminated":
            return np.int64(self.t), 1.0, is_over, False, {}
        return np.int64(0), 1.0, False, is_over, {}


@pytest.mark.parametrize(("ending", "expected"), [("terminated", [3.439, 2.71, 1.9, 1.0]), ("truncated", [10.0])])
@pytest.mark.parametrize("kind", KINDS[:4])
def test_values_learned_from_rollouts_bootstrap_at_a_time_limit_and_not_at_termination(
    kind, ending, expected, vector, rule_policy
):
    envs = vector(kind, [partial(Fixed, ending)] * 2)
    rows = LocalWorker(envs, rule_policy(envs, "discrete").collect_mode).collect(30).trajectories.rows()
    value = np.zeros(5)
    for _ in range(500):
        target = rows["reward"] + 0.9 * np.where(rows["terminated"], 0, value[rows["next_obs"]])
        value[: len(expected)] = [target[rows["obs"] == obs].mean() for obs in range(len(expected))]
    np.testing.assert_allclose(value[: len(expected)], expected, rtol=1e-6)
