"""The states of the global random generators, as they are sent to another process."""

import random

import numpy as np
import pytest
import torch

from ding_lite.basics.global_random import (
    global_random_states,
    load_global_random,
    save_global_random,
    set_global_random_states,
)


def drawn():
    return random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist()  # noqa: NPY002


def test_restored_generators_draw_the_same_numbers():
    random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002  both keep the second of two numbers
    states = global_random_states()
    first = drawn()
    assert drawn() != first

    set_global_random_states(states)

    assert global_random_states() == states
    assert drawn() == first


@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64"])
def test_the_global_generator_of_numpy_may_have_another_bit_generator(kind):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(getattr(np.random, kind)(1))
        states = global_random_states()
        first = drawn()
        set_global_random_states(states)
        assert drawn() == first
    finally:
        np.random.set_bit_generator(before)


def test_a_saved_state_is_loaded_also_from_the_tuple_of_python_that_files_had_before():
    random.gauss(0, 1)
    saved, python = save_global_random(), random.getstate()
    first = drawn()

    for state in (saved, {**saved, "random": python}):
        load_global_random(state)
        assert drawn() == first
    load_global_random(saved)
    assert random.getstate() == python


def python(change):
    version, words, gauss = save_global_random()["random"]
    return change(version, words, gauss)


def numpys(**changes):
    state = save_global_random()["numpy"]
    return {**state, **changes, "state": {**state["state"], **changes.get("state", {})}}


BROKEN = {
    "random: none": {"random": None},
    "random: version": {"random": python(lambda version, words, gauss: (1, words, gauss))},
    "random: short": {"random": python(lambda version, words, gauss: (version, words[:5], gauss))},
    "random: position": {"random": python(lambda version, words, gauss: (version, (*words[:624].tolist(), 700), gauss))},
    "random: large": {"random": python(lambda version, words, gauss: (version, (2**40, *words[1:].tolist()), gauss))},
    "random: fractions": {"random": python(lambda version, words, gauss: (version, words + 0.5, gauss))},
    "random: zeros": {"random": python(lambda version, words, gauss: (version, (*[0] * 624, 3), gauss))},
    "random: gauss": {"random": python(lambda version, words, gauss: (version, words, "x"))},
    "random: nan": {"random": python(lambda version, words, gauss: (version, words, float("nan")))},
    "numpy: none": {"numpy": None},
    "numpy: kind": {"numpy": numpys(bit_generator="PCG64")},
    "numpy: short": {"numpy": numpys(state={"key": np.zeros(3, np.uint32)})},
    "numpy: position": {"numpy": numpys(state={"pos": 10**6})},
    "numpy: negative": {"numpy": numpys(state={"pos": -1})},
    "numpy: fractions": {"numpy": numpys(state={"key": np.full(624, 0.5)})},
    "numpy: zeros": {"numpy": numpys(state={"key": np.zeros(624, np.uint32)})},
    "numpy: has_gauss": {"numpy": numpys(has_gauss=7)},
    "numpy: gauss": {"numpy": numpys(has_gauss=1, gauss="x")},
    "numpy: nan": {"numpy": numpys(has_gauss=1, gauss=float("nan"))},
    "torch: none": {"torch": None},
    "torch: short": {"torch": torch.zeros(3, dtype=torch.uint8)},
    "torch: zeros": {"torch": torch.full_like(torch.get_rng_state(), 255)},
    "torch: dtype": {"torch": torch.get_rng_state().float()},
    "cuda: none": {"cuda": None},
    "cuda: numbers": {"cuda": [1, 2]},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_state_that_is_not_valid_is_refused_by_name_and_changes_no_generator(change):
    state, before = {**save_global_random(), **change}, global_random_states()
    (name,) = change

    with pytest.raises(ValueError, match=rf"^global_random\['{name}'\] is not a state of .*, got "):
        load_global_random(state)
    assert global_random_states() == before


@pytest.mark.parametrize("state", [None, [], {}])
def test_something_other_than_a_state_is_refused(state):
    with pytest.raises(ValueError, match=r"^global_random (is|has no) "):
        load_global_random(state)


def test_other_global_generators_of_numpy_are_restored():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        saved = save_global_random()
        first = drawn()
        load_global_random(saved)
        assert drawn() == first
        with pytest.raises(ValueError, match=r"global_random\['numpy'\] is not a state of numpy"):
            load_global_random({**saved, "numpy": {**saved["numpy"], "state": 3}})
    finally:
        np.random.set_bit_generator(before)
