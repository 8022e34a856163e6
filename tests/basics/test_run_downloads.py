"""Downloads of copies that someone else may have written: no file of this machine is replaced that is not of the run."""

import json
import shutil

import pytest

pytest.importorskip("pyarrow", reason="the extra storage")

from ding_lite.basics import CheckpointError, RunFiles, RunRecord, restored_run, run_downloads


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def saved(folder, done=1, **config):
    """A run in a folder, which is also the copy of one."""
    record = RunRecord(folder)
    record.begin(False, 0)
    RunFiles(folder).save({"done": done}, done)
    record.end()
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return f"file://{folder}"


def copied(source, target):
    shutil.copytree(source, target)
    return f"file://{target}"


def done_in(folder):
    return RunFiles(folder).load()[0]["done"]


class TestTheFolder:
    @pytest.mark.parametrize("exp_name", [".", "..", "../up", "~", "", 5, None, "run/../../up", "other", ".ssh", "\0"])
    def test_the_copy_cannot_choose_another_one_than_the_uri_names(self, tmp_path, in_folder, exp_name):
        uri = saved(tmp_path / "store/run", exp_name=exp_name)
        assert str(restored_run(uri)) == "run"
        assert [path.name for path in in_folder.iterdir()] == ["run"]
        assert not (tmp_path / "up").exists()

    def test_an_absolute_one_is_not_written_to(self, tmp_path):
        uri = saved(tmp_path / "store/keys", exp_name=str(tmp_path / "home/keys"))
        assert str(restored_run(uri)) == "keys"
        assert not (tmp_path / "home").exists()

    def test_it_has_as_many_names_of_the_uri_as_the_configuration_says(self, tmp_path):
        assert str(restored_run(saved(tmp_path / "store/runs/my dqn", exp_name="runs/my dqn"))) == "runs/my dqn"

    def test_a_hidden_one_is_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match="has no name for a folder on this machine: give one with --exp-name"):
            restored_run(saved(tmp_path / "store/.ssh"))

    @pytest.mark.parametrize("is_file", [False, True])
    def test_one_with_other_files_is_refused(self, tmp_path, in_folder, is_file):
        uri = saved(tmp_path / "store/notes")
        (tmp_path / "store/notes/x.txt").write_text("theirs")
        mine = in_folder / "notes" if is_file else in_folder / "notes/x.txt"
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        with pytest.raises(CheckpointError, match="notes is not the folder of the run in .*: it has .*Move it away"):
            restored_run(uri)
        assert mine.read_text() == "mine"

    def test_one_of_the_same_run_or_an_empty_one_is_used(self, tmp_path, in_folder):
        uri = saved(tmp_path / "store/run")
        (in_folder / "run").mkdir()
        restored_run(uri)
        shutil.rmtree(in_folder / "run/run")  # it has lost its states
        assert done_in(restored_run(uri)) == 1


@pytest.mark.parametrize("link", ["ckpt", "ckpt/a.pt", "rank_1"])
def test_no_file_is_written_through_a_link(tmp_path, in_folder, link):
    uri = saved(tmp_path / "store/run")
    (tmp_path / "store/run/ckpt").mkdir()
    (tmp_path / "store/run/ckpt/a.pt").write_text("theirs")
    saved(tmp_path / "store/run/rank_1")
    restored_run(uri)
    shutil.rmtree(in_folder / "run/run")
    shutil.rmtree(in_folder / "run/rank_1")
    place = in_folder / "run" / link
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    target = tmp_path / "target"
    target.write_text("mine") if link.endswith(".pt") else target.mkdir()
    place.symlink_to(target)
    with pytest.raises(CheckpointError, match=f"run/{link} is a link, and a download does not write through links"):
        restored_run(uri)
    assert target.read_text() == "mine" if target.is_file() else not [*target.iterdir()]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a//x", "./x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, monkeypatch, name):
    uri = saved(tmp_path / "store/run")
    names = run_downloads.Storage.names
    monkeypatch.setattr(run_downloads.Storage, "names", lambda storage: {name: 1, **names(storage)})
    with pytest.raises(CheckpointError, match=r"has a file named '.*x', outside of its folder"):
        restored_run(uri)


def test_what_an_upload_leaves_out_is_not_downloaded(tmp_path, in_folder):
    uri = saved(tmp_path / "store/run")
    for name in (".git/hooks/x", "run.1/state_1.pt", "x.tmp", ".lock", ".trial", "x.uploading", "notes/mine.txt"):
        path = tmp_path / "store/run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    restored_run(uri)
    found = {path.relative_to(in_folder / "run").as_posix() for path in (in_folder / "run").rglob("*") if path.is_file()}
    assert found == {"notes/mine.txt", "run.json", "run/manifest.json", "run/state_1.pt"}


class TestInnerRuns:
    def test_they_are_left_out(self, tmp_path, in_folder):
        uri = saved(tmp_path / "store/a")
        saved(tmp_path / "store/a/b", done=1)
        saved(in_folder / "a/b", done=5)
        assert done_in(restored_run(uri)) == 1
        assert done_in(in_folder / "a/b") == 5
        shutil.rmtree(in_folder / "a")
        restored_run(uri)
        assert not (in_folder / "a/b").exists()

    def test_those_of_ranks_are_restored_unless_they_are_ahead(self, tmp_path, in_folder):
        uri = saved(tmp_path / "store/a", done=3)
        for rank in (1, 2):
            saved(tmp_path / f"store/a/rank_{rank}", done=3)
        copied(tmp_path / "store/a/rank_2", in_folder / "a/rank_2")
        RunFiles(in_folder / "a/rank_2").save({"done": 7}, 7)
        restored_run(uri)
        assert [done_in(in_folder / place) for place in ("a", "a/rank_1", "a/rank_2")] == [3, 3, 7]

    def test_one_in_the_folder_of_the_states_does_not_hide_them(self, tmp_path):
        uri = saved(tmp_path / "store/a", done=3)
        saved(tmp_path / "store/a/run", done=1)
        assert done_in(restored_run(uri)) == 3


@pytest.mark.parametrize(
    "content",
    [
        '{"format": 1, "states": [{"file": "state_1.pt", "done": 1, "rows": 5}]}',
        '{"format": 1, "states": [{"file": "state_1.pt", "done": 1, "rows": null}]}',
        '{"format": 1, "states": [{"file": ["x"], "done": 1}]}',
        '{"format": 1, "states": 5}',
        "null",
        "[" * 200_000,
    ],
)
def test_a_damaged_manifest_is_named_and_the_states_are_used_without_it(tmp_path, content):
    uri = saved(tmp_path / "store/run")
    (tmp_path / "store/run/run/manifest.json").write_text(content)
    restored = restored_run(uri)
    with pytest.warns(UserWarning, match="manifest.json .* used without it"):
        assert done_in(restored) == 1
    (restored / "run/state_1.pt").unlink()
    with pytest.warns(UserWarning, match="used without it"), pytest.raises(CheckpointError, match="there is no saved run"):
        RunFiles(restored).load()


@pytest.mark.parametrize("content", ["[]", '{"id": 5}', "[" * 200_000, "\xff"])
def test_a_damaged_record_is_one_without_an_id(tmp_path, content):
    uri = saved(tmp_path / "store/run")
    (tmp_path / "store/run/run.json").write_text(content, encoding="latin-1")
    record = RunRecord(restored_run(uri))
    record.begin(True, 1)
    assert len(record.run_id) == 12
    record.end()
    with pytest.raises(CheckpointError, match="run has another run, with the id [0-9a-f]+, than .*, with the id None"):
        restored_run(uri)
