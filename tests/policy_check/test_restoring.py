"""The dry run leaves no trace: what its hooks change is as it was before, and the objects are the same ones."""

import array
import random
from collections import OrderedDict, UserDict, UserList, deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data.trees import with_leaves
from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.policy_base import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class RunningMean:
    """An object of a class that knows nothing of policies."""

    def __init__(self):
        self.mean, self.count, self.parts = 0.0, 0, []

    def update(self, value):
        self.mean, self.count, self.last = self.mean + value, self.count + 1, value
        self.parts.append(value)


@dataclass(slots=True)
class Slotted:
    """An object without a `__dict__`."""

    count: int = 0
    inner: RunningMean = field(default_factory=RunningMean)
    unset: int = field(init=False)


class Loops:
    """Refers to itself, and to a whole chain of others."""

    def __init__(self, policy):
        self.me, self.policy, self.kind, self.module = self, policy, type(policy), np
        self.mode, self.count = policy.learn_mode, 0


def tried_out(setup, change, in_hook="loss"):
    """A policy with the attributes that `setup` gives it, after a dry run in which a hook calls `change`."""
    calls = []

    class Changing(Policy):
        def before_loss_init(self):
            super().before_loss_init()
            setup(self)

        def postprocess(self, batch):
            self.called("postprocess")
            return super().postprocess(batch)

        def loss(self, batch):
            self.called("loss")
            return self.model.values(batch.obs).mean()

        def called(self, hook):
            if hook == in_hook:
                calls.append(hook)
                change(self)

    policy = Changing({"seed": 0}, BOX, DISCRETE)
    policy.dry_run()
    assert calls
    return policy


def test_weights_that_a_loss_changes_in_place_are_restored():
    before = {}

    def setup(policy):
        before.update({name: tensor.clone() for name, tensor in policy.model.state_dict().items()})

    def change(policy):
        with torch.no_grad():
            for param in policy.model.parameters():
                param += 1
            policy.params[0].data = torch.zeros_like(policy.params[0])
        policy.model.requires_grad_(False).eval()
        policy.model.actor = nn.Identity()
        policy.model.extra, policy.model.more = nn.Parameter(torch.zeros(2)), 3
        policy.model.register_forward_hook(lambda *_: None)
        policy.model.requires_grad_(True)
        policy.params[1].requires_grad_(False)

    policy = tried_out(setup, change, in_hook="postprocess")
    after = policy.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(param.requires_grad and param.grad is None for param in policy.params)
    assert [*map(id, policy.model.parameters())] == [*map(id, policy.params)]
    assert all(module.training for module in policy.model.modules())
    assert not policy.model._forward_hooks
    assert not hasattr(policy.model, "more")


@pytest.mark.parametrize("holder", [lambda it: it, lambda it: [it], lambda it: {"a": (it,)}, lambda it: SimpleNamespace(a=it)])
def test_a_network_that_postprocess_trains_is_restored_with_its_optimizer(holder):
    found = {}

    def setup(policy):
        network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        network(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        policy.predictor, policy.predictor_optimizer = holder(network), holder(optimizer)
        found.update(network=network, optimizer=optimizer)
        found["states"] = states()

    def states():
        network, optimizer = found["network"], found["optimizer"]
        optimizing = optimizer.state_dict()
        moments = [value.tolist() for each in optimizing["state"].values() for value in each.values()]
        weights = {name: value.tolist() for name, value in network.state_dict().items()}
        return weights, moments, optimizing["param_groups"], [module.training for module in network.modules()]

    def change(policy):
        network, optimizer = found["network"].train(), found["optimizer"]
        network(torch.randn(2, 4, generator=policy.generator)).square().sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 3.0
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})

    tried_out(setup, change, in_hook="postprocess")
    assert states() == found["states"]
    assert all(param.grad is None for param in found["network"].parameters())


