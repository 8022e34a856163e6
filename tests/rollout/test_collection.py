"""LocalWorker: rollouts that go on where the last one left off, and a recurrent state that begins where an episode begins."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.data import flatten
from ding_lite.envs import SpaceError, make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.rollout import LocalWorker

KINDS = ["ours", "sync NextStep", "sync SameStep", "sync Disabled"]


class Recurrent(Policy):
    """Its state counts the steps that it took in the episode: in a tensor, in a larger one, and in words."""

    def __init__(self, env, seed=0) -> None:
        super().__init__(PolicyConfig(seed=seed), env.single_observation_space, env.single_action_space)

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def get_initial_state(self):
        return [0.0, torch.full((2, 1), 100), "step 0"]

    def compute_actions(self, obs, state=None, *, explore=True, shift=0, **kwargs):
        count, deep, words = state
        outputs = {"seen": count.clone(), "shift": torch.full_like(count, shift)}
        return count.long() % 4, [count + 1, deep + 1, [f"step {int(word[5:]) + 1}" for word in words]], outputs


class Pushing(Recurrent):
    """Acts beyond the bounds of its action space, always in the same array for as many observations."""

    def get_initial_state(self):
        return []

    def make_model(self):
        self.actions = {}
        return super().make_model()

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        nothing = np.zeros((len(obs), *self.action_space.shape), self.action_space.dtype)
        action = self.actions.setdefault(len(obs), nothing)
        action += 1
        return action, state, {}


def snapshot(trajectories):
    return {path: np.copy(leaf) for path, leaf in flatten(trajectories.columns)}


@pytest.mark.parametrize("num_steps", [1, 7])
def test_a_batch_has_t_steps_of_b_environments(counting_env, rule_policy, num_steps):
    envs = make_envs(partial(counting_env, layout="dict"), 3)
    batch = LocalWorker(envs, rule_policy(envs, "dict").collect_mode).collect(num_steps).trajectories.batch
    shapes = {"/".join(path): (tuple(leaf.shape), leaf.dtype) for path, leaf in flatten(batch)}
    lead = (num_steps, 3)
    assert shapes == {
        "policy_version": (lead, torch.int64),
        "obs/who": (lead, torch.int64),
        "obs/when": ((*lead, 2), torch.float32),
        "next_obs/who": (lead, torch.int64),
        "next_obs/when": ((*lead, 2), torch.float32),
        "action": (lead, torch.int64),
        "reward": (lead, torch.float32),
        "terminated": (lead, torch.bool),
        "truncated": (lead, torch.bool),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_begins_where_the_last_one_ended(vector, kind, counting_env, rule_policy):
    envs = vector(kind, [partial(counting_env, index, [(50, "terminated")]) for index in range(2)])
    worker = LocalWorker(envs, rule_policy(envs).collect_mode)
    steps = [worker.collect(t).trajectories.columns["obs"][:, 0, 2].tolist() for t in (3, 1, 4)]
    assert steps == [[0, 1, 2], [3], [4, 5, 6, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_of_one_environment_take_turns_in_it(vector, kind, counting_env, rule_policy):
    envs = vector(kind, [counting_env] * 2)
    one, other = (LocalWorker(envs, rule_policy(envs).collect_mode) for _ in range(2))
    assert [worker.collect(1).trajectories.columns["obs"][0, 0, 2] for worker in (one, other, one)] == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["float32", "tuple"])
def test_a_rollout_handed_out_is_never_overwritten(vector, kind, layout, counting_env, rule_policy):
    envs = vector(
        kind, [partial(counting_env, index, [(3, "truncated")], layout, kind != "sync SameStep") for index in range(2)]
    )
    worker = LocalWorker(envs, rule_policy(envs, layout).collect_mode)
    handed_out = [worker.collect(t).trajectories for t in (4, 1, 4)]
    before = [snapshot(trajectories) for trajectories in handed_out]
    worker.begin()
    for t in (4, 1, 7):
        worker.collect(t)
    for trajectories, columns in zip(handed_out, before):
        for path, leaf in flatten(trajectories.columns):
            np.testing.assert_array_equal(leaf, columns[path])
    for trajectories, columns in zip(handed_out, before):
        batch = dict(flatten(trajectories.batch))
        valid = batch.pop(("valid",), None)
        assert (valid is None) == (trajectories.valid is None)
        for path, leaf in batch.items():
            np.testing.assert_array_equal(leaf, columns[path])


def test_begin_begins_an_episode_in_every_environment(counting_env, rule_policy):
    envs = make_envs(counting_env, 2, seed=4)
    worker = LocalWorker(envs, rule_policy(envs).collect_mode)
    worker.collect(2)
    worker.begin()
    assert worker.collect(1).trajectories.columns["obs"][0].tolist() == [[0, 1, 0]] * 2
    worker.begin(seed=7)
    assert envs.run_seed == 7


ends = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    endings=st.lists(ends, min_size=1, max_size=3),
    chunks=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    again=st.booleans(),
)
def test_the_state_is_that_of_a_new_episode_just_where_one_begins(vector, counting_env, kind, endings, chunks, again):
    envs = vector(kind, [partial(counting_env, index, ends) for index, ends in enumerate(endings)])
    worker = LocalWorker(envs, Recurrent(envs).collect_mode)
    for number, chunk in enumerate(chunks):
        if again and number == 1:
            worker.begin()
        rows = worker.collect(chunk).trajectories.rows()
        step = rows["obs"][:, 2]
        for name, shift in (("state_in", 0), ("state_out", 1)):
            np.testing.assert_array_equal(rows[f"{name}_0"], step + shift)
            np.testing.assert_array_equal(rows[f"{name}_1"], 100 + shift + step[:, None, None] + np.zeros((1, 2, 1)))
            assert rows[f"{name}_2"].tolist() == [f"step {int(number) + shift}" for number in step]
        np.testing.assert_array_equal(rows["seen"], step)
        np.testing.assert_array_equal(rows["action"], step % 4)


def test_no_state_of_an_earlier_episode_survives_random_actions(counting_env):
    envs = make_envs(partial(counting_env, 0, [(6, "truncated")]), 2)
    worker = LocalWorker(envs, Recurrent(envs).collect_mode)
    worker.collect(5)
    worker.collect(2, random=True)  # the episode ends, and the next begins
    rows = worker.collect(2).trajectories.rows()
    assert rows["obs"][:, 1:].tolist() == [[1, 1]] * 2 + [[1, 2]] * 2
    assert (rows["seen"] <= rows["obs"][:, 2]).all()


def test_what_a_policy_is_asked_with_reaches_it_and_its_outputs_land_in_the_batch(counting_env):
    envs = make_envs(counting_env, 2)
    columns = LocalWorker(envs, Recurrent(envs).collect_mode).collect(3, shift=7).trajectories.columns
    assert columns["shift"].tolist() == [[7, 7]] * 3


def test_record_takes_one_step_with_what_act_gave(counting_env, rule_policy):
    envs, twin = make_envs(counting_env, 2), make_envs(counting_env, 2)
    worker, other = (LocalWorker(one, rule_policy(one).collect_mode) for one in (envs, twin))
    worker.begin()
    rollouts = [worker.complete_step(worker.act(worker.env.current)) for _ in range(7)]
    expected = other.collect(7)
    for name, column in expected.trajectories.columns.items():
        np.testing.assert_array_equal(np.concatenate([one.trajectories.columns[name] for one in rollouts]), column)
    assert [episode for one in rollouts for episode in one.episodes] == expected.episodes


@pytest.mark.parametrize("kind", ["ours", "sync Disabled"])
def test_random_actions_come_from_the_action_space_and_the_policys_seed(vector, kind, faulty_env):
    space = spaces.Box(np.array([-3, 5], np.float32), np.array([-2, 6], np.float32))

    def collect(seed):
        envs = vector(kind, [partial(faulty_env, 0, action_space=space, obs=np.zeros(2, np.float32))] * 4)
        return LocalWorker(envs, Pushing(envs, seed).collect_mode).collect(20, random=True).trajectories.columns["action"]

    actions = collect(0)
    assert actions.shape == (20, 4, 2)
    assert all(space.contains(action) for action in actions.reshape(-1, 2))
    assert len(np.unique(actions[..., 0])) == 80
    np.testing.assert_array_equal(actions, collect(0))
    assert not np.isin(collect(1)[..., 0], actions[..., 0]).any()


def test_random_actions_leave_the_action_space_of_the_environment_alone(counting_env, rule_policy):
    envs, twin = make_envs(counting_env, 8, seed=3), make_envs(counting_env, 8, seed=3)
    LocalWorker(envs, rule_policy(envs).collect_mode).collect(5, random=True)
    assert envs.action_space.sample().tolist() == twin.action_space.sample().tolist()


class Acted(gymnasium.Env):
    """Keeps what it was asked to do, and then changes it."""

    observation_space = spaces.Discrete(2)

    def __init__(self, action_space) -> None:
        self.action_space, self.actions = action_space, []

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.actions.append(action.tolist())
        action[...] = 0
        return 1, 0.0, False, False, {}


def test_the_environment_gets_clipped_actions_and_the_batch_those_of_the_policy():
    envs = make_envs(partial(Acted, spaces.Box(-1.5, 1.5, (1,), np.float32)), 2)
    columns = LocalWorker(envs, Pushing(envs).collect_mode).collect(3).trajectories.columns
    assert columns["action"][..., 0].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert [env.actions for env in envs.envs] == [[[1.0], [1.5], [1.5]]] * 2


def test_an_environment_that_changes_its_action_does_not_change_what_is_stored():
    envs = make_envs(partial(Acted, spaces.MultiDiscrete([9, 9])), 2)
    columns = LocalWorker(envs, Pushing(envs).collect_mode).collect(3).trajectories.columns
    assert [env.actions for env in envs.envs] == columns["action"].swapaxes(0, 1).tolist()


def test_a_policy_for_other_spaces_is_refused(counting_env, rule_policy):
    policy = rule_policy(make_envs(counting_env)).collect_mode
    for other in (make_envs("CartPole-v1"), make_envs(partial(counting_env, layout="uint8")), make_envs("Pendulum-v1")):
        with pytest.raises(
            SpaceError, match=r"RulePolicy was made for the spaces .*, and the environment has .*: make the policy"
        ):
            LocalWorker(other, policy)


def test_a_single_environment_is_refused(counting_env, rule_policy):
    policy = rule_policy(make_envs(counting_env)).collect_mode
    with pytest.raises(TypeError, match=r"expected a vector environment, got .*make_envs"):
        LocalWorker(counting_env(), policy)


def test_a_worker_with_a_state_goes_on_from_a_saved_one(counting_env):
    envs = make_envs(partial(counting_env, 0, [(9, "truncated")]), 2)
    worker = LocalWorker(envs, Recurrent(envs).collect_mode)
    worker.collect(5)
    envs_state, state = envs.state_dict(), worker.state_dict()
    expected = worker.collect(3).trajectories.columns

    restored_envs = make_envs(partial(counting_env, 0, [(9, "truncated")]), 2)
    restored_envs.load_state_dict(envs_state)
    restored = LocalWorker(restored_envs, Recurrent(restored_envs).collect_mode)
    restored.load_state_dict(state)
    np.testing.assert_array_equal(restored.collect(3).trajectories.columns["seen"], expected["seen"])


def test_an_output_of_bfloat16_is_a_column_of_float32(counting_env):
    class Narrow(Recurrent):
        def compute_actions(self, obs, state=None, **kwargs):
            action, state, outputs = super().compute_actions(obs, state, **kwargs)
            return action, state, {**outputs, "half": (outputs["seen"] + 0.5).bfloat16()}

    env = make_envs(counting_env, 2)
    columns = LocalWorker(env, Narrow(env).collect_mode).collect(3).trajectories.columns

    assert columns["half"].dtype == np.float32
    np.testing.assert_array_equal(columns["half"], columns["seen"] + 0.5)
