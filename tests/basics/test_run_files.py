"""Files of a saved run: a save writes what is new, and no fault or damage loads another state."""

import contextlib
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from file_faults import Faults, overwrite
from states import Armed, same

from ding_lite.basics import CheckpointError, NumberedRows, RunFiles, WriteError, remove_leftovers, row_files, save_checkpoint


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """A file of rows for every 64 to 200 bytes of them, and no waiting for the disk: no power is cut here."""
    monkeypatch.setattr(row_files, "_SMALLEST", 64)
    monkeypatch.setattr(row_files, "_LARGEST", 200)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Ring:
    """Numbers 0, 1, ... in a ring, with their text."""

    def __init__(self, capacity=100):
        self.capacity, self.stop, self.version = capacity, 0, object()

    @property
    def first(self):
        return max(0, self.stop - self.capacity)

    def push(self, count):
        self.stop += count
        return self

    def rows(self, first, stop):
        numbers = range(first, stop)
        return {"number": torch.tensor(numbers, dtype=torch.int64), "more": {"text": [f"n{number}" for number in numbers]}}

    def in_pieces(self):
        rows = NumberedRows(self.version, self.first, self.stop, self.capacity, 8, self.rows)
        return {"parts": {"ring": {"columns": rows, "stop": self.stop}}, "done": self.stop}

    def whole(self):
        numbers = sorted(range(self.first, self.stop), key=lambda number: number % self.capacity)
        columns = {"number": torch.tensor(numbers), "more": {"text": [f"n{number}" for number in numbers]}}
        return {"parts": {"ring": {"columns": columns, "stop": self.stop}}, "done": self.stop}


def saved(folder, *counts, ring=None):
    """A ring that was saved after each of these pushes, and its files."""
    ring, files = ring or Ring(), RunFiles(folder)
    for count in counts:
        files.save(ring.push(count).in_pieces(), ring.stop)
    return ring, files


def contents(folder):
    return {path.name: path.read_bytes() for path in (Path(folder) / "run").iterdir()}


def unnamed(folder):
    """Files in the folder that the manifest does not name."""
    states = json.loads((Path(folder) / "run/manifest.json").read_text())["states"]
    named = {"manifest.json"}.union(*({one["file"], *one["rows"]} for one in states))
    return contents(folder).keys() - named


