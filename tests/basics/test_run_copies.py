"""Copies of a run in a storage: resumable at any moment, and no fault of the storage loses more than the latest saves."""

import json
import os
import re
import shutil
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("pyarrow", reason="the extra storage")
pytest.importorskip("fsspec", reason="the extra storage")

from fake_stores import FakeStore
from file_faults import overwrite

from ding_lite.basics import (
    CheckpointError,
    FolderInUseError,
    NumberedRows,
    RunCopy,
    RunFiles,
    RunLock,
    RunRecord,
    StorageError,
    open_storage,
    place_in_storage,
    restored_run,
    row_files,
    run_copies,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Many small files of rows, and no waits between attempts."""
    monkeypatch.setattr(row_files, "_SMALLEST", 64)
    monkeypatch.setattr(row_files, "_LARGEST", 200)
    monkeypatch.setattr(run_copies, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Run:
    """A run that pushes rows, and saves its state, a checkpoint and metrics."""

    def __init__(self, folder, storage, continued=False):
        self.folder, self.files, self.record = folder, RunFiles(folder), RunRecord(folder)
        self.record.begin(continued, 0)
        self.copy = RunCopy(folder, storage)
        self.copy.begin(continued)
        self.copy.claim(self.record.run_id)
        self.files.held = lambda: self.copy.held
        self.version = object()

    def save(self, done):
        rows = NumberedRows(self.version, max(0, 20 * done - 70), 20 * done, 70, 8, lambda a, b: {"n": torch.arange(a, b)})
        self.files.save({"done": done, "parts": {"buffer": {"rows": rows}}}, done)
        (self.folder / "ckpt").mkdir(exist_ok=True)
        (self.folder / f"ckpt/iteration_{done}.pt").write_bytes(b"%d" % done)
        (self.folder / f"ckpt/iteration_{done - 2}.pt").unlink(missing_ok=True)
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"done": done}) + "\n")
        self.record.save()
        self.copy.save()

    def end(self):
        missing = self.copy.finish(5)
        self.record.end()
        return missing


def loaded(folder):
    """The iterations of the state in this folder, which must be whole and the latest one that the manifest names."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state, _ = RunFiles(folder).load()
    done = state["done"]
    expected = sorted(range(max(0, 20 * done - 70), 20 * done), key=lambda n: n % 70)
    assert state["parts"]["buffer"]["rows"]["n"].tolist() == expected
    lines = [json.loads(line)["done"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[:done] == list(range(1, done + 1))
    return done


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_objects", [False, True], ids=["files", "objects"])
def test_a_copy_is_the_folder_and_so_is_what_is_restored(tmp_path, has_objects):
    store = FakeStore(has_objects)
    run = Run(tmp_path / "run", open_storage("bucket/runs", store.filesystem).at("dqn"))
    for done in range(1, 8):
        run.save(done)
        run.copy.settle(5)
    assert run.end() is None
    assert run.copy.metrics() == {"storage/saves_behind": 0, "storage/failed_uploads": 0}
    restored = restored_run("dqn", "bucket/runs", store.filesystem)
    assert restored == restored_run("dqn", "bucket/runs", store.filesystem)  # it is there now
    os.rename(restored, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(tmp_path / "run")
    assert loaded(tmp_path / "restored") == 7


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("has_objects", [False, True], ids=["files", "objects"])
def test_if_the_process_dies_at_any_operation_the_copy_has_a_whole_state(tmp_path, has_objects, monkeypatch):
    """From operation `last` on, nothing reaches the store, and what was being written stays as it was."""
    monkeypatch.setattr(run_copies, "_TRIES", 1)

    def outcome(last):
        store = FakeStore(has_objects)
        run = Run(tmp_path / f"run_{last}", open_storage("bucket", store.filesystem).at("dqn"))
        begun = len(store.done)
        store.fails = lambda number, name, path: number - begun >= last
        uploaded = 0
        for done in range(1, 4):
            run.save(done)
            run.copy.settle(5)
            uploaded = done if run.copy.metrics()["storage/saves_behind"] == 0 else uploaded
        missing = run.copy.finish(0.001)
        run.record.end()
        store.fails = lambda number, name, path: False
        return store, run, uploaded, missing, len(store.done) - begun

    *_, operations = outcome(10**9)
    found = set()
    for last in range(1, operations + 1):
        store, _run, uploaded, missing, _ = outcome(last)
        assert "the network is down" in missing
        target = tmp_path / f"restored_{last}"
        if "bucket/dqn/run/manifest.json" not in {path.strip("/") for path in store.files.store}:
            with pytest.raises(CheckpointError, match="there is no saved run in bucket/dqn"):
                restored_run("dqn", "bucket", store.filesystem)
            assert uploaded == 0
            continue
        restored_run("dqn", "bucket", store.filesystem)
        os.rename("dqn", target)
        done = loaded(target)
        assert done in (uploaded, uploaded + 1)
        assert not [name for name in contents(target) if name.endswith(".uploading")]
        found.add(done)
    assert found == {1, 2, 3}


@pytest.mark.parametrize("has_objects", [False, True], ids=["files", "objects"])
def test_if_any_one_operation_fails_the_upload_is_tried_again(tmp_path, has_objects):
    number = 0
    while True:
        number += 1
        store = FakeStore(has_objects)
        run = Run(tmp_path / f"run_{number}", open_storage("bucket", store.filesystem).at("dqn"))
        begun = len(store.done)
        store.fails = lambda at, name, path, number=number, begun=begun: at - begun == number
        for done in (1, 2):
            run.save(done)
            run.copy.settle(5)
        assert run.end() is None
        if len(store.done) - begun < number:
            break
        assert run.copy.metrics()["storage/saves_behind"] == 0
        assert run.copy.problem() is None
        restored_run("dqn", "bucket", store.filesystem)
        os.rename("dqn", tmp_path / f"restored_{number}")
        assert loaded(tmp_path / f"restored_{number}") == 2
    assert number > 20


def test_a_storage_that_fails_for_long_gives_one_warning_and_later_uploads_succeed(tmp_path):
    store = FakeStore()
    run = Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))
    store.fails = lambda number, name, path: "state" in path
    for done in (1, 2):
        run.save(done)
        assert run.copy.settle(5)
        problem = run.copy.problem()
        assert (problem is None) == (done == 2)
        if problem:
            assert (
                "not copied after 5 attempts: cannot write bucket/dqn/run/state_1.pt: [Errno 5] the network is down." in problem
            )
    assert run.copy.metrics() == {"storage/saves_behind": 2, "storage/failed_uploads": 10}
    store.fails = lambda number, name, path: False
    run.save(3)
    assert run.end() is None
    assert loaded(restored_run("dqn", "bucket", store.filesystem)) == 3


def test_a_slow_upload_is_at_most_one_save_behind_another_and_its_files_are_kept(tmp_path):
    store = FakeStore()
    run = Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))
    store.gate.clear()
    run.save(1)
    begun = time.monotonic()
    while run.copy._next is not None and time.monotonic() < begun + 5:  # until the first upload has begun
        time.sleep(0.001)
    for done in range(2, 9):
        run.save(done)
    assert run.copy.metrics()["storage/saves_behind"] == 8
    assert (tmp_path / "run/run/state_1.pt").is_file()
    store.gate.set()
    assert run.copy.settle(5)
    manifests = [path for name, path in store.done if name == "move" and path.endswith("manifest.json")]
    assert len(manifests) == 2
    run.files.remove_others()
    assert sorted(path.name for path in (tmp_path / "run/run").glob("state_*")) == ["state_7.pt", "state_8.pt"]
    assert run.end() is None
    assert loaded(restored_run("dqn", "bucket", store.filesystem)) == 8


