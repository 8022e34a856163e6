"""What a policy's copies follow, and what it is saved as: weights under another name whenever they change."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.policy_base import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def rows(n=6):
    zeros = torch.zeros(n)
    columns = {"obs": torch.ones(n, 4), "next_obs": torch.ones(n, 4), "action": torch.arange(n) % 3, "reward": zeros + 1}
    return tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()})


class Own(DQNPolicy):
    """Takes its step itself."""

    def learn_on_batch(self, batch):
        loss, stats = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return stats


class Table(Policy):
    """Has no network."""

    def before_init(self):
        self.w = np.ones(2)

    def compute_actions(self, obs, state=(), **kwargs):
        return np.zeros(len(obs), np.int64), state, {"w": np.full(len(obs), self.w[0])}

    def learn_on_batch(self, batch):
        self.w = self.w + 1

    def get_weights(self):
        return {"w": self.w}

    def set_weights(self, weights):
        self.w = weights["w"]


def test_a_policy_that_takes_its_steps_itself_is_followed_by_its_copies():
    policy = Own({"seed": 0, "lr": 0.1}, BOX, DISCRETE)
    policy.collect_mode.forward(np.zeros((1, 4), np.float32))
    for _ in range(3):
        policy.learn_mode.forward(rows())
    policy.collect_mode.forward(np.zeros((1, 4), np.float32))

    assert (policy.train_iter, policy.version) == (3, 3)
    assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), policy.collect_mode.actor.model.parameters()))


class Silent(Own):
    def learn_on_batch(self, batch):
        super().learn_on_batch(batch)
        return {}


def test_learning_that_returns_nothing_to_log_counts_its_steps():
    policy, with_rate_0 = Silent({"seed": 0, "lr": 0.1}, BOX, DISCRETE), Silent({"seed": 0, "lr": 0.0}, BOX, DISCRETE)
    for _ in range(3):
        policy.learn_mode.forward(rows())
        with_rate_0.learn_mode.forward(rows())

    assert (policy.train_iter, policy.version) == (3, 3)
    assert with_rate_0.train_iter == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda policy: policy.set_weights({"w": np.full(2, 7.0)}),
        lambda policy: policy.learn_on_batch(rows()),
        lambda policy: policy.learn_mode.forward(rows()),
    ],
)
def test_weights_of_any_kind_are_followed_whoever_changes_them(change):
    policy, obs = Table(None, BOX, DISCRETE), np.zeros((1, 4), np.float32)
    policy.collect_mode.forward(obs)
    policy.snapshot()
    change(policy)

    assert policy.collect_mode.forward(obs)[2]["w"][0] == policy.snapshot().values["w"][0] == policy.w[0] > 1


class Mixin:
    def learn_on_batch(self, batch):
        self.w = self.w + 1
        return {}


def test_a_mixin_after_the_policy_is_refused_by_name():
    with pytest.raises(TypeError, match=r"learn_on_batch of Mixin would never be called.*class Behind\(Mixin, \.\.\.\)"):
        type("Behind", (Table, Mixin), {})

    class Other:
        def unrelated(self):
            return 3

    assert type("Beside", (Mixin, Table, Other), {}).unrelated is Other.unrelated


def test_a_mixins_learning_counts_too():
    kind = Policy.with_updates("Mixed", mixins=[Mixin])
    for name in ("before_init", "compute_actions", "get_weights", "set_weights"):
        setattr(kind, name, getattr(Table, name))
    policy, obs = kind(None, BOX, DISCRETE), np.zeros((1, 4), np.float32)
    policy.learn_mode.forward(rows())
    policy.learn_on_batch(rows())

    assert (policy.train_iter, policy.version) == (2, 2)
    assert policy.collect_mode.forward(obs)[2]["w"][0] == 3


def test_learning_by_set_weights_counts_once():
    class Evolved(Table):
        def learn_on_batch(self, batch):
            self.set_weights({"w": self.w + 1})

    policy = Evolved(None, BOX, DISCRETE)
    for _ in range(3):
        policy.learn_mode.forward(rows())

    assert (policy.train_iter, policy.version) == (3, 3)


def test_a_batch_that_is_skipped_is_no_gradient_step():
    class Skipping(DQNPolicy):
        calls = 0

        def learn_on_batch(self, batch):
            self.calls += 1
            return {} if self.calls % 2 else super().learn_on_batch(batch)

    policy = Skipping(None, BOX, DISCRETE)
    for _ in range(6):
        policy.learn_mode.forward(rows())

    assert (policy.calls, policy.train_iter, policy.version) == (6, 3, 3)


def test_learning_that_fails_midway_leaves_no_weights_under_an_old_name():
    class Failing(Table):
        def learn_on_batch(self, batch):
            self.w = self.w + 1
            raise RuntimeError("half way")

    policy, obs = Failing(None, BOX, DISCRETE), np.zeros((1, 4), np.float32)
    policy.collect_mode.forward(obs)
    with pytest.raises(RuntimeError, match="half way"):
        policy.learn_mode.forward(rows())

    assert policy.collect_mode.forward(obs)[2]["w"][0] == policy.w[0] == 2
    assert policy.train_iter == 0


def test_copies_that_act_know_how_many_steps_led_to_their_weights():
    seen = []

    class Counting(DQNPolicy):
        def compute_actions(self, obs, state=(), **kwargs):
            seen.append(self.train_iter)
            return super().compute_actions(obs, state, **kwargs)

    policy = Counting(None, BOX, DISCRETE)
    seen.clear()
    snapshot = policy.snapshot()
    for _ in range(2):
        policy.learn_mode.forward(rows())
        policy.collect_mode.forward(np.zeros((1, 4), np.float32))
    policy.collect_mode.load_snapshot(snapshot)
    policy.collect_mode.forward(np.zeros((1, 4), np.float32))

    assert seen == [1, 2, 0]


def test_weights_that_do_not_fit_change_nothing():
    policy, other = PPOPolicy(None, BOX, DISCRETE), PPOPolicy({"model.encoder_hidden_size_list": [8, 128]}, BOX, DISCRETE)
    before = policy.get_weights()
    for take in (policy.set_weights, lambda weights: policy.load_state_dict({"model": weights})):
        for weights in (other.get_weights(), {**before, "more": torch.zeros(1)}, dict(list(before.items())[1:])):
            with pytest.raises(ValueError, match="these weights do not fit the network of this PPOPolicy; make the policy"):
                take(weights)

    assert policy.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.get_weights().items())


def test_a_network_beside_the_model_is_refused_by_name_where_copies_act():
    class Taught(DQNPolicy):
        def before_loss_init(self):
            super().before_loss_init()
            self.teacher = nn.Linear(4, 3)

        def compute_actions(self, obs, state=(), **kwargs):
            return self.teacher(obs).argmax(-1), state, {}

    with pytest.raises(ValueError, match=r"Taught.teacher is a network outside of the model.*make_model"):
        Taught(None, BOX, DISCRETE).dry_run()


def test_parts_of_the_model_are_those_of_the_copy_and_lists_of_networks_are_refused():
    class Parts(DQNPolicy):
        def make_model(self):
            self.head = nn.Linear(4, 3)
            return nn.Sequential(self.head)

        def compute_actions(self, obs, state=(), **kwargs):
            return self.head(obs).argmax(-1), state, {}

    class Listed(Parts):
        def before_loss_init(self):
            super().before_loss_init()
            self.heads = [nn.Linear(4, 3)]

        def compute_actions(self, obs, state=(), **kwargs):
            return self.heads[0](obs).argmax(-1), state, {}

    actor = Parts(None, BOX, DISCRETE).collect_mode.actor
    with pytest.raises(ValueError, match="Listed.heads is a network outside of the model"):
        Listed(None, BOX, DISCRETE).dry_run()

    assert actor.head is actor.model[0]


@pytest.mark.parametrize("tied", [True, False])
def test_shared_layers_and_extra_states_are_learned_saved_and_loaded(tied):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"told": 3}

        def set_extra_state(self, state):
            self.told = state["told"]

    class Odd(DQNPolicy):
        def make_model(self):
            shared = nn.Linear(4, 4)
            return nn.Sequential(shared, nn.ReLU(), shared if tied else Extra(4, 4), nn.Linear(4, 3))

    policy, other = (Odd({"learn.target_update_freq": 1, "seed": seed}, BOX, DISCRETE) for seed in (0, 1))
    policy.learn_mode.forward(rows())
    other.load_state_dict(policy.state_dict())

    assert all(torch.equal(a, b) for a, b in zip(other.params, policy.params))


def test_what_is_sampled_from_the_action_space_goes_by_the_seed_and_by_the_copy():
    class Sampling(Policy):
        def compute_actions(self, obs, state=(), **kwargs):
            return [self.action_space.sample() for _ in obs], state, {}

    def acted(seed, role):
        mode = getattr(Sampling({"seed": seed}, BOX, DISCRETE), role)
        return mode.forward(np.zeros((40, 4), np.float32))[0].tolist()

    one, obs = Sampling({"seed": 0}, BOX, DISCRETE), np.zeros((40, 4), np.float32)
    one.collect_mode.forward(obs)
    state = copy.deepcopy(one.state_dict())
    expected = one.collect_mode.forward(obs)[0].tolist()
    other = Sampling({"seed": 5}, BOX, DISCRETE)
    other.load_state_dict(state)

    assert acted(0, "collect_mode") == acted(0, "collect_mode")
    assert len({tuple(acted(seed, role)) for seed in (0, 1) for role in ("collect_mode", "eval_mode")}) == 4
    assert other.collect_mode.forward(obs)[0].tolist() == expected


@pytest.mark.parametrize("space", [DISCRETE, spaces.Box(-1, 1, (2,)), spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=DISCRETE)])
def test_a_policy_whose_modes_are_made_can_be_pickled(space):
    policy = PPOPolicy({"seed": 0}, BOX, space)
    policy.collect_mode.forward(np.zeros((2, 4), np.float32))
    other = pickle.loads(pickle.dumps(policy))

    given = [one.collect_mode.forward(np.zeros((2, 4), np.float32))[2]["log_prob"].tolist() for one in (policy, other)]
    assert given[0] == given[1]


def test_networks_and_optimizers_beside_the_model_are_in_the_state(tmp_path):
    class Beside(DQNPolicy):
        def before_loss_init(self):
            super().before_loss_init()
            self.extra = nn.Linear(4, 1)
            self.extra_optimizer = torch.optim.Adam(self.extra.parameters(), lr=0.1)

        def after_step(self):
            super().after_step()
            self.extra_optimizer.zero_grad()
            self.extra(torch.ones(1, 4)).square().sum().backward()
            self.extra_optimizer.step()

    policy, again = (Beside({"seed": seed}, BOX, DISCRETE) for seed in (0, 1))
    for _ in range(3):
        policy.learn_mode.forward(rows())
    save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    again.load_state_dict(load_checkpoint(tmp_path / "policy.pt"))
    for one in (policy, again):
        one.learn_mode.forward(rows())

    assert torch.equal(policy.extra.weight, again.extra.weight)
    assert torch.equal(policy.params[0], again.params[0])


def test_averages_of_its_hooks_go_on_after_a_state_is_loaded():
    class Averaging(DQNPolicy):
        def stats(self, batch):
            self.metrics.log_value("mean_reward", float(batch.reward.mean()), reduce="ema", ema_coeff=0.1)
            return super().stats(batch)

    def learned(policy, reward):
        batch = rows()
        batch.reward = torch.full((6,), reward)
        policy.learn_mode.forward(batch)
        return policy.hook_metrics.reduce()["mean_reward"].peek()

    policy, other = (Averaging({"seed": 0}, BOX, DISCRETE) for _ in range(2))
    learned(policy, 1.0)
    other.load_state_dict(policy.state_dict())
    assert learned(other, 5.0) == learned(policy, 5.0) == pytest.approx(1.4)

    before = other.state_dict()
    for broken in (3, {"stats": 1}, {"stats": [{}]}, {"stats": [{**before["metrics"]["stats"][0], "kind": "none"}]}):
        with pytest.raises(ValueError, match=r'state\["metrics"\] wants "stats" as in MetricsLogger.get_state'):
            other.load_state_dict({**before, "metrics": broken})
    assert other.hook_metrics.get_state() == before["metrics"]


def test_saving_leaves_a_network_that_was_replaced_as_it_is():
    class Replacing(DQNPolicy):
        def after_init(self):
            self.earlier = copy.deepcopy(self.model)

        def after_learning(self, batch):
            self.earlier = copy.deepcopy(self.model)

    policy = Replacing({"seed": 0, "lr": 0.1}, BOX, DISCRETE)
    policy.state_dict()
    policy.learn_mode.forward(rows())
    before = copy.deepcopy(policy.earlier.state_dict())
    saved = policy.state_dict()["attached"]["earlier"]

    for found in (policy.earlier.state_dict(), saved):
        assert all(torch.equal(found[name], tensor) for name, tensor in before.items())


def test_networks_and_optimizers_in_lists_and_dicts_are_saved(tmp_path):
    class Twins(DQNPolicy):
        def after_init(self):
            self.critics = [nn.Linear(4, 1), nn.Linear(4, 1)]
            self.by_name = {"first": nn.Linear(2, 1)}
            self.inner, self.data = [self.model], [nn.Linear(1, 1), 3]

    policy, again = (Twins({"seed": seed}, BOX, DISCRETE) for seed in (0, 1))
    save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    state = load_checkpoint(tmp_path / "policy.pt")
    assert state["attached"].keys() == {"critics/0", "critics/1", "by_name/first"}
    again.load_state_dict(state)

    for one, other in zip((*policy.critics, *policy.by_name.values()), (*again.critics, *again.by_name.values())):
        assert torch.equal(one.weight, other.weight)
    state["attached"]["critics/1"]["weight"] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"state\[\"attached\"\]\['critics/1'\]\['weight'\]"):
        again.load_state_dict(state)
