"""VideoWriter: every frame in order, in a file that browsers play, and nothing left behind where it is not finished."""

import importlib.util
import os
import tracemalloc

import gymnasium
import imageio_ffmpeg
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from ding_lite.rollout.video_files import FilmedEnv, VideoWriter

H, W = 31, 45


class Clock(gymnasium.Env):
    """Its frames tell the number of the step, in shades of grey."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, length, metadata=None):
        self.length, self.metadata = length, metadata or {}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return 0, {}

    def step(self, action):
        self.t += 1
        return 0, 0.0, self.t == self.length, False, {}

    def render(self):
        return grey(25 * self.t)


def grey(level, size=(H, W)):
    return np.full((*size, 3), min(level, 255), np.uint8)


def decoded(path):
    """What a player is told of a video, and its frames, [T, H, W, 3]."""
    stream = imageio_ffmpeg.read_frames(str(path))
    about = next(stream)
    width, height = about["size"]
    return about, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in stream])


def finished(path, frames, fps=10):
    """The file as it is before the video's context is left."""
    with VideoWriter(path.with_suffix(".tmp"), fps) as video:
        write(video, frames)
        os.replace(video.path, path)
    return path


def write(video, frames):
    for frame in frames:
        video.add(frame)
    video.finish()


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Whatever becomes of a video, neither a process nor an unfinished file outlives it."""
    yield
    assert [child.name() for child in psutil.Process().children() if "ffmpeg" in child.name()] == []
    assert list(tmp_path.glob("*.tmp")) == []


def test_frames_arrive_in_order_and_an_odd_size_gets_a_rim(tmp_path):
    about, frames = decoded(finished(tmp_path / "video.mp4", [grey(25 * t) for t in range(10)]))

    assert (about["codec"], about["pix_fmt"].partition("(")[0]) == ("h264", "yuv420p")
    assert about["size"] == (W + 1, H + 1)
    shown = frames[:, 4 : H - 4, 4 : W - 4]
    assert np.abs(shown.mean((1, 2, 3)) - 25 * np.arange(10)).max() < 4
    assert shown.std((1, 2, 3)).max() < 4


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (64, 48)])
def test_frames_may_have_any_size_and_come_at_any_pace(size, tmp_path):
    about, frames = decoded(finished(tmp_path / "video.mp4", [grey(9, size)] * 10, fps=12.5))

    assert about["size"] == (size[1] + size[1] % 2, size[0] + size[0] % 2)
    assert about["fps"] == 12.5
    assert len(frames) == 10


def test_colours_stay_in_their_place(tmp_path):
    frame = np.zeros((64, 96, 3), np.uint8)
    frame[:32, :48], frame[:32, 48:], frame[32:, :48] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    _, frames = decoded(finished(tmp_path / "video.mp4", [frame.transpose(1, 0, 2)[:, ::-1]] * 3))  # not contiguous

    expected = frame.transpose(1, 0, 2)[:, ::-1].astype(float)
    inner = np.s_[8:40, 8:24]  # of a corner
    assert np.abs(frames[1][inner] - expected[inner]).max() < 12
    assert np.abs(frames[1][-40:-8, -24:-8] - expected[-40:-8, -24:-8]).max() < 12


def test_no_frame_is_kept(tmp_path):
    finished(tmp_path / "warm.mp4", [grey(0)])
    tracemalloc.start()
    finished(tmp_path / "video.mp4", (grey(t, (200, 300)) for t in range(250)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 5 * 200 * 300 * 3


def test_an_index_stands_before_the_pictures_so_that_a_browser_begins_at_once(tmp_path):
    content = finished(tmp_path / "video.mp4", [grey(0)] * 3).read_bytes()

    assert 0 < content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize("folder", ["run: one", "%d", "-y", "ünï ' \" $HOME"])
def test_folders_may_be_called_as_they_like(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir()
    with VideoWriter((tmp_path / folder / "video.tmp").relative_to(tmp_path), 10) as video:
        video.add(grey(0))
        video.finish()
        assert video.path.stat().st_size > 0


# An environment that is filmed.


def play(video, length, steps, metadata=None):
    """What the environment said of each step: (terminated, truncated)."""
    env = FilmedEnv(Clock(length, metadata), video)
    env.reset(seed=0)
    found = []
    for _ in range(steps):
        _, _, *ends, _ = env.step(0)
        found.append(tuple(ends))
        if any(ends):
            env.reset()
    return found


def test_the_first_episode_is_filmed_after_the_reset_and_each_step(tmp_path):
    with VideoWriter(tmp_path / "video.tmp") as video:
        play(video, length=4, steps=11)
        video.finish()
        _, frames = decoded(video.path)

        assert not video.is_cut
        assert np.round(frames.mean((1, 2, 3)) / 25).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "ends"), [(10_000, (True, False)), (None, (False, True))])
def test_an_episode_longer_than_a_film_may_be_is_cut(length, ends, tmp_path):
    with VideoWriter(tmp_path / "video.tmp") as video:
        found = play(video, length, steps=10_000)

        assert found == [(False, False)] * 9_999 + [ends]
        assert video.is_cut is (length is None)


@pytest.mark.parametrize(
    ("fps", "metadata", "expected"), [(None, {"render_fps": 50}, 50), (None, {}, 30), (7, {"render_fps": 50}, 7)]
)
def test_the_environment_tells_the_pace_unless_somebody_else_does(fps, metadata, expected, tmp_path):
    with VideoWriter(tmp_path / "video.tmp", fps) as video:
        play(video, 4, 4, metadata)
        video.finish()
        assert decoded(video.path)[0]["fps"] == expected


# Trouble.


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            None,
            r"render\(\) returned NoneType, expected a frame uint8 \[H, W, 3\]: make the environment",
        ),
        ([grey(0)], r"render\(\) returned list"),
        (np.zeros((H, W, 3)), r"render\(\) returned float64 \[31, 45, 3\]"),
        (np.zeros((H, W), np.uint8), r"render\(\) returned uint8 \[31, 45\]"),
        (np.zeros((H, W, 4), np.uint8), r"render\(\) returned uint8 \[31, 45, 4\]"),
        (
            grey(0, (5, 5)),
            r"render\(\) returned a frame \[5, 5, 3\] after frames \[31, 45, 3\]: frames must have the same size",
        ),
    ],
)
def test_what_is_no_frame_is_refused(frame, message, tmp_path):
    with VideoWriter(tmp_path / "video.tmp", 10) as video:
        video.add(grey(0))
        with pytest.raises(ValueError, match=message):
            video.add(frame)


@pytest.mark.parametrize(
    ("script", "frames", "message"),
    [
        (
            "cat > /dev/null; echo 'No space left on device' >&2; exit 3",
            2,
            "ended with status 3 .*video.tmp: No space left on device",
        ),
        ("head -c 10 > /dev/null; echo broken >&2; exit 4", 2000, "ffmpeg ended with status 4 .*: broken"),
        ("exit 5", 2000, "ffmpeg ended with status 5 .*: it did not say why"),
    ],
)
def test_what_ffmpeg_says_when_it_fails_is_told(script, frames, message, tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "ffmpeg"))

    with VideoWriter(tmp_path / "video.tmp", 10) as video, pytest.raises(RuntimeError, match=message):
        write(video, [grey(0)] * frames)


def test_an_ffmpeg_that_does_not_end_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\ncat > /dev/null; exec sleep 60\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "ffmpeg"))
    monkeypatch.setattr("ding_lite.rollout.video_files._PATIENCE_S", 0.2)

    others = set(psutil.Process().children())  # of other tests, such as the server that starts workers
    with VideoWriter(tmp_path / "video.tmp", 10) as video:
        video.add(grey(0))
        with pytest.raises(RuntimeError, match="ffmpeg did not finish .*video.tmp within 0.2 s"):
            video.finish()
    assert set(psutil.Process().children()) <= others


def test_a_folder_that_is_not_there_is_told_by_ffmpeg(tmp_path):
    with (
        VideoWriter(tmp_path / "nowhere" / "video.tmp", 10) as video,
        pytest.raises(RuntimeError, match="No such file or directory"),
    ):
        write(video, [grey(0)])


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "imageio_ffmpeg" else find(name))

    with pytest.raises(ImportError, match=r"needs imageio_ffmpeg, which is not installed: pip install 'ding_lite\[video\]'"):
        VideoWriter(tmp_path / "video.tmp")


def test_a_film_without_frames_cannot_be_finished(tmp_path):
    with VideoWriter(tmp_path / "video.tmp", 10) as video, pytest.raises(RuntimeError, match="a video without frames"):
        video.finish()


def test_ctrl_c_on_a_terminal_is_not_for_ffmpeg(tmp_path):
    others = set(psutil.Process().children())
    with VideoWriter(tmp_path / "video.tmp", 10) as video:
        video.add(grey(0))
        (ffmpeg,) = set(psutil.Process().children()) - others
        assert os.getpgid(ffmpeg.pid) != os.getpgrp()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_film_that_is_interrupted_leaves_nothing(error, tmp_path):
    def frames():
        yield from [grey(0)] * 100
        raise error

    with pytest.raises(error):
        finished(tmp_path / "video.mp4", frames())
    assert list(tmp_path.iterdir()) == []
