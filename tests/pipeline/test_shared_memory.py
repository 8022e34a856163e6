"""Different objects with the same numbers, such as two views of an array or a network and its optimizer, on two lanes."""

import re

import numpy as np
import pytest
import torch
from contract_runs import OVERLAPPING, two_lanes, warned


def two_arrays(make):
    """Two middleware of which one adds to the first array that `make` returns, and the other reads the second."""
    first, second = make()
    return two_lanes(lambda: first.__iadd__(1), lambda: float(second.reshape(-1)[0]))


def memmaps(path):
    first = np.memmap(path, dtype=np.float64, mode="w+", shape=(4,))
    return first, np.memmap(path, dtype=np.float64, mode="r+", offset=8, shape=(2,))


def with_views(array, one, two):
    return array[one], array[two]


SHARED = {
    "tensor": lambda: (array := np.zeros(3), torch.from_numpy(array)),
    "array": lambda: (tensor := torch.zeros(3), tensor.numpy()),
    "views": lambda: with_views(np.zeros(6), slice(0, 4), slice(2, 6)),
    "tensors": lambda: with_views(torch.zeros(6), slice(0, 4), slice(2, 6)),
    "half": lambda: (tensor := torch.zeros(3, dtype=torch.bfloat16), tensor[:2]),
    "shape": lambda: (array := np.zeros((2, 3)), array.reshape(-1)),
}
APART = {
    "arrays": lambda: (np.zeros(3), np.zeros(3)),
    "views": lambda: with_views(np.zeros(6), slice(0, 3), slice(3, 6)),
    "tensors": lambda: with_views(torch.zeros(6), slice(0, 3), slice(3, 6)),
    "strides": lambda: with_views(np.zeros(6), slice(0, None, 2), slice(1, None, 2)),
}


class TestSharedMemory:
    @OVERLAPPING
    @pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
    def test_arrays_that_share_memory_are_warned_of_where_it_changes(self, make, mode):
        (text,) = warned(*two_arrays(make), mode=mode)

        assert re.search(r"two_lanes .* and two_lanes .* hold a \w+ and a \w+ that share memory, first and second", text)
        assert "which change, and neither contract names it" in text

    @pytest.mark.parametrize("make", APART.values(), ids=APART)
    def test_disjoint_ones_are_not(self, make):
        assert warned(*two_arrays(make)) == []

    def test_a_file_that_is_mapped_twice_is_one_memory(self, tmp_path):
        (text,) = warned(*two_arrays(lambda: memmaps(tmp_path / "file")))
        assert "share memory, first and second" in text
        assert warned(*two_arrays(lambda: (memmaps(tmp_path / "file")[0], memmaps(tmp_path / "other")[0]))) == []

    def test_a_bytearray_shares_memory_with_an_array_of_it(self):
        held = bytearray(4)
        array = np.frombuffer(held, np.uint8)
        (text,) = warned(*two_lanes(lambda: held.__setitem__(0, held[0] + 1), lambda: array[0]))
        assert "hold a bytearray and a ndarray that share memory, held and array" in text

    def test_one_that_nobody_changes_is_fine(self):
        array = np.zeros(3)
        tensor = torch.from_numpy(array)
        assert warned(*two_lanes(lambda: array[0], lambda: tensor[0])) == []

    def test_contracts_name_the_same_object_for_it(self):
        array = np.zeros(3)
        tensor = torch.from_numpy(array)
        change, read = lambda: array.__iadd__(1), lambda: float(tensor[0])
        for uses in (((array,), ()), ((), (tensor,)), ((array,), (tensor,))):
            (text,) = warned(*two_lanes(change, read, uses=uses))
            assert re.search(
                r"holds (array|tensor) .* a (ndarray|Tensor) that shares memory with a .* uses.*the same object", text
            )
        assert warned(*two_lanes(change, read, uses=((array,), (array,)))) == []


def layer_of_network():
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    layer = network[0]
    return two_lanes(lambda: network[0].weight.data.add_(1), lambda: layer.weight.item()), "network and layer"


def parameter_of_network():
    network = torch.nn.Linear(1, 1)
    weight = network.weight
    return two_lanes(lambda: network.weight.data.add_(1), lambda: weight.item()), "network and weight"


def network_of_optimizer():
    network = torch.nn.Linear(1, 1)
    network.weight.grad = torch.ones(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    return two_lanes(lambda: optimizer.step(), lambda: network.weight.item()), "optimizer and network"


def state_of_network():
    network = torch.nn.Linear(1, 1)
    state = network.state_dict()
    return two_lanes(lambda: network.weight.data.add_(1), lambda: state["weight"].item()), "network and state"


def parameters_of_network():
    network = torch.nn.Linear(1, 1)
    weights = list(network.parameters())
    return two_lanes(lambda: network.weight.data.add_(1), lambda: weights[0].item()), "network and weights"


def other_layer():
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    layer = network[1]
    return two_lanes(lambda: network[0].weight.data.add_(1), lambda: layer.weight.item())


def network_that_nobody_changes():
    network = torch.nn.Sequential(torch.nn.Linear(1, 1))
    layer = network[0]
    return two_lanes(lambda: network[0].weight.sum().item(), lambda: layer.weight.item())


def copied_state():
    network = torch.nn.Linear(1, 1)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    return two_lanes(lambda: network.weight.data.add_(1), lambda: state["weight"].item())


class TestMemoryOfNetworks:
    @OVERLAPPING
    @pytest.mark.parametrize(
        "make",
        [layer_of_network, parameter_of_network, network_of_optimizer, state_of_network, parameters_of_network],
        ids=lambda it: it.__name__,
    )
    def test_parts_of_one_network_on_two_lanes_share_memory(self, make, mode):
        middleware, names = make()
        (text,) = warned(*middleware, mode=mode)
        assert f"that share memory, {names}, which change" in text

    @pytest.mark.parametrize("make", [other_layer, network_that_nobody_changes, copied_state], ids=lambda it: it.__name__)
    def test_what_does_not_change_or_is_another_memory_is_fine(self, make):
        assert warned(*make()) == []

    def test_what_another_lane_names_is_told_before_the_run(self):
        network = torch.nn.Linear(1, 1)
        optimizer, state = torch.optim.SGD(network.parameters(), lr=1.0), network.state_dict()
        for use in (optimizer, network):
            change, read = lambda use=use: use and None, lambda: state["weight"].item()
            (text,) = warned(*two_lanes(change, read, uses=((use,), ())))
            assert f"a Tensor that shares memory with a {type(use).__name__} that" in text
        (text,) = warned(*two_lanes(lambda: optimizer.step(), lambda: network.weight.item(), uses=((optimizer,), ())))
        assert "a Linear that shares memory with a SGD that" in text
        both = two_lanes(lambda: optimizer.step(), lambda: network.weight.item(), uses=((optimizer,), (optimizer,)))
        assert warned(*both) == []

    def test_lazy_parameters_have_no_memory_yet(self):
        network = torch.nn.LazyLinear(1)
        optimizer, state = torch.optim.SGD(network.parameters(), lr=1.0), [*network.parameters()]
        assert warned(*two_lanes(lambda: network and None, lambda: optimizer and state and None)) == []

    def test_middleware_that_names_one_of_a_list_does_not_use_the_others(self):
        arrays = [np.zeros(1), np.zeros(1)]
        first, second = (lambda: arrays[0].__iadd__(1)), (lambda: arrays[1].__iadd__(1))
        assert warned(*two_lanes(first, second, uses=((arrays[0],), (arrays[1],)))) == []
