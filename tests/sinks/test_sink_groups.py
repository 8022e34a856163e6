"""A group that makes rows plain, and keeps the troubles of its sinks from the run."""

import json
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
import torch

from ding_lite.sinks import Csv, JsonLines, SinkGroup, read_row
from ding_lite.sinks.sink_groups import plain_row


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Kept:
    """A sink that keeps its rows, and fails where it is told to."""

    def __init__(self, fails=(), closes=True):
        self.rows, self.fails, self.closes = [], set(fails), closes
        self.tries = 0

    def write(self, row):
        self.tries += 1
        if self.tries - 1 in self.fails:
            raise RuntimeError("out of order.")
        self.rows.append(row)

    def close(self):
        if not self.closes:
            raise RuntimeError("it jams")
        self.is_closed = True


class Album(Kept):
    takes_images = True


def texts_of(caught):
    return [str(warning.message) for warning in caught]


def test_a_sink_that_raises_loses_its_row_with_one_warning_until_it_works_again(recwarn):
    broken, whole = Kept(fails={1, 2, 5}), Kept()
    group = SinkGroup([broken, whole])
    for step in range(7):
        group.write({"step": step})

    assert [row["step"] for row in whole.rows] == list(range(7))
    assert [row["step"] for row in broken.rows] == [0, 3, 4, 6]
    first, second = texts_of(recwarn)
    assert first.startswith("row 2 is not written to <")
    assert "Kept object" in first
    assert first.endswith("RuntimeError: out of order. Training continues, and later rows are tried again.")
    assert second.startswith("row 6")
    assert recwarn[0].filename == __file__


