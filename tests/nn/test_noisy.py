"""Noisy layers against their equation, and noise that is drawn from one generator and leaves nothing behind."""

import copy
import io

import numpy as np
import pytest
import torch

from ding_lite.nn import ACTIVATIONS, NoisyLinear, NoisyMLP, noisy_weights, seeded


def layer(in_features: int = 5, out_features: int = 3, **options) -> NoisyLinear:
    with seeded(0):
        made = NoisyLinear(in_features, out_features, **options).double()
        with torch.no_grad():
            for param in (made.weight_sigma, made.bias_sigma):
                param.uniform_(0.1, 0.9)
    return made


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_definition(noisy: NoisyLinear, x: torch.Tensor, drawn: torch.Tensor) -> np.ndarray:
    weight, bias, weight_sigma, bias_sigma = (param.detach().numpy() for param in noisy.parameters())
    out, width = weight.shape
    f = [np.sign(e) * np.sqrt(abs(e)) for e in drawn.tolist()]
    inner, outer = f[:width], f[width:]
    y = np.zeros((len(x), out))
    for b in range(len(x)):
        for o in range(out):
            y[b, o] = bias[o] + bias_sigma[o] * outer[o]
            for i in range(width):
                y[b, o] += (weight[o, i] + weight_sigma[o, i] * outer[o] * inner[i]) * x[b, i].item()
    return y


