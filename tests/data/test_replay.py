"""The replay buffer against a plain list, whatever is pushed; and its samples against chance."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from random_runs import case_count

from ding_lite.data import (
    EpisodeReplayBuffer,
    Episodes,
    LeafSpec,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Trajectories,
    Tree,
    flatten,
    nested,
    tree,
)
from ding_lite.engine import load_checkpoint, save_checkpoint

FLOAT = np.dtype(np.float32)


def numbered(first: int, n: int, is_nested: bool = False) -> dict:
    """Transitions first, first + 1, ... whose every leaf says which it is."""
    number = np.arange(first, first + n)
    obs = (number[:, None] + np.array([0, 0.25])).astype(np.float32)
    return {"number": number, "obs": {"x": obs, "y": {"z": number % 2 == 0}} if is_nested else obs}


def numbers_of(rows) -> list[int]:
    """Which transitions these are; every leaf of a row has to agree."""
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(nested(rows))}
    number = leaves["number",]
    obs = leaves.get(("obs",), leaves.get(("obs", "x")))
    np.testing.assert_array_equal(obs, number[:, None] + np.array([0, 0.25]))
    if ("obs", "y", "z") in leaves:
        np.testing.assert_array_equal(leaves["obs", "y", "z"], number % 2 == 0)
    return number.tolist()


def content(buffer: ReplayBuffer) -> list[int]:
    """Which transitions it holds, oldest first, by the state that it would save."""
    state = buffer.state_dict()
    held = [] if state["columns"] is None else numbers_of(state["columns"])
    assert len(held) == state["size"] == len(buffer) == buffer.count()
    return held[state["next"] :] + held[: state["next"]] if len(held) == buffer.capacity else held


def of(capacity: int = 10, pushed: int = 0, seed: int = 0) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, seed)
    if pushed:
        buffer.push(numbered(0, pushed))
    return buffer


def as_trajectories(rows: dict) -> Trajectories:
    """[N] rows as a rollout [N, 1]."""
    return Trajectories({name: as_trajectories(x).columns if isinstance(x, dict) else x[:, None] for name, x in rows.items()})


def as_tensors(rows: dict) -> dict:
    return {name: as_tensors(x) if isinstance(x, dict) else torch.from_numpy(x) for name, x in rows.items()}


FORMS = {"arrays": dict, "tensors": as_tensors, "a tree": tree, "a rollout": as_trajectories,
         "arrays in another order": lambda rows: dict(reversed(rows.items()))}  # fmt: skip
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


class Replay(RuleBasedStateMachine):
    """Any sequence of calls, on the buffer and on a list of numbers."""

    @initialize(capacity=st.integers(1, 12), is_nested=st.booleans(), with_spec=st.booleans())
    def begin(self, capacity, is_nested, with_spec):
        leaves = {"x": LeafSpec((2,), FLOAT), "y": {"z": LeafSpec((), np.dtype(bool))}} if is_nested else LeafSpec((2,), FLOAT)
        self.spec = {"number": LeafSpec((), np.dtype(np.int64)), "obs": leaves} if with_spec else None
        self.capacity, self.is_nested = capacity, is_nested
        self.buffer, self.held, self.pushed, self.saved = ReplayBuffer(capacity, spec=self.spec), [], 0, None
        self.knows_leaves = False

    @rule(n=st.integers(0, 30), form=st.sampled_from(list(FORMS.values())))
    def push(self, n, form):
        self.buffer.push(form(numbered(self.pushed, n, self.is_nested)))
        self.held = (self.held + list(range(self.pushed, self.pushed + n)))[-self.capacity :]
        self.pushed += n
        self.knows_leaves |= n > 0

    @rule(n=st.integers(1, 5))
    def push_what_does_not_fit(self, n):
        rows = numbered(self.pushed, n, self.is_nested)
        with pytest.raises(ValueError, match="pass the same"):
            self.buffer.push(
                {**rows, "number": rows["number"][:, None]} if self.knows_leaves else {**rows, "number": rows["number"][1:]}
            )

    @rule()
    def clear(self):
        self.buffer.clear()
        self.held = []

    @rule()
    def save(self):
        state = self.buffer.state_dict()
        columns = None if state["columns"] is None else nested(tree(state["columns"]).clone())
        self.saved = {**state, "columns": columns}, list(self.held)

    @precondition(lambda self: self.saved is not None)
    @rule(fresh=st.booleans())
    def load(self, fresh):
        if fresh:
            self.buffer = ReplayBuffer(self.capacity, seed=1, spec=self.spec)
            self.knows_leaves = self.saved[0]["columns"] is not None
        self.buffer.load_state_dict(self.saved[0])
        self.held = list(self.saved[1])

    @precondition(lambda self: self.held)
    @rule()
    def sample(self):
        assert set(numbers_of(self.buffer.sample(500))) == set(self.held)

    @invariant()
    def holds_what_the_list_holds(self):
        if hasattr(self, "buffer"):
            assert content(self.buffer) == self.held


Replay.TestCase.settings = settings(max_examples=case_count(60), stateful_step_count=15, deadline=None, derandomize=True)
TestHoldsWhatAListWouldHold = Replay.TestCase


@forms
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("sizes", [[1] * 25, [10, 10, 3], [7, 7, 7], [25], [3, 25, 4], [0, 4, 0, 9], [9, 1, 1], [10, 20, 31]])
def test_holds_the_last_transitions_oldest_first(sizes, is_nested, form):
    buffer, pushed = of(capacity=10), 0
    for n in sizes:
        buffer.push(form(numbered(pushed, n, is_nested)))
        pushed += n
        assert content(buffer) == list(range(max(0, pushed - 10), pushed))


def test_a_dict_may_hold_a_tree():
    buffer = of()
    for first in (0, 4):
        buffer.push({**numbered(first, 4), "obs": tree(numbered(first, 4, is_nested=True)).obs})

    assert content(buffer) == list(range(8))


def test_steps_that_were_only_resets_are_not_stored():
    valid = np.ones((4, 2), bool)
    valid[2, 0] = valid[0, 1] = False
    number = np.arange(8).reshape(4, 2)
    buffer = of()
    buffer.push(Trajectories({"number": number, "obs": number[..., None] + np.array([0, 0.25])}, valid))

    assert content(buffer) == [0, 2, 3, 5, 6, 7]


def test_what_was_pushed_is_copied():
    buffer, rows = of(), numbered(0, 4)
    buffer.push(rows)
    rows["number"][:] = rows["obs"][:] = -1

    assert content(buffer) == [0, 1, 2, 3]


@pytest.mark.parametrize(("capacity", "pushed"), [(50, 50), (50, 83), (50, 20)])
def test_samples_are_uniform_with_replacement(capacity, pushed):
    buffer, size = of(capacity, pushed), min(capacity, pushed)
    drawn = [numbers_of(buffer.sample(1000)) for _ in range(20)]
    count = np.bincount(np.concatenate(drawn))[-size:]
    chi_square = ((count - 20_000 / size) ** 2 / (20_000 / size)).sum()
    p_value = torch.special.gammaincc(torch.tensor((size - 1) / 2), torch.tensor(chi_square / 2)).item()

    assert count.sum() == 20_000
    assert 1e-3 < p_value < 1 - 1e-3  # too even would not be chance either


def test_consecutive_draws_are_independent_of_each_other():
    buffer = of(4, 4)
    pairs = np.concatenate([buffer.sample(1000).number.reshape(-1, 2).numpy() for _ in range(16)])
    count = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)

    assert ((count - 500) ** 2 / 500).sum() < 37.7  # chi-square of 15 degrees of freedom passes it once in 1000


def test_a_sample_is_a_tree_of_tensors():
    buffer = of()
    buffer.push(numbered(0, 4, is_nested=True))
    sample = buffer.sample(7)

    assert isinstance(sample, Tree)
    assert (sample.obs.x.shape, sample.obs.y.z.dtype, sample.number.dtype) == ((7, 2), torch.bool, torch.int64)
    assert buffer.sample(0).obs.x.shape == (0, 2)


@pytest.mark.parametrize("width", [1, 5000])
def test_samples_are_not_overwritten_by_later_samples_and_pushes(width):
    buffer = ReplayBuffer(20)
    held = []
    for k in range(12):
        number = np.arange(10 * k, 10 * k + 10)
        buffer.push({"number": number, "x": np.repeat(number[:, None], width, 1), "y": {"z": np.full((10, width), 7.0)}})
        sample = buffer.sample(16)
        held.append((sample if k % 2 else sample[3:], sample.number.tolist() if k % 2 else sample.number[3:].tolist()))
        if k % 3 == 2:
            del held[1], sample
        for one, number in held:
            assert one.number.tolist() == number
            assert torch.equal(one.x, one.number.unsqueeze(-1).expand(-1, width))
            assert (one.y.z == 7).all()


def test_writing_to_a_sample_does_not_change_the_buffer():
    buffer = of(pushed=4)
    buffer.sample(100).number.fill_(-1)

    assert content(buffer) == [0, 1, 2, 3]


def test_only_the_columns_that_are_wanted_are_sampled():
    same, all_of_it = of(pushed=9), of(pushed=9)
    batch, whole = same.sample(20, ("number", "unknown")), all_of_it.sample(20)

    assert set(batch.keys()) == {"number"}
    assert batch.number.tolist() == whole.number.tolist()
    assert set(same.sample(1, {"obs": 1, "number": 2}).keys()) == set(same.sample(1, None).keys()) == {"number", "obs"}


def test_one_name_in_the_place_of_several_is_refused():
    with pytest.raises(TypeError, match=r"sample\(columns='number'\) wants several names, got one string: write \('number',\)"):
        of(pushed=9).sample(1, "number")


def with_objects(first: int, n: int) -> dict:
    """Transitions with text, with objects that are lists, and with two texts a step within a space."""
    number = range(first, first + n)
    lists = np.empty(n, object)
    lists[:] = [[i, {"step": i}] for i in number]
    return {
        **numbered(first, n),
        "text": np.array([str(i) * (1 + i % 5) for i in number]),
        "lists": lists,
        "space": {"texts": np.array([[f"a{i}", f"b{i}"] for i in number], dtype=object).reshape(n, 2)},
    }


def assert_objects_fit(sample) -> None:
    number = sample.number.tolist()
    assert {type(sample[name]) for name in ("text", "lists")} == {type(sample.space.texts)} == {np.ndarray}
    assert sample.text.dtype == sample.lists.dtype == sample.space.texts.dtype == object
    assert sample.text.tolist() == [str(i) * (1 + i % 5) for i in number]
    assert sample.lists.tolist() == [[i, {"step": i}] for i in number]
    assert sample.space.texts.tolist() == [[f"a{i}", f"b{i}"] for i in number]


def test_text_and_objects_are_kept_whole_and_come_out_as_arrays_of_objects():
    buffer = of()
    for first, n in ((0, 3), (3, 4), (7, 8)):
        buffer.push(with_objects(first, n))
        assert_objects_fit(buffer.sample(50))

    assert set(buffer.sample(500).number.tolist()) == set(range(5, 15))


@pytest.mark.parametrize(("pushed", "used"), [(0, 3), (4, 0), (4, 7), (14, 0), (14, 14)])
def test_text_and_objects_go_on_from_a_checkpoint(pushed, used, tmp_path):
    straight, resumed = of(), of(seed=5)
    for buffer, count in ((straight, pushed), (resumed, used)):
        if count:
            buffer.push(with_objects(0, count))
    resumed.load_state_dict(load_checkpoint(save_checkpoint(straight.state_dict(), tmp_path / "buffer.pt")))
    for buffer in (straight, resumed):
        buffer.push(with_objects(100, 3))
    sample = resumed.sample(30)

    assert_objects_fit(sample)
    assert sample.number.tolist() == straight.sample(30).number.tolist()


@pytest.mark.parametrize("leaf", [np.zeros(2), np.zeros(2, bool), np.array([["a"], ["b"]])])
def test_numbers_in_the_place_of_text_are_refused(leaf):
    buffer = ReplayBuffer(10)
    buffer.push({"text": np.array(["a", "b"])})
    with pytest.raises(ValueError, match=r"holds text as object \(2,\) got"):
        buffer.push({"text": leaf})


def test_the_seed_decides_the_samples():
    same, again, other = of(pushed=9), of(pushed=9), of(pushed=9, seed=1)
    first = [same.sample(20).number.tolist() for _ in range(3)]

    assert [again.sample(20).number.tolist() for _ in range(3)] == first
    assert [other.sample(20).number.tolist() for _ in range(3)] != first
    assert first[0] != first[1]


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    ("held", "given", "fits"),
    [
        (np.int32, np.array([7, 2**33 + 5]), False),
        (np.int32, np.array([7, 2**31 - 1]), True),
        (np.uint8, np.array([7, 300], np.uint16), False),
        (np.int64, np.array([7, 2**63], np.uint64), False),
        (np.float32, np.array([7, 1e300]), False),
        (np.float32, np.array([0.1, np.nan, np.inf]), True),
        (np.float16, np.array([7, 70000], np.float32), False),
        (np.float32, np.array([7, 12]), True),
    ],
)
def test_a_number_that_a_column_cannot_hold_is_refused_by_name(make, is_nested, held, given, fits):
    def batch(numbers):
        return {"in": {"id": numbers}} if is_nested else {"id": numbers}

    buffer = make(10)
    buffer.push(batch(np.array([1], held)))
    for _ in range(2):  # the second time it looks as before
        if fits:
            buffer.push(batch(given))
            continue
        name = "in/id" if is_nested else "id"
        with pytest.raises(ValueError, match=rf"column {name} has dtype {np.dtype(held)}, .*which {np.dtype(held)} can"):
            buffer.push(batch(given))
        assert len(buffer) == 1
    buffer.push(batch(np.array([2, 3], given.dtype)))
    assert len(buffer) == (3 if not fits else 3 + 2 * len(given))


def test_sampling_uses_no_global_randomness():
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002  it is what must not move
    of(pushed=9).sample(20)

    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


GOOD = numbered(0, 4, is_nested=True)
REFUSED = {
    "a leaf missing": ({"number": GOOD["number"]}, r"leaves \['number', 'obs/x', 'obs/y/z'\] got \['number'\]"),
    "a leaf too many": ({**GOOD, "more": GOOD["number"]}, "'more'.*pass the same leaves"),
    "a leaf of another name": ({**GOOD, "obs": {"x": GOOD["obs"]["x"], "y": {"w": GOOD["obs"]["y"]["z"]}}}, "obs/y/w"),
    "another shape": ({**GOOD, "number": np.zeros((4, 1), int)}, r"number as int64 \(4,\) got int64 \(4, 1\)"),
    "another shape below": ({**GOOD, "obs": {**GOOD["obs"], "x": np.zeros((4, 3), FLOAT)}}, r"obs/x as float32 \(4, 2\)"),
    "another length": ({**GOOD, "obs": {**GOOD["obs"], "x": np.zeros((3, 2), FLOAT)}}, r"\(4, 2\) got float32 \(3, 2\)"),
    "another kind of dtype": ({**GOOD, "number": np.zeros(4)}, "number as int64.*got float64"),
    "bytes for flags": ({**GOOD, "obs": {**GOOD["obs"], "y": {"z": np.zeros(4, np.uint8)}}}, "z as bool.*got uint8"),
    "text": ({**GOOD, "number": np.array(["a", "b", "c", "d"])}, "number as int64"),
    "no leaves": ({}, "wants a batch with named leaves"),
    "an array": (np.zeros(4), "wants a batch with named leaves, got a ndarray"),
    "nothing": (None, "wants a batch with named leaves, got a NoneType"),
    "a list": ([GOOD], "holds number as int64 .1,. got int64 .1, 4."),
    "a single transition": ({**GOOD, "number": np.int64(3)}, "number"),
    "numbers without an axis": ({"number": 3, "obs": {"x": 1.0, "y": {"z": True}}}, "number"),
}  # fmt: skip


@pytest.mark.parametrize(("batch", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(batch, message):
    buffer = of()
    buffer.push(numbered(0, 4, is_nested=True))
    with pytest.raises(ValueError, match=message):
        buffer.push(batch)

    assert content(buffer) == [0, 1, 2, 3]
    buffer.push(numbered(4, 4, is_nested=True))
    assert content(buffer) == list(range(8))


@pytest.mark.parametrize("n", [1, 3, 6])
def test_a_refused_batch_does_not_disturb_the_next_one(n):
    buffer = of(pushed=3)
    with pytest.raises(ValueError, match="pass the same"):
        buffer.push({**numbered(3, n), "number": np.zeros(n)})
    buffer.push(numbered(3, 3))

    assert content(buffer) == list(range(6))


def test_a_refused_first_batch_decides_nothing():
    buffer = of()
    with pytest.raises(ValueError, match=r"number.*other leaves have 4 rows"):
        buffer.push({"obs": np.zeros((4, 3), FLOAT), "number": np.zeros((3, 1))})
    assert (buffer.bytes_per_transition, len(buffer)) == (0, 0)
    buffer.push(numbered(0, 4))

    assert content(buffer) == [0, 1, 2, 3]


SINGLE = {
    "a number": ({"x": 1.0}, r"x = 1\.0"),
    "a number of numpy": ({"x": np.float32(1)}, r"x = 1\.0"),
    "an array": ({"y": np.ones(3), "x": np.zeros((), np.int64)}, "x = 0"),
    "a tensor": ({"obs": {"x": torch.tensor(True)}}, "obs/x = True"),
    "text": ({"x": "words"}, "x = 'words'"),
    "nothing": ({"x": None}, "x = None"),
}


@pytest.mark.parametrize(("batch", "words"), SINGLE.values(), ids=SINGLE.keys())
def test_single_values_are_refused_by_name(batch, words):
    message = rf"push\(\) wants rows \[N, ...\] of each leaf, got {words}, a single value: for one transition pass \[value\]"
    with pytest.raises(ValueError, match=message):
        of().push(batch)
    buffer = of(pushed=4)
    with pytest.raises(ValueError, match=message):
        buffer.push({**batch, "number": np.arange(3)})

    assert content(buffer) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_lists_are_rows_at_the_first_push_and_later(kind):
    buffer = kind(4)
    for first in (1, 4):
        buffer.push({"x": [first, first + 1, first + 2], "y": {"z": [[0.5, first]] * 3}, "word": ["a", "longer", "b"]})
    batch = buffer.sample(100)

    assert (batch.x.dtype, batch.y.z.dtype, batch.word.dtype) == (torch.int64, torch.float64, object)
    assert (set(batch.x.tolist()), batch.y.z.shape) == ({3, 4, 5, 6}, (100, 2))
    assert set(batch.word.tolist()) == {"a", "longer", "b"}


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_of_tensors_with_a_gradient_the_numbers_are_kept(kind):
    buffer = kind(4)
    for _ in range(2):  # the second push fits by its look alone
        buffer.push({"x": torch.ones(3, 2, requires_grad=True), "y": {"z": torch.nn.Parameter(torch.zeros(3))}})
    batch = buffer.sample(10)

    assert not batch.x.requires_grad
    assert (batch.x.tolist(), batch.y.z.tolist()) == ([[1, 1]] * 10, [0] * 10)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=rf"ReplayBuffer\(capacity={capacity}\): the capacity must be at least 1"):
        ReplayBuffer(capacity)


@pytest.mark.parametrize("spec", [None, {"x": LeafSpec((2,), FLOAT)}])
def test_sampling_from_an_empty_buffer_is_refused(spec):
    buffer = ReplayBuffer(10, spec=spec)
    with pytest.raises(ValueError, match=r"sample\(\) from an empty replay buffer: push transitions first"):
        buffer.sample(1)
    buffer.push({"x": np.zeros((1, 2), FLOAT)})
    buffer.clear()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)


def test_it_knows_its_size_in_bytes_before_and_after_the_first_push():
    spec = {
        "obs": {"x": LeafSpec((2,), FLOAT), "y": {"z": LeafSpec((), np.dtype(bool))}},
        "number": LeafSpec((), np.dtype(np.int64)),
    }
    told, learnt = ReplayBuffer(10, spec=spec), ReplayBuffer(10)
    assert (learnt.bytes_per_transition, learnt.nbytes) == (0, 0)
    learnt.push(numbered(0, 4, is_nested=True))

    assert (told.bytes_per_transition, told.nbytes) == (learnt.bytes_per_transition, learnt.nbytes) == (17, 170)


def test_the_dtypes_of_the_spec_are_kept():
    buffer = ReplayBuffer(10, spec={"x": LeafSpec((), FLOAT)})
    buffer.push({"x": np.arange(3.0)})

    assert buffer.sample(5).x.dtype == torch.float32
    with pytest.raises(ValueError, match="x as float32"):
        buffer.push({"x": np.zeros((3, 2))})


def test_more_memory_than_there_is_is_refused_before_it_is_taken():
    spec = {"x": LeafSpec((1000,), FLOAT)}
    with pytest.raises(
        MemoryError, match=r"10,000,000,000 transitions of 4,000 bytes needs 40000\.0 GB.*lower replay_buffer_size"
    ):
        ReplayBuffer(10**10, spec=spec)
    buffer = ReplayBuffer(10**10)
    with pytest.raises(MemoryError, match="needs 40000"):
        buffer.push({"x": np.zeros((1, 1000), FLOAT)})
    assert len(buffer) == 0


@pytest.mark.parametrize("pushed", [0, 4, 10, 27])
@pytest.mark.parametrize("used", [0, 3, 15])
def test_a_buffer_goes_on_from_a_checkpoint_as_if_nothing_had_happened(pushed, used, tmp_path):
    straight, resumed = of(pushed=pushed), of(pushed=used, seed=5)
    if pushed:
        straight.sample(3)
    resumed.load_state_dict(load_checkpoint(save_checkpoint(straight.state_dict(), tmp_path / "buffer.pt")))

    assert content(resumed) == content(straight)
    for first in (100, 103, 106, 120):
        for buffer in (straight, resumed):
            buffer.push(numbered(first, 3))
        assert content(resumed) == content(straight)
        assert numbers_of(resumed.sample(20)) == numbers_of(straight.sample(20))


def test_a_batch_after_a_restored_state_counts_as_it_is():
    buffer = of(pushed=1)
    buffer.push(numbered(1, 1))
    buffer.load_state_dict(buffer.state_dict())
    buffer.push(numbered(2, 1))

    assert content(buffer) == [0, 1, 2]


def test_a_state_of_another_capacity_is_refused():
    with pytest.raises(ValueError, match="of capacity 5 cannot load a state of capacity 10"):
        of(5).load_state_dict(of(10, pushed=3).state_dict())


def test_a_state_with_other_leaves_is_refused_and_changes_nothing():
    other, buffer = of(pushed=3), of(pushed=2)
    state = other.state_dict()
    state["columns"] = {"x": state["columns"]["number"]}
    with pytest.raises(ValueError, match=r"\['number', 'obs'\] got \['x'\]"):
        buffer.load_state_dict(state)

    assert content(buffer) == [0, 1]


BROKEN = {
    "a size beyond its capacity": ({"size": 11}, r"size = 11, expected an integer from 0 to 10"),
    "a negative size": ({"size": -1}, "size = -1, expected an integer from 0"),
    "a size that is no integer": ({"size": 4.0}, r"size = 4\.0, expected an integer"),
    "a size of True": ({"size": True}, "size = True, expected an integer"),
    "a position beyond its capacity": ({"next": 10}, "next = 10, expected an integer from 0 to 9"),
    "a negative position": ({"next": -1}, "next = -1"),
    "a position in the middle of too few": ({"next": 2}, r"next = 2, expected 4, because the buffer is not full"),
    "more rows than its size": ({"size": 3, "next": 3}, r"columns/.* = \(4,.*, expected 3 rows"),
    "no columns": ({"columns": None}, "columns = None, expected columns of 4 transitions"),
    "columns by no name": ({"columns": [1]}, r"columns = \[1\], expected tensors and lists by name"),
    "no column": ({"columns": {}}, r"columns = {}, expected at least one"),
    "a column of text": ({"columns": {"number": "x", "obs": torch.zeros(4, 2)}}, "columns/number = 'x', expected a tensor"),
    "a generator of another kind": ({"rng": {"bit_generator": "MT19937"}}, "rng = .*expected the state of a PCG64 of numpy"),
    "no generator": ({"rng": None}, "rng = None, expected the state of a PCG64"),
    "a generator without numbers": ({"rng": {"bit_generator": "PCG64", "state": {}}}, "rng = .*PCG64"),
    "a key that it does not have": ({"scaled": 1}, r"not the state of a replay buffer: the keys \['scaled'\] are unknown"),
}


@pytest.mark.parametrize(("changes", "words"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("used", [0, 2])
def test_a_state_in_which_no_buffer_can_be_is_refused_and_changes_nothing(changes, words, used, digest):
    buffer = of(pushed=used)
    before = digest(buffer.state_dict())
    with pytest.raises(ValueError, match=words):
        buffer.load_state_dict({**of(pushed=4).state_dict(), **changes})

    assert digest(buffer.state_dict()) == before
    buffer.push(numbered(used, 3))
    assert content(buffer) == list(range(used + 3))


@pytest.mark.parametrize("key", ["state", "inc"])
@pytest.mark.parametrize("number", [-1, 2**128, 0.5, "1", None])
def test_a_generator_whose_numbers_it_cannot_have_is_refused(key, number):
    state = of(pushed=4).state_dict()
    state["rng"]["state"][key] = number
    with pytest.raises(ValueError, match="rng = .*expected the state of a PCG64 of numpy. Nothing was loaded"):
        of().load_state_dict(state)


def test_a_state_of_another_dtype_or_shape_is_refused_and_changes_nothing():
    buffer, state = of(pushed=2), of(pushed=4).state_dict()
    for changed, words in [
        (state["columns"]["obs"].double(), "columns/obs = dtype..float64.., expected float32"),
        (state["columns"]["obs"][:, :1], r"holds obs as float32 \(4, 2\) got float32 \(4, 1\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            buffer.load_state_dict({**state, "columns": {**state["columns"], "obs": changed}})

    assert content(buffer) == [0, 1]


def test_objects_that_do_not_fill_their_rows_are_refused():
    buffer = ReplayBuffer(10)
    buffer.push({"word": ["a", "b", "c"]})
    state = buffer.state_dict()
    with pytest.raises(ValueError, match=r"columns/word = '2 objects', expected 3 for 3 rows of shape \(\)"):
        ReplayBuffer(10).load_state_dict({**state, "columns": {"word": ["a", "b"]}})
    with pytest.raises(ValueError, match=r"columns/word = \['a', 'b', 'c'\], expected a tensor, or a list of objects"):
        ReplayBuffer(10).load_state_dict({**state, "shapes": []})
    for shapes in (None, 3, [0], [["word"]], [["word", []]], [[["word"], [-1]]], [[["word"], ["a"]]], [[[1], []]]):
        with pytest.raises(ValueError, match=r"shapes = .*, expected a list with \[path, shape\] of each column"):
            ReplayBuffer(10).load_state_dict({**state, "shapes": shapes})


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("buffer.pt", r"load_state_dict\('buffer.pt'\) .*wants a state, got a path: .*load_checkpoint\('buffer.pt'\)"),
        (Path("a") / "b.pt", r"load_state_dict\('a/b.pt'\)"),
        ([1], r"load_state_dict\(\) of a .*replay buffer wants the dict from state_dict\(\), got a list"),
        (None, "got a NoneType"),
    ],
)
def test_what_is_no_state_is_refused_with_how_to_load_a_file(kind, state, words):
    with pytest.raises(TypeError, match=words):
        kind(10).load_state_dict(state)


def test_a_state_that_memory_cannot_hold_is_refused_before_anything_is_changed():
    large = ReplayBuffer(10**6)
    state = {**ReplayBuffer(10**6).state_dict(), "columns": {"x": torch.zeros(0, 1).expand(0, 100_000_000)}}
    with pytest.raises(MemoryError, match="needs 400000"):
        large.load_state_dict(state)

    assert large.nbytes == 0


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, EpisodeReplayBuffer])
def test_more_transitions_at_once_than_it_holds_are_a_warning_once(kind):
    ends = np.arange(25) % 5 == 4
    obs = np.arange(26.0, dtype=np.float32)
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "terminated": ends, "truncated": ends & False}
    rows = Episodes(columns, [5] * 5)
    buffer = kind(10)
    words = rf"{kind.__name__}\(capacity=10\) got 25 transitions at once: the last 10 are kept, and the first 15 are lost. Use"
    with pytest.warns(UserWarning, match=words) as warned:
        buffer.push(rows)
    assert Path(warned[0].filename).name == "test_replay.py"
    assert sorted(buffer.sample(200).obs.unique().tolist()) == list(range(15, 25))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.push(rows)
        kind(10).push(Episodes({name: column[:10] for name, column in columns.items()}, [5, 5]))


KINDS = {
    "uniform": ReplayBuffer,
    "prioritised": PrioritizedReplayBuffer,
    "shared frames": lambda capacity: ReplayBuffer(capacity, share_frames=True),
    "episodes": EpisodeReplayBuffer,
}


def episode(first: int, length: int, version: int | None) -> Episodes:
    """One episode, from demonstrations (no version) or as a collector returns it."""
    number = np.arange(first, first + length)
    frames = np.repeat(number, 16 * 16).reshape(length, 16, 16, 1).astype(np.uint8)
    rows = {"obs": frames, "next_obs": frames + 1, "number": number, "truncated": np.zeros(length, bool)}
    rows["terminated"] = number == number[-1]
    return Episodes(rows if version is None else {**rows, "policy_version": np.full(length, version)}, np.array([length]))


def pushed(kind: str, order: list[int | None]) -> ReplayBuffer:
    buffer = KINDS[kind](20)
    for first, version in zip(range(0, 100, 5), order, strict=False):
        buffer.push(episode(first, 5, version))
    return buffer


def versions_of(buffer: ReplayBuffer) -> dict[int, int]:
    held = buffer.sample(400)
    return dict(zip(held.number.tolist(), held.policy_version.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [[None, 3], [3, None], [None, None, 3, 4], [None, 3, None, None, 4, 5]], ids=str)
def test_demonstrations_and_collected_data_share_a_buffer_and_the_version_of_demonstrations_is_unknown(kind, order):
    buffer = pushed(kind, order)
    known = {5 * place + step: -1 if version is None else version for place, version in enumerate(order) for step in range(5)}
    assert versions_of(buffer) == dict(list(known.items())[-20:])

    for again in (pushed(kind, []), pushed(kind, [None]), pushed(kind, [7])):  # a resumed script pushes demonstrations first
        again.load_state_dict(buffer.state_dict())
        assert versions_of(again) == versions_of(buffer)
        again.push(episode(200, 5, 8))
        assert versions_of(again)[204] == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_without_versions_fits_a_buffer_that_has_them(kind):
    again = pushed(kind, [3, 4])
    again.load_state_dict(pushed(kind, [None]).state_dict())
    assert versions_of(again) == dict.fromkeys(range(5), -1)


def test_a_buffer_without_versions_gets_none():
    assert "policy_version" not in pushed("uniform", [None, None]).sample(2)


def test_other_columns_must_be_in_each_push_and_a_refused_push_changes_nothing():
    buffer = pushed("uniform", [None])
    for rows in ({"obs": np.zeros((3, 16, 16, 1), np.uint8), "policy_version": np.zeros(3, np.int64)}, {}):
        with pytest.raises(ValueError, match="pass the same leaves in each push|a batch with named leaves"):
            buffer.push(rows)
    other = {**episode(0, 3, None).rows(), "policy_version": np.zeros((3, 2))}  # not that of a collector
    with pytest.raises(ValueError, match="pass the same leaves in each push"):
        buffer.push(other)
    assert "policy_version" not in buffer.sample(2)
    assert len(buffer) == 5


def test_what_was_saved_in_pieces_before_versions_came_is_saved_again():
    buffer = pushed("uniform", [None])
    before = buffer.state_in_pieces()["columns"]
    buffer.push(episode(5, 5, 2))
    assert buffer.state_in_pieces()["columns"].version is not before.version


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_bfloat16_is_stored_as_the_same_numbers_of_float32(make):
    given, buffer = torch.tensor([[0.5, -3.0], [1e30, 0.1]]).bfloat16(), make(10)
    for _ in range(2):
        buffer.push({"x": given})
    batch = buffer.sample(50).x

    assert batch.dtype == torch.float32
    assert torch.equal(batch.unique(dim=0), given.float().unique(dim=0))


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (np.zeros(2, ">f4"), r"obs/x of dtype >f4, .* pass obs/x.astype\(np.float32\)"),
        (np.zeros(2, ">i8"), r"obs/x of dtype >i8, .* pass obs/x.astype\(np.int64\)"),
        (np.zeros(2, "datetime64[D]"), r"of dtype datetime64\[D\], .* pass an array of numbers, .* or of objects"),
        (np.zeros(2, [("a", np.int64)]), "pass an array of numbers"),
        (np.zeros(2, np.longdouble), r"pass obs/x.astype\(np.float64\)"),
    ],
)
@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_dtype_that_tensors_do_not_have_is_refused_in_push(make, leaf, words):
    if leaf.dtype == np.float64:
        pytest.skip("a long double is a float64 on this machine")
    buffer = make(4)
    with pytest.raises(ValueError, match=words):
        buffer.push({"obs": {"x": leaf}})
    assert len(buffer) == 0
    buffer.push({"obs": {"x": np.zeros(2, np.float32)}})
    with pytest.raises(ValueError, match="of dtype"):
        make(4, spec={"obs": {"x": LeafSpec((), leaf.dtype)}})


@pytest.mark.parametrize("dtype", [">f4", np.longdouble])
def test_such_numbers_are_cast_where_the_column_has_a_dtype_of_tensors(dtype):
    buffer = ReplayBuffer(4)
    buffer.push({"x": np.zeros(2, np.float64)})
    buffer.push({"x": np.array([2, 3], dtype)})

    assert sorted(buffer.sample(99).x.unique().tolist()) == [0, 2, 3]