def test_at_the_end_an_upload_that_hangs_is_given_up_and_the_error_names_what_is_missing(tmp_path):
    store = FakeStore()
    run = Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))
    store.gate.clear()
    run.save(1)
    missing = run.copy.finish(0.05)
    assert "the copy in bucket/dqn lacks the latest metrics.jsonl, run.json, ckpt/iteration_1.pt and" in missing
    assert "has not ended after 0 s. The files are in" in missing
    assert run.copy.finish(5) is None  # said before
    store.gate.set()
    assert run.copy.settle(5)
    assert "bucket/dqn/run/manifest.json" not in store.files.store


class TestOtherWriters:
    """A second program writes to the same copy."""

    def test_of_two_runs_that_begin_together_the_first_one_is_told_so_and_the_other_has_the_copy(self, tmp_path):
        storage = open_storage(tmp_path / "store").at("dqn")
        first, second = Run(tmp_path / "first", storage), Run(tmp_path / "second", storage)
        for run, done in ((second, 1), (first, 3), (second, 2)):
            run.save(done)
            assert run.copy.settle(5)
        problem = first.copy.problem()
        who = (
            f"the run {second.record.run_id} to .*store/dqn \\(process {os.getpid()} on .*\\): this run is not copied any more"
        )
        assert re.search(f"another program has begun to copy {who}. Give each run an exp_name of its own", problem)
        first.save(4)
        assert first.copy.settle(5)
        assert not first.copy.held
        assert first.end() == problem
        assert first.copy.finish(5) is None  # said before
        assert second.end() is None
        assert second.copy.problem() is None
        assert loaded(restored_run("dqn", tmp_path / "store").absolute()) == 2

    def test_a_run_that_is_resumed_elsewhere_while_it_is_alive_is_told_so(self, tmp_path):
        storage = open_storage(tmp_path / "store").at("dqn")
        run = Run(tmp_path / "run", storage)
        run.save(1)
        assert run.copy.settle(5)
        record = json.loads((tmp_path / "store/dqn/run.json").read_text())
        record["sessions"].append({**record["sessions"][0], "host": "elsewhere"})
        storage.put("run.json", json.dumps(record).encode())
        run.save(2)
        assert "(process" in run.end()

    def test_a_copy_that_is_removed_is_written_anew(self, tmp_path):
        run = Run(tmp_path / "run", open_storage(tmp_path / "store").at("dqn"))
        run.save(1)
        assert run.copy.settle(5)
        shutil.rmtree(tmp_path / "store")
        run.save(2)
        assert run.end() is None
        assert loaded(restored_run("dqn", tmp_path / "store").absolute()) == 2


