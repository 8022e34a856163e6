"""The states of the global random generators, as they are sent to another process."""

import random

import numpy as np
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


def test_a_saved_state_is_loaded_also_from_the_tuple_of_python_that_files_had_before():
    random.gauss(0, 1)
    saved, python = save_global_random(), random.getstate()
    first = drawn()

    for state in (saved, {**saved, "random": python}):
        load_global_random(state)
        assert drawn() == first
    load_global_random(saved)
    assert random.getstate() == python