class TestWhatIsNew:
    @pytest.mark.parametrize("counts", [(1,), (7, 1), (60, 3, 3, 30, 200), (100, 1, 99, 100), (1000, 0, 0), (99, 1, 1)])
    def test_the_state_comes_back_as_it_was(self, tmp_path, counts):
        ring, files = Ring(), RunFiles(tmp_path)
        for count in counts:
            path = files.save(ring.push(count).in_pieces(), ring.stop)
            state, source = RunFiles(tmp_path).load()
            assert same(state, ring.whole())
            assert source == path
            assert not unnamed(tmp_path)

    def test_rows_that_have_a_file_are_not_written_again(self, tmp_path):
        ring, files = saved(tmp_path, 100)
        before = {name: os.stat(tmp_path / "run" / name).st_mtime_ns for name in contents(tmp_path)}
        asked = []
        rows = ring.push(5).in_pieces()
        real = ring.rows
        ring.rows = lambda first, stop: asked.append((first, stop)) or real(first, stop)
        files.save(ring.in_pieces(), ring.stop)

        assert asked == [(100, 105)]
        assert rows["parts"]["ring"]["columns"].first == 5
        after = {name: os.stat(tmp_path / "run" / name).st_mtime_ns for name in contents(tmp_path)}
        shared = [name for name in before if name.startswith("rows_")]
        assert len(shared) == 4
        assert all(before[name] == after[name] for name in shared)

    def test_files_of_rows_that_are_gone_are_removed_with_the_last_state_that_names_them(self, tmp_path):
        ring, files = saved(tmp_path, 100)
        old = {name for name in contents(tmp_path) if name.startswith("rows_")}
        files.save(ring.push(100).in_pieces(), 200)
        assert old <= contents(tmp_path).keys()
        files.save(ring.push(100).in_pieces(), 300)
        assert not old & contents(tmp_path).keys()

    def test_rows_of_another_version_are_written_anew_and_the_state_before_keeps_its_own(self, tmp_path):
        ring, files = saved(tmp_path, 40)
        before, other = ring.whole(), Ring()
        other.rows = lambda first, stop: {"number": -torch.arange(first, stop), "more": {"text": ["x"] * (stop - first)}}
        files.save(other.push(40).in_pieces(), 41)
        state, path = RunFiles(tmp_path).load()
        assert state["parts"]["ring"]["columns"]["number"].tolist() == [-number for number in range(40)]
        path.write_bytes(b"")
        with pytest.warns(UserWarning, match="state_41.pt is damaged"):
            assert same(RunFiles(tmp_path).load()[0], before)

    def test_a_file_that_was_removed_or_cut_meanwhile_is_written_anew(self, tmp_path):
        ring, files = saved(tmp_path, 90)
        first, second, *_ = sorted(name for name in contents(tmp_path) if name.startswith("rows_"))
        (tmp_path / "run" / second).unlink()
        files.save(ring.push(1).in_pieces(), ring.stop)
        assert same(RunFiles(tmp_path).load()[0], ring.whole())
        with open(tmp_path / "run" / first, "r+b") as file:
            file.truncate(50)
        files.save(ring.push(1).in_pieces(), ring.stop)
        assert same(RunFiles(tmp_path).load()[0], ring.whole())

    def test_two_states_after_the_same_iteration_are_two_files(self, tmp_path):
        ring, files = saved(tmp_path, 40)
        before = ring.whole()
        path = files.save(ring.push(1).in_pieces(), 40)
        assert {name for name in contents(tmp_path) if name.startswith("state")} == {"state_40.pt", "state_40_2.pt"}
        assert same(RunFiles(tmp_path).load()[0], ring.whole())
        (tmp_path / "run/manifest.json").write_text("{")
        with pytest.warns(UserWarning, match="manifest"):
            state, found = RunFiles(tmp_path).load()
        assert found == path
        assert same(state, ring.whole())
        path.write_bytes(b"")
        with pytest.warns(UserWarning, match=r"manifest|state_40_2.pt cannot be read"):
            assert same(RunFiles(tmp_path).load()[0], before)

    def test_objects_that_can_change_in_place_are_saved_whole_each_time(self, tmp_path):
        held = [[0] for _ in range(100)]

        def state():
            rows = NumberedRows("version", 0, 100, 100, 8, lambda first, stop: {"x": held[first:stop]})
            return {"parts": {"ring": {"columns": rows}}}

        files = RunFiles(tmp_path)
        files.save(state(), 1)
        held[3].append("changed")
        files.save(state(), 2)
        assert RunFiles(tmp_path).load()[0]["parts"]["ring"]["columns"] == {"x": held}

    @pytest.mark.parametrize("count", [3, 90], ids=["few", "many"])
    @pytest.mark.parametrize("make", [np.float32, np.arange, lambda number: {"x": (np.int64(number), "text")}])
    def test_objects_of_rows_keep_their_types_of_numpy(self, tmp_path, make, count):
        ring = Ring()
        ring.rows = lambda first, stop: {"object": [make(number) for number in range(first, stop)]}
        saved(tmp_path, count, ring=ring)
        found = RunFiles(tmp_path).load()[0]["parts"]["ring"]["columns"]["object"]
        assert repr(found) == repr([make(number) for number in range(count)])

    def test_something_other_than_plain_data_is_named_with_its_place(self, tmp_path):
        ring, files = saved(tmp_path, 40)
        before = contents(tmp_path)
        ring.rows = lambda first, stop: {"x": [{1}] * (stop - first)}
        with pytest.raises(TypeError, match=r"state\['parts'\]\['ring'\]\['columns'\]\['x'\]\[0\] is a set, which"):
            files.save(ring.push(50).in_pieces(), 90)
        assert contents(tmp_path) == before

    def test_a_damaged_manifest_is_replaced_by_the_next_save_and_no_file_of_a_kept_state_is_lost(self, tmp_path):
        ring, files = saved(tmp_path, 40, 40)
        before = ring.whole()
        (tmp_path / "run/manifest.json").write_text("{")
        path = files.save(ring.push(50).in_pieces(), ring.stop)
        assert same(RunFiles(tmp_path).load()[0], ring.whole())
        path.unlink()
        with pytest.warns(UserWarning, match="there is no checkpoint"):
            assert same(RunFiles(tmp_path).load()[0], before)
        saved_twice = [files.save(ring.push(1).in_pieces(), ring.stop) for _ in range(2)]
        assert saved_twice[-1].is_file()
        assert not unnamed(tmp_path)


