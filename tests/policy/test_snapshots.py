"""Snapshots of weights: what they hold never changes, and a mode acts with the one that it is given."""

import copy
import gc
import pickle
import weakref

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, Policy, PolicyConfig, PPOPolicy, PPOPolicyConfig

OBS, ACTION = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class Normalizing(Policy):
    """A model with buffers, which acting does not change and learning does."""

    def make_model(self):
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return self.model(obs).argmax(-1), state, {}

    def loss(self, batch):
        loss = self.model(batch.obs).square().mean()
        return loss, {"loss": loss.detach()}


KINDS = {"dqn": (DQNPolicy, DQNPolicyConfig), "ppo": (PPOPolicy, PPOPolicyConfig), "buffers": (Normalizing, PolicyConfig)}
each = pytest.mark.parametrize("kind", KINDS)


def made(kind, seed=0):
    policy, config = KINDS[kind]
    return policy(config().override({"seed": seed}), OBS, ACTION)


def learn(policy, n=8):
    rng, number, no = np.random.default_rng(1), np.arange(n, dtype=np.float32), np.zeros(n, bool)
    obs = rng.normal(size=(n, 4)).astype(np.float32)
    rows = {"obs": obs, "next_obs": obs, "action": rng.integers(3, size=n), "reward": number, "terminated": no,
            "truncated": no, "log_prob": -number / n, "advantage": number, "value": number, "return_": number}  # fmt: skip
    policy.learn_mode.forward(
        tree({name: leaf[:, None] if isinstance(policy, PPOPolicy) else leaf for name, leaf in rows.items()})
    )


def observations(n=40):
    return np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)


@each
def test_what_a_snapshot_holds_never_changes(kind, same):
    policy = made(kind)
    snapshot = policy.snapshot()
    before = copy.deepcopy(snapshot)
    learn(policy)
    policy.set_weights({name: tensor + 1 for name, tensor in policy.get_weights().items()})
    policy.load_state_dict(made(kind, seed=1).state_dict())
    policy.collect_mode.load_snapshot(snapshot)
    policy.collect_mode.forward(observations())
    with torch.no_grad():
        for tensor in [*policy.weights, *policy.collect_mode.actor.weights]:
            tensor.zero_()
    assert same(snapshot, before)
    assert not any(tensor.requires_grad for tensor in snapshot.values)


@each
def test_a_snapshot_is_the_same_object_while_the_weights_are_the_same_and_a_new_one_after(kind, same):
    policy = made(kind)
    snapshots = [policy.snapshot()]
    for change in (
        lambda: learn(policy),
        lambda: policy.set_weights(policy.get_weights()),
        lambda: policy.load_state_dict(policy.state_dict()),
        lambda: policy.load_state_dict({"model": policy.state_dict()["model"]}),
        lambda: policy.load_state_dict(made(kind, seed=1).state_dict()),
    ):
        assert policy.snapshot() is policy.learn_mode.snapshot() is snapshots[-1]
        assert policy.collect_mode.acting_snapshot is policy.eval_mode.acting_snapshot is snapshots[-1]
        policy.collect_mode.forward(observations())
        assert policy.snapshot() is snapshots[-1]
        change()
        assert all(policy.snapshot() is not one for one in snapshots)
        snapshots.append(policy.snapshot())
        assert snapshots[-1].version == policy.version
        assert all(map(torch.equal, snapshots[-1].values, policy.weights))


@each
def test_a_mode_acts_with_the_snapshot_that_it_was_given_until_it_is_given_none(kind, same):
    policy, obs = made(kind), observations()
    mode = policy.eval_mode
    before, first = mode.forward(obs)[0], policy.snapshot()
    policy.set_weights(
        {
            name: -tensor if tensor.is_floating_point() and "var" not in name else tensor
            for name, tensor in made(kind, 5).get_weights().items()
        }
    )
    newest = policy.get_weights()
    mode.load_snapshot(first)
    assert (mode.is_led, mode.acting_snapshot is first) == (True, True)
    np.testing.assert_array_equal(mode.forward(obs)[0], before)
    assert (mode.version, same(list(mode.actor.weights), first.values)) == (0, True)
    mode.load_snapshot(None)
    mode.forward(obs)
    assert (mode.is_led, mode.version, same(mode.get_weights(), newest)) == (False, policy.version, True)


