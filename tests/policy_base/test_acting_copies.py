"""Acting copies of a policy with its own weights: loading weights into a copy never changes the policy."""

import collections
import pickle
import threading
from types import NoneType

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import ReplayBuffer
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy, SACPolicy
from ding_lite.policy_base.acting_copies import acting_copy, own_copy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class Values:
    """A table in an object of a class of one's own."""

    def __init__(self):
        self.array = np.zeros(2)


def tensor_in_place(policy, number):
    policy.tensor.fill_(number)


def array_in_place(policy, number):
    policy.array[:] = number


def list_in_place(policy, number):
    policy.nested["rows"][0][:] = [number, number]


def attribute_of_an_object(policy, number):
    policy.values.array[:] = number


def part_of_a_vector(policy, number):
    policy.flat[:] = number


READ = {
    tensor_in_place: lambda policy: policy.tensor[0],
    array_in_place: lambda policy: policy.array[0],
    list_in_place: lambda policy: policy.nested["rows"][0][0],
    attribute_of_an_object: lambda policy: policy.values.array[0],
    part_of_a_vector: lambda policy: policy.part[0, 0],
}


def made(write):
    class InPlace(Policy):
        def after_init(self):
            self.tensor, self.array, self.nested, self.values = torch.zeros(1), np.zeros(2), {"rows": [[0, 0]]}, Values()
            self.flat = np.zeros(6)
            self.part = self.flat[2:].reshape(2, 2)

        def compute_actions(self, obs, state=(), **kwargs):
            return np.zeros(len(obs), np.int64), state, {"number": np.full(len(obs), float(READ[write](self)))}

        def learn_on_batch(self, batch):
            write(self, READ[write](self) + 1)
            return {}

        def get_weights(self):
            return float(READ[write](self))

        def set_weights(self, weights):
            write(self, weights)

    return InPlace(None, BOX, DISCRETE)


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
@pytest.mark.parametrize("write", READ)
def test_older_weights_in_a_copy_do_not_change_the_policy(write, mode):
    policy, obs = made(write), np.zeros((1, 4), np.float32)
    acting = getattr(policy, mode)
    policy.learn_on_batch({})
    older = policy.snapshot()
    policy.learn_on_batch({})
    acting.load_snapshot(older)

    assert acting.forward(obs)[2]["number"] == [1]
    assert policy.get_weights() == 2
    acting.load_snapshot(None)
    assert acting.forward(obs)[2]["number"] == [2]


ONLY_OF_THE_POLICY = {"collect_mode", "eval_mode", "learn_mode", "optimizer"}
OWN = {
    *("model", "params", "target_model"),
    *("generator", "rng", "action_space", "exploration"),  # random generators, and objects that contain one
    *("hook_metrics", "constructed_with", "compiled_steps", "_attached", "_loaded", "_nonfinite_steps"),
}
SHARED_ON_PURPOSE = {
    *("cfg", "config", "observation_space", "device"),  # these are replaced, or changed for all copies
    "dry_run_results",  # the same for all copies
    *("num_steps", "settings_made", "_settings_before", "_group_settings"),  # copies neither learn nor change settings
}
BY_VALUE = {
    *("seed", "rank_seed", "train_iter", "version", "given_model", "cur_lr", "lr_schedule"),
    *("_is_first_batch", "_found_finite", "_compared_next", "_snapshot", "_attributes_of_acting"),
    *("first_action", "num_actions", "entropy_coeff", "entropy_coeff_schedule", "kl_coeff", "kl_target", "target_entropy"),
}


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy, SACPolicy])
def test_each_attribute_of_a_policy_is_left_out_of_its_copy_or_copied_or_shared_on_purpose(kind):
    actions = BOX if kind is SACPolicy else DISCRETE
    policy = kind({"learn.on_nonfinite": "restore", "learn.compile": "auto"}, BOX, actions)
    policy.dry_run()
    assert policy.learn_mode is not policy.collect_mode is not policy.eval_mode  # made when they are first read
    ours, theirs = vars(policy), vars(acting_copy(policy, "collect"))
    same = {name for name in ours.keys() & theirs.keys() if theirs[name] is ours[name]}
    by_value = {name for name in same if isinstance(ours[name], (int, float, str, NoneType))}

    assert ours.keys() - theirs.keys() == ONLY_OF_THE_POLICY
    assert theirs.keys() - ours.keys() == {"is_copy", "learners"}
    assert ours.keys() & theirs.keys() - same <= OWN
    assert same - by_value == SHARED_ON_PURPOSE
    assert by_value <= BY_VALUE, "state in a new attribute: does acting need a value of its own?"