def test_a_step_of_the_policys_own_optimizer_is_undone():
    def change(policy):
        policy.model.values(torch.ones(1, 4)).sum().backward()
        policy.optimizer.step()
        policy.optimizer.param_groups[0]["lr"] = 7.0

    policy = tried_out(lambda policy: None, change)
    fresh = Policy({"seed": 0}, BOX, DISCRETE)
    assert not policy.optimizer.state_dict()["state"]
    assert policy.optimizer.param_groups[0]["lr"] == fresh.optimizer.param_groups[0]["lr"]
    assert all(map(torch.equal, policy.params, fresh.params))


def test_objects_of_other_classes_are_restored_with_what_they_refer_to():
    def setup(policy):
        policy.mean, policy.slotted, policy.names = RunningMean(), Slotted(), SimpleNamespace(count=0)
        policy.nested = {"a": [RunningMean()]}
        policy.nested["a"][0].inner = RunningMean()
        policy.loops = Loops(policy)
        policy.update = policy.mean.update
        policy.shared = policy.mean.parts

    def change(policy):
        policy.update(3.0)
        policy.slotted.count, policy.slotted.unset = 5, 1
        policy.slotted.inner.update(1.0)
        policy.names.count = 5
        policy.nested["a"][0].inner.update(2.0)
        policy.loops.count += 1
        policy.loops.policy = None

    policy = tried_out(setup, change)
    for mean in (policy.mean, policy.slotted.inner, policy.nested["a"][0].inner):
        assert vars(mean) == {"mean": 0.0, "count": 0, "parts": []}
    assert policy.shared is policy.mean.parts
    assert (policy.slotted.count, policy.names.count, policy.loops.count) == (0, 0, 0)
    assert not hasattr(policy.slotted, "unset")
    assert policy.loops.policy is policy


def test_random_generators_of_any_kind_are_restored():
    def setup(policy):
        policy.pythons, policy.system, policy.old = random.Random(3), random.SystemRandom(), np.random.RandomState(3)
        policy.bits, policy.held = np.random.PCG64(3), SimpleNamespace(own=torch.Generator().manual_seed(3))
        policy.observation_space.seed(3)

    def numbers(policy):
        own = float(torch.rand(1, generator=policy.held.own)), policy.pythons.random(), policy.old.random_sample()
        return *own, int(policy.bits.random_raw()), policy.observation_space.sample().tolist(), policy.system.random() < 1

    changed = tried_out(setup, numbers)
    assert numbers(changed) == numbers(tried_out(setup, lambda policy: None))


def test_containers_and_arrays_of_any_kind_are_restored():
    def setup(policy):
        policy.bytes, policy.array, policy.order = bytearray(b"ab"), array.array("d", [1, 2]), OrderedDict(a=1, b=2)
        policy.recent, policy.seen = deque([1, 2], maxlen=2), {1}
        policy.expanded, policy.log_alpha = torch.zeros(1).expand(3), torch.zeros(1, requires_grad=True)
        policy.total, policy.lazy = torch.zeros(1), nn.LazyLinear(3)
        with torch.inference_mode():
            policy.inferred = torch.zeros(2)

    def change(policy):
        policy.bytes += b"c"
        policy.array.append(3)
        policy.order.move_to_end("a")
        policy.recent.append(3)
        policy.seen.add(2)
        with torch.no_grad():
            policy.log_alpha += 1
        with torch.inference_mode():
            policy.inferred += 1
        policy.total += policy.log_alpha.exp()

    policy = tried_out(setup, change)
    assert (policy.bytes, policy.array.tolist(), [*policy.order]) == (b"ab", [1, 2], ["a", "b"])
    assert (list(policy.recent), policy.seen) == ([1, 2], {1})
    assert (policy.log_alpha.item(), policy.log_alpha.requires_grad, policy.inferred.tolist()) == (0, True, [0, 0])
    assert (float(policy.total), policy.total.requires_grad, policy.total.is_leaf) == (0, False, True)


