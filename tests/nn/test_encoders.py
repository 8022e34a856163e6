"""Networks for every space against the same arithmetic written out, layer by layer."""

import ast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from ding_lite.datasets import open_dataset
from ding_lite.envs import SpaceError
from ding_lite.nn import make_network, seeded
from ding_lite.policy import BCPolicy, DecisionTransformerPolicy
from ding_lite.rewards import (
    GAILRewardConfig,
    GAILRewardModel,
    ICMRewardConfig,
    ICMRewardModel,
    RNDRewardConfig,
    RNDRewardModel,
)
from ding_lite.rollout import FittedQConfig, fitted_q_evaluation_metric

N = 6
AWKWARD = ("a.b", "keys", "shape", "0", "", "parts", "with space")


def box(*shape: int, dtype=np.float32, high: float = 1.0) -> spaces.Box:
    return spaces.Box(0 if np.issubdtype(dtype, np.integer) else -high, high, shape, dtype)


VECTORS = {
    "a vector": box(4),
    "a vector of float64": box(4, dtype=np.float64),
    "a vector of float16": box(4, dtype=np.float16),
    "a matrix": box(3, 4),
    "a matrix of float64": box(3, 4, dtype=np.float64),
    "a number": box(),
    "a vector of bytes": box(4, dtype=np.uint8, high=255),
    "a matrix of bytes": box(2, 3, dtype=np.uint8, high=255),
    "a vector of integers": box(4, dtype=np.int32, high=9),
    "four dimensions": box(2, 3, 2, 2),
    "a category": spaces.Discrete(5),
    "a category from 3": spaces.Discrete(5, start=3),
    "a category from -2": spaces.Discrete(3, start=-2),
    "categories": spaces.MultiDiscrete([3, 1, 4]),
    "categories with starts": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "a matrix of categories": spaces.MultiDiscrete([[3, 2], [2, 4]]),
    "bits": spaces.MultiBinary(5),
    "a matrix of bits": spaces.MultiBinary((2, 3)),
    "parts": spaces.Dict({"x": box(3), "y": spaces.Discrete(4, start=1)}),
    "parts of parts": spaces.Tuple((box(2), spaces.Dict({"b": spaces.MultiBinary(2), "a": spaces.Tuple((box(2, 2), box()))}))),
    "parts with awkward names": spaces.Dict({name: spaces.Discrete(2 + i) for i, name in enumerate(AWKWARD)}),
}  # fmt: skip
vectors = pytest.mark.parametrize("space", VECTORS.values(), ids=VECTORS.keys())


def drawn(space: spaces.Space, n: int = N):
    """A batch of observations as the engine lays them out: nested dicts of tensors."""
    space.seed(0)
    return stacked(space, [space.sample() for _ in range(n)])


def stacked(space: spaces.Space, rows: list):
    if isinstance(space, spaces.Dict):
        return {name: stacked(part, [row[name] for row in rows]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): stacked(part, [row[i] for row in rows]) for i, part in enumerate(space.spaces)}
    return torch.from_numpy(np.stack([np.asarray(row) for row in rows]))


