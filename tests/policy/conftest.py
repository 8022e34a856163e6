"""What the tests of policies share: batches of any space, and exact comparison of states."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.basics.torch_threads import torch_threads


def _elements(space: spaces.Space, *lead: int, seed: int = 0):
    """Random elements [*lead, ...] as the engine stores them: nested dicts of arrays, float64 as float32."""
    space.seed(seed)
    rows = [space.sample() for _ in range(math.prod(lead))]
    return _stacked(space, rows, lead)


def _stacked(space, rows, lead):
    if isinstance(space, spaces.Dict):
        return {name: _stacked(part, [row[name] for row in rows], lead) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): _stacked(part, [row[i] for row in rows], lead) for i, part in enumerate(space.spaces)}
    array = np.stack([np.asarray(row) for row in rows])
    array = array.astype(np.float32) if array.dtype == np.float64 else array
    return array.reshape(*lead, *array.shape[1:])


def _same(one, other) -> bool:
    """Bit for bit, whatever they are made of."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (torch.Tensor, np.ndarray)):
        one, other = np.asarray(one), np.asarray(other)
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors gain nothing from threads, and lose much where the cores are busy."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="session")
def elements():
    return _elements


@pytest.fixture(scope="session")
def same():
    return _same


def _transitions(n: int = 12, num_actions: int = 3, start: int = 0, dtype=torch.float64, seed: int = 0) -> dict:
    """Random rows [n, ...] with observations [n, 5], some of them terminated, some truncated."""
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, n, 5, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = torch.rand(2, n, generator=g) < 0.3
    return {
        "obs": obs,
        "next_obs": next_obs,
        "action": torch.randint(num_actions, (n,), generator=g) + start,
        "reward": 3 * torch.randn(n, generator=g, dtype=torch.float64).to(dtype),
        "terminated": terminated,
        "truncated": truncated,
    }


def _varied(kind: str, **options) -> dict:
    """Such rows, as a batch may be: see VARIANTS."""
    n = 1 if kind == "one row" else 12
    batch = _transitions(n, **options)
    if kind in ("all terminated", "none terminated"):
        batch["terminated"] = torch.full((n,), kind == "all terminated")
    if kind == "only truncated":
        batch |= {"terminated": torch.zeros(n, dtype=torch.bool), "truncated": torch.ones(n, dtype=torch.bool)}
    g = torch.Generator().manual_seed(7)
    if kind == "several steps":
        batch["discount"] = 0.8 ** torch.randint(1, 4, (n,), generator=g).double()
    if kind == "by priority":
        batch["weight"] = torch.rand(n, generator=g, dtype=torch.float64)
    return batch


VARIANTS = (
    "mixed", "one row", "all terminated", "none terminated", "only truncated", "several steps", "by priority",
)  # fmt: skip


@pytest.fixture(params=VARIANTS)
def varied(request):
    """A function that makes rows [n, ...] for a loss, in each of the ways in which a batch may look."""
    return lambda **options: _varied(request.param, **options)


@pytest.fixture(scope="session")
def transitions():
    return _transitions


def _moved_apart(policy):
    """With a target network unlike the online one."""
    with torch.no_grad():
        for i, param in enumerate(policy.target_model.parameters()):
            param.add_(torch.linspace(-0.5, 0.6, param.numel(), dtype=param.dtype).reshape(param.shape) * (-1) ** i)
    return policy


@pytest.fixture(scope="session")
def moved_apart():
    return _moved_apart