@each
def test_a_held_mode_acts_with_the_weights_of_that_moment_whatever_is_learned_or_adopted(kind, same):
    policy, obs = made(kind), observations()
    mode, other = policy.eval_mode, policy.collect_mode
    held = policy.snapshot()
    with mode.acting_with(held):
        learn(policy)
        mode.load_snapshot(policy.snapshot())
        mode.forward(obs)
        assert mode.acting_snapshot is held
        assert same(list(mode.actor.weights), held.values)
        other.forward(obs)
        assert other.version == policy.version
    mode.forward(obs)
    assert mode.version == policy.version


@each
def test_loading_a_state_does_not_replace_the_weights_that_a_mode_was_given(kind, same):
    policy, other, obs = made(kind), made(kind, 5), observations()
    mode, given = policy.collect_mode, policy.snapshot()
    mode.load_snapshot(given)
    mode.forward(obs)
    policy.load_state_dict(other.state_dict())
    mode.forward(obs)
    assert same(list(mode.actor.weights), given.values)
    mode.load_snapshot(None)
    mode.forward(obs)
    assert same(mode.get_weights(), other.get_weights())


def test_weights_of_a_block_are_freed_after_it():
    policy = made("dqn")
    held = policy.snapshot()
    with policy.eval_mode.acting_with(held):
        policy.eval_mode.forward(observations())
    learn(policy)
    tensor = weakref.ref(held.values[0])
    policy.snapshot()
    del held
    gc.collect()

    assert tensor() is None


@each
def test_weights_with_the_version_of_earlier_ones_are_acted_with_too(kind, same):
    policy, obs = made(kind), observations()
    mode, state = policy.collect_mode, policy.state_dict()
    learn(policy)
    earlier = policy.snapshot()
    mode.load_snapshot(earlier)
    mode.forward(obs)
    policy.load_state_dict(state)
    learn(policy, 4)
    later = policy.snapshot()
    mode.load_snapshot(later)
    mode.forward(obs)

    assert (later.version, same(later.values, earlier.values)) == (earlier.version, False)
    assert same(list(mode.actor.weights), later.values)


@each
def test_a_twin_stands_alone_and_takes_over_what_it_adopts(kind, same):
    policy, obs = made(kind), observations()
    twin = pickle.loads(cloudpickle.dumps(policy.eval_mode.worker_copy(0)))
    before = twin.get_weights()
    learn(policy)
    twin.forward(obs)
    assert same(twin.get_weights(), before)
    twin.load_snapshot(policy.snapshot())
    np.testing.assert_array_equal(twin.forward(obs)[0], policy.eval_mode.forward(obs)[0])
    assert same(twin.get_weights(), policy.get_weights())
    assert twin.version == policy.version


def test_twins_draw_random_numbers_of_their_own_and_the_first_those_of_the_mode():
    policy, obs = made("dqn"), observations(200)
    expected = policy.collect_mode.forward(obs, eps=0.9)[0]
    actions = [policy.collect_mode.worker_copy(index).forward(obs, eps=0.9)[0] for index in range(3)]
    np.testing.assert_array_equal(actions[0], expected)
    assert all(0.1 < np.mean(actions[0] == one) < 0.9 for one in actions[1:])
    assert 0.1 < np.mean(actions[1] == actions[2]) < 0.9


def test_a_snapshot_of_bfloat16_weights_reaches_another_process_exactly():
    policy = made("ppo")
    policy.model.to(torch.bfloat16)
    snapshot = policy.snapshot()
    found = pickle.loads(pickle.dumps(snapshot.as_arrays())).as_tensors()
    other = made("ppo", seed=1)
    other.model.to(torch.bfloat16)
    other.copy_weights(found)
    assert all(torch.equal(one, two) for one, two in zip(policy.weights, other.weights, strict=True))
