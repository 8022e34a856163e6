"""Checkpoints under attack: a file is whole or not there, damage is found, and no code in a file ever runs."""

import collections
import contextlib
import os
import pickle
import re
import resource
import traceback
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from file_faults import Faults, overwrite
from states import Armed

import ding_lite
from ding_lite.basics import WriteError, write_atomically
from ding_lite.engine import CheckpointError, load_checkpoint, save_checkpoint


class TestAtomic:
    def test_if_any_operation_fails_the_file_is_the_old_or_the_new_one_and_no_other_file_is_left(self, tmp_path):
        path = tmp_path / "a.pt"
        outcomes = []
        for fail_at in range(1, 50):
            save_checkpoint({"which": "old"}, path)
            faults = Faults(fail_at)
            with pytest.MonkeyPatch.context() as monkeypatch:
                faults.install(monkeypatch)
                try:
                    save_checkpoint({"which": "new"}, path)
                    failed = False
                except OSError:
                    failed = True
            outcomes.append((failed, load_checkpoint(path)["which"]))
            assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]
            if faults.failed is None:
                break

        # The folder exists. Then open, write, flush, fsync and rename: before the rename it is the old file; afterwards the
        # folder is synced.
        assert outcomes[-1] == (False, "new")
        assert outcomes[:6] == [(False, "new")] + [(True, "old")] * 5
        assert len(outcomes) > 7

    def test_a_full_disk_leaves_the_old_file_and_is_an_os_error(self, tmp_path):
        path = save_checkpoint({"which": "old"}, tmp_path / "a.pt")
        content, limits = os.urandom(100_000), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                write_atomically(path, content)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert load_checkpoint(path) == {"which": "old"}
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]

    def test_the_content_is_written_as_it_is(self, tmp_path):
        write_atomically(tmp_path / "a.bin", b"old")
        write_atomically(tmp_path / "a.bin", b"new\0content")

        assert (tmp_path / "a.bin").read_bytes() == b"new\0content"

    def test_what_is_no_plain_data_leaves_the_old_file(self, tmp_path):
        path = save_checkpoint({"which": "old"}, tmp_path / "a.pt")
        with pytest.raises(TypeError):
            save_checkpoint({"which": {1}}, path)

        assert load_checkpoint(path) == {"which": "old"}


class TestDamage:
    STATE = {"x": torch.arange(4), "name": "run"}

    def loads_right_or_is_refused(self, path):
        with contextlib.suppress(CheckpointError):
            state = load_checkpoint(path)
            assert state["name"] == "run"
            assert torch.equal(state["x"], torch.arange(4))

    @pytest.mark.few
    @pytest.mark.parametrize("mask", [0xFF, 0x10, 0x01], ids=hex)
    def test_flipped_bits_anywhere_never_give_other_data(self, tmp_path, mask):
        path = save_checkpoint(self.STATE, tmp_path / "a.pt")
        content = path.read_bytes()
        for position, byte in enumerate(content):
            overwrite(path, position, bytes([byte ^ mask]))
            self.loads_right_or_is_refused(path)
            overwrite(path, position, bytes([byte]))
        assert path.read_bytes() == content

    def test_a_flipped_bit_in_the_data_is_refused(self, tmp_path):
        path = save_checkpoint({"x": torch.full((64,), 1.5, dtype=torch.float64)}, tmp_path / "a.pt")
        content = bytearray(path.read_bytes())
        content[content.index(np.full(2, 1.5).tobytes()) + 3] ^= 4
        path.write_bytes(content)

        with pytest.raises(CheckpointError, match=r"a\.pt is damaged: its part '.*' does not match its checksum"):
            load_checkpoint(path)

    def test_a_file_cut_anywhere_is_refused(self, tmp_path):
        path = save_checkpoint(self.STATE, tmp_path / "a.pt")
        for length in reversed(range(path.stat().st_size)):
            os.truncate(path, length)
            with pytest.raises(CheckpointError, match=r"a\.pt cannot be read"):
                load_checkpoint(path)

    @pytest.mark.parametrize("content", [b"", b"garbage", bytes(1000), b"PK\x03\x04" + bytes(100)])
    def test_garbage_is_refused(self, tmp_path, content):
        (tmp_path / "a.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"a\.pt cannot be read"):
            load_checkpoint(tmp_path / "a.pt")

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        for path in (tmp_path / "none.pt", tmp_path):
            with pytest.raises(CheckpointError, match=rf"there is no checkpoint {path}"):
                load_checkpoint(path)

    def test_what_is_there_instead_is_named(self, tmp_path):
        for number, name in enumerate(("ckpt/best.pt", "ckpt/iteration_100.pt", "ckpt/iteration_200.pt")):
            os.utime(save_checkpoint({}, tmp_path / name), (number, number))
        (tmp_path / "ckpt/link.pt").symlink_to(tmp_path / "gone.pt")
        there = "iteration_200.pt, iteration_100.pt, best.pt."
        in_run = ", ".join(f"ckpt/{name}" for name in there.split(", "))
        expected = {
            "ckpt/final.pt": f". In {tmp_path}/ckpt there is {there}",
            "ckpt": f": that is a folder, name a file in it. In {tmp_path}/ckpt there is {there}",
            ".": f": that is a folder, name a file in it. In {tmp_path} there is {in_run}",
            "ckpt/link.pt": f": that is a link to {tmp_path}/gone.pt, which does not exist. Correct the link. "
            f"In {tmp_path}/ckpt there is {there}",
            "runs/x.pt": f": there is no folder {tmp_path}/runs either. Check the path; it is relative to {os.getcwd()}.",
        }
        for name, end in expected.items():
            with pytest.raises(CheckpointError) as caught:
                load_checkpoint(tmp_path / name)
            assert str(caught.value) == f"there is no checkpoint {tmp_path / name}{end}"

    def test_a_file_cut_off_says_so_and_names_the_others(self, tmp_path):
        path = save_checkpoint({"x": torch.ones(9)}, tmp_path / "final.pt")
        save_checkpoint({}, tmp_path / "best.pt")
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)

        assert str(caught.value) == (
            f"the checkpoint {path} cannot be read: it is cut off, or not a checkpoint (File is not a zip file). "
            f"In {tmp_path} there is best.pt."
        )

    def test_a_device_that_is_not_there_is_no_fault_of_the_file(self, tmp_path):
        path = save_checkpoint({"x": 1}, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"load_checkpoint\(device='gpu'\) wants a device of torch, such as \"cpu\""):
            load_checkpoint(path, "gpu")
        if not torch.cuda.is_available():
            with pytest.raises(ValueError, match=r"load_checkpoint\(device='cuda'\), but torch finds no GPU: use device="):
                load_checkpoint(path, "cuda")

    def test_a_file_that_holds_no_dict_is_refused(self, tmp_path):
        torch.save([1, 2], tmp_path / "a.pt")
        with pytest.raises(CheckpointError, match="holds a list, not the dict of save_checkpoint"):
            load_checkpoint(tmp_path / "a.pt")


