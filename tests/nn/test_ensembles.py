"""EnsembleMLP against perceptrons one by one."""

import pytest
import torch

from ding_lite.nn import ACTIVATIONS, EnsembleMLP, seeded
from ding_lite.nn.layers import MLP


def one_by_one(ensemble: EnsembleMLP, x: torch.Tensor) -> torch.Tensor:
    outputs = []
    for k in range(ensemble.count):
        y, depth = x, len(ensemble.weights)
        for layer, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            y = torch.stack([weight[k] @ row + bias[k, 0] for row in y])
            y = ACTIVATIONS[ensemble.activation](y) if layer < depth - 1 else y
        outputs.append(y)
    return torch.stack(outputs)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("count", "sizes"), [(1, [3, 1]), (2, [3, 8, 7, 1]), (5, [4, 6, 2])])
def test_it_is_so_many_perceptrons_side_by_side(count, sizes, activation):
    ensemble, x = EnsembleMLP(count, sizes, activation).double(), torch.randn(9, sizes[0], dtype=torch.float64)

    torch.testing.assert_close(ensemble(x), one_by_one(ensemble, x), rtol=1e-12, atol=1e-12)
    assert ensemble(x).shape == (count, 9, sizes[-1])


def test_it_begins_as_perceptrons_of_this_seed_would():
    with seeded(3):
        members = [MLP([4, 8, 1]) for _ in range(2)]
    with seeded(3):
        ensemble = EnsembleMLP(2, [4, 8, 1])
    x = torch.randn(5, 4)

    torch.testing.assert_close(ensemble(x), torch.stack([member(x) for member in members]))


@pytest.mark.parametrize("frozen", [False, True])
def test_layer_normalization_is_that_of_each_perceptron(frozen):
    ensemble, x = EnsembleMLP(2, [3, 8, 7, 1], layer_norm=True), torch.randn(9, 3)
    members = [MLP([3, 8, 7, 1], layer_norm=True) for _ in range(2)]
    with torch.no_grad():
        for params in (ensemble.norm_weights, ensemble.norm_biases):
            for param in params:
                param.uniform_(0.5, 2.0)
        for k, member in enumerate(members):
            for i, layer in enumerate(member.layers):
                layer.weight.copy_(ensemble.weights[i][k])
                layer.bias.copy_(ensemble.biases[i][k, 0])
            for i, norm in enumerate(member.norms):
                norm.weight.copy_(ensemble.norm_weights[i][k, 0])
                norm.bias.copy_(ensemble.norm_biases[i][k, 0])

    torch.testing.assert_close(ensemble(x, frozen=frozen), torch.stack([member(x) for member in members]))
    assert ensemble(x, frozen=frozen).requires_grad is not frozen


def test_frozen_the_gradient_reaches_the_input_alone():
    ensemble, x = EnsembleMLP(2, [3, 8, 1]), torch.randn(6, 3, requires_grad=True)
    free = torch.autograd.grad(ensemble(x).sum(), x)[0]
    ensemble(x, frozen=True).sum().backward()

    assert all(param.grad is None for param in ensemble.parameters())
    torch.testing.assert_close(x.grad, free)
    assert torch.equal(ensemble(x), ensemble(x, frozen=True))


def test_an_activation_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="there is no activation 'rleu'"):
        EnsembleMLP(2, [3, 8, 1], "rleu")
