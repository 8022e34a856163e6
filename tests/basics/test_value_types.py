"""Types of values that a file does not keep, in states of runs and in kept fields of a context."""

import collections
import dataclasses
import enum
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import Context, Task
from ding_lite.basics import CheckpointError, RunFiles, run_files
from ding_lite.engine import RunStateError
from ding_lite.middleware import CkptSaver

Pair = collections.namedtuple("Pair", "first second")


class Colour(enum.IntEnum):
    RED = 0


VALUES = {
    "float32": np.float32(0.1),
    "int8": np.int8(-3),
    "bool": np.bool_(True),
    "complex64": np.complex64(1j),
    "array": np.arange(6, dtype=np.float16).reshape(2, 3),
    "array without axes": np.array(1.5),
    "empty array": np.zeros((0, 3), np.uint8),
    "Counter": collections.Counter("aab"),
    "OrderedDict": collections.OrderedDict(b=1, a=np.float32(2)),
    "nested": {"x": [np.float32(1), (np.arange(2), {"y": collections.Counter("ab")}, 1.0)], "z": np.int64(3)},
    "in a tuple": (np.float32(1), (np.zeros(1),), collections.Counter("a")),
    "plain": [None, True, 1, 2.0, 1j, "text", {}, (), torch.ones(2, dtype=torch.bfloat16)],
}


def described(value):
    """Types and contents, all the way down."""
    if isinstance(value, dict):
        return type(value), [(key, described(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(inner) for inner in value]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return type(value), value.dtype, tuple(value.shape), value.tolist()
    return type(value), value


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_state_of_a_run_comes_back_with_its_types(value, tmp_path):
    files = RunFiles(tmp_path)
    files.save({"part": {"value": value}}, 1)
    assert described(files.load()[0]) == described({"part": {"value": value}})


def test_types_that_do_not_fit_are_damage(tmp_path, monkeypatch):
    files = RunFiles(tmp_path)
    monkeypatch.setattr(run_files, "types_of", lambda state: [{"path": ["y"], "type": "float32"}])
    files.save({"x": 1.0}, 1)
    with pytest.raises(CheckpointError, match="its types do not fit its values"):
        files.load()


def kept(first, following, folder, max_step, resume=None):
    """A run whose kept field is replaced in each iteration; its last value."""

    @dataclasses.dataclass
    class Holder(Context):
        value: Any = dataclasses.field(default_factory=lambda: first, metadata={"kept": True})

    def step(ctx):
        ctx.value = following(ctx.value)

    with Task().start(ctx=Holder(), resume=resume) as loop:
        loop.use(step).use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1)).run(max_step)
        return loop.ctx.value


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.asfortranarray(np.ones((2, 3, 4)))[:, ::2],
        np.arange(6.0)[::-1],
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(24.0).reshape(4, 6).t()[::3, ::2],
        torch.ones(3, 1).expand(3, 4),
    ],
    ids=["transposed", "part", "reversed", "permuted", "view", "expanded"],
)
def test_dimensions_keep_their_order_in_memory_on_which_the_last_bit_of_sums_depends(value, tmp_path):
    files = RunFiles(tmp_path)
    files.save({"x": value}, 1)
    found = files.load()[0]["x"]
    strides = [array.stride() if isinstance(array, torch.Tensor) else array.strides for array in (value, found)]
    order, kept = (sorted(range(value.ndim), key=[abs(one) for one in stride].__getitem__) for stride in strides)

    assert described(found) == described(value)
    assert order == kept


@pytest.mark.filterwarnings("ignore:.*keeps 'value'")
@pytest.mark.parametrize(
    ("first", "following"),
    [
        (np.float32(0), lambda it: it + 0.1),
        (np.zeros(2, np.float16), lambda it: it + np.float16(0.1)),
        (collections.Counter("a"), lambda it: it + collections.Counter("ab")),
        ([np.float64(1)], lambda it: [*it, it[-1] / 3]),
    ],
    ids=["float32", "array", "Counter", "list"],
)
def test_a_kept_field_continues_with_its_type(first, following, tmp_path):
    unbroken = kept(first, following, tmp_path / "whole", 8)
    kept(first, following, tmp_path / "run", 3)
    assert described(kept(first, following, tmp_path / "run", 8, tmp_path / "run")) == described(unbroken)


@pytest.mark.filterwarnings("ignore:.*keeps 'value'")
@pytest.mark.parametrize(
    "value",
    [
        collections.defaultdict(int),
        Pair(1, 2),
        Colour.RED,
        {1, 2},
        collections.deque([1]),
        torch.nn.Parameter(torch.ones(1)),
        {"inner": [Pair(1, 2)]},
        np.random.default_rng(0),
        b"bytes",
        np.arange(3.0).astype(">f8"),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, requires_grad=True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kept_field_that_would_change_its_type_is_named_when_the_run_is_saved(value, tmp_path):
    with pytest.warns(
        UserWarning,
        match=r"this run cannot be resumed later.*the kept field ctx\.value.*( is a [^,]+, which|requires a gradient)",
    ):
        kept(value, lambda it: it, tmp_path, 2)


@pytest.mark.filterwarnings("ignore:.*keeps 'value'")
def test_a_state_in_memory_is_a_copy_of_kept_fields():
    @dataclasses.dataclass
    class Holder(Context):
        value: Any = dataclasses.field(default_factory=list, metadata={"kept": True})

    with Task().start(ctx=Holder()) as loop:
        loop.use(lambda ctx: ctx.value.append(ctx.total_step)).run(2)
        state = loop.state_dict()
        loop.run(2)
        assert (loop.ctx.value, state["context"]["kept"]["value"]) == ([0, 1, 2, 3], [0, 1])
        loop.ctx.value = {1}
        with pytest.raises(RunStateError, match=r"ctx\.value is a set"):
            loop.state_dict()
