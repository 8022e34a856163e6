"""The functions that the code of a function may call, found without calling it."""

import functools

import numpy as np
import torch
from torch import nn

from ding_lite.basics.reached_functions import reached_functions
from ding_lite.policy import DQNPolicy


def last(x):
    return first(x) if x else torch.nn.functional.relu(np.asarray(x))


def middle(x):
    return last(x)


@functools.cache
def first(x):
    return middle(x)


class Called:
    def __call__(self):
        return middle(1)


TABLE = {"middle": middle}


def names(start, owner=None):
    return {it.__name__ for it in reached_functions(start, owner)}


def test_functions_of_the_script_are_followed_and_those_of_libraries_are_not():
    called = Called()

    def by_closure():
        return called()

    cycle = {"first", "middle", "last"}
    assert names(first) == names(functools.partial(middle, 1)) == cycle
    assert names(lambda: TABLE["middle"](1)) == {"<lambda>", *cycle}
    assert names(by_closure) == {"by_closure", "__call__", *cycle}
    assert names(lambda: nn.Linear(2, 3)) == {"<lambda>"}


def test_members_of_the_owner_are_followed_as_far_as_they_are_the_users():
    class Own(DQNPolicy):
        size = property(lambda self: middle(self))
        other = functools.partialmethod(first)

        def unused(self):
            pass

    assert names(lambda self: self.size + self.q_values(1), Own) == {"<lambda>", "first", "middle", "last"}
    assert "unused" in names(lambda self: self.other + self.unused(), Own)
    assert names(lambda self: self.size) == {"<lambda>"}
    assert names(7) == names(None) == names(np.zeros(3)) == set()