class TestOddFiles:
    """Files that cannot be copied are named once, and hold back nothing."""

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (os.mkfifo, "odd \\(it is no regular file\\)"),
            (lambda path: path.symlink_to(path), "odd \\(it is a link that leads nowhere \\(Too many levels"),
            (lambda path: path.symlink_to("nowhere"), "odd \\(it is a link that leads nowhere \\(No such file"),
            (lambda path: path.symlink_to("/tmp"), "odd \\(it is a link to a folder\\)"),
            (lambda path: open(os.fsencode(path) + b"\xff", "w").close(), r"odd\\udcff \(its name is not UTF-8\)"),
        ],
    )
    def test_they_are_left_out_with_one_warning(self, tmp_path, make, words):
        run = Run(tmp_path / "run", open_storage(tmp_path / "store").at("dqn"))
        make(tmp_path / "run/odd")
        for done in (1, 2):
            run.save(done)
            assert run.copy.settle(5)
            problem = run.copy.problem()
            assert re.fullmatch(f"not copied from .*run to .*store/dqn: {words}.*", problem) if done == 1 else problem is None
        assert run.end() is None
        assert loaded(restored_run("dqn", tmp_path / "store").absolute()) == 2

    def test_a_file_that_the_storage_refuses_does_not_hold_back_the_states(self, tmp_path):
        store = FakeStore(fails=lambda number, name, path: "metrics" in path)
        run = Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))
        run.save(1)
        assert run.copy.settle(5)
        assert "not copied after 5 attempts: cannot write bucket/dqn/metrics.jsonl" in run.copy.problem()
        assert RunFiles(restored_run("dqn", "bucket", store.filesystem)).load()[0]["done"] == 1
        assert "lacks the latest metrics.jsonl: cannot write" in run.copy.finish(0.1)
        run.record.end()


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_upload_is_tried_again_after_an_error_of_any_type(tmp_path, raised):
    def fail(number, name, path):
        if "metrics" in path:
            raise raised
        return False

    store = FakeStore()
    run = Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))
    store.fails = fail
    run.save(1)
    assert run.copy.settle(5)
    assert f"after 5 attempts: the filesystem has raised {type(raised).__name__}(" in run.copy.problem()
    store.fails = lambda number, name, path: False
    run.save(2)
    assert run.end() is None
    assert loaded(restored_run("dqn", "bucket", store.filesystem)) == 2


