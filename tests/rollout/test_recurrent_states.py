"""What a policy carries through its episodes: recurrent state of any kind, and the action and reward of the step before."""

import threading
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.rollout import LocalWorker, make_worker, play_episodes

KINDS = ["ours", "sync NextStep", "sync SameStep", "sync Disabled"]


class Plain(Policy):
    """What these policies have in common: they do not learn."""

    def __init__(self, env) -> None:
        super().__init__(PolicyConfig(), env.single_observation_space, env.single_action_space)

    def make_model(self):
        return torch.nn.Linear(1, 1)


class FromTheDocument(Plain):
    """Counts its steps as the document has it, with lists."""

    def get_initial_state(self):
        return [0, "foo"]

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        assert len(state) == len(self.get_initial_state())
        counted = [[t + 1 for t in state[0]], [f"{word}!" for word in state[1]]]
        infos = {"some_value": ["foo" for _ in obs], "other_value": [12345 for _ in obs]}
        return [self.action_space.start for _ in obs], counted, infos


def test_the_policy_of_the_document_finds_its_state_and_its_outputs_in_the_batch(counting_env):
    envs = make_envs(partial(counting_env, 0, [(3, "terminated")]), 2)
    samples = LocalWorker(envs, FromTheDocument(envs).collect_mode).collect(4).trajectories.batch

    for name in ("state_in_0", "state_out_0", "state_in_1", "state_out_1", "some_value", "other_value"):
        assert name in samples.keys()  # noqa: SIM118  `in` asks the leaves of a tree
    assert samples.state_in_0[:, 0].tolist() == [0, 1, 2, 0]
    assert samples.state_out_0[:, 1].tolist() == [1, 2, 3, 1]
    assert (samples.state_in_0.dtype, samples.other_value.dtype) == (torch.int64, torch.int64)
    assert samples.state_in_1[:, 0].tolist() == ["foo", "foo!", "foo!!", "foo"]
    assert samples.state_out_1[:, 0].tolist() == ["foo!", "foo!!", "foo!!!", "foo!"]
    assert samples.some_value.tolist() == [["foo"] * 2] * 4
    assert samples.other_value.tolist() == [[12345] * 2] * 4


class Stateful(Plain):
    """Its state is what it is told to be: the first at the beginning, then one after the other."""

    first: object = 0.0
    later: object = None

    def get_initial_state(self):
        return [self.first]

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return torch.zeros(len(obs), dtype=torch.int64), [type(self).later(state[0])], {}


def stateful(start, step):
    return type("Stateful", (Stateful,), {"first": start, "later": staticmethod(step)})


@pytest.mark.parametrize(
    ("start", "step", "dtype", "expected"),
    [
        (0, lambda s: s + 1, np.int64, [0, 1, 2]),
        (0, lambda s: [int(t) + 1 for t in s], np.int64, [0, 1, 2]),
        (0.0, lambda s: np.asarray(s) + 0.5, np.float32, [0, 0.5, 1]),
        (0.0, lambda s: (s + 0.5).double(), np.float32, [0, 0.5, 1]),
        (0.0, lambda s: [1 for _ in s], np.float32, [0, 1, 1]),
        (np.float64(0), lambda s: s.float() + 1, np.float64, [0, 1, 2]),
        (False, lambda s: ~s, np.bool_, [False, True, False]),
        (np.zeros((2, 1), np.int8), lambda s: [row + 1 for row in s], np.int8, [[[0], [0]], [[1], [1]], [[2], [2]]]),
        (torch.zeros(2), lambda s: s.add_(1), np.float32, [[0, 0], [1, 1], [2, 2]]),
        ("", lambda s: [f"{one}a" for one in s], object, ["", "a", "aa"]),
        ("", lambda s: np.array([f"{one}a" for one in s], object), object, ["", "a", "aa"]),
        (None, lambda s: [(one, 1) for one in s], object, [None, (None, 1), ((None, 1), 1)]),
        ({"n": 0}, lambda s: [{"n": one["n"] + 1} for one in s], object, [{"n": 0}, {"n": 1}, {"n": 2}]),
        ([0], lambda s: [[*one, 1] for one in s], object, [[0], [0, 1], [0, 1, 1]]),
        ([0], lambda s: [one.append(1) or one for one in s], object, [[0], [0, 1], [0, 1, 1]]),
        ({"n": [0]}, lambda s: [one["n"].append(1) or one for one in s], object, [{"n": [0]}, {"n": [0, 1]}, {"n": [0, 1, 1]}]),
    ],
)
def test_a_state_of_any_kind_is_recorded_as_it_went_in_and_out(counting_env, start, step, dtype, expected):
    envs = make_envs(partial(counting_env, 0, [(9, "terminated")]), 2)
    columns = LocalWorker(envs, stateful(start, step)(envs).collect_mode).collect(3).trajectories.columns

    for name in ("state_in_0", "state_out_0"):
        assert columns[name].dtype == dtype
    assert columns["state_in_0"][:, 0].tolist() == columns["state_in_0"][:, 1].tolist() == expected
    assert columns["state_out_0"][:2, 0].tolist() == expected[1:]