def features(space: spaces.Space, obs) -> np.ndarray:
    """What the first linear layer has to see of each row."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([features(part, obs[name]) for name, part in space.spaces.items()], 1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate([features(part, obs[str(i)]) for i, part in enumerate(space.spaces)], 1)
    rows = obs.numpy()
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)
        columns = (rows - space.start).reshape(len(rows), -1)
        return np.concatenate([np.eye(n)[column] for n, column in zip(sizes, columns.T, strict=True)], 1)
    return rows.reshape(len(rows), -1).astype(np.float64) / (255 if rows.dtype == np.uint8 else 1)


def linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def by_hand(network: nn.Module, x: np.ndarray, activate_last: bool) -> np.ndarray:
    layers = linears(network)
    for layer in layers:
        x = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        x = np.maximum(x, 0) if activate_last or layer is not layers[-1] else x
    return x


def made(space: spaces.Space, hidden_sizes=(16, 8), out=3, **options) -> nn.Module:
    with seeded(0):
        return make_network(space, hidden_sizes, out, **options)


@vectors
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("hidden_sizes", "out"), [((16, 8), 3), ((16, 8), None), ((), 3)])
def test_a_network_is_layers_over_the_features_of_its_space(space, hidden_sizes, out, inference):
    network, obs = made(space, hidden_sizes, out), drawn(space)
    with torch.inference_mode(inference):
        found = network(obs)
    expected = by_hand(network, features(space, obs), activate_last=out is None)

    assert found.shape == (N, out or 8)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-3 if "16" in str(space) else 1e-4, atol=1e-5)
    assert [layer.out_features for layer in linears(network)] == [*hidden_sizes, *([] if out is None else [out])]


@vectors
def test_every_weight_of_a_network_gets_a_gradient(space):
    network = made(space, activation="tanh")
    network(drawn(space)).square().sum().backward()

    assert all(param.grad is not None and param.grad.abs().sum() > 0 for param in network.parameters())


@vectors
def test_a_single_row_gives_what_it_gives_in_a_batch(space):
    network, one, many = made(space), drawn(space, 1), drawn(space)

    torch.testing.assert_close(network(one), network(many)[:1])


APPLIED = {"relu": functional.relu, "tanh": torch.tanh, "elu": functional.elu, "gelu": functional.gelu, "silu": functional.silu}


@pytest.mark.parametrize(("activation", "applied"), APPLIED.items())
def test_the_activation_follows_each_hidden_layer(activation, applied):
    network, obs = made(box(4), (7,), None, activation=activation), drawn(box(4))

    torch.testing.assert_close(network(obs), applied(linears(network)[0](obs)))


def convolutions(network: nn.Module) -> list[tuple[int, int, int]]:
    found = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    return [(layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in found]


NATURE, SMALL = [(32, 8, 4), (64, 4, 2), (64, 3, 1)], [(16, 3, 1), (32, 3, 1)]
IMAGES = [
    ((84, 84, 4), NATURE),
    ((4, 84, 84), NATURE),
    ((36, 40, 3), NATURE),
    ((35, 80, 3), SMALL),
    ((10, 10, 6), SMALL),
    ((1, 9, 7), SMALL),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize(("shape", "layers"), IMAGES)
def test_images_go_through_convolutions_first(shape, layers, dtype):
    space = box(*shape, dtype=dtype, high=255 if dtype == np.uint8 else 1)
    network, obs = made(space, (16,), 3), drawn(space, 2)
    image = obs.float() / 255 if dtype == np.uint8 else obs.float()
    image = image.movedim(-1, 1) if shape[0] > shape[2] else image
    for layer in (layer for layer in network.modules() if isinstance(layer, nn.Conv2d)):
        image = functional.conv2d(image, layer.weight, layer.bias, layer.stride).relu()
    expected = by_hand(network, image.flatten(1).detach().double().numpy(), activate_last=False)

    assert convolutions(network) == layers
    np.testing.assert_allclose(network(obs).detach(), expected, rtol=1e-4, atol=1e-5)


def test_channels_may_come_first_or_last():
    first, last = made(box(3, 40, 44)), made(box(40, 44, 3))
    last.load_state_dict(first.state_dict())
    obs = drawn(box(3, 40, 44))

    torch.testing.assert_close(last(obs.movedim(1, -1)), first(obs))


def test_the_convolutions_may_be_chosen():
    assert convolutions(made(box(12, 12, 3), conv_layers=[(8, 4, 2), (5, 2, 1)])) == [(8, 4, 2), (5, 2, 1)]


def test_images_may_be_parts():
    space = spaces.Dict({"image": box(10, 10, 3, dtype=np.uint8, high=255), "speed": box(2)})
    network, obs = made(space), drawn(space)

    assert linears(network)[0].in_features == 32 * 6 * 6 + 2
    assert network(obs).shape == (N, 3)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(box(2)), spaces.Graph(box(2), None),
                                   spaces.Dict({"ok": box(2), "bad": spaces.Text(5)})])  # fmt: skip
def test_a_space_without_a_fixed_layout_is_refused(space):
    with pytest.raises(SpaceError, match=r"no encoder for observations of .*ObservationWrapper"):
        make_network(space, [8], 2)


@pytest.mark.parametrize(
    ("shape", "layers", "shown"), [((4, 4, 3), None, r"\(16, 3, 1\)"), ((20, 20, 3), NATURE, r"\(32, 8, 4\)")]
)
def test_an_image_too_small_for_the_convolutions_is_refused(shape, layers, shown):
    with pytest.raises(SpaceError, match=rf"{shape[0]}, {shape[1]}, 3\) are too small.*{shown}.*set conv_layers") as caught:
        make_network(box(*shape), [8], 2, conv_layers=layers)
    advised = ast.literal_eval(str(caught.value).rpartition("such as ")[2].partition(", each")[0])
    assert make_network(box(*shape), [8], 2, conv_layers=advised)(torch.zeros(2, *shape)).shape == (2, 2)


def small_images():
    rng, ends = np.random.default_rng(0), np.arange(24) % 8 == 7
    obs = rng.integers(0, 255, (25, 4, 4, 3), dtype=np.uint8)
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": rng.integers(0, 2, 24), "reward": np.ones(24, np.float32)}
    return open_dataset(
        {**rows, "terminated": ends & False, "truncated": ends}, box(4, 4, 3, dtype=np.uint8, high=255), spaces.Discrete(2)
    )


def made_for_small_images(name, data, **settings):
    space, actions = data.observation_space, data.action_space
    if name == "fitted Q":
        policy = BCPolicy({"model.conv_layers": [(4, 2, 1)]}, space, actions)
        return fitted_q_evaluation_metric(0.9, cfg=FittedQConfig(num_steps=3, **settings))(policy.eval_mode, data)
    if name == "Decision Transformer":
        policy = DecisionTransformerPolicy({f"model.{name}": it for name, it in settings.items()}, space, actions)
        return policy.learn_mode.forward(data.windows(range(4), policy.cfg.context_length))
    make = {
        "RND": lambda: RNDRewardModel(RNDRewardConfig(**settings), space),
        "ICM": lambda: ICMRewardModel(ICMRewardConfig(**settings), space, actions),
        "GAIL": lambda: GAILRewardModel(GAILRewardConfig(**settings), space, actions, data),
    }
    return make[name]().learn(data.take(range(8)))


@pytest.mark.parametrize("name", ["fitted Q", "Decision Transformer", "RND", "ICM", "GAIL"])
def test_what_has_networks_of_its_own_has_the_setting_that_the_message_names(name):
    data = small_images()
    with pytest.raises(SpaceError, match=r"images of shape \(4, 4, 3\) are too small .* set conv_layers, such as"):
        made_for_small_images(name, data)
    assert made_for_small_images(name, data, conv_layers=[(4, 2, 1)])


def test_a_network_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"make_network\(\) without hidden layers.*encoder_hidden_size_list"):
        make_network(box(4), [])


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(ValueError, match=r"rleu.*relu"):
        make_network(box(4), [8], 2, activation="rleu")


def test_the_state_dict_holds_weights_only():
    network = made(spaces.Dict({"x": spaces.Discrete(3, start=2), "y": box(2)}))

    assert all(name.endswith(("weight", "bias")) for name in network.state_dict())
