"""Pictures and videos as addresses: which ones, and what is said of the others."""

import base64

from ding_lite.reports import find_runs
from ding_lite.reports.attachments import newest_videos, picture, text


def test_each_run_gets_its_newest_before_any_gets_its_next_and_what_is_left_out_is_said(tmp_path, write_run, write_video):
    for name, size in (("a", 100), ("b", 100), ("c", 5000)):
        folder = write_run(tmp_path / name, iterations=1)
        for evaluation in (2, 9, 10):
            write_video(folder, evaluation, bytes(size))
    runs = find_runs([tmp_path])
    videos, left_out = newest_videos(runs, per_run=2, most_bytes=350)

    assert [(video.run, video.description.partition(",")[0]) for video in videos] == [
        ("runs/a", "evaluation 10"),
        ("runs/a", "evaluation 9"),
        ("runs/b", "evaluation 10"),
    ]
    assert left_out == [f"{count} more of runs/{name} in {tmp_path / name / 'videos'}" for name, count in zip("abc", (1, 2, 3))]


def test_a_video_says_which_evaluation_it_is_or_else_how_its_file_is_called(tmp_path, write_run, write_video):
    folder = write_run(tmp_path / "a", iterations=1)
    told = write_video(folder, 7, b"x")
    untold = write_video(folder, 8, b"x")
    untold.with_suffix(".json").write_text("[")
    (newer, older), _ = newest_videos(find_runs([folder]), per_run=2, most_bytes=100)

    assert told.exists()
    assert older.description == "evaluation 7, after 448 environment steps, return 107, 100 steps long"
    assert newer.description == "evaluation 000008 return 108"
    assert newer.address == "data:video/mp4;base64," + base64.b64encode(b"x").decode()


def test_empty_videos_and_runs_without_any_are_left_alone(tmp_path, write_run, write_video):
    write_video(write_run(tmp_path / "a", iterations=1), 1, b"")
    write_run(tmp_path / "b", iterations=1)

    videos, left_out = newest_videos(find_runs([tmp_path]), per_run=2, most_bytes=100)
    assert videos == []
    assert left_out == [f"1 more of runs/a in {tmp_path / 'a' / 'videos'}"]


def test_pictures_and_texts_that_are_missing_or_far_too_large_are_nothing(tmp_path, write_run):
    run = find_runs([write_run(tmp_path / "a", iterations=1)])[0]
    (run.folder / "timeline.svg").write_bytes(bytes(3_000_000))
    (run.folder / "lanes.txt").write_bytes("collect 80%\xff".encode("latin-1"))

    assert picture(run, "pipeline.svg").startswith("data:image/svg+xml;base64,")
    assert picture(run, "timeline.svg") == ""
    assert picture(run, "no_such.svg") == ""
    assert text(run, "lanes.txt") == "collect 80%\ufffd"
    assert text(run, "no_such.txt") == ""