class TestStrangers:
    @pytest.mark.parametrize("how", ["system", "touch"])
    @pytest.mark.parametrize("form", ["torch", "old torch", "pickle"])
    def test_a_file_from_a_stranger_is_refused_and_runs_no_code(self, tmp_path, how, form):
        marker, path = tmp_path / "marker", tmp_path / "evil.pt"
        state = {"model": {"weight": torch.zeros(2), "deep": [Armed(marker, how)]}}
        if form == "pickle":
            path.write_bytes(pickle.dumps(state))
        else:
            torch.save(state, path, _use_new_zipfile_serialization=form == "torch")

        with pytest.raises(CheckpointError, match=r"evil\.pt cannot be read"):
            load_checkpoint(path)
        assert not marker.exists()

        torch.load(path, weights_only=False) if form != "pickle" else pickle.loads(path.read_bytes())
        assert marker.exists()  # the file was armed

    def test_nothing_else_reads_files_that_could_hold_code(self):
        """torch.load() is called in one place, and pickle is for the package's own processes."""
        found = {"torch.load(": set(), "pickle.load": set(), "import pickle": set(), "weights_only=False": set()}
        for path in (Path(ding_lite.__file__).parent).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for words, places in found.items():
                if re.search(rf"^[^#\"]*{re.escape(words)}", text, re.MULTILINE):
                    places.add(path.relative_to(Path(ding_lite.__file__).parent).as_posix())

        assert found["torch.load("] == {"basics/checkpoint_files.py"}
        assert not found["weights_only=False"]
        assert all(place.startswith("processes/") for place in found["pickle.load"] | found["import pickle"])

    def test_an_object_of_a_class_is_refused_too(self, tmp_path):
        torch.save({"x": collections.deque([1])}, tmp_path / "a.pt")
        with pytest.raises(CheckpointError, match=r"cannot be read: it holds collections\.deque, but .* plain data") as caught:
            load_checkpoint(tmp_path / "a.pt")

        assert "weights_only" not in "".join(traceback.format_exception(caught.value))  # torch's advice to run the code

    @pytest.mark.parametrize("bomb", ["packed", "overlapping"])
    def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_does(self, tmp_path, bomb):
        path = save_checkpoint({"x": torch.zeros(1_000_000)}, tmp_path / "a.pt")
        with zipfile.ZipFile(path) as archive:
            parts = {part.filename: archive.read(part) for part in archive.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if bomb == "packed" else zipfile.ZIP_STORED) as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
            if bomb == "overlapping":  # many parts that are the same bytes
                (large,) = (part for part in archive.filelist if part.file_size >= 4_000_000)
                archive.filelist += [large] * 5
        with pytest.raises(CheckpointError, match=r"a\.pt cannot be read: it would unpack to more than it holds"):
            load_checkpoint(path)


def holds_itself():
    state = {"a": [1]}
    state["a"].append(state["a"])
    return state


def nested(depth):
    state = 1
    for _ in range(depth):
        state = [state]
    return {"a": state}


class TestShapes:
    @pytest.mark.parametrize(
        ("state", "words"),
        [
            (holds_itself(), r"state\['a'\]\[1\] is a list that contains itself"),
            (nested(5000), r"state\['a'\]\[0\].*\.\.\..* is nested in 200 lists and dicts"),
        ],
    )
    def test_a_state_that_has_no_end_is_refused_with_its_place_and_the_file_before_stays(self, tmp_path, state, words):
        path = save_checkpoint({"x": 1}, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=words) as caught:
            save_checkpoint(state, path)
        assert len(str(caught.value)) < 300
        assert load_checkpoint(path) == {"x": 1}
        assert list(tmp_path.iterdir()) == [path]

    def test_what_stands_in_two_places_does_not_hold_itself(self, tmp_path):
        twice = [1]
        state = {"a": twice, "b": [twice, twice], **nested(190)}
        assert load_checkpoint(save_checkpoint(state, tmp_path / "a.pt")) == state

    def test_a_key_that_is_half_a_character_comes_back_and_a_path_with_one_is_refused(self, tmp_path):
        state = {"\ud800": {"x\udcff": torch.zeros(1)}}
        assert load_checkpoint(save_checkpoint(state, tmp_path / "a.pt")) == state
        with pytest.raises(WriteError, match=r"a name must not contain half of a character \('\\ud800'\)"):
            save_checkpoint(state, tmp_path / "\ud800.pt")
        assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]
