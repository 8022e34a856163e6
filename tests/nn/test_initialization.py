"""Weights from a seed: the same every time, orthogonal where that is asked for, and nobody else's numbers moved."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.nn import MLP, orthogonal, seeded


def weights(seed: int) -> torch.Tensor:
    with seeded(seed):
        return nn.utils.parameters_to_vector(MLP([4, 8, 2]).parameters()).detach()


def test_the_seed_decides_the_weights():
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_the_global_generators_are_as_before_afterwards():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002  they must not move
    weights(0)

    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]  # noqa: NPY002


def test_the_global_generator_is_as_before_after_an_error():
    def fail():
        with seeded(0):
            torch.rand(3)
            raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        fail()

    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_decides_nothing():
    first = weights(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        assert torch.equal(weights(3), first)


def test_one_seeded_block_inside_another_does_not_change_it():
    with seeded(0):
        torch.rand(3)
        expected = torch.rand(3)
    with seeded(0):
        torch.rand(3)
        weights(9)
        assert torch.equal(torch.rand(3), expected)


def assert_orthogonal(weight: torch.Tensor, gain: float):
    """Rows or columns, whichever are fewer, are orthogonal and of length `gain`."""
    matrix = weight.detach().flatten(1).double()
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(product, gain**2 * torch.eye(len(product), dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("gain", "last_gain", "expected"), [(1.0, None, 1.0), (0.5, 0.01, 0.01), (2.0, 0.0, 0.0)])
def test_weights_are_orthogonal_with_their_gains_and_biases_are_zero(gain, last_gain, expected):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Sequential(nn.Linear(8, 20), nn.Tanh(), MLP([20, 6, 30])))
    with seeded(0):
        assert orthogonal(network, gain, last_gain) is network
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]

    assert len(layers) == 4
    for layer in layers[:-1]:
        assert_orthogonal(layer.weight, gain)
    assert_orthogonal(layers[-1].weight, expected)
    assert all(not layer.bias.any() for layer in layers)


def test_the_gain_is_the_square_root_of_two_unless_told_otherwise():
    with seeded(0):
        assert_orthogonal(orthogonal(nn.Linear(8, 8)).weight, 2**0.5)


def test_a_layer_without_a_bias_is_no_trouble():
    with seeded(0):
        assert_orthogonal(orthogonal(nn.Linear(8, 8, bias=False), 3.0).weight, 3.0)


def test_an_orthogonal_network_computes_with_its_new_weights():
    network = MLP([4, 4])
    with seeded(0):
        orthogonal(network, last_gain=0.0)
    with torch.inference_mode():
        assert not network(torch.ones(2, 4)).any()


def test_weights_made_on_threads_are_those_of_their_seeds():
    def weights(seed):
        with seeded(seed):
            return torch.cat([torch.randn(1000) for _ in range(20)])

    alone, found = [weights(seed) for seed in range(6)], {}
    for _ in range(5):
        threads = [threading.Thread(target=lambda seed=seed: found.update({seed: weights(seed)})) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(found[seed], alone[seed]) for seed in range(6))
