"""TensorBoard, read back with its own reader."""

import io
import math
import resource
import sys
import warnings

import numpy as np
import pytest
from forked_scripts import run_script

from ding_lite.sinks import SinkGroup, TensorBoard

ROWS = [
    {"total_step": 1, "env_step": 10, "train_iter": 1, "learn/loss": 0.5, "learn/kl": None, "name": "a", "many": [1, 2]},
    {"total_step": 2, "env_step": 20, "train_iter": 2, "learn/loss": float("nan"), "is_last": True},
]


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def _needs_it(self):
        pytest.importorskip("tensorboard")

    def read(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder), {"scalars": 0, "images": 0})
        return events.Reload()

    def scalars(self, folder):
        events = self.read(folder)
        return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}

    def test_numbers_are_scalars_at_the_rows_step(self, tmp_path):
        sink = TensorBoard(tmp_path / "deep" / "board")
        for row in ROWS:
            sink.write(row)
        sink.close()
        scalars = self.scalars(tmp_path / "deep" / "board")

        assert scalars.keys() == {"total_step", "env_step", "train_iter", "learn/loss", "is_last"}
        assert scalars["train_iter"] == [(10, 1.0), (20, 2.0)]
        assert scalars["is_last"] == [(20, 1.0)]
        (_, first), (step, second) = scalars["learn/loss"]
        assert (step, first) == (20, 0.5)
        assert second != second

    def test_rows_without_the_step_are_counted_by_gradient_steps(self, tmp_path):
        sink = TensorBoard(tmp_path)
        for train_iter in (3, 6):
            sink.write({"train_epoch": 0, "train_iter": train_iter, "loss": 1.0})
        assert self.scalars(tmp_path)["loss"] == [(3, 1.0), (6, 1.0)]

    def test_a_number_of_any_size_costs_no_other_of_its_row(self, tmp_path):
        huge = {"int": 10**400, "low": -(10**400), "float": 1.7e308, "inf": float("inf")}
        TensorBoard(tmp_path).write({"env_step": 5, **huge, "loss": 1.0})
        assert self.scalars(tmp_path).keys() == {"env_step", *huge, "loss"}

    def test_images_can_be_seen(self, tmp_path):
        from PIL import Image

        image = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
        SinkGroup([TensorBoard(tmp_path)]).write({"env_step": 5, "frame": image, "loss": 1.0})
        events = self.read(tmp_path)
        (seen,) = events.Images("frame")
        (tmp_path / "frame.png").write_bytes(seen.encoded_image_string)

        assert (seen.step, seen.width, seen.height) == (5, 8, 6)
        assert (np.asarray(Image.open(tmp_path / "frame.png")) == image).all()
        assert [one.value for one in events.Scalars("loss")] == [1.0]

    def test_no_step_of_a_run_that_goes_on_is_shown_twice(self, tmp_path):
        first = TensorBoard(tmp_path)
        for step in (10, 20, 30, 40):
            first.write({"env_step": step, "loss": 0.0})
        again = TensorBoard(tmp_path, after=20)
        for step in (25, 35):
            again.write({"env_step": step, "loss": 1.0})
        assert self.scalars(tmp_path)["loss"] == [(10, 0.0), (20, 0.0), (25, 1.0), (35, 1.0)]

        TensorBoard(tmp_path, after=math.inf).write({"env_step": 5, "loss": 3.0})  # hides none
        assert self.scalars(tmp_path)["loss"] == [(10, 0.0), (20, 0.0), (25, 1.0), (35, 1.0), (5, 3.0)]

        TensorBoard(tmp_path).write({"env_step": 10, "loss": 2.0})  # a new run in the folder
        assert self.scalars(tmp_path)["loss"] == [(10, 2.0)]

    def test_a_process_that_is_killed_loses_no_row_that_was_written(self, tmp_path):
        code = (
            "import os, pathlib, sys\nfrom ding_lite.sinks import TensorBoard\n"
            "sink = TensorBoard(pathlib.Path(sys.argv[1]))\n"
            "for step in range(200): sink.write({'env_step': step, 'loss': step / 2})\nos.kill(os.getpid(), 9)"
        )
        assert run_script(code, tmp_path).returncode == -9
        assert self.scalars(tmp_path)["loss"] == [(step, step / 2) for step in range(200)]

    def test_a_full_disk_costs_rows_and_one_warning_and_later_rows_can_be_read(self, tmp_path, recwarn):
        group, limits = SinkGroup([TensorBoard(tmp_path)]), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        try:
            for step in range(30):
                group.write({"env_step": step, "loss": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        group.write({"env_step": 30, "loss": 1.0})
        (warning,) = recwarn
        steps = [step for step, _ in self.scalars(tmp_path)["loss"]]

        assert steps[-1] == 30
        assert steps[:-1] == list(range(len(steps) - 1))
        assert 3 < len(steps) < 30
        assert "is not written to TensorBoard(" in str(warning.message)

    def test_records_are_those_of_tensorboard_with_either_checksum(self, tmp_path, monkeypatch):
        from tensorboard.summary.writer.record_writer import RecordWriter

        TensorBoard(tmp_path / "fast").write(ROWS[0])
        monkeypatch.setitem(sys.modules, "google_crc32c", None)  # as if it were not installed
        TensorBoard(tmp_path / "slow").write(ROWS[0])
        for folder in ("fast", "slow"):
            (path,) = (tmp_path / folder).iterdir()
            data, written, at = path.read_bytes(), io.BytesIO(), 0
            while at < len(data):
                length = int.from_bytes(data[at : at + 8], "little")
                RecordWriter(written).write(data[at + 12 : at + 12 + length])
                at += 16 + length
            assert written.getvalue() == data


def test_that_it_is_not_installed_causes_one_warning_and_the_run_continues(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = SinkGroup([TensorBoard(tmp_path / "here")])
        for row in ROWS:
            group.write(row)
        group.close()

    (warning,) = caught
    assert "pip install 'ding_lite[tb]'" in str(warning.message)
    assert not (tmp_path / "here").exists()
