"""Fingerprints of values: any element that changes is seen, and classes that are gone leave nothing behind."""

import gc
import weakref

import numpy as np
import pytest
import torch

from ding_lite.pipeline import fingerprints
from ding_lite.pipeline.fingerprints import changed, fingerprint, memory_of

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
VIEWS = {
    "whole": lambda it: it,
    "transposed": torch.t,
    "every other row": lambda it: it[::2],
    "expanded": lambda it: it[0, :1].expand(5),
    "conjugated": torch.conj,
    "negated": lambda it: torch.conj(it).imag if it.is_complex() else it,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_changed_element_of_any_view_is_seen_and_an_equal_one_is_not(dtype, view):
    value = torch.zeros(4, 3, dtype=dtype)
    before = fingerprint(view(value))

    assert changed(before, fingerprint(view(value))) is None
    value[0, 0] = 1j if dtype.is_complex else 1
    assert changed(before, fingerprint(view(value))) == ""


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("view", ["whole", "transposed", "every other row"])
def test_the_memory_of_a_view_reaches_from_its_first_to_its_last_element(kind, view):
    value = torch.arange(12.0).reshape(4, 3)
    seen = VIEWS[view](value)
    start = value.data_ptr()
    last = {"whole": 11, "transposed": 11, "every other row": 8}[view]

    (span,) = memory_of(fingerprint(seen if kind == "torch" else seen.numpy()))
    assert span[:2] == (start, start + 4 * last + 4)


def test_a_view_that_runs_backwards_begins_at_its_last_element():
    value = np.arange(12.0, dtype=np.float32)
    start = value.__array_interface__["data"][0]

    (span,) = memory_of(fingerprint(value[::-2]))
    assert span[:2] == (start + 4, start + 48)


def test_a_class_that_is_gone_leaves_nothing_behind():
    def look():
        class Own:
            def __init__(self):
                self.x = 1

        fingerprint(Own())
        return weakref.ref(Own), id(Own)

    gone, key = look()
    gc.collect()

    assert gone() is None
    assert key not in fingerprints._KINDS