@pytest.mark.parametrize("sizes", [(5, 3), (1, 1), (2, 7)])
def test_inside_noise_the_layer_matches_its_equation(sizes):
    noisy, x = layer(*sizes), torch.randn(4, sizes[0], dtype=torch.float64, generator=generator(1))
    drawn = torch.randn(sum(sizes), generator=generator(), dtype=torch.float64)
    with noisy_weights(noisy, generator()):
        np.testing.assert_allclose(noisy(x).detach(), by_definition(noisy, x, drawn), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", [(5, 3), (1, 1), (2, 7)])
def test_rows_with_noise_of_their_own_match_the_equation_one_by_one(sizes):
    noisy, x = layer(*sizes), torch.randn(4, sizes[0], dtype=torch.float64, generator=generator(1))
    drawn = torch.randn(4, sum(sizes), generator=generator(), dtype=torch.float64)
    with noisy_weights(noisy, generator(), rows=4):
        y = noisy(x).detach().numpy()

    for row in range(4):
        np.testing.assert_allclose(y[row], by_definition(noisy, x[row : row + 1], drawn[row])[0], rtol=1e-12, atol=1e-14)


def test_outside_noise_the_layer_is_a_plain_one():
    noisy, x = layer(), torch.randn(4, 5, dtype=torch.float64)
    plain = torch.nn.functional.linear(x, noisy.weight, noisy.bias)
    with noisy_weights(noisy, generator()):
        assert not torch.equal(noisy(x), plain)

    assert torch.equal(noisy(x), plain)
    with noisy_weights(noisy, None):
        assert torch.equal(noisy(x), plain)


def test_it_begins_as_the_paper_has_it():
    with seeded(0):
        noisy = NoisyLinear(400, 300, sigma=0.5)
    bound = 400**-0.5

    assert noisy.weight.abs().max() <= bound
    assert noisy.bias.abs().max() <= bound
    np.testing.assert_allclose(noisy.weight.detach().std(), bound / 3**0.5, rtol=0.01)
    assert torch.equal(noisy.weight_sigma, torch.full((300, 400), 0.5 * bound))
    assert torch.equal(noisy.bias_sigma, torch.full((300,), 0.5 * bound))


def test_the_noise_of_a_weight_has_mean_nothing_and_the_learned_amount():
    noisy, one = layer(2, 2), torch.eye(2, dtype=torch.float64)
    source, found = generator(), []
    for _ in range(3000):
        with noisy_weights(noisy, source), torch.no_grad():
            found.append(noisy(one) - noisy(0 * one))
    moved = torch.stack(found) - noisy.weight.detach().T

    assert moved.mean(0).abs().max() < 0.08
    # E f(e)^2 = E |e|, for each of the two factors
    np.testing.assert_allclose(moved.square().mean(0).sqrt(), noisy.weight_sigma.detach().T * (2 / np.pi) ** 0.5, rtol=0.08)


def test_all_layers_inside_draw_from_this_generator_in_order_and_from_no_other():
    network = torch.nn.Sequential(layer(5, 3), torch.nn.ReLU(), torch.nn.Sequential(layer(3, 2)))
    x, before = torch.randn(4, 5, dtype=torch.float64), torch.get_rng_state()
    drawn = torch.randn(13, generator=generator(), dtype=torch.float64)
    with noisy_weights(network, generator()):
        hidden = torch.from_numpy(by_definition(network[0], x, drawn[:8])).relu()
        np.testing.assert_allclose(network(x).detach(), by_definition(network[2][0], hidden, drawn[8:]), rtol=1e-12)

    assert torch.equal(torch.get_rng_state(), before)


def test_each_noise_is_another_and_one_stays_as_it_is():
    noisy, x, source = layer(), torch.randn(4, 5, dtype=torch.float64), generator()
    with noisy_weights(noisy, source):
        first, again = noisy(x), noisy(x)
    with noisy_weights(noisy, source):
        second = noisy(x)

    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_nothing_is_left_of_the_noise_where_an_error_ends_it():
    noisy, x = layer(), torch.randn(4, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError), noisy_weights(noisy, generator()):
        noisy(x[:, :2])

    assert torch.equal(noisy(x), torch.nn.functional.linear(x, noisy.weight, noisy.bias))


def test_the_noise_is_no_part_of_a_copy_or_of_the_state():
    noisy, x = layer(), torch.randn(4, 5, dtype=torch.float64)
    plain, names, file = noisy(x), set(noisy.state_dict()), io.BytesIO()
    with noisy_weights(noisy, generator()):
        twin = copy.deepcopy(noisy)
        torch.save(noisy, file)
        assert set(noisy.state_dict()) == names == {"weight", "bias", "weight_sigma", "bias_sigma"}
        assert not list(noisy.buffers())
    file.seek(0)

    assert torch.equal(twin(x), plain)
    assert torch.equal(torch.load(file, weights_only=False)(x), plain)


def test_the_amounts_of_noise_are_learned_and_a_backward_pass_may_come_after_it():
    noisy, x = layer(), torch.randn(4, 5, dtype=torch.float64)
    with noisy_weights(noisy, generator()):
        loss = noisy(x).square().sum()
    loss.backward()

    assert all(param.grad is not None and param.grad.abs().sum() > 0 for param in noisy.parameters())


def test_without_noisy_layers_nothing_is_drawn():
    source = generator()
    before = source.get_state()
    with noisy_weights(torch.nn.Linear(2, 2), source):
        pass

    assert torch.equal(source.get_state(), before)


def test_layer_normalization_comes_before_the_activation():
    network, x = NoisyMLP([5, 4, 2], "tanh", layer_norm=True), torch.randn(6, 5)
    hidden, last = network.layers

    torch.testing.assert_close(network(x), last(torch.tanh(torch.nn.functional.layer_norm(hidden(x), (4,)))))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_noisy_layers_are_joined_by_the_activation(activation):
    with seeded(0):
        network, x = NoisyMLP([5, 4, 3, 2], activation, sigma=0.3), torch.randn(6, 5)
    one, two, three = network.layers
    between = ACTIVATIONS[activation]

    assert one.weight_sigma[0, 0] == torch.tensor(0.3 * 5**-0.5)
    with noisy_weights(network, generator()):
        assert torch.equal(network(x), three(between(two(between(one(x))))))


def test_rows_of_several_vectors_have_the_noise_of_their_row():
    noisy, x = layer(5, 3), torch.randn(4, 2, 6, 5, dtype=torch.float64, generator=generator(1))
    drawn = torch.randn(4, 8, generator=generator(), dtype=torch.float64)
    with noisy_weights(noisy, generator(), rows=4):
        y = noisy(x).detach().numpy()

    for row in range(4):
        expected = by_definition(noisy, x[row].reshape(-1, 5), drawn[row])
        np.testing.assert_allclose(y[row].reshape(-1, 3), expected, rtol=1e-12, atol=1e-14)
