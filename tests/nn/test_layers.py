"""MLP against an nn.Sequential with the same weights, wherever those weights come from."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from ding_lite.nn import ACTIVATIONS, MLP

MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
SIZES = [5, 16, 8, 3]

activations = pytest.mark.parametrize("activation", ACTIVATIONS)
ends = pytest.mark.parametrize("activate_last", [False, True])


def sequential(mlp: MLP) -> nn.Sequential:
    """The same function, made of torch's modules over copies of the same weights."""
    stack: list[nn.Module] = []
    for layer in mlp.layers:
        linear = nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
        linear.load_state_dict(layer.state_dict())
        stack += [linear, MODULES[mlp.activation]()]
    return nn.Sequential(*(stack if mlp.activate_last else stack[:-1]))


def made(activation: str = "tanh", activate_last: bool = False, sizes=SIZES, seed: int = 0) -> MLP:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(sizes, activation, activate_last)


def inputs(*lead: int, width: int = 5, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*lead, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def assert_same_function(mlp: MLP):
    """Both ways, trained and acting, equal what torch makes of the weights that the layers hold now."""
    other, x = sequential(mlp), inputs(7, width=mlp.layers[0].in_features, dtype=mlp.layers[0].weight.dtype)
    torch.testing.assert_close(mlp(x), other(x), rtol=0, atol=0)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), other(x), rtol=1e-5, atol=1e-6)


@activations
@ends
@pytest.mark.parametrize("lead", [(1,), (0,), (300,), (4, 3), ()])
@pytest.mark.parametrize("sizes", [[5, 3], SIZES])
def test_equals_a_sequential_in_training(activation, activate_last, lead, sizes):
    mlp = made(activation, activate_last, sizes)

    assert torch.equal(mlp(inputs(*lead)), sequential(mlp)(inputs(*lead)))


@activations
@ends
def test_has_the_gradients_of_a_sequential(activation, activate_last):
    mlp = made(activation, activate_last)
    other, mine, theirs = sequential(mlp), inputs(9).requires_grad_(), inputs(9).requires_grad_()
    mlp(mine).square().sum().backward()
    other(theirs).square().sum().backward()

    assert torch.equal(mine.grad, theirs.grad)
    for one, two in zip(mlp.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


@activations
@ends
def test_layer_normalization_comes_before_each_activation(activation, activate_last):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mlp = MLP(SIZES, activation, activate_last, layer_norm=True)
        for norm in mlp.norms:
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            nn.init.uniform_(norm.bias, -1.0, 1.0)
    x = expected = inputs(7)
    for k, layer in enumerate(mlp.layers):
        expected = layer(expected)
        if k < len(mlp.norms):
            centred = expected - expected.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            expected = MODULES[activation]()(scaled * mlp.norms[k].weight + mlp.norms[k].bias)

    assert len(mlp.norms) == len(SIZES) - 1 - (not activate_last)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-6)
    for layer, plain in zip(mlp.layers, made(activation, activate_last).layers, strict=True):
        assert torch.equal(layer.weight, plain.weight)  # the norms draw no random numbers


@ends
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_output_is_that_of_the_features(activate_last, layer_norm):
    mlp, x = MLP(SIZES, "tanh", activate_last, layer_norm), inputs(7)

    assert mlp.encode(x).shape == (7, 3 if activate_last else 8)
    assert torch.equal(mlp.from_features(mlp.encode(x)), mlp(x))


@activations
@ends
@pytest.mark.parametrize("lead", [(1,), (0,), (2047,), (2048,), (2049,), (4, 3)])
@pytest.mark.parametrize("sizes", [[5, 3], SIZES])
def test_equals_a_sequential_to_the_last_bits_under_inference_mode(activation, activate_last, lead, sizes):
    mlp = made(activation, activate_last, sizes)
    with torch.inference_mode():
        found, expected = mlp(inputs(*lead)), sequential(mlp)(inputs(*lead))

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(found, torch.Tensor)


@pytest.mark.parametrize("width", [2, 64, 511, 512, 600])
def test_no_product_is_left_to_numpy_that_it_would_do_on_several_threads(monkeypatch, width):
    mlp, seen = made(sizes=[5, width, width, 2]), []
    infer = mlp._infer
    monkeypatch.setattr(mlp, "_infer", lambda x: [seen.append(len(x)), infer(x)][1])
    with torch.inference_mode():
        for rows in (1, 2, 7, 64, 65, 1000, 70_000 if width == 2 else 2000):
            mlp(inputs(rows))

    assert max(seen, default=0) * width * width <= 2**18
    assert (1 in seen) == (width <= 512)