def test_a_get_weights_that_returns_the_live_array_gives_snapshots_that_never_change():
    policy = made(array_in_place)
    type(policy).get_weights = lambda self: self.array
    snapshot = policy.snapshot()
    policy.learn_on_batch({})

    assert snapshot.values.tolist() == [0, 0]
    assert policy.snapshot().values.tolist() == [1, 1]


def test_containers_keep_their_kind_and_what_cannot_be_copied_is_shared():
    recent, counts, lock = collections.deque([[1]], maxlen=2), collections.defaultdict(list, a=[1]), threading.Lock()
    endless = [[1]]
    endless.append(endless)
    copied = own_copy((recent, counts, lock, endless, {1}), {})

    assert copied[:2] == (recent, counts)
    assert (copied[0].maxlen, copied[1].default_factory, copied[2], copied[4]) == (2, list, lock, {1})
    assert copied[0][0] is not recent[0]
    assert copied[1]["a"] is not counts["a"]
    assert copied[3][1] is copied[3]
    assert copied[3][0] is not endless[0]


def test_buffers_are_shared_and_the_graph_of_a_loss_is_not_copied():
    buffer, weight = ReplayBuffer(10), torch.ones(2, requires_grad=True)
    product = weight * 2
    shared, copied = own_copy([buffer, product], {})

    assert shared is buffer
    assert copied.is_leaf
    assert copied.tolist() == [2, 2]
    assert copied.data_ptr() != product.data_ptr()


def test_arrays_in_the_order_of_fortran_and_views_with_steps_keep_their_elements():
    whole = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    for view in (whole.T, whole[:, ::2], whole[::-1], np.broadcast_to(np.arange(3.0), (2, 3)), np.arange(3)[1:]):
        np.testing.assert_array_equal(own_copy(view, {}), view)


@pytest.mark.parametrize(
    "first",
    [[0.0, np.zeros(2)], [np.zeros(2), np.zeros(3)], [torch.zeros(2)], [], (0.0, "a"), {"w": [1, 2]}, 3.0],
    ids=["mixed", "arrays", "tensors", "empty", "tuple", "dict", "number"],
)
def test_weights_of_any_kind_reach_worker_processes_unchanged_also_from_a_saved_run(first, digest):
    class Plain(Policy):
        def after_init(self):
            self.w = first

        def compute_actions(self, obs, state=(), **kwargs):
            return np.zeros(len(obs), np.int64), state, {}

        def get_weights(self):
            return self.w

        def set_weights(self, weights):
            self.w = weights

    policy = Plain(None, BOX, DISCRETE)
    received = pickle.loads(cloudpickle.dumps(policy.snapshot().as_arrays())).as_tensors()
    learner = policy.learn_mode
    assert learner.snapshot_state(policy.snapshot()).keys() == {"version", "weights", "train_iter", "are_tensors"}
    restored = learner.snapshot_from(learner.snapshot_state(policy.snapshot()))  # as in a saved run whose iterations overlap
    for snapshot in (received, pickle.loads(cloudpickle.dumps(restored.as_arrays())).as_tensors()):
        copied = policy.collect_mode.worker_copy(0)
        copied.actor.copy_weights(snapshot)

        assert type(copied.actor.w) is type(first)
        assert digest(copied.actor.w) == digest(first)
