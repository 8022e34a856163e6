"""Replay buffers that are saved in pieces: the loaded state is that of state_dict(), after any calls."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from random_runs import case_count
from states import same

from ding_lite.basics import RunFiles, plain, row_files
from ding_lite.data import LeafSpec, PrioritizedReplayBuffer, ReplayBuffer, Trajectories
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.sequences import cut_sequences


def flat(first, n):
    number = np.arange(first, first + n)
    return {"number": number, "obs": (number[:, None] + np.array([0, 0.25])).astype(np.float32), "done": number % 3 == 0}


def nested(first, n):
    return {"number": np.arange(first, first + n), "obs": {"a": flat(first, n)["obs"], "b": {"c": np.arange(n) % 2 == 0}}}


def with_objects(first, n):
    pairs = to_objects([text for number in range(first, first + n) for text in (f"n{number}", None)]).reshape(n, 2)
    return {**flat(first, n), "info": {"word": to_objects([str(number) for number in range(n)]), "pair": pairs}}


def with_lists(first, n):
    return {**flat(first, n), "info": to_objects([[number] for number in range(first, first + n)])}


def sequences(first, n):
    rows = {name: column[:, None] for name, column in flat(first, 3 * n).items()}
    return cut_sequences(Trajectories({**rows, "state_in_0": rows["number"]}), 3) if n else {
        name: column[:0] for name, column in sequences(first, 1).items()
    }  # fmt: skip


ROWS = [flat, nested, with_objects, with_lists, sequences]
BUFFERS = [ReplayBuffer, PrioritizedReplayBuffer]


class Pieces(RuleBasedStateMachine):
    """Any sequence of calls on several buffers, with saves and loads."""

    @initialize(
        capacities=st.lists(st.integers(1, 12), min_size=1, max_size=3),  # of rows, each of which may get a file
        rows=st.lists(st.sampled_from(ROWS), min_size=3, max_size=3),
        kinds=st.lists(st.sampled_from(BUFFERS), min_size=3, max_size=3),
        smallest=st.sampled_from([1, 40, 120]),
        largest=st.sampled_from([1, 60, 10_000]),
    )
    def begin(self, capacities, rows, kinds, smallest, largest):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(row_files, "_SMALLEST", smallest)
        self.patch.setattr(row_files, "_LARGEST", largest)
        self.folder = tempfile.TemporaryDirectory()
        self.files, self.done, self.saved = RunFiles(self.folder.name), 0, None
        self.rows, self.pushed = rows, 0
        self.buffers = [kind(capacity, seed) for seed, (kind, capacity) in enumerate(zip(kinds, capacities))]

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()
            self.patch.undo()

    def pick(self, number):
        return number % len(self.buffers)

    @rule(number=st.integers(0, 2), n=st.one_of(st.integers(0, 4), st.integers(0, 36)))
    def push(self, number, n):
        self.buffers[self.pick(number)].push(self.rows[self.pick(number)](self.pushed, n))
        self.pushed += n

    @rule(number=st.integers(0, 2), size=st.integers(1, 5))
    def sample(self, number, size):
        buffer = self.buffers[self.pick(number)]
        if not len(buffer):
            return
        batch = buffer.sample(size)
        if isinstance(buffer, PrioritizedReplayBuffer):
            buffer.update_priority(batch.index, np.arange(size) / 2)
        if self.rows[self.pick(number)] is with_lists:
            batch.info[0].append("changed in place")

    @rule(number=st.integers(0, 2))
    def clear(self, number):
        self.buffers[self.pick(number)].clear()

    def state(self, in_pieces):
        parts = {f"buffer {n}": b.state_in_pieces() if in_pieces else b.state_dict() for n, b in enumerate(self.buffers)}
        return {"done": self.done, "parts": parts}

    @rule()
    def save(self):
        self.done += 1
        path = self.files.save(self.state(in_pieces=True), self.done)
        self.saved = row_files.serialised(plain(self.state(in_pieces=False)))
        state, source = RunFiles(self.folder.name).load()
        assert source == path
        assert same(state, self.whole())

    def whole(self):
        Path(self.folder.name, "whole.pt").write_bytes(self.saved)
        return torch.load(Path(self.folder.name, "whole.pt"), weights_only=True)

    @precondition(lambda self: self.saved)
    @rule(is_new_program=st.booleans())
    def load(self, is_new_program):
        state, _ = RunFiles(self.folder.name).load()
        assert same(state, self.whole())
        if is_new_program:
            self.files = RunFiles(self.folder.name)
            self.buffers = [type(buffer)(buffer.capacity, seed=9) for buffer in self.buffers]
        for buffer, saved in zip(self.buffers, state["parts"].values()):
            buffer.load_state_dict(saved)
        if is_new_program:  # a buffer that has columns keeps them
            assert same(plain(self.state(in_pieces=False)), {**self.whole(), "done": self.done})


Pieces.TestCase.settings = settings(max_examples=case_count(40), stateful_step_count=30, deadline=None)
TestPieces = Pieces.TestCase


def saved_twice(buffer, folder, rows):
    """Save before and after pushing these rows; the state in the files, and the whole one."""
    files = RunFiles(folder)
    for done in range(2):
        files.save({"parts": {"buffer": buffer.state_in_pieces()}}, done)
        if not done:
            buffer.push(rows)
    return files.load()[0]["parts"]["buffer"], plain(buffer.state_dict())


@pytest.mark.parametrize("kind", BUFFERS)
def test_an_empty_buffer_comes_back_with_its_columns(kind, tmp_path):
    spec = {"x": LeafSpec((2,), np.dtype(np.float32)), "y": {"z": LeafSpec((), np.dtype(bool))}}
    for number, buffer in enumerate([kind(5), kind(5, spec=spec)]):
        assert same(
            *saved_twice(buffer, tmp_path / str(number), {"x": np.zeros((0, 2), np.float32), "y": {"z": np.zeros(0, bool)}})
        )


def test_only_new_transitions_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "_SMALLEST", 100)
    copied = []

    class Watched(ReplayBuffer):
        def _rows(self, first, stop):
            copied.append((first, stop))
            return super()._rows(first, stop)

    buffer = Watched(1000)
    buffer.push(flat(0, 1000))
    assert same(*saved_twice(buffer, tmp_path, flat(1000, 20)))
    assert copied == [(0, 1000), (1000, 1000), (1000, 1020), (1020, 1020)]


def test_a_subclass_with_a_state_of_its_own_is_saved_whole(tmp_path):
    class Mine(ReplayBuffer):
        def state_dict(self):
            return {**super().state_dict(), "mine": 1}

    buffer = Mine(10)
    buffer.push(flat(0, 3))
    state, whole = saved_twice(buffer, tmp_path, flat(3, 20))
    assert state["mine"] == 1
    assert same(state, whole)
