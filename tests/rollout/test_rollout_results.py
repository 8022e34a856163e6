"""Whole episodes: each environment's share from beginning to end, and no step more where that can be had."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.data import flatten
from ding_lite.data.trees import map_leaves
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.rollout import LocalWorker, make_worker

KINDS = ["ours", "sync NextStep", "sync SameStep", "sync Disabled"]


class Counting(Policy):
    """Its state counts the steps that it took in the episode, and it tells what it was told of the step before."""

    def __init__(self, env) -> None:
        super().__init__(PolicyConfig(), env.single_observation_space, env.single_action_space)

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def get_initial_state(self):
        return [0, "begun"]

    def compute_actions(self, obs, state=None, *, prev_reward_batch=None, explore=True, shift=0, **kwargs):
        count, words = state
        outputs = {"told": prev_reward_batch, "word": words}
        return (count + shift) % 4, [count + 1, [f"step {n}" for n in count.tolist()]], outputs


ends = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS), endings=st.lists(ends, min_size=1, max_size=4), counts=st.lists(st.integers(1, 9), max_size=3)
)
def test_each_environment_plays_its_share_of_whole_episodes(vector, counting_env, kind, endings, counts):
    envs = vector(kind, [partial(counting_env, index, ends) for index, ends in enumerate(endings)])
    worker, begun = LocalWorker(envs, Counting(envs).collect_mode), [0] * len(endings)
    for count in counts:
        transitions, episodes, env_steps = worker.collect_episodes(count)
        rest = [len(range(index, count, len(endings))) for index in range(len(endings))]

        assert [episode.env for episode in episodes] == [index for index, share in enumerate(rest) for _ in range(share)]
        assert transitions.lengths.tolist() == [episode.length for episode in episodes]
        assert env_steps >= transitions.lengths.sum()
        for episode, result in zip(transitions, episodes):
            length = result.length
            index, number = result.env, int(episode.obs[0, 1])
            steps = range(length)
            assert episode.obs.int().tolist() == [[index, number, t] for t in steps]
            assert episode.next_obs.int().tolist() == [[index, number, t + 1] for t in steps]
            assert (length, episode.terminated[-1].item()) == _ending(endings[index], number)
            assert (episode.terminated | episode.truncated).tolist() == [False] * (length - 1) + [True]
            assert episode.reward.sum().item() == result.return_
            assert episode.action.tolist() == episode.state_in_0.remainder(4).tolist() == [t % 4 for t in steps]
            assert episode.state_out_0.tolist() == [t + 1 for t in steps]
            assert episode.told.tolist() == [0, *episode.reward[:-1].tolist()]
            assert episode.word.tolist() == episode.state_in_1.tolist() == ["begun", *(f"step {t}" for t in steps[:-1])]
            assert episode.policy_version.tolist() == [0] * length
        if kind == "ours":  # one after the other, none left out
            expected = [[*range(first, first + share)] for first, share in zip(begun, rest)]
            assert [episode.number for episode in episodes] == [number for part in expected for number in part]
            begun = [first + share for first, share in zip(begun, rest)]
            assert [env.place for env in envs.envs] == [(index, number, 0) for index, number in enumerate(begun)]
            assert env_steps == transitions.lengths.sum()


def _ending(endings, number):
    length, ending = endings[number % len(endings)]
    return length, ending != "truncated"


def test_environments_that_have_played_their_share_are_not_stepped(counting_env):
    lengths = iter([2, 9])
    envs = make_envs(lambda: counting_env(0, [(next(lengths), "terminated")]), 2)
    worker = LocalWorker(envs, Counting(envs).collect_mode)
    stepped = []
    for env in envs.envs:
        env.observe, env._observe = env._observe, lambda env=env: stepped.append(env.t) or env.observe()
    transitions, _, env_steps = worker.collect_episodes(4)

    assert transitions.lengths.tolist() == [2, 2, 9, 9]
    assert env_steps == 22
    assert sorted(stepped) == sorted([0, *[1, 2, 0] * 2, 0, *[*range(1, 10), 0] * 2])


@pytest.mark.parametrize(("kind", "expected"), [("sync NextStep", 31), ("sync SameStep", 36), ("sync Disabled", 36)])
def test_steps_that_could_not_be_avoided_are_counted_and_resets_are_not(vector, counting_env, kind, expected):
    envs = vector(kind, [partial(counting_env, 0, [(2, "terminated")]), partial(counting_env, 1, [(9, "truncated")])])
    transitions, _, env_steps = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(4)

    assert transitions.lengths.tolist() == [2, 2, 9, 9]
    assert env_steps == expected  # NextStep: 19 steps of both, of which 6 and 1 are resets


@pytest.mark.parametrize("counts", [[0, 0, 3], [1, 0, 0], [2, 0, 1]])
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_without_a_share_plays_nothing_that_counts(vector, counting_env, kind, counts):
    envs = vector(kind, [partial(counting_env, index, [(index + 2, "terminated")]) for index in range(3)])
    transitions, episodes, _ = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(counts)

    assert [episode.env for episode in episodes] == [index for index, count in enumerate(counts) for _ in range(count)]
    assert transitions.lengths.tolist() == [index + 2 for index, count in enumerate(counts) for _ in range(count)]
    if kind == "ours":
        assert [env.episode for env in envs.envs] == counts


def test_nothing_is_asked_for_and_nothing_happens(counting_env):
    envs = make_envs(counting_env, 2)
    rollout = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes([0, 0])

    assert (len(rollout.transitions), rollout.episodes, rollout.env_steps, rollout.version) == (0, [], 0, -1)
    assert envs.current is None


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_rollout_that_ended_within_episodes_all_begin_anew(vector, counting_env, kind):
    envs = vector(kind, [partial(counting_env, index, [(5, "truncated")]) for index in range(2)])
    worker = LocalWorker(envs, Counting(envs).collect_mode)
    worker.collect(3)
    transitions, _, _ = worker.collect_episodes(2)

    assert transitions.lengths.tolist() == [5, 5]
    assert [episode.obs[:, 2].tolist() for episode in transitions] == [[0, 1, 2, 3, 4]] * 2
    assert [episode.state_in_0.tolist() for episode in transitions] == [[0, 1, 2, 3, 4]] * 2


def test_a_rollout_after_episodes_goes_on_where_they_ended(counting_env):
    envs = make_envs(partial(counting_env, 0, [(5, "truncated")]), 2)
    worker = LocalWorker(envs, Counting(envs).collect_mode)
    worker.collect_episodes([1, 2])
    columns = worker.collect(6).trajectories.columns

    assert columns["obs"][:, :, 1].tolist() == [[1, 2]] * 5 + [[2, 3]]
    assert columns["state_in_0"][:, 0].tolist() == columns["state_in_0"][:, 1].tolist() == [0, 1, 2, 3, 4, 0]
    assert (columns["told"][0] == 0).all()


@pytest.mark.few
@pytest.mark.parametrize("at_first", [1, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_does_not_depend_on_the_memory_that_was_there_at_first(
    vector, counting_env, kind, at_first, monkeypatch, digest
):
    def run():
        envs = vector(kind, [partial(counting_env, index, [(index + 3, "truncated"), (2, "terminated")]) for index in range(3)])
        transitions, episodes, env_steps = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(8)
        return transitions.rows(), transitions.lengths, episodes, env_steps

    expected = digest(run())
    monkeypatch.setattr("ding_lite.rollout.collection._AT_FIRST", at_first)
    assert digest(run()) == expected


def test_episodes_beyond_the_memory_are_refused_before_it_is_taken(counting_env, monkeypatch):
    monkeypatch.setattr("ding_lite.rollout.collection.available_bytes", lambda: 3000)
    envs = make_envs(partial(counting_env, 0, [(10**6, "terminated")]))
    words = r"whole episodes of more than 128 steps in each of 1 environments .*lower policy.*n_episode"
    with pytest.raises(MemoryError, match=words):
        LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_does_not_end_is_given_up(vector, counting_env, monkeypatch, kind):
    monkeypatch.setattr("ding_lite.rollout.evaluation._MOST_STEPS", 20)
    envs = vector(kind, [partial(counting_env, 0, [(2, "terminated")]), partial(counting_env, 1, [(10**6, "terminated")])])
    with pytest.raises(RuntimeError, match=r"does not end within 20 steps\. Set a time limit"):
        LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(2)


def test_an_error_leaves_no_environment_at_rest(faulty_env, counting_env):
    made = iter([partial(counting_env, 0, [(1, "terminated")]), partial(counting_env, 1, [(50, "terminated")])])
    envs = make_envs(lambda: next(made)(), 2)
    worker = LocalWorker(envs, Counting(envs).collect_mode)
    envs.envs[1].endings = [(3, "no such ending")]
    with pytest.raises(KeyError, match="no such ending"):
        worker.collect_episodes(2)
    envs.envs[1].endings = [(3, "terminated")]
    worker.begin()
    worker.collect(1)
    assert [env.t for env in envs.envs] == [0, 1]
    assert envs.envs[0].episode == 3  # before the error, at the new beginning, and after the step


def test_random_actions_are_recorded_without_a_version(counting_env):
    envs = make_envs(partial(counting_env, 0, [(9, "truncated")]), 2)
    rollout = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(4, random=True)

    assert rollout.version == -1
    assert set(rollout.transitions.rows()["policy_version"]) == {-1}
    assert (
        rollout.transitions.rows()["state_out_0"].tolist() == [*range(1, 10)] * 4
    )  # with its other outputs, its state goes on
    assert len(set(rollout.transitions.rows()["action"])) == 4


def test_what_the_policy_is_asked_with_reaches_it(counting_env):
    envs = make_envs(partial(counting_env, 0, [(3, "truncated")]), 2)
    rollout = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(2, shift=2)

    assert [episode.action.tolist() for episode in rollout.transitions] == [[2, 3, 0]] * 2


@pytest.mark.parametrize("layout", ["float32", "tuple"])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_handed_out_are_never_overwritten(vector, counting_env, rule_policy, kind, layout):
    in_place = kind != "sync SameStep"
    envs = vector(kind, [partial(counting_env, index, [(index + 2, "truncated")], layout, in_place) for index in range(2)])
    worker = LocalWorker(envs, rule_policy(envs, layout).collect_mode)
    handed_out = [worker.collect_episodes(count).transitions for count in (3, 1, 4)]
    before = [map_leaves(np.copy, transitions.rows()) for transitions in handed_out]
    worker.collect(5)
    worker.collect_episodes(5)
    for transitions, copies in zip(handed_out, before):
        for (path, leaf), (_, copied) in zip(flatten(transitions.rows()), flatten(copies)):
            np.testing.assert_array_equal(leaf, copied, str(path))


def test_a_run_of_episodes_goes_on_from_a_saved_state_bit_for_bit(recurrent_case, tmp_path, digest):
    def contents(rollout):
        return rollout.transitions.rows(), rollout.transitions.lengths, rollout.episodes, rollout.env_steps, rollout.version

    envs, policy = recurrent_case.envs(), recurrent_case.policy()
    worker = make_worker(envs, policy.collect_mode)
    worker.collect_episodes(7)
    state = {"envs": envs.state_dict(), "worker": worker.state_dict(), "policy": policy.state_dict()}
    path = save_checkpoint(state, tmp_path / "run.pt")
    expected = [contents(worker.collect_episodes(count)) for count in (3, 8)]

    envs, policy = recurrent_case.envs(), recurrent_case.policy(seed=4)
    worker = make_worker(envs, policy.collect_mode)
    state = load_checkpoint(path)
    policy.load_state_dict(state["policy"])
    envs.load_state_dict(state["envs"])
    worker.load_state_dict(state["worker"])
    assert digest([contents(worker.collect_episodes(count)) for count in (3, 8)]) == digest(expected)


# In pieces, here and in processes.


def history(case, envs, digest):
    policy = case.policy()
    worker = make_worker(envs, policy.collect_mode)
    runs = []
    for count in (7, 1, [0, 0, 0, 2, 1], 12):
        rollout = worker.collect_episodes(count, **case.kwargs)
        runs.append(
            (rollout.transitions.rows(), rollout.transitions.lengths, rollout.episodes, rollout.env_steps, rollout.version)
        )
        case.change(policy, worker.collect(3, **case.kwargs))
        runs.append(worker.collect_episodes(2, random=True).transitions.rows())
    return digest(runs), digest(policy.state_dict(), worker.state_dict(), envs.state_dict())


@pytest.mark.few
@pytest.mark.parametrize("workers", [1, 2])
def test_episodes_of_processes_are_those_of_as_many_pieces_here(case, digest, workers):
    expected, found = (history(case, case.envs(workers, backend), digest) for backend in ("local", "process"))
    assert found[0] == expected[0]
    assert workers == 1 or found[1] == expected[1]  # what is in one piece here is saved in another form


@pytest.mark.few
@pytest.mark.parametrize("backend", ["local", "process"])
def test_episodes_of_pieces_are_those_of_all_environments_in_order(case, backend):
    worker = make_worker(case.envs(2, backend), case.policy().collect_mode)
    transitions, episodes, env_steps = worker.collect_episodes(12, **case.kwargs)

    assert [episode.env for episode in episodes] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert transitions.lengths.tolist() == [episode.length for episode in episodes]
    assert env_steps == transitions.lengths.sum()
    for episode, result in zip(transitions, episodes):
        assert episode.reward.sum().item() == pytest.approx(result.return_, rel=1e-5)
        assert (episode.terminated | episode.truncated).tolist() == [False] * (result.length - 1) + [True]


def test_what_is_asked_for_ahead_is_taken_in_order_or_dropped(dqn_case, digest):
    worker = make_worker(dqn_case.envs(2, "process"), dqn_case.policy().collect_mode)
    other = make_worker(dqn_case.envs(2), dqn_case.policy().collect_mode)
    asked = [worker.ask_episodes(count) for count in (3, 5, 4)]
    expected = [other.collect_episodes(count) for count in (3, 5, 4)]
    worker.drop(asked[1])

    assert digest(worker.take_episodes(asked[0]).episodes) == digest(expected[0].episodes)
    assert digest(worker.take_episodes(asked[2]).episodes) == digest(expected[2].episodes)


# Whole episodes with at least a number of steps.


def shares(lengths, count, num_envs):
    """The episodes that each environment runs by the definition: whole ones, until its own have its share of the steps."""
    found = []
    for index in range(num_envs):
        share, steps, own = count // num_envs + (index < count % num_envs), 0, []
        while steps < share:
            own.append(lengths[index][len(own)])
            steps += own[-1]
        found.append(own)
    return found


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=3, max_size=3),
    count=st.integers(1, 25),
)
def test_each_environment_runs_whole_episodes_until_they_have_its_share_of_the_steps(
    vector, counting_env, kind, lengths, count
):
    makers = [partial(counting_env, index, [(length, "truncated") for length in own]) for index, own in enumerate(lengths)]
    envs = vector(kind, makers)
    rollout = LocalWorker(envs, Counting(envs).collect_mode).collect_episodes(count, unit="steps")

    expected = shares([own * 25 for own in lengths], count, 3)
    assert rollout.transitions.lengths.tolist() == [length for own in expected for length in own]
    assert [episode.env for episode in rollout.episodes] == [index for index, own in enumerate(expected) for _ in own]
    assert int(rollout.transitions.lengths.sum()) >= count
    if kind == "ours":
        assert rollout.env_steps == rollout.transitions.lengths.sum()


@pytest.mark.parametrize("workers", [2, 5])
def test_episodes_collected_by_steps_are_the_same_in_processes_and_in_pieces_here(dqn_case, digest, workers):
    def collected(backend):
        worker = make_worker(dqn_case.envs(workers, backend), dqn_case.policy().collect_mode)
        rollouts = [worker.collect_episodes(count, False, "steps", **dqn_case.kwargs) for count in (17, 3, 30)]
        assert [int(one.transitions.lengths.sum()) >= count for one, count in zip(rollouts, (17, 3, 30))] == [True] * 3
        return [(one.transitions.rows(), one.transitions.lengths, one.episodes, one.env_steps) for one in rollouts]

    assert digest(collected("process")) == digest(collected("local"))


class Coin(gymnasium.Env):
    """Episodes of 1 or 9 steps, by the toss of a coin."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 9]))
        return 0, {}

    def step(self, action):
        self.left -= 1
        return 0, 0.0, self.left == 0, False, {}


def test_long_and_short_episodes_collected_by_steps_are_as_frequent_as_they_are():
    """Also where the share of an environment is as long as a long episode, so that mostly long ones fit into what is left."""
    envs = make_envs(Coin, 10, seed=0)
    worker = LocalWorker(envs, Counting(envs).collect_mode)
    found = [worker.collect_episodes(90, unit="steps").transitions.lengths.tolist() for _ in range(40)]
    lengths = [length for one in found for length in one]
    assert len(lengths) > 700
    assert np.mean(np.equal(lengths, 9)) == pytest.approx(0.5, abs=0.04)
