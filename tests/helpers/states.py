"""Comparing states bit for bit, what a file makes of them, and whether their owners load them."""

import copy
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ding_lite.basics import plain
from ding_lite.basics.value_types import types_of, with_types
from ding_lite.policy_state import StateDictError


def same(one, other):
    """Whether two nested values are equal in types, order of keys, and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return same(one.detach().numpy(), other.detach().numpy())
    if isinstance(one, np.ndarray):
        bits = (it.tolist() if it.dtype == object else it.tobytes() for it in (one, other))
        return one.dtype == other.dtype and one.shape == other.shape and same(*bits)
    return bool(one == other or (one != one and other != other))


def through_a_file(state):
    """The state as it is after saving and loading it."""
    file = io.BytesIO()
    torch.save(plain(state), file)
    return with_types(torch.load(io.BytesIO(file.getvalue()), weights_only=True), list(types_of(state)))


def check_refusal(owner, path, value, words):
    """Loading a state with this value at this path, or without the entry for None, is an error and changes nothing."""
    state, before = owner.state_dict(), copy.deepcopy(owner.state_dict())
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    assert path[-1] in inner
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(StateDictError, match=words):
        owner.load_state_dict(state)
    assert same(owner.state_dict(), before)


def check_continuation(one, other, batches, later):
    """Another reward model that loads what one has learned learns as that one does, and leaves the given state as it is."""
    for batch in batches:
        one.learn(batch)
    state = one.state_dict()
    given = copy.deepcopy(state)
    other.load_state_dict(given)
    for batch in later:
        assert same(one.learn(batch), other.learn(batch))
        assert torch.equal(one.estimate(batch).reward, other.estimate(batch).reward)
    assert same(one.state_dict(), other.state_dict())
    assert same(given, state)


class Armed:
    """An object whose pickle makes the file `marker` when it is loaded."""

    def __init__(self, marker, how="touch"):
        self.marker, self.how = marker, how

    def __reduce__(self):
        return (os.system, (f"touch '{self.marker}'",)) if self.how == "system" else (Path.touch, (self.marker,))
