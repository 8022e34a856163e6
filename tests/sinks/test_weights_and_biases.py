"""Weights & Biases, read back from its own files."""

import json
import os
import warnings

import numpy as np
import psutil
import pytest
from forked_scripts import run_script

from ding_lite.sinks import SinkGroup, WeightsAndBiases

ROWS = [
    {"total_step": 1, "env_step": 10, "train_iter": 1, "learn/loss": 0.5, "learn/kl": None, "name": "a", "many": [1, 2]},
    {"total_step": 2, "env_step": 20, "train_iter": 2, "learn/loss": float("nan"), "is_last": True},
]


def records(path):
    """The records of a .wandb file: a log as LevelDB writes it, behind 7 bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:  # what is left of a block has no room for a head
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or last of several
            yield Record.FromString(whole)
            whole = b""


def children():
    return [name for one in psutil.Process().children(recursive=True) if "wandb" in (name := one.name())]


class TestWeightsAndBiases:
    @pytest.fixture(autouse=True)
    def _alone(self, tmp_path_factory, monkeypatch):
        """Without keys and settings of this machine, and without its environment variables afterwards."""
        pytest.importorskip("wandb")
        home = tmp_path_factory.mktemp("home")
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            monkeypatch.delenv(name)
        for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(home))
        monkeypatch.setenv("NETRC", str(home / "netrc"))
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")

    def file(self, folder):
        (path,) = folder.glob("wandb/offline-run-*/*.wandb")
        return path

    def rows(self, folder):
        histories = [one.history for one in records(self.file(folder)) if one.WhichOneof("record_type") == "history"]
        rows = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in one.item} for one in histories]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    def test_rows_are_kept_offline_with_the_configuration_and_no_process_is_left(self, tmp_path, capfd):
        sink = WeightsAndBiases(tmp_path, project="mine", name="first", config={"seed": 3, "env": {"id": "CartPole-v1"}})
        for row in ROWS:
            sink.write(row)
        assert children()
        sink.close()
        sink.close()

        assert children() == []
        first, second = self.rows(tmp_path)
        assert first == {name: value for name, value in ROWS[0].items() if value is not None}
        assert np.isnan(second.pop("learn/loss"))
        assert second == {"total_step": 2, "env_step": 20, "train_iter": 2, "is_last": True}
        (run,) = [one.run for one in records(self.file(tmp_path)) if one.WhichOneof("record_type") == "run"]
        assert (run.project, run.display_name) == ("mine", "first")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["env"] == {"id": "CartPole-v1"}
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(("row", "axis"), [(ROWS[0], "env_step"), ({"train_iter": 4, "loss": 1.0}, "train_iter")])
    def test_curves_are_drawn_along_the_step(self, tmp_path, row, axis):
        sink = WeightsAndBiases(tmp_path)
        sink.write(row)
        sink.close()
        (metric,) = [one.metric for one in records(self.file(tmp_path)) if one.WhichOneof("record_type") == "metric"]

        assert (metric.glob_name, metric.step_metric) == ("*", axis)

    def test_images_are_kept(self, tmp_path):
        image = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
        group = SinkGroup([WeightsAndBiases(tmp_path)])
        group.write({"env_step": 5, "frame": image})
        group.close()

        (row,) = self.rows(tmp_path)
        assert row["env_step"] == 5
        (path,) = tmp_path.glob("wandb/offline-run-*/files/media/images/frame_*.png")
        from PIL import Image

        assert (np.asarray(Image.open(path)) == image).all()

    def test_closing_leaves_runs_of_others_alone(self, tmp_path):
        import wandb

        sink, other = WeightsAndBiases(tmp_path / "sink"), WeightsAndBiases(tmp_path / "other")
        theirs = wandb.init(dir=tmp_path, mode="offline", settings=wandb.Settings(silent=True, console="off"))
        sink.write(ROWS[0])
        other.write(ROWS[0])
        sink.close()
        other.write(ROWS[1])
        theirs.log({"x": 1})
        other.close()
        assert children()
        theirs.finish()
        wandb.teardown()

        assert [row["env_step"] for row in self.rows(tmp_path / "sink")] == [10]
        assert [row["env_step"] for row in self.rows(tmp_path / "other")] == [10, 20]
        assert self.rows(tmp_path) == [{"x": 1}]

    def test_without_a_key_the_run_continues_and_asks_for_none(self, tmp_path):
        code = (
            "import pathlib, sys\nfrom ding_lite.sinks import SinkGroup, WeightsAndBiases\n"
            "group = SinkGroup([WeightsAndBiases(pathlib.Path(sys.argv[1]), mode='online')])\n"
            "for step in range(100): group.write({'env_step': step})\ngroup.close()\nprint('the end')"
        )
        there, ours = os.openpty()  # a terminal, where it could ask
        done = run_script(code, tmp_path, stdin=ours, stdout=ours, stderr=ours, check=True)
        os.close(ours)
        text = os.read(there, 1 << 16).decode()
        os.close(there)

        assert done.returncode == 0
        assert text.count("is not written to WeightsAndBiases('") == 1
        assert "No API key configured" in text
        assert text.splitlines()[-1] == "the end"

    def test_another_mode_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"WeightsAndBiases\(mode='on'\): unknown mode, use 'offline' or 'online'"):
            WeightsAndBiases(tmp_path, mode="on")


def test_that_it_is_not_installed_causes_one_warning_and_the_run_continues(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = SinkGroup([WeightsAndBiases(tmp_path / "here")])
        for row in ROWS:
            group.write(row)
        group.close()

    (warning,) = caught
    assert "pip install 'ding_lite[wandb]'" in str(warning.message)
    assert not (tmp_path / "here").exists()