@pytest.mark.parametrize(
    ("start", "step", "words"),
    [
        (0, lambda s: s + 0.5, r"with dtype torch.float32, but its dtype was torch.int64 before: .* for example 0.0"),
        (
            0.0,
            lambda s: s[:, None].repeat(1, 3),
            r"with shape \(2, 3\), but its shape was \(2,\) before: return the same shape",
        ),
        (0.0, lambda s: s[:1], r"with shape \(1,\), but its shape was \(2,\) before"),
        (0.0, lambda s: ["a", "b"], r"as a list that is not a tensor of shape \(2,\): .*numpy"),
        (0.0, lambda s: [[1], [1, 2]], r"as a list that is not a tensor of shape \(2,\): .*inhomogeneous"),
        (0.0, lambda s: [torch.zeros(1), torch.zeros(2)], r"as a list that is not a tensor of shape \(2,\): stack expects"),
        (0.0, lambda s: None, r"as a NoneType that is not a tensor of shape \(2,\)"),
        ("a", lambda s: ["b"], r"for 1 environments, but there are 2"),
        ("a", lambda s: "bc", r"as a str: return a list of 2, one item per environment"),
        ("a", lambda s: {"h": 1, "c": 2}, r"as a dict: return a list of 2, one item per environment"),
        ("a", lambda s: iter(s), r"as a list_iterator: return a list of 2, one item per environment"),
    ],
)
def test_a_state_that_changes_its_look_is_refused(counting_env, start, step, words):
    envs = make_envs(counting_env, 2)
    mode = Altered(stateful(start, lambda s: s)(envs).collect_mode, lambda state: [step(state[0])])
    with pytest.raises((TypeError, ValueError), match=f"^compute_actions of Stateful returned state element 0 {words}"):
        LocalWorker(envs, mode).collect(2)


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda state: state[:1], "a state of 1 elements, and get_initial_state one of 2: return the same elements"),
        (lambda state: None, "a state that is a NoneType: return a list of 2 elements, as get_initial_state does"),
        (lambda state: dict(enumerate(state)), "a state that is a dict: return a list of 2 elements"),
    ],
)
def test_a_state_of_other_elements_is_refused(counting_env, alter, words):
    envs = make_envs(counting_env, 2)
    mode = Altered(FromTheDocument(envs).collect_mode, alter)
    with pytest.raises((TypeError, ValueError), match=f"^compute_actions of FromTheDocument returned {words}"):
        LocalWorker(envs, mode).collect(2)


class Altered:
    """A mode whose next state is altered."""

    def __init__(self, mode, alter) -> None:
        self._mode, self._alter = mode, alter

    def forward(self, obs, state=None, **kwargs):
        action, state, outputs = self._mode.forward(obs, state, **kwargs)
        return action, self._alter(state), outputs

    def __getattr__(self, name):
        return getattr(self._mode, name)


@pytest.mark.parametrize("random", [False, True])
def test_only_the_columns_that_the_policy_names_are_recorded(counting_env, random):
    envs = make_envs(counting_env, 2)
    mode = FromTheDocument(envs).collect_mode
    for names, expected in ((("state_in_1",), {"state_in_1"}), ((), set()), (("state_out_0", "obs"), {"state_out_0"})):
        worker = LocalWorker(envs, Naming(mode, names))
        found = {name for name in worker.collect(2, random).trajectories.columns if name.startswith("state_")}
        assert found == expected


