"""Copies of networks: tensors of the graph of a loss are detached wherever they are, and extra states are copied."""

import copy

import pytest
import torch
from torch import nn

from ding_lite.policy_state.network_copies import (
    copy_extra_states,
    detached_copy,
    extra_states,
    is_extra_state,
    load_extra_states,
    load_network,
    on_cpu,
)
from ding_lite.processes.pickles import dumps, loads


class Held:
    """An object of a class of one's own."""


class Logged(nn.Module):
    """A layer that keeps a log as its extra state."""

    def __init__(self, is_broken=False):
        super().__init__()
        self.layer, self.log, self.is_broken = nn.Linear(2, 1), {"calls": 0, "names": []}, is_broken

    def get_extra_state(self):
        return self.log

    def set_extra_state(self, state):
        if self.is_broken and state["calls"]:
            raise KeyError("the log is broken")
        self.log = state


def keeping(layer):
    """The layer, which keeps features of the graph of a loss in many places."""
    features = layer(torch.ones(3, 2))
    layer.features, layer.several, layer.named = features, [features, (features[0],)], {"a": {"b": features}}
    layer.held = Held()
    layer.held.features = features
    return features


COPIES = {"deep copy": detached_copy, "pickle": lambda value: loads(dumps(value, by_value=True))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_tensors_of_a_graph_are_detached_in_a_copy_and_kept_in_the_original(copied):
    layer = nn.Linear(2, 1)
    features = keeping(layer)
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(layer)
    other = copied(layer)
    kept = [other.features, other.several[0], other.several[1][0], other.named["a"]["b"], other.held.features]

    assert not any(tensor.requires_grad for tensor in kept)
    assert torch.equal(other.features, features)
    assert other.several[0] is other.named["a"]["b"] is other.held.features is other.features
    assert other.weight.requires_grad
    assert other.weight is not layer.weight
    assert layer.features is features
    assert features.requires_grad
    features.sum().backward()
    assert other.weight.grad is None


def test_a_copy_uses_those_that_were_made_before():
    layer, shared = nn.Sequential(nn.Linear(2, 1)), nn.Linear(2, 1)
    layer[0].other = shared

    assert detached_copy(layer, {id(shared): shared})[0].other is shared


def test_layers_with_weight_norm_are_copied_and_learn():
    with pytest.warns(FutureWarning):
        layer = torch.nn.utils.weight_norm(nn.Linear(2, 1))
    other = detached_copy(layer)
    other(torch.ones(1, 2)).sum().backward()

    assert other.weight_g.grad is not None
    assert layer.weight_g.grad is None


def test_extra_states_are_copied_by_the_names_of_their_modules():
    network = nn.Sequential(Logged(), nn.Linear(1, 1), Logged())
    network[2].log["calls"] = 3
    states = extra_states(network)
    network[2].log["calls"] = 4

    assert states == {"0._extra_state": {"calls": 0, "names": []}, "2._extra_state": {"calls": 3, "names": []}}
    assert set(states) == {name for name in network.state_dict() if is_extra_state(name)}
    assert extra_states(nn.Linear(1, 1)) == {}


@pytest.mark.parametrize(
    "load",
    [
        lambda source, target: load_extra_states(target, extra_states(source)),
        lambda source, target: copy_extra_states(source, target),
        lambda source, target: load_network(target, source.state_dict()),
    ],
    ids=["load", "copy", "whole network"],
)
def test_a_network_that_gets_an_extra_state_shares_nothing_with_the_other_one(load):
    source, target = Logged(), Logged()
    source.log["names"].append("a")
    load(source, target)
    source.log["names"].append("b")

    assert target.log == {"calls": 0, "names": ["a"]}


def test_modules_that_two_networks_share_keep_their_extra_state():
    shared = Logged()
    source, target = nn.Sequential(shared, Logged()), nn.Sequential(shared, Logged())
    log, source[1].log["calls"] = shared.log, 2
    copy_extra_states(source, target)

    assert shared.log is log
    assert target[1].log["calls"] == 2


def test_a_network_whose_extra_state_is_refused_is_as_before():
    source, target = Logged(), Logged(is_broken=True)
    source.log["calls"] = 1
    before = detached_copy(target.state_dict())
    with pytest.raises(KeyError, match="the log is broken"):
        load_network(target, source.state_dict())

    assert torch.equal(target.layer.weight, before["layer.weight"])
    assert target.log == {"calls": 0, "names": []}


def test_tensors_inside_of_values_are_detached_on_the_cpu():
    weight = nn.Parameter(torch.ones(2))
    copied = on_cpu({"a": [weight, (weight * 2, "text")]})

    assert not copied["a"][0].requires_grad
    assert not copied["a"][1][0].requires_grad
    assert copied["a"][1][1] == "text"
