"""Fingerprints of values: any element that changes is seen, and classes that are gone leave nothing behind."""

import collections
import copy
import enum
import gc
import pathlib
import time
import weakref

import h5py
import numpy as np
import pytest
import torch

from ding_lite.pipeline import value_kinds
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


class Slots:
    __slots__ = ("rows", "size")

    def __init__(self):
        self.size = 1


class Rows(list):
    pass


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Holder:
    def __init__(self, **values):
        vars(self).update(values)


def nested(value):
    return {"deep": [value]}


def put(key, value):
    return lambda it: it.__setitem__(key, value(it) if callable(value) else value)


ANOTHER_OBJECT = {
    "in a dict": (lambda: {"old": np.zeros(2), "new": np.ones(2)}, put("new", lambda it: it["old"]), "['new']"),
    "in a list": (lambda: [[1], [2]], put(1, lambda it: it[0]), "[1]"),
    "an attribute": (lambda: Holder(a=torch.zeros(2), b=torch.ones(2)), lambda it: setattr(it, "b", it.a), ".b"),
    "deep inside": (lambda: [nested(np.zeros(2)), nested(np.ones(2))], put(1, lambda it: it[0]), "[1]"),
    "of two that were one": (lambda: [one := np.zeros(2), one], put(1, lambda it: np.ones(2)), "[1]"),
    "a weight": (
        lambda: torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)),
        lambda it: setattr(it[1], "weight", it[0].weight),
        "[1].weight",
    ),
    "an enumeration": (lambda: {"a": Level.LOW, "b": Level.HIGH}, put("b", Level.LOW), "['b']"),
}


@pytest.mark.parametrize(("make", "change", "where"), ANOTHER_OBJECT.values(), ids=ANOTHER_OBJECT)
@pytest.mark.parametrize("private", ["arrays", "numbers", "all"])
def test_an_object_that_is_inside_twice_is_seen_in_both_places(make, change, where, private):
    value = make()
    before = fingerprint(value)

    change(value)
    assert changed(before, fingerprint(value), private) == where


@pytest.mark.parametrize("private", ["arrays", "numbers", "all"])
def test_what_has_the_same_value_is_no_change_whether_it_is_one_object_or_two(private):
    rows = [1, {"a": np.arange(3)}]
    loop = [rows]
    loop.append(loop)
    one, two = [rows, rows, loop], [rows, copy.deepcopy(rows), loop]

    assert changed(fingerprint(one), fingerprint(two), private) is None
    assert changed(fingerprint(two), fingerprint(one), private) is None
    two[1][1]["a"][0] = 7
    assert changed(fingerprint(one), fingerprint(two), private) == "[1]"
    assert changed(fingerprint(two), fingerprint(one), private) == "[1]"


def test_an_object_that_is_cached_in_a_place_before_its_own_is_no_change():
    value = {"early": Holder(_cache=None), "rows": [np.zeros(2)]}
    before = fingerprint(value)

    value["early"]._cache = value["rows"]
    assert changed(before, fingerprint(value)) is None
    value["rows"][0] += 1
    assert changed(before, fingerprint(value)) is not None


def test_a_public_name_of_what_has_a_private_one_first_counts():
    value = Holder(_rows=[1, 2])
    value.rows = value._rows
    before = fingerprint(value)

    value.rows.append(3)
    assert changed(before, fingerprint(value)) == ".rows"


def test_a_cache_that_gets_attributes_is_no_change():
    class Cache(dict):
        pass

    value = Holder(_cache=Cache())
    before = fingerprint(value)

    value._cache.total = value._cache["total"] = 3
    assert changed(before, fingerprint(value)) is None


def test_values_that_refer_to_each_other_are_compared_once():
    """2,000 objects in a ring, whose first places all move; each comparison of all with all would take minutes."""
    ring = [Holder(next=None) for _ in range(2000)]
    for one, other in zip(ring, [*ring[1:], ring[0]]):
        one.next = other
    value = Holder(_hot=None, ring=ring)
    before = fingerprint(value)

    value._hot = ring[-1]
    begin = time.process_time()
    assert changed(before, fingerprint(value)) is None
    assert time.process_time() - begin < 5
    ring[1000].next = Holder(next=3)
    assert changed(before, fingerprint(value)) is not None


CHANGES = {
    "a slot is set": (Slots, lambda it: setattr(it, "rows", 1), ""),
    "a slot is deleted": (Slots, lambda it: delattr(it, "size"), ""),
    "a list of an own class gets an attribute": (Rows, lambda it: setattr(it, "note", 1), ""),
    "a range": (lambda: [range(2)], put(0, range(5)), "[0]"),
    "a slice": (lambda: [slice(2)], put(0, slice(5)), "[0]"),
    "a path": (lambda: [pathlib.Path("a")], put(0, pathlib.Path("b")), "[0]"),
    "a dtype of torch": (lambda: [torch.float32], put(0, torch.float64), "[0]"),
    "a device": (lambda: [torch.device("cpu")], put(0, torch.device("meta")), "[0]"),
    "a built-in function": (lambda: {"f": min}, put("f", max), "['f']"),
    "a function": (lambda: {"f": put}, put("f", nested), "['f']"),
    "a class": (lambda: {"f": Slots}, put("f", Rows), "['f']"),
    "a list becomes a tuple": (lambda: [[]], put(0, ()), "[0]"),
    "an array of another dtype": (lambda: [np.zeros(1)], put(0, np.zeros(1, int)), "[0]"),
    "a tensor of another dtype": (lambda: [torch.zeros(1)], put(0, torch.zeros(1, dtype=torch.float64).half()), "[0]"),
    "a generator has a child": (lambda: np.random.default_rng(0), lambda it: it.spawn(1), ""),
    "an iterator of a deque": (lambda: iter(collections.deque([1, 2])), next, ""),
    "a long record": (
        lambda: [np.zeros(1, [("x", float, 2000)])[0]],
        lambda it: it[0]["x"].__setitem__(1000, 1.0),
        "[0]",
    ),
    "a hook of a module": (
        lambda: Holder(hooked=torch.nn.Linear(1, 1), handle=None),
        lambda it: it.hooked._forward_hooks.update({0: max}),
        ".hooked._forward_hooks",
    ),
}


@pytest.mark.parametrize(("make", "change", "where"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_any_kind_is_seen(make, change, where):
    value = make()
    before = fingerprint(value)

    assert changed(before, fingerprint(value)) is None
    change(value)
    assert changed(before, fingerprint(value)) == where


def test_what_cannot_be_looked_at_is_no_error(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    numbers = np.load(tmp_path / "a.npz")
    numbers.close()
    file = h5py.File(tmp_path / "a.h5", "w")
    file.close()
    gone = weakref.proxy(Holder())

    value = [numbers, file, gone, [1]]
    before = fingerprint(value)
    assert changed(before, fingerprint(value)) is None
    value[3][0] = 2
    assert changed(before, fingerprint(value)) == "[3][0]"


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
    assert key not in value_kinds._KINDS