def test_warnings_of_two_failures_are_both_shown(tmp_path):
    code = (
        "import pathlib, sys\nfrom ding_lite.sinks import JsonLines, SinkGroup\n"
        "path = pathlib.Path(sys.argv[1])\ngroup = SinkGroup([JsonLines(path)])\n"
        "for _ in range(2):\n"
        "    path.mkdir()\n    for _ in range(3): group.write({})\n    path.rmdir()\n    group.write({})\n    path.unlink()"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.jsonl"], capture_output=True, text=True, check=True)
    assert done.stderr.count("is not written to JsonLines('") == 2


def test_a_sink_that_takes_long_to_fail_takes_5_percent_of_the_time_at_most(monkeypatch, recwarn):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(Kept):
        def write(self, row):
            now[0] += 3.0
            super().write(row)

    slow, quick = Slow(fails=range(1000)), Kept()
    group = SinkGroup([slow, quick])
    while now[0] < 1000:
        now[0] += 1.0
        group.write({})

    assert 10 < slow.tries * 3 < 60
    assert len(quick.rows) > 900
    assert len(recwarn) == 1


def test_a_sink_on_a_busy_machine_loses_no_row_but_those_that_cannot_be_written(monkeypatch, recwarn):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Preempted(Kept):
        def write(self, row):
            now[0] += 0.2
            super().write(row)

    sink = Preempted(fails={1, 2, 5})
    group = SinkGroup([sink])
    for step in range(7):
        group.write({"step": step})

    assert [row["step"] for row in sink.rows] == [0, 3, 4, 6]


def test_a_sink_that_fails_at_once_is_tried_with_each_row(recwarn):
    broken = Kept(fails=range(100))
    group = SinkGroup([broken])
    for _ in range(100):
        group.write({})
    assert broken.tries == 100


def test_every_sink_is_closed_also_where_one_cannot_be(recwarn):
    sinks = [Kept(), Kept(closes=False), Kept()]
    SinkGroup(sinks).close()

    assert sinks[0].is_closed
    assert sinks[2].is_closed
    assert "RuntimeError: it jams" in texts_of(recwarn)[0]


def test_an_interrupt_is_no_failure_of_a_sink():
    class Interrupted(Kept):
        def write(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SinkGroup([Interrupted()]).write({})


def test_values_of_any_kind_become_plain_once_for_all_sinks(tmp_path):
    class Half(float):
        pass

    files, kept = [JsonLines(tmp_path / "m.jsonl"), Csv(tmp_path / "m.csv")], Kept()
    row = {
        "numpy": np.float32(0.5),
        "integer": np.int64(3),
        "flag": np.bool_(True),
        "tensor": torch.tensor(1.5, requires_grad=True),
        "vector": torch.tensor([1, 2], dtype=torch.int16),
        "matrix": np.eye(2),
        "series": deque([torch.tensor(1.0), 2]),
        "percentiles": {50: np.float64(0.25), 99: None},
        "half": Half(0.5),
        "text": np.str_("a"),
        "nothing": None,
    }
    SinkGroup([*files, kept]).write(row)

    plain = {"numpy": 0.5, "integer": 3, "flag": True, "tensor": 1.5, "vector": [1, 2], "matrix": [[1.0, 0.0], [0.0, 1.0]]}
    plain |= {"series": [1.0, 2], "percentiles": {"50": 0.25, "99": None}, "half": 0.5, "text": "a", "nothing": None}
    assert kept.rows == [plain]
    assert [type(value) for value in kept.rows[0].values()] == [type(value) for value in plain.values()]
    assert rows_of(tmp_path / "m.jsonl") == [plain]
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize("make_image", [np.asarray, torch.as_tensor])
def test_images_are_given_to_the_sinks_that_take_them(tmp_path, recwarn, make_image):
    image = np.random.default_rng(0).integers(0, 255, (4, 5, 3), np.uint8)
    kept, album, lines = Kept(), Album(), JsonLines(tmp_path / "m.jsonl")
    SinkGroup([kept, album, lines]).write({"step": 1, "frame": make_image(image)})

    assert kept.rows == rows_of(tmp_path / "m.jsonl") == [{"step": 1}]
    assert album.rows[0]["frame"].dtype == np.uint8
    assert (album.rows[0]["frame"] == image).all()
    assert not recwarn.list


def test_what_no_sink_takes_is_left_out_with_one_warning_for_each_name(recwarn):
    kept = Kept()
    group = SinkGroup([kept])
    frame = np.zeros((4, 4, 3), np.uint8)
    for _ in range(3):
        group.write({"step": 1, "model": torch.nn.Linear(1, 1), "long": np.zeros(1001), "frame": frame, "in": [object()]})

    assert kept.rows == [{"step": 1}] * 3
    assert sorted(text.split()[3] for text in texts_of(recwarn)) == ["'frame',", "'in',", "'long',", "'model',"]
    assert "a ndarray: log numbers, text, arrays of at most 1000 numbers" in " ".join(texts_of(recwarn))


def test_values_that_hold_themselves_or_cannot_be_read_stop_nothing(recwarn):
    endless = []
    endless.append(endless)
    kept = Kept()
    SinkGroup([kept]).write({"step": 1, "endless": endless, "nowhere": torch.empty(2, device="meta")})

    assert kept.rows == [{"step": 1}]
    assert len(recwarn) == 2


def test_a_whole_number_that_no_float_can_hold_is_infinite_and_costs_no_other(tmp_path):
    sink = Kept()
    row = {"n": 1, "huge": 10**400, "low": -(10**400), "inside": {"many": [2, 10**400]}, "kept": 10**300, "is": True}
    SinkGroup([sink, JsonLines(tmp_path / "rows.jsonl"), Csv(tmp_path / "rows.csv")]).write(row)
    inf = float("inf")
    assert sink.rows == [{**row, "huge": inf, "low": -inf, "inside": {"many": [2, inf]}}]
    assert [read_row(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == sink.rows


class Changing(Album):
    """A sink that makes the row its own."""

    def write(self, row):
        row["step"] += 100
        row["own"] = 1
        row.pop("gone")
        row["counts"].append(9)
        row["parts"]["a"].append(9)
        if "image" in row:
            row["image"][:] = 9


def test_what_a_sink_does_with_its_row_is_no_affair_of_the_others():
    kept, album = Kept(), Album()
    image = torch.zeros(4, 4, 3, dtype=torch.uint8)
    row = {"step": 1, "gone": 2, "counts": [1, 2], "parts": {"a": [1]}, "image": image}
    group = SinkGroup([Changing(), kept, Changing(), album])
    group.write(row)
    expected = {"step": 1, "gone": 2, "counts": [1, 2], "parts": {"a": [1]}}
    assert kept.rows == [expected]
    (shown,) = album.rows
    assert not shown.pop("image").any()
    assert shown == expected
    assert not image.any()
    assert row["counts"] == [1, 2]
    assert row["parts"] == {"a": [1]}


def test_a_row_is_made_plain_once_whatever_the_number_of_sinks():
    calls, group = [], SinkGroup([Kept(), Kept(), Kept()])
    sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code is plain_row.__code__ else None)
    try:
        group.write({"step": 1, "counts": torch.tensor([1, 2])})
    finally:
        sys.setprofile(None)

    assert calls.count("call") == 1


def test_a_sink_without_close_is_refused_at_once():
    class Half:
        def write(self, row): ...

    with pytest.raises(TypeError, match=r"of type Half is no sink, because it has no close\(\): a sink has write\(row\) and"):
        SinkGroup([Half()])
