"""What the tests of policies share: batches of any space, and exact comparison of states."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces


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
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def elements():
    return _elements


@pytest.fixture(scope="session")
def same():
    return _same
