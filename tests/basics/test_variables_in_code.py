"""The variables that the code of a function reads and sets."""

import functools

import numpy as np
import pytest
import torch

from ding_lite.basics.variables_in_code import CLOSURE, FIRST, GLOBAL, accesses_of, global_draws

number = None


class Held:
    """Its methods use their first argument."""

    def set(self):
        self.a.b = 1
        self.c += 1
        type(self).d += 1
        self.__class__.e = [self.f for _ in range(2)]
        setattr(self, "g", 1)  # noqa: B010
        del self.h


def found(fn):
    return {(it.place, ".".join((it.name, *it.chain)), it.is_set, it.is_read) for it in accesses_of(fn.__code__)}


def test_attributes_of_the_first_argument_are_found():
    assert {it for it in found(Held.set) if it[0] == FIRST} == {
        (FIRST, "self.a.b", True, False),
        (FIRST, "self.c", True, True),
        (FIRST, "self.__class__.d", True, True),
        (FIRST, "self.__class__.e", True, False),
        (FIRST, "self.f", False, True),
        (FIRST, "self.g", True, False),
        (FIRST, "self.h", True, False),
    }


def test_variables_of_the_module_and_of_functions_around_it_are_found_also_in_functions_inside():
    steps = 0

    def count(limit):
        global number
        number = limit

        def inner():
            nonlocal steps
            steps += 1
            return limit

        return inner

    assert {it for it in found(count) if it[0] != FIRST} == {
        (GLOBAL, "number", True, False),
        (CLOSURE, "steps", True, False),
        (CLOSURE, "steps", False, True),
    }
    assert steps == 0


def test_a_variable_of_the_function_itself_is_none_of_those_outside():
    steps = 0

    def outer():
        steps = 1

        def inner():
            nonlocal steps
            steps += 1
            return steps

        return inner

    assert found(outer) == set()
    assert steps == 0


def if_none():
    global number
    if number is None:
        number = 1
    return number


def return_early():
    global number
    if number is not None:
        return number
    number = 1
    return number


def mean():
    global number
    number = 1.0 if number is None else 0.9 * number


def two_branches():
    global number
    if number is None:
        number = 1.0
    else:
        number += 1


def after_the_question():
    global number
    if number is None:
        print()
    number = 1


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(if_none, True), (return_early, True), (mean, False), (two_branches, False), (after_the_question, False)],
)
def test_a_variable_that_is_set_only_where_it_is_none_is_told_apart(fn, expected):
    assert {it.is_first_set for it in accesses_of(fn.__code__) if it.is_set} == {expected}


def test_an_argument_generator_is_found_in_calls_of_any_shape():
    def drawn(generator, many):
        torch.rand(3, generator=generator)
        torch.randn(max(1, 2, key=int), generator=generator)
        torch.normal(1 if many else 2, 3, generator=generator)
        torch.randint(0, 3, **many)
        torch.randperm(int(max(2, 3)), generator=torch.Generator(device="cpu"))
        return functools.partial(torch.rand_like, many), torch.bernoulli(many.get(generator=1))

    assert [*global_draws(drawn, {"torch": torch})] == [("torch", "torch.rand_like"), ("torch", "torch.bernoulli")]


def test_names_of_other_objects_than_modules_are_no_draws():
    def drawn(rng):
        return np.rand(3), rng.random()

    assert [*global_draws(drawn, {"np": np.random.default_rng(0)})] == []