class Naming:
    """A mode that names the columns of state that it reads."""

    def __init__(self, mode, state_columns) -> None:
        self._mode, self.state_columns = mode, state_columns

    def __getattr__(self, name):
        return getattr(self._mode, name)


@pytest.mark.parametrize(
    ("policy", "state_in", "state_out"),
    [
        (lambda envs: stateful(0, lambda s: s + 1)(envs), [0, 1, 2, 2, 2, 2], [1, 2, 2, 2, 2, 3]),
        (FromTheDocument, [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]),
    ],
    ids=["no outputs", "outputs"],
)
def test_the_state_stands_still_while_actions_are_random_unless_other_outputs_are_asked_for(
    counting_env, policy, state_in, state_out
):
    envs = make_envs(partial(counting_env, 0, [(9, "terminated")]), 2)
    worker = LocalWorker(envs, policy(envs).collect_mode)
    parts = [worker.collect(2), worker.collect(3, random=True), worker.collect(1)]

    for name, expected in (("state_in_0", state_in), ("state_out_0", state_out)):
        assert [int(n) for part in parts for n in part.trajectories.columns[name][:, 0]] == expected


def test_the_state_that_was_recorded_is_not_what_the_policy_changes_in_place(counting_env):
    envs = make_envs(partial(counting_env, 0, [(3, "terminated")]), 2)
    columns = (
        LocalWorker(envs, stateful(torch.zeros(1), lambda s: s.add_(1))(envs).collect_mode).collect(6).trajectories.columns
    )

    assert columns["state_in_0"][:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert columns["state_out_0"][:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]


# The action and the reward of the step before.


class Curious(Plain):
    """Does what counts up, and tells what it was told of the step before."""

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, prev_reward_batch=None, explore=True, **kwargs):
        action = (prev_action_batch + 1) % 4
        return action, state, {"told_action": prev_action_batch, "told_reward": prev_reward_batch}


class Remembering(Curious):
    """The same with a state."""

    def get_initial_state(self):
        return [0]

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, prev_reward_batch=None, explore=True, **kwargs):
        previous = {"prev_action_batch": prev_action_batch, "prev_reward_batch": prev_reward_batch}
        action, _, outputs = super().compute_actions(obs, **previous)
        return action, [state[0] + 1], outputs


def told_before(columns, valid=None):
    """For each step, the action and reward of the step before in the same episode, zeros where it is the first."""
    done = columns["terminated"] | columns["truncated"]
    action, reward = np.zeros_like(columns["action"]), np.zeros_like(columns["reward"])
    for t, b in np.ndindex(*done.shape):
        if t and not done[t - 1, b] and (valid is None or valid[t - 1, b]):
            action[t, b], reward[t, b] = columns["action"][t - 1, b], columns["reward"][t - 1, b]
    return action, reward


def joined(parts):
    return {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}


@pytest.mark.parametrize("policy", [Curious, Remembering])
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_is_told_the_action_and_reward_of_the_step_before_in_its_episode(vector, kind, counting_env, policy):
    endings = [(3, "terminated"), (1, "truncated"), (4, "truncated")]
    envs = vector(kind, [partial(counting_env, index, endings) for index in range(2)])
    worker = LocalWorker(envs, policy(envs).collect_mode)
    parts = [worker.collect(steps).trajectories for steps in (2, 1, 7, 9)]
    columns = joined(parts)
    valid = None if parts[-1].valid is None else np.concatenate([
        np.ones((part.num_steps, 2), bool) if part.valid is None else part.valid for part in parts
    ])  # fmt: skip
    action, reward = told_before(columns, valid)
    real = slice(None) if valid is None else valid

    np.testing.assert_array_equal(columns["told_action"][real], action[real])
    np.testing.assert_array_equal(columns["told_reward"][real], reward[real])
    assert (columns["told_action"].dtype, columns["told_reward"].dtype) == (columns["action"].dtype, np.float32)
    assert reward.any()
    assert set(columns["action"].ravel()) == {0, 1, 2, 3}


def test_random_steps_are_told_too(counting_env):
    envs = make_envs(partial(counting_env, 0, [(50, "terminated")]), 3)
    worker = LocalWorker(envs, Curious(envs).collect_mode)
    before, after = worker.collect(4, random=True).trajectories.columns, worker.collect(1).trajectories.columns

    assert after["told_action"][0].tolist() == before["action"][-1].tolist()
    assert after["told_reward"][0].tolist() == before["reward"][-1].tolist()