def test_what_a_killed_process_was_writing_is_removed_by_the_next_session(tmp_path):
    storage = open_storage(tmp_path / "store").at("dqn")
    left = [tmp_path / "store/dqn" / name for name in ("run/state_9.pt.uploading", "metrics.jsonl.uploading")]
    of_a_rank = tmp_path / "store/dqn/rank_1/run/state_9.pt.uploading"
    for path in (*left, of_a_rank, of_a_rank.with_name("manifest.json")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    Run(tmp_path / "run", storage).end()
    assert not any(path.exists() for path in left)
    assert of_a_rank.exists()  # it may be alive


class TestDamage:
    def copied(self, tmp_path):
        run = Run(tmp_path / "run", open_storage(f"file://{tmp_path}/store").at("dqn"))
        for done in (1, 2, 3):
            run.save(done)
        assert run.end() is None
        return tmp_path / "store/dqn/run"

    def test_if_the_latest_state_is_damaged_the_one_before_is_used_with_a_warning(self, tmp_path):
        folder = self.copied(tmp_path)
        overwrite(folder / "state_3.pt", 100, b"damage")
        restored = restored_run(f"file://{tmp_path}/store/dqn")
        with pytest.warns(UserWarning, match="state_3.pt is damaged.*continues from the state before.*state_2.pt"):
            assert RunFiles(restored).load()[0]["done"] == 2

    def test_if_the_latest_state_is_missing_the_one_before_is_used_with_a_warning(self, tmp_path):
        (self.copied(tmp_path) / "state_3.pt").unlink()
        restored = restored_run("dqn", tmp_path / "store")
        with pytest.warns(UserWarning, match="state_3.pt.*continues from the state before.*state_2.pt"):
            assert RunFiles(restored).load()[0]["done"] == 2

    def test_a_download_that_is_interrupted_begins_again(self, tmp_path, monkeypatch):
        self.copied(tmp_path)
        fetch = run_copies.Storage.fetch

        def broken(storage, name, target):
            if name.endswith("state_3.pt"):
                raise KeyboardInterrupt
            fetch(storage, name, target)

        monkeypatch.setattr(run_copies.Storage, "fetch", broken)
        with pytest.raises(KeyboardInterrupt):
            restored_run("dqn", tmp_path / "store")
        with pytest.raises(CheckpointError, match="there is no saved run in dqn"):
            RunFiles("dqn").require()
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert loaded(restored_run("dqn", tmp_path / "store").absolute()) == 3


class TestMistakes:
    def test_a_scheme_that_nothing_opens_is_named(self):
        with pytest.raises(
            StorageError, match="storage_path='s33://bucket': neither pyarrow nor fsspec .* scheme 's33'. Use one"
        ):
            open_storage("s33://bucket")

    def test_a_password_in_the_uri_is_refused_and_not_shown(self):
        with pytest.raises(StorageError, match="has a user and a password, which would be written to config.json") as caught:
            open_storage("s3://key:hidden@bucket/runs")
        assert "hidden" not in str(caught.value)

    def test_without_pyarrow_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"storage_path='runs' needs pyarrow.*pip install 'ding_lite\[storage\]'"):
            open_storage("runs")

    def test_a_place_where_nothing_can_be_written_is_refused_before_the_run(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match=f"cannot write {tmp_path}/file/dqn/.trial: .* Check the name"):
            Run(tmp_path / "run", open_storage(tmp_path / "file").at("dqn"))
        store = FakeStore(fails=lambda number, name, path: True)
        with pytest.raises(
            StorageError, match="cannot write bucket/dqn/.trial: .*the network is down. Check the name, the netw"
        ):
            Run(tmp_path / "run", open_storage("bucket", store.filesystem).at("dqn"))

    def test_missing_permission_is_named_with_the_fix(self, tmp_path):
        def refuse(number, name, path):
            raise PermissionError(13, "AWS Error ACCESS_DENIED during PutObject operation")

        with pytest.raises(StorageError, match=r"ACCESS_DENIED .* Give this program credentials .* AWS_ACCESS_KEY_ID"):
            open_storage("bucket", FakeStore(fails=refuse).filesystem).require_writable()

    def test_the_copy_of_another_run_is_not_overwritten(self, tmp_path):
        storage = open_storage(tmp_path / "store").at("dqn")
        first = Run(tmp_path / "run", storage)
        first.save(1)
        first.end()
        before = contents(tmp_path / "store")
        with pytest.raises(StorageError, match=f"there is another run in {tmp_path}/store/dqn, with the id [0-9a-f]+: choose"):
            Run(tmp_path / "other", storage)
        assert contents(tmp_path / "store") == before

    def test_a_folder_that_is_behind_its_copy_is_not_continued(self, tmp_path):
        storage = open_storage(tmp_path / "store").at("run")
        run = Run(tmp_path / "run", storage)
        for done in (1, 2):
            run.save(done)
            if done == 1:
                old = contents(tmp_path / "run")
        run.end()
        for path in (tmp_path / "run").rglob("*.*"):
            path.unlink()
        for name, content in old.items():
            (tmp_path / "run" / name).write_bytes(content)
        with pytest.raises(
            StorageError,
            match="is after 2 iterations, and the run in .* after 1: continue from the copy with --resume file:///",
        ):
            Run(tmp_path / "run", storage, continued=True)
        assert loaded(restored_run(f"file://{tmp_path}/store/run", folder=tmp_path / "run")) == 2  # it is the newer one
        continued = Run(tmp_path / "run", storage, continued=True)
        continued.save(3)
        assert continued.end() is None

    def test_another_run_in_the_folder_is_not_replaced_by_a_download(self, tmp_path):
        run = Run(tmp_path / "run", open_storage(tmp_path / "store").at("dqn"))
        run.save(1)
        run.end()
        other = Run(tmp_path / "dqn", open_storage(tmp_path / "store").at("other"))
        other.save(1)
        other.end()
        with pytest.raises(CheckpointError, match="dqn has another run, with the id [0-9a-f]+, than .*: move that folder away"):
            restored_run(f"file://{tmp_path}/store/dqn")

    def test_a_download_into_a_folder_that_is_in_use_is_refused(self, tmp_path):
        run = Run(tmp_path / "run", open_storage(tmp_path / "store").at("dqn"))
        run.save(1)
        run.end()
        pid = os.fork()
        if not pid:
            lock = RunLock(tmp_path / "dqn")
            lock.take()
            (tmp_path / "ready").write_text("")
            time.sleep(20)
            os._exit(0)
        try:
            while not (tmp_path / "ready").exists():
                time.sleep(0.001)
            with pytest.raises(FolderInUseError, match="another run writes to the folder"):
                restored_run("dqn", tmp_path / "store")
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def test_processes_of_torchrun_wait_for_the_one_that_downloads(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", open_storage(tmp_path / "store").at("dqn"))
    run.save(1)
    run.end()
    monkeypatch.setenv("LOCAL_RANK", "1")
    pid = os.fork()
    if not pid:
        fetch = run_copies.Storage.fetch

        def slow(storage, name, target):
            (tmp_path / "begun").touch()
            time.sleep(0.03)
            fetch(storage, name, target)

        run_copies.Storage.fetch = slow
        restored_run("dqn", tmp_path / "store")
        RunLock(tmp_path / "dqn").take()
        time.sleep(20)
        os._exit(0)
    try:
        while not (tmp_path / "begun").exists():
            time.sleep(0.001)
        assert loaded(restored_run("dqn", tmp_path / "store").absolute()) == 1
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_folders_in_a_storage():
    assert [place_in_storage(it) for it in ("runs/dqn/", "./dqn", "/home/me/dqn", "../dqn")] == [
        "runs/dqn",
        "dqn",
        "dqn",
        "dqn",
    ]
    assert place_in_storage("..d/e") == "..d/e"
    assert place_in_storage(".") == Path.cwd().name
    assert place_in_storage("..") == Path.cwd().parent.name


def test_an_upload_that_ends_does_not_hide_the_next_one(tmp_path):
    """Between the last look of a thread for work and its end, `save` may start another one."""
    run = Run(tmp_path / "run", open_storage(tmp_path / "copy"))
    next_one = object()

    def has_next():
        run.copy._thread = next_one
        return False

    run.copy._has_next = has_next
    run.copy._work()
    assert run.copy._thread is next_one
    run.copy._thread = None