@activations
def test_acting_neither_changes_the_input_nor_shares_memory_with_it_or_the_weights(activation):
    for sizes in ([5, 3], [5, 5, 5]):
        mlp, x = made(activation, activate_last=True, sizes=sizes), inputs(4)
        before, weights = x.clone(), copy.deepcopy(mlp.state_dict())
        with torch.inference_mode():
            first, second = mlp(x), mlp(x)
            first.fill_(7)

        assert torch.equal(x, before)
        assert not torch.equal(first, second)
        assert all(torch.equal(weights[name], now) for name, now in mlp.state_dict().items())


def test_inputs_of_any_memory_layout_are_read_right_under_inference_mode():
    mlp, x = made("relu"), inputs(5)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x.T), mlp(x.T.contiguous()))
        torch.testing.assert_close(mlp(x[::2]), mlp(x)[::2])


def in_place(mlp: MLP) -> MLP:
    with torch.no_grad():
        for param in mlp.parameters():
            param.mul_(2).add_(0.1)
    return mlp


def trained(mlp: MLP) -> MLP:
    optimizer = torch.optim.Adam(mlp.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        mlp(inputs(8)).square().mean().backward()
        optimizer.step()
    return mlp


def loaded(assign: bool):
    def load(mlp: MLP) -> MLP:
        mlp.load_state_dict(
            made(mlp.activation, sizes=[x.in_features for x in mlp.layers] + [3], seed=5).state_dict(), assign=assign
        )
        return mlp

    return load


def loaded_through_its_parent(mlp: MLP) -> MLP:
    nn.Sequential(nn.Sequential(mlp)).load_state_dict(
        {f"0.0.{name}": torch.ones_like(tensor) / 9 for name, tensor in mlp.state_dict().items()}, assign=True
    )
    return mlp


def data_assigned(*which: int):
    """`.data` of the parameters at these places."""

    def assign(mlp: MLP) -> MLP:
        params = list(mlp.parameters())
        for place in which:
            params[place % len(params)].data = torch.full_like(params[place % len(params)], 0.3)
        return mlp

    return assign


def parameters_replaced(*which: int):
    def replace(mlp: MLP) -> MLP:
        for place in which:
            mlp.layers[place].weight = nn.Parameter(torch.full_like(mlp.layers[place].weight, 0.3))
        return mlp

    return replace


def layer_replaced(mlp: MLP) -> MLP:
    mlp.layers[0] = nn.Linear(mlp.layers[0].in_features, mlp.layers[0].out_features)
    return mlp


def from_vector(mlp: MLP) -> MLP:
    vector = nn.utils.parameters_to_vector(mlp.parameters())
    nn.utils.vector_to_parameters(vector * 2 + 0.1, mlp.parameters())
    return mlp


CHANGES = {
    "nothing": lambda mlp: mlp,
    "a change in place": in_place,
    "training": trained,
    "load_state_dict": loaded(assign=False),
    "load_state_dict with assign": loaded(assign=True),
    "load_state_dict of its parent with assign": loaded_through_its_parent,
    "double": lambda mlp: mlp.double(),
    "double of its parent": lambda mlp: nn.Sequential(mlp).double()[0],
    "double and float": lambda mlp: mlp.double().float(),
    "half and float": lambda mlp: mlp.half().float(),
    "to another device and back": lambda mlp: in_place(mlp.to_empty(device="meta").to_empty(device="cpu").apply(reset)),
    "share_memory": lambda mlp: in_place(mlp.share_memory()),
    "requires_grad_": lambda mlp: in_place(mlp.requires_grad_(False).eval()),
    "deepcopy": lambda mlp: in_place(copy.deepcopy(mlp)),
    "deepcopy of its parent": lambda mlp: in_place(copy.deepcopy(nn.Sequential(mlp))[0]),
    "pickle": lambda mlp: in_place(pickle.loads(pickle.dumps(mlp))),
    "data of every parameter": data_assigned(0, 1, 2, 3, 4, 5),
    "data of the first weight": data_assigned(0),
    "data of the first bias": data_assigned(1),
    "data of the last weight": data_assigned(-2),
    "data of the last bias": data_assigned(-1),
    "vector_to_parameters": from_vector,
    "a new first parameter": parameters_replaced(0),
    "a new last parameter": parameters_replaced(-1),
    "a new layer": layer_replaced,
}


def reset(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.2)
        nn.init.constant_(module.bias, 0.1)


@pytest.mark.parametrize("sizes", [[5, 3], SIZES], ids=["one layer", "three layers"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_uses_the_weights_that_its_layers_hold_after(change, sizes):
    mlp = made("relu", sizes=sizes)
    with torch.inference_mode():
        mlp(inputs(2))

    assert_same_function(change(mlp))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda mlp: pickle.loads(pickle.dumps(mlp))], ids=["deepcopy", "pickle"])
def test_a_copy_has_weights_of_its_own(copied):
    mlp = made()
    other = copied(mlp)
    before = mlp(inputs(3))
    in_place(other)

    assert torch.equal(mlp(inputs(3)), before)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(inputs(3)), before, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(other(inputs(3)), before)


def test_a_functional_call_uses_the_weights_that_it_is_given():
    mlp, x = made(), inputs(4)
    weights = {name: tensor.detach() + 0.1 for name, tensor in mlp.named_parameters()}
    expected = torch.func.functional_call(
        sequential(mlp), dict(zip(dict(sequential(mlp).named_parameters()), weights.values())), x
    )

    torch.testing.assert_close(torch.func.functional_call(mlp, weights, x), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        nn.utils.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: layer.register_forward_hook(lambda module, args, output: output + 1),
        lambda layer: layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    ],
    ids=["spectral_norm", "weight_norm", "parametrization", "prune", "hook", "pre-hook"],
)
@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("is_used", [False, True])
def test_a_layer_with_hooks_or_computed_weights_is_called_as_usual(change, index, is_used):
    mlp, x = made(), inputs(4)
    if is_used:
        with torch.inference_mode():
            mlp(x)
    plain = sequential(mlp)
    for layer in (mlp.layers[index], [it for it in plain if isinstance(it, nn.Linear)][index]):
        torch.manual_seed(0)
        change(layer)
    mlp.eval()  # the two would count their calls
    expected = plain.eval()(x)

    torch.testing.assert_close(mlp(x), expected)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class DoubledCall(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


class UnitRows(nn.Linear):
    def __getattr__(self, name):
        found = super().__getattr__(name)
        return nn.functional.normalize(found, dim=1) if name == "weight" else found


@pytest.mark.parametrize("kind", [DoubledCall, UnitRows])
def test_a_layer_of_another_class_is_called_even_if_it_has_no_forward_of_its_own(kind):
    mlp, x = made(), inputs(4)
    layer = kind(mlp.layers[0].in_features, mlp.layers[0].out_features)
    layer.load_state_dict(mlp.layers[0].state_dict())  # UnitRows would leave its parameter uninitialised.
    mlp.layers[0] = layer
    expected = sequential(mlp)[1:](mlp.layers[0](x))
    torch.testing.assert_close(mlp(x), expected)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("change", ["class", "method"])
def test_a_layer_with_a_forward_of_its_own_is_called(index, change):
    mlp, x = made(), inputs(4)
    layer = mlp.layers[index]
    expected = sequential(mlp)
    with torch.no_grad():
        expected[2 * range(len(mlp.layers))[index]].weight.mul_(2)
        expected[2 * range(len(mlp.layers))[index]].bias.mul_(2)
    if change == "class":
        mlp.layers[index] = Doubled(layer.in_features, layer.out_features)
        mlp.layers[index].load_state_dict(layer.state_dict())
    else:
        plain = layer.forward
        layer.forward = lambda x: 2 * plain(x)

    torch.testing.assert_close(mlp(x), expected(x))
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected(x))


def test_backward_hooks_of_a_layer_are_called():
    mlp, seen = made(), []
    mlp.layers[0].register_full_backward_hook(lambda *args: seen.append("full"))
    mlp.layers[1].register_full_backward_pre_hook(lambda *args: seen.append("pre"))
    mlp(inputs(2)).sum().backward()

    assert seen == ["pre", "full"]


def test_the_state_dict_holds_the_weights_and_nothing_else():
    assert list(made().state_dict()) == [f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]


def test_double_precision_under_inference_mode_is_double_precision():
    mlp = made().double()
    with torch.inference_mode():
        found = mlp(inputs(4, dtype=torch.float64))
    torch.testing.assert_close(found, sequential(mlp)(inputs(4, dtype=torch.float64)), rtol=1e-14, atol=1e-14)


def test_the_activations_are_those_of_torch():
    x = torch.linspace(-5, 5, 101)

    assert ACTIVATIONS.keys() == MODULES.keys()
    for name, activation in ACTIVATIONS.items():
        assert torch.equal(activation(x), MODULES[name]()(x))