class TestFaults:
    @pytest.mark.slow
    def test_if_any_operation_fails_the_state_before_is_whole_and_no_other_file_is_left(self, tmp_path):
        names = set()
        for fail_at in range(1, 200):
            folder = tmp_path / str(fail_at)
            ring, files = saved(folder, 40, 90)
            before, old = contents(folder), ring.whole()
            faults = Faults(fail_at)
            with pytest.MonkeyPatch.context() as monkeypatch:
                faults.install(monkeypatch)
                try:
                    files.save(ring.push(30).in_pieces(), ring.stop)
                    error = None
                except WriteError as raised:
                    error = raised
            names.add(faults.failed)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                state = RunFiles(folder).load()[0]
            if error is None:
                assert same(state, ring.whole())
                assert faults.failed in (None, "mkdir", "unlink")  # the folder exists, and files may remain
            else:
                assert str(folder / "run") in str(error)
                assert error.filename.startswith(str(folder / "run"))
                assert contents(folder) == before or same(state, ring.whole())
                assert not unnamed(folder)
                assert same(state, old) or same(state, ring.whole())
            files.save(ring.push(30).in_pieces(), ring.stop)
            assert same(RunFiles(folder).load()[0], ring.whole())
            assert not unnamed(folder)
            if faults.failed is None:
                break
        assert names == {None, "mkdir", "open", "write", "flush", "fsync", "replace", "unlink"}

    @pytest.mark.parametrize("room", [100, 1500, 4000])
    def test_on_a_full_disk_the_state_before_is_whole_and_no_other_file_is_left(self, tmp_path, room):
        ring, files = saved(tmp_path, 40, 90)
        before, old, limits = contents(tmp_path), ring.whole(), resource.getrlimit(resource.RLIMIT_FSIZE)
        ring.push(30)
        state = {**ring.in_pieces(), "more": torch.zeros(4000)}
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # where the files of rows and of the state are too large
        try:
            with pytest.raises(WriteError, match=f"^cannot write {tmp_path}/run/.*File too large") as caught:
                files.save(state, ring.stop)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert caught.value.filename.startswith(f"{tmp_path}/run/{'rows' if room < 4000 else 'state'}_")
        assert contents(tmp_path) == before
        assert same(RunFiles(tmp_path).load()[0], old)
        files.save(ring.in_pieces(), ring.stop)
        assert same(RunFiles(tmp_path).load()[0], ring.whole())

    def test_without_a_manifest_a_save_that_fails_removes_no_state(self, tmp_path):
        for fail_at in range(1, 200):
            folder = tmp_path / str(fail_at)
            ring, files = saved(folder, 40, 90)
            (folder / "run/manifest.json").unlink()
            before, faults = contents(folder), Faults(fail_at)
            with pytest.MonkeyPatch.context() as monkeypatch:
                faults.install(monkeypatch)
                with contextlib.suppress(WriteError):
                    files.save(ring.push(30).in_pieces(), ring.stop)
            if (folder / "run/manifest.json").exists():
                if faults.failed is None:
                    break
                continue
            after = contents(folder)
            assert before.items() <= after.items()
            assert not [name for name in after.keys() - before.keys() if name.startswith("state_")]
            files.remove_others()
            assert contents(folder) == after
            files.save(ring.in_pieces(), ring.stop)
            assert same(RunFiles(folder).load()[0], ring.whole())
            assert not unnamed(folder)
        assert fail_at > 10

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        files, ring = RunFiles(tmp_path / "new"), Ring().push(40)
        with pytest.MonkeyPatch.context() as monkeypatch:
            Faults(1).install(monkeypatch)
            with pytest.raises(WriteError, match=f"cannot write {tmp_path}/new/run/.*: the disk is full"):
                files.save(ring.in_pieces(), ring.stop)
        assert not (tmp_path / "new").exists()
        files.save(ring.in_pieces(), ring.stop)
        assert same(files.load()[0], ring.whole())

    def test_if_the_process_dies_a_state_is_whole_and_the_next_run_cleans_up(self, tmp_path):
        outcomes = set()
        for fail_at in range(1, 200):
            folder = tmp_path / str(fail_at)
            ring, files = saved(folder, 40, 90)
            old = ring.whole()
            ring.push(30)
            process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(files, ring, fail_at))
            process.start()
            process.join()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                state = RunFiles(folder).load()[0]
            is_new = same(state, ring.whole())
            assert is_new or same(state, old)
            outcomes.add((process.exitcode, is_new))
            remove_leftovers(folder / "run")
            files = RunFiles(folder)
            for _ in range(2):
                files.save(ring.push(30).in_pieces(), ring.stop)
                assert same(RunFiles(folder).load()[0], ring.whole())
            assert not unnamed(folder)
            if process.exitcode == 0:
                break
        assert outcomes == {(9, False), (9, True), (0, True)}


