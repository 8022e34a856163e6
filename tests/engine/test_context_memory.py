"""Contexts that remember something outside of their fields: it is named when the run is saved."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import torch
from memory_runs import Sum

from ding_lite import Task
from ding_lite.middleware import CkptSaver

SETTINGS = {"rate": 1.0}


def context_with(**members):
    """A class of contexts with these fields and methods."""
    kind = type("Own", (Sum,), {"__module__": __name__, "__annotations__": {}, **members})
    kind.__annotations__.update({name: float for name, it in members.items() if isinstance(it, dataclasses.Field)})
    return dataclasses.dataclass(kind)


def drawing_in_a_default():
    return context_with(v=dataclasses.field(default_factory=np.random.default_rng(0).random)), "v.default_factory"


def counting_in_a_default():
    numbers = itertools.count()
    return context_with(v=dataclasses.field(default_factory=lambda: next(numbers))), "v.default_factory.numbers"


def counting_in_post_init():
    counts = [0]

    def __post_init__(self):
        counts[0] += 1

    return context_with(__post_init__=__post_init__), "__post_init__.counts[0]"


def counting_in_a_property():
    counts = [0]

    def turns(self):
        counts[0] += 1
        return counts[0]

    return context_with(turns=property(turns)), "turns.counts[0]"


def of_context(folder, kind):
    def step(ctx):
        ctx.total += getattr(ctx, "turns", 0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=kind()) as loop:
            loop.use(step).use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1000)).run(4)
    return [str(it.message) for it in caught if "remembers" in str(it.message)]


@pytest.mark.parametrize("form", [drawing_in_a_default, counting_in_a_default, counting_in_post_init, counting_in_a_property])
def test_what_a_context_remembers_outside_of_its_fields_is_named(form, tmp_path):
    kind, place = form()
    (found,) = of_context(tmp_path, kind)
    assert f"Own remembers something from iteration to iteration ({place}), outside of its fields, and no state has it" in found
    assert "Keep a number in a kept field" in found


def test_start_values_and_properties_that_compute_cause_no_warning(tmp_path):
    def __post_init__(self):
        self.rows.append(SETTINGS["rate"])

    def turns(self):
        return len(self.rows) + len(SETTINGS)

    made = {"rows": dataclasses.field(default_factory=list), "more": dataclasses.field(default_factory=lambda: {"a": 1})}
    assert of_context(tmp_path, context_with(**made, __post_init__=__post_init__, turns=property(turns))) == []
