"""What messages are made of: the nearest name, the place, notes, and the extra to install."""

import dataclasses
import functools

import pytest

from ding_lite.basics import add_note, did_you_mean, require_extra
from ding_lite.basics.messages import describe_call, location_of, name_of, printable


class Object:
    def __call__(self, ctx):
        return None


class Inherits(Object):
    pass


def step(factor, ctx):
    return None


@pytest.mark.parametrize(
    ("name", "hint"),
    [("env_stpe", ": did you mean 'env_step'?"), ("train_itre", ": did you mean 'train_iter'?"), ("zzz", ".")],
)
def test_the_nearest_name_is_suggested_and_nothing_where_none_is_near(name, hint):
    assert did_you_mean(name, ["train_iter", "env_step"]) == hint


def test_no_names_are_no_suggestion():
    assert did_you_mean("env_step", []) == "."


class TestPlace:
    @pytest.mark.parametrize("fn", [step, functools.partial(step, 2), functools.partial(functools.partial(step), 2)])
    def test_a_function_is_found_where_it_is_defined_also_inside_a_partial(self, fn):
        assert location_of(fn) == f"{__file__}:{step.__code__.co_firstlineno}"
        assert name_of(fn) == "step"

    @pytest.mark.parametrize("fn", [Object(), Inherits()])
    def test_an_object_is_found_where_its_call_is_defined(self, fn):
        assert location_of(fn) == f"{__file__}:{Object.__call__.__code__.co_firstlineno}"
        assert name_of(fn) == type(fn).__name__

    def test_what_python_cannot_place_has_a_name_and_no_place(self):
        assert location_of(print) == ""
        assert describe_call(print) == "print"

    def test_name_and_place_stand_together(self):
        assert describe_call(step) == f"step ({__file__}:{step.__code__.co_firstlineno})"


class TestNotes:
    def test_they_are_added_in_order(self):
        error = ValueError("broken")
        add_note(error, "first")
        add_note(error, "second")

        assert error.__notes__ == ["first", "second"]

    def test_each_place_has_one_however_often_the_same_error_is_raised(self):
        error = ValueError("broken")
        for step in range(5):
            add_note(error, f"in middleware step (a.py:12), iteration {step} of the task")
            add_note(error, f"beside it, KeyError: {step}", place="part 1")

        assert error.__notes__ == ["in middleware step (a.py:12), iteration 4 of the task", "beside it, KeyError: 4"]

    def test_they_are_added_to_errors_of_a_python_without_notes_too(self):
        class Old(ValueError):
            add_note = property()  # so that hasattr() finds none, as on Python 3.10

        error = Old("broken")
        add_note(error, "first")
        add_note(error, "second")

        assert error.__notes__ == ["first", "second"]


class TestExtras:
    def test_a_module_that_is_there_passes(self):
        require_extra("json.decoder", "none", "nothing")

    def test_a_module_that_is_missing_is_named_with_who_wants_it_and_how_to_install_it(self):
        with pytest.raises(ImportError, match=r"^drawing needs no_such_module_anywhere, .*: pip install 'ding_lite\[plot\]'"):
            require_extra("no_such_module_anywhere", "plot", "drawing")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("runs/a b-ü_中", "runs/a b-ü_中"), ("\x1b[2J", "?[2J"), ("\x9b31m", "?31m"), ("a\nb\r\x08", "a?b??"), ("\udcff", "?")],
)
def test_what_a_terminal_would_take_as_a_command_is_a_question_mark(text, shown):
    assert printable(text) == shown


def test_a_frozen_error_takes_a_note():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int = 0

    error = Frozen(3)
    add_note(error, "in step 1")
    add_note(error, "in step 2")
    assert error.__notes__ == ["in step 2"]