def test_the_number_of_objects_is_bounded():
    def setup(policy):
        policy.near, policy.chain = RunningMean(), SimpleNamespace()
        end = policy.chain
        for _ in range(6000):
            end.next = SimpleNamespace()
            end = end.next
        policy.end = lambda: end
        end.count = 0

    def change(policy):
        policy.near.update(1.0)
        policy.end().count += 1

    policy = tried_out(setup, change)
    assert (policy.near.count, policy.end().count) == (0, 1)


def test_a_dry_run_within_a_gradient_step_keeps_the_graph_of_its_loss():
    class Asking(PPOPolicy):
        def compute_gradients(self, loss):
            self.dry_run()
            return super().compute_gradients(loss)

    policy = Asking({"seed": 0}, BOX, DISCRETE)
    loss = policy.model.values(torch.ones(2, 4)).square().mean()
    policy.compute_gradients(loss)
    assert any(param.grad is not None for param in policy.params)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_a_policy_is_the_same_after_a_dry_run_that_changes_nothing(kind, digest):
    policy = kind({"seed": 0}, BOX, DISCRETE)
    before, held = digest(policy.state_dict()), {name: id(value) for name, value in vars(policy).items()}
    policy.dry_run()
    assert digest(policy.state_dict()) == before
    assert {name: id(value) for name, value in vars(policy).items()} == held


def test_a_batch_that_postprocess_adds_to_is_not_kept():
    class Adding(PPOPolicy):
        def postprocess(self, batch):
            self.kept = SimpleNamespace(batch=with_leaves(batch, extra=batch.reward))
            return self.kept.batch

    policy = Adding({"seed": 0}, BOX, DISCRETE)
    policy.dry_run()
    assert not hasattr(policy, "kept")


def test_hooks_and_attributes_of_parameters_are_restored():
    def setup(policy):
        policy.first = next(iter(policy.model.parameters()))
        policy.first.seen = []
        policy.first.register_hook(lambda gradient: gradient * 2)

    def zero_gradient(param):
        param.grad.zero_()

    def change(policy):
        policy.first.seen.append(1)
        policy.first.note = "a hook was here"
        policy.first._backward_hooks.clear()
        for param in policy.model.parameters():
            param.register_hook(lambda gradient: gradient * 0.5)
            param.register_post_accumulate_grad_hook(zero_gradient)

    policy = tried_out(setup, change)
    sum(param.sum() for param in policy.model.parameters()).backward()

    assert vars(policy.first) == {"seen": []}
    for param in policy.model.parameters():
        assert (param.grad == (2 if param is policy.first else 1)).all()


def test_contents_of_arrays_of_objects_and_of_user_containers_are_restored():
    def setup(policy):
        policy.cells, policy.recent, policy.by_name = np.empty((1, 2), object), UserList([[0]]), UserDict(a=[0])
        policy.cells[0] = [0], {"n": 0}

    def change(policy):
        policy.cells[0, 0].append(1)
        policy.cells[0, 1]["n"] = 1
        policy.cells[0, 1] = None
        policy.recent[0].append(1)
        policy.recent.append(1)
        policy.by_name["a"].append(1)
        policy.by_name["b"] = 1

    policy = tried_out(setup, change)

    assert policy.cells.tolist() == [[[0], {"n": 0}]]
    assert (policy.recent, policy.by_name) == ([[0]], {"a": [0]})


def test_seed_sequences_and_generators_spawn_the_same_children_afterwards():
    def setup(policy):
        policy.seeds, policy.draws = np.random.SeedSequence(3, spawn_key=(7,)), np.random.default_rng(4)
        policy.seeds.spawn(1)

    def change(policy):
        policy.seeds.spawn(2)
        policy.draws.spawn(2)
        policy.rng.spawn(2)

    policy, untouched = (tried_out(setup, do) for do in (change, lambda policy: None))

    for name in ("seeds", "draws", "rng"):
        child, expected = (getattr(one, name).spawn(1)[0] for one in (policy, untouched))
        assert repr(child) == repr(expected) or child.random() == expected.random()
