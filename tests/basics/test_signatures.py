"""Signatures below decorators: the function that is called counts; one that passes its arguments on shows the inner ones."""

import functools

import pytest

from ding_lite.basics.signatures import parameters_of, passed_signature_of, positional_names, signature_of


def wide(ctx, rows, *, rng, last=None):
    """Takes more than its decorators."""


@functools.wraps(wide)
def narrow(ctx):
    return wide(ctx, [], rng=0)


@functools.wraps(wide)
def any_arguments(*args, **kwargs):
    return wide(*args, **kwargs)


@functools.wraps(wide)
def some_names(ctx, **kwargs):
    return wide(ctx, [], **kwargs)


@functools.wraps(narrow)
def twice(*args, **kwargs):
    return narrow(*args, **kwargs)


class Steps:
    """Its methods are decorated."""

    def _wide(self, ctx, rng):
        """Takes more."""

    @functools.wraps(_wide)
    def narrow(self, ctx):
        """Takes the context alone."""

    @functools.wraps(_wide)
    def any_arguments(self, *args, **kwargs):
        """Passes them on."""


class Called:
    """An object in the place of a function, as a decorator that is a class makes it."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)

    def __call__(self, ctx):
        """Takes the context alone."""


@pytest.mark.parametrize(
    ("fn", "own", "passed"),
    [
        (wide, "(ctx, rows, *, rng, last=None)", "(ctx, rows, *, rng, last=None)"),
        (narrow, "(ctx)", "(ctx)"),
        (any_arguments, "(*args, **kwargs)", "(ctx, rows, *, rng, last=None)"),
        (some_names, "(ctx, **kwargs)", "(ctx, rows, *, rng, last=None)"),
        (twice, "(*args, **kwargs)", "(ctx)"),
        (Steps().narrow, "(ctx)", "(ctx)"),
        (Steps().any_arguments, "(*args, **kwargs)", "(ctx, rng)"),
        (Called(wide), "(ctx)", "(ctx)"),
        (functools.partial(narrow), "(ctx)", "(ctx)"),
        (functools.partial(any_arguments, 1), "(*args, **kwargs)", "(rows, *, rng, last=None)"),
        (lambda *args: None, "(*args)", "(*args)"),
    ],
)
def test_the_function_that_is_called_counts_and_shows_what_it_passes_on(fn, own, passed):
    assert str(signature_of(fn)) == own
    assert str(passed_signature_of(fn)) == passed


def test_parameters_are_those_of_the_decorator_and_those_that_it_passes_on():
    assert [*parameters_of(narrow)] == ["ctx"]
    assert [*parameters_of(some_names)] == ["ctx", "rows", "rng", "last", "kwargs"]


def test_names_of_positional_arguments():
    assert positional_names(narrow, 2) == ["ctx", "args[1]"]
    assert positional_names(any_arguments, 3) == ["ctx", "rows", "args[2]"]
    assert positional_names(lambda ctx, *rows: None, 3) == ["ctx", "rows[0]", "rows[1]"]
    assert positional_names(dict, 1) == ["args[0]"]