def test_a_policy_that_asks_for_one_of_both_is_told_that_alone(counting_env):
    envs = make_envs(counting_env, 2)
    mode = Asking(RuleOf(envs).collect_mode, ("prev_reward_batch",))
    LocalWorker(envs, mode).collect(2)

    assert [set(kwargs) for kwargs in mode.asked] == [{"prev_reward_batch"}] * 2


class RuleOf(Plain):
    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return torch.zeros(len(obs), dtype=torch.int64), state, {}


class Asking:
    """A mode that asks, and remembers what it was told."""

    def __init__(self, mode, previous) -> None:
        self._mode, self.previous, self.asked = mode, previous, []

    def forward(self, obs, state=None, **kwargs):
        self.asked.append(kwargs)
        return self._mode.forward(obs, state)

    def __getattr__(self, name):
        return getattr(self._mode, name)


class Nested(gymnasium.Env):
    """Actions of several parts."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Dict(at=spaces.Box(-1, 1, (2,), np.float32), which=spaces.Discrete(3, start=1))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return 0, {}

    def step(self, action):
        self.t += 1
        return 1, float(self.t), self.t == 3, False, {}


class Always(Plain):
    """Acts beyond the bounds, in the same arrays again and again."""

    def make_model(self):
        self.action = {"at": np.zeros((2, 2), np.float32), "which": np.ones(2, np.int64)}
        return super().make_model()

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, explore=True, **kwargs):
        if len(obs) != 2:  # whoever tries it out
            return {"at": np.zeros((len(obs), 2), np.float32), "which": np.ones(len(obs), np.int64)}, state, {}
        self.action["at"] += 1
        self.action["which"][:] = self.action["which"] % 3 + 1
        return self.action, state, {"told": {name: part.copy() for name, part in prev_action_batch.items()}}


def test_the_action_is_told_as_it_was_recorded_not_as_the_environment_got_it():
    envs = make_envs(Nested, 2)
    worker = LocalWorker(envs, Told(Always(envs).collect_mode))
    columns = worker.collect(5).trajectories.columns

    assert columns["action"]["at"][:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert columns["told"]["at"][:, 0, 0].tolist() == [0, 1, 2, 0, 4]
    assert columns["told"]["which"][:, 0].tolist() == [
        0,
        *columns["action"]["which"][:2, 0],
        0,
        columns["action"]["which"][3, 0],
    ]


class Told(Asking):
    def __init__(self, mode) -> None:
        super().__init__(mode, ("prev_action_batch",))

    def forward(self, obs, state=None, **kwargs):
        return self._mode.forward(obs, state, **kwargs)


def test_another_worker_of_the_same_environments_is_told_what_the_first_one_did(counting_env):
    envs = make_envs(partial(counting_env, 0, [(50, "terminated")]), 2)
    one, other = (LocalWorker(envs, Curious(envs).collect_mode) for _ in range(2))
    columns = joined([worker.collect(2).trajectories for worker in (one, other, one)])

    np.testing.assert_array_equal(columns["told_action"], told_before(columns)[0])


def test_after_steps_that_nobody_recorded_nothing_is_told(counting_env):
    envs = make_envs(partial(counting_env, 0, [(50, "terminated")]), 2)
    worker = LocalWorker(envs, Curious(envs).collect_mode)
    worker.collect(3)
    envs.step(np.array([1, 1]))

    assert worker.collect(1).trajectories.columns["told_reward"].tolist() == [[0, 0]]


# Evaluation, and going on from a saved state.


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_acts_with_state_and_step_before_as_collecting_does(vector, kind, counting_env):
    def made():
        return vector(kind, [partial(counting_env, index, [(3, "terminated"), (5, "truncated")]) for index in range(2)])

    envs, twin = made(), made()
    episodes = play_episodes(LocalWorker(envs, Remembering(envs).eval_mode), 4)
    rewards = joined([LocalWorker(twin, Remembering(twin).collect_mode).collect(10).trajectories])
    expected = [[], []]
    total = np.zeros(2)
    for t, b in np.ndindex(10, 2):
        total[b] += rewards["reward"][t, b]
        if rewards["terminated"][t, b] or rewards["truncated"][t, b]:
            expected[b].append(total[b])
            total[b] = 0
    assert [episode.return_ for episode in episodes] == expected[0][:2] + expected[1][:2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_goes_on_bit_for_bit_from_a_saved_state(recurrent_case, workers, tmp_path, contents, digest):
    envs, policy = recurrent_case.envs(workers), recurrent_case.policy()
    worker = make_worker(envs, policy.collect_mode)
    worker.collect(5)
    state = {"envs": envs.state_dict(), "worker": worker.state_dict(), "policy": policy.state_dict()}
    path = save_checkpoint(state, tmp_path / "run.pt")
    expected = [contents(worker.collect(steps)) for steps in (1, 8)]

    envs, policy = recurrent_case.envs(workers), recurrent_case.policy(seed=4)
    worker = make_worker(envs, policy.collect_mode)
    worker.collect(3)
    state = load_checkpoint(path)
    policy.load_state_dict(state["policy"])
    envs.load_state_dict(state["envs"])
    worker.load_state_dict(state["worker"])
    assert digest([contents(worker.collect(steps)) for steps in (1, 8)]) == digest(expected)
    assert (expected[0][0]["state_in_1"].dtype, expected[0][0]["state_in_0"].dtype) == (object, np.float32)


@pytest.mark.parametrize(
    ("start", "step", "expected"),
    [
        (torch.zeros(1), lambda s: s.add_(1), [2, 2, 3, 3, 4, 4]),
        ([], lambda s: [one.append(1) or one for one in s], [[1] * n for n in (2, 2, 3, 3, 4, 4)]),
    ],
)
def test_what_was_saved_does_not_change_with_what_the_policy_changes_in_place(counting_env, start, step, expected):
    envs = make_envs(partial(counting_env, 0, [(50, "terminated")]), 2)
    worker = LocalWorker(envs, stateful(start, step)(envs).collect_mode)
    worker.collect(2)
    states = [worker.state_dict(), worker.raw_state()]
    worker.collect(3)
    for state in states:
        for _ in range(2):
            worker.load_state_dict(state)

            assert worker.collect(3).trajectories.columns["state_in_0"].ravel().tolist() == expected


def test_objects_that_are_changed_in_place_begin_each_episode_anew(counting_env):
    envs = make_envs(partial(counting_env, 0, [(2, "terminated")]), 2)
    policy = stateful({"n": 0}, lambda s: [one.update(n=one["n"] + 1) or one for one in s])
    columns = LocalWorker(envs, policy(envs).collect_mode).collect(4).trajectories.columns

    assert [[one["n"] for one in row] for row in columns["state_in_0"]] == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert policy.first == {"n": 0}


def test_an_object_that_cannot_be_copied_is_refused_by_name(counting_env):
    envs = make_envs(counting_env, 2)
    with pytest.raises(TypeError, match=r"the recurrent state of Stateful has <.*lock.* which copy.deepcopy cannot copy"):
        LocalWorker(envs, stateful(threading.Lock(), lambda s: s)(envs).collect_mode)


@pytest.mark.parametrize(
    "first", [{"at": np.zeros(2), "seen": torch.zeros(1)}, [np.arange(3), "a"], (np.int8([[1]]), {"k": []})]
)
def test_arrays_within_objects_come_back_from_a_checkpoint_as_arrays(counting_env, first, tmp_path, digest):
    envs = make_envs(partial(counting_env, 0, [(50, "terminated")]), 2)
    policy = stateful(first, lambda s: s)(envs)
    worker = LocalWorker(envs, policy.collect_mode)
    expected = worker.collect(2).trajectories.columns["state_out_0"]
    state = load_checkpoint(save_checkpoint(worker.state_dict(), tmp_path / "worker.pt"))
    worker.load_state_dict(state)
    found = worker.collect(1).trajectories.columns["state_in_0"]

    assert kinds(found[0].tolist()) == kinds(expected[-1].tolist())
    assert digest(found[0]) == digest(expected[-1])


def kinds(thing):
    """The type of each part."""
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return type(thing), [kinds(part) for part in parts]


def test_the_saved_state_of_another_policy_or_number_of_environments_is_refused(counting_env):
    two, three = make_envs(counting_env, 2), make_envs(counting_env, 3)
    state = LocalWorker(two, FromTheDocument(two).collect_mode).state_dict()
    for worker in (LocalWorker(three, FromTheDocument(three).collect_mode), LocalWorker(two, Remembering(two).collect_mode)):
        with pytest.raises(ValueError, match=r"the saved recurrent state has elements for \[2, 2\] environments"):
            worker.load_state_dict(state)
    with pytest.raises(ValueError, match=r"the saved recurrent state has elements for \[\] environments"):
        LocalWorker(two, Remembering(two).collect_mode).load_state_dict(LocalWorker(two, RuleOf(two).collect_mode).state_dict())


def test_objects_that_no_checkpoint_holds_are_refused_by_name(counting_env):
    envs = make_envs(counting_env, 2)
    worker = LocalWorker(envs, stateful({"a set"}, lambda s: list(s))(envs).collect_mode)
    worker.collect(1)
    with pytest.raises(TypeError, match=r"recurrent state\[0\]\[0\] is a set, which a checkpoint cannot hold"):
        worker.state_dict()


@pytest.mark.parametrize("backend", ["local", "process"])
def test_columns_of_objects_travel_from_worker_processes(recurrent_case, backend):
    worker = make_worker(recurrent_case.envs(2, backend), recurrent_case.policy().collect_mode)
    rollouts = [worker.collect(steps).trajectories for steps in (6, 3)]
    columns = rollouts[0].columns

    for name in ("word", "thing", "state_in_1", "state_out_2"):
        assert (columns[name].shape, columns[name].dtype) == ((6, 5), object)
    assert columns["thing"].tolist() == columns["state_out_2"].tolist()
    assert all(type(word) is str for word in columns["word"].ravel())
    assert columns["thing"][0].tolist() == [{"seen": [0, 1]}] * 5
    assert [one.word.item() for one in rollouts[1][:3]] == rollouts[1].columns["word"][:, 0].tolist()
    assert [word[-1] for word in columns["state_out_1"].ravel()] == [str(action) for action in columns["action"].ravel()]


def counts():
    envs = make_envs("CartPole-v1", 2)
    return envs, stateful(torch.zeros(1), lambda s: s + 1)(envs).collect_mode


def second_collector(envs, mode):
    LocalWorker(envs, mode).collect(2)
    return LocalWorker(envs, mode)


def two_in_turn(envs, mode):
    first, second = LocalWorker(envs, mode), LocalWorker(envs, mode)
    for worker in (first, second):
        worker.begin()
        worker.collect(2)
    return first


def restored_under_it(envs, mode):
    worker = LocalWorker(envs, mode)
    worker.collect(2)
    state = envs.state_dict()
    worker.collect(2)
    envs.load_state_dict(state)
    return worker


def stepped_by_hand(envs, mode):
    worker = LocalWorker(envs, mode)
    worker.collect(2)
    envs.step(envs.action_space.sample())
    return worker


@pytest.mark.parametrize("arrange", [second_collector, two_in_turn, restored_under_it, stepped_by_hand])
def test_a_state_that_is_not_of_the_episode_is_warned_of_once(arrange):
    worker = arrange(*counts())
    with pytest.warns(UserWarning, match=r"has a recurrent state, but acts in episodes that it did not begin.*Reset the env"):
        worker.collect(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker.collect(3)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_state_that_the_environments_have_is_not_warned_of_when_it_is_loaded_again(recurrent_case, digest, workers):
    rollouts = []
    for loads in (False, True):
        envs = recurrent_case.envs(workers)
        worker = make_worker(envs, recurrent_case.policy().collect_mode)
        worker.collect(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if loads:
                envs.load_state_dict(envs.state_dict())
            rollouts.append(worker.collect(3).trajectories.columns)

    assert digest(rollouts[0]) == digest(rollouts[1])


def test_a_state_that_is_of_the_episode_is_not_warned_of():
    envs, mode = counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker = LocalWorker(envs, mode)
        worker.collect(2, random=True)
        worker.collect(2)
        state = worker.state_dict(), envs.state_dict()
        other = LocalWorker(envs, mode)
        other.begin()
        other.collect(1)
        for load in (worker.load_state_dict, envs.load_state_dict), (envs.load_state_dict, worker.load_state_dict):
            for one in load:
                one(state[one == envs.load_state_dict])
            worker.collect(1)