def save_and_die(files, ring, fail_at):
    Faults(fail_at, crash=True).install(pytest.MonkeyPatch())
    files.save(ring.in_pieces(), ring.stop)
    os._exit(0)


class TestDamage:
    def outcome(self, folder, known):
        """Which of the known states is loaded, and whether there was a warning; None for an error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                state, _ = RunFiles(folder).load()
            except CheckpointError as error:
                self.error = str(error)
                return None, True
        (found,) = [place for place, one in enumerate(known) if same(state, one)]
        return found, bool(caught)

    @pytest.fixture
    def run_folder(self, tmp_path):
        """A run with two states, and both states. The newer one has one more row file."""
        ring, files = saved(tmp_path, 40)
        older = ring.whole()
        files.save(ring.push(40).in_pieces(), ring.stop)
        return tmp_path, (ring.whole(), older)

    @pytest.mark.slow
    def test_a_file_cut_anywhere_is_noticed(self, run_folder, monkeypatch):
        monkeypatch.setattr(row_files, "_SMALLEST", 20_000)
        monkeypatch.setattr(row_files, "_LARGEST", 40_000)
        folder = run_folder[0] / "large"
        ring, files = saved(folder, 4000, ring=Ring(9000))
        files.save(ring.push(6000).in_pieces(), ring.stop)
        older = ring.whole()
        files.save(ring.push(2000).in_pieces(), ring.stop)
        known = (ring.whole(), older)
        shared = 0
        for name, content in contents(folder).items():
            step = 512 if name == "manifest.json" else 8192
            for length in reversed(range(0, len(content), step)):
                os.truncate(folder / "run" / name, length)
                found, warned = self.outcome(folder, known)
                if name == "manifest.json":  # the files have checksums of their own
                    assert (found, warned) == (0, True)
                    continue
                assert (found, warned) == (0, False) if name == "state_10000.pt" else warned and found != 0
                shared += found is None
                assert found is not None or name in self.error
            (folder / "run" / name).write_bytes(content)
        assert shared
        assert same(RunFiles(folder).load()[0], known[0])

    def test_a_damaged_row_file_of_the_newer_state_gives_the_older_one_with_a_warning(self, run_folder):
        folder, known = run_folder
        states = json.loads((folder / "run/manifest.json").read_text())["states"]
        (own, *_) = set(states[0]["rows"]) - set(states[1]["rows"])
        path = folder / "run" / own
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
        words = (
            f"{folder}/run/state_80.pt cannot be loaded with its rows: {path} is damaged: its content does not match the "
            f"checksum in the state. The run continues from the state before, {folder}/run/state_40.pt."
        )
        with pytest.warns(UserWarning, match=f"^{re.escape(words)}$"):
            assert same(RunFiles(folder).load()[0], known[1])
        path.unlink()
        with pytest.warns(UserWarning, match=f"state_80.pt cannot be loaded with its rows: there is no checkpoint {path}"):
            assert same(RunFiles(folder).load()[0], known[1])

    def test_a_row_file_that_both_states_share_is_an_error(self, run_folder):
        folder, _ = run_folder
        states = json.loads((folder / "run/manifest.json").read_text())["states"]
        (shared, *_) = set(states[0]["rows"]) & set(states[1]["rows"])
        (folder / "run" / shared).write_bytes(b"")
        with pytest.raises(CheckpointError, match=rf"state_80.pt cannot .*{shared} is damaged.*state_40.pt cannot .*{shared}"):
            RunFiles(folder).load()

    @pytest.mark.slow
    def test_a_flipped_bit_anywhere_never_gives_another_state(self, run_folder):
        """100 bits of each kind of file: the states, the rows and the manifest."""
        folder, known = run_folder
        before, chance, outcomes = contents(folder), random.Random(0), []
        for kind in ("state_80", "state_40", "rows", "manifest"):
            names = [name for name in sorted(before) if name.startswith(kind)]
            for number in range(100):
                name = names[number % len(names)]
                position, bit = chance.randrange(len(before[name])), 1 << chance.randrange(8)
                overwrite(folder / "run" / name, position, bytes([before[name][position] ^ bit]))
                found, warned = self.outcome(folder, known)
                outcomes.append(found)
                assert warned or found == 0
                if kind == "state_80":
                    assert found == 1
                if kind == "rows":  # of the newer state, or of both
                    assert found in (1, None)
                overwrite(folder / "run" / name, position, before[name][position : position + 1])
        assert contents(folder) == before
        assert set(outcomes) == {0, 1, None}

    def test_without_the_manifest_the_files_have_checksums_of_their_own(self, run_folder):
        folder, known = run_folder
        (folder / "run/manifest.json").write_text("{")
        path, chance = folder / "run/state_80.pt", random.Random(1)
        before = path.read_bytes()
        for _ in range(100):
            position, bit = chance.randrange(len(before)), 1 << chance.randrange(8)
            overwrite(path, position, bytes([before[position] ^ bit]))
            assert self.outcome(folder, known)[0] in (0, 1)
            overwrite(path, position, before[position : position + 1])

    @pytest.mark.parametrize("has_manifest", [True, False])
    @pytest.mark.parametrize("form", ["torch", "pickle"])
    def test_code_in_a_file_does_not_run(self, run_folder, form, has_manifest):
        folder, known = run_folder
        marker = folder / "marker"
        for name, content in contents(folder).items():
            path = folder / "run" / name
            armed = {"first": 0, "stop": 25, "columns": Armed(marker)}
            torch.save(armed, path) if form == "torch" else path.write_bytes(pickle.dumps(armed))
            if not has_manifest and name != "manifest.json":
                (folder / "run/manifest.json").write_text("{")
            found, warned = self.outcome(folder, known)
            assert warned or (found == 0 and name.startswith("state_40"))
            assert not marker.exists()
            for other, kept in ((name, content), ("manifest.json", contents(folder)["manifest.json"])):
                (folder / "run" / other).write_bytes(kept)
            if not has_manifest:
                break

    @pytest.mark.parametrize(
        "change",
        [
            {"first": 1},
            {"stop": 31},
            {"capacity": 3},
            {"rest": {"number": torch.zeros(3)}},
            {"rest": {"number": torch.zeros(3), "more": {"text": [""] * 3}}},
            {"path": ["parts", "other", "x"]},
            {"files": [{"file": "../x.pt"}]},
            {"files": 3},
        ],
    )
    def test_row_files_that_do_not_fit_together_are_an_error(self, tmp_path, change):
        saved(tmp_path, 30)
        path = tmp_path / "run/state_30.pt"
        state = torch.load(path, weights_only=True)
        save_checkpoint({**state, "row_files": [{**state["row_files"][0], **change}]}, path)
        (tmp_path / "run/manifest.json").write_text("{")
        with (
            pytest.warns(UserWarning, match="manifest"),
            pytest.raises(CheckpointError, match=r"state_30.pt (is damaged: its rows do not fit|cannot be loaded with)"),
        ):
            RunFiles(tmp_path).load()
