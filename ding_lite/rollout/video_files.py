"""Video files: frames of an environment, written to an mp4 file by ffmpeg."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import gymnasium
import numpy as np

from ding_lite.basics import require_extra

_MOST_STEPS = 10_000  # recorded steps of an episode
_USUAL_FPS = 30.0
_PATIENCE_S = 60.0  # for ffmpeg after the last frame


class VideoWriter:
    """A video that is written frame by frame, without keeping frames in memory. Use it as a context manager.

    Leaving the context ends ffmpeg and removes the file at `path`, unless it was moved away.

    Args:
        path: path of the file, with any ending.
        fps: frames per second; None for the value in the environment's metadata, or 30.

    Raises:
        ImportError: without the extra `video`.
    """

    def __init__(self, path: Path, fps: float | None = None) -> None:
        require_extra("imageio_ffmpeg", "video", "filming an episode")
        self.path, self.fps = path, fps
        self.is_cut = False
        """Whether the video ends before the episode."""
        self._shape: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__

    def add(self, frame: Any) -> None:
        """Append a frame, uint8 [H, W, 3].

        Raises:
            ValueError: not a frame, or not the size of the first one.
            RuntimeError: ffmpeg has stopped.
        """
        if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
            found = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ValueError(
                f"render() returned {found}, expected a frame uint8 [H, W, 3]: make the environment with "
                'render_mode="rgb_array".'
            )
        if self._process is None:
            self._process, self._shape = self._begin(*frame.shape[:2]), frame.shape
        if frame.shape != self._shape:
            raise ValueError(
                f"render() returned a frame {list(frame.shape)} after frames {list(self._shape)}: frames must have the same "
                "size."
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError:
            self.finish()
            raise

    def _begin(self, height: int, width: int) -> subprocess.Popen[bytes]:
        from imageio_ffmpeg import get_ffmpeg_exe

        frames = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self.fps), "-i", "pipe:0")
        # For browsers: chroma at half resolution, hence even sizes, and the index before the frames.
        video = ("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4")
        codec = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-threads", "1")
        # Not imageio_ffmpeg.write_frames(): it hides errors of ffmpeg, and runs Python after fork, which is unsafe with
        # threads.
        return subprocess.Popen(
            [get_ffmpeg_exe(), "-y", "-v", "error", *frames, *video, *codec, f"file:{self.path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # so that Ctrl-C does not reach ffmpeg; the run closes the video
        )

    def finish(self) -> None:
        """End the video, and wait until the file is complete.

        Raises:
            RuntimeError: ffmpeg failed, or is not done after a minute.
        """
        process = self._process
        if process is None:
            raise RuntimeError("a video without frames cannot be finished: add() at least one frame.")
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"ffmpeg did not finish {self.path} within {_PATIENCE_S:g} s.") from None
        if status:
            self._said.seek(0)
            said = " ".join(self._said.read(2000).decode(errors="replace").split())
            raise RuntimeError(f"ffmpeg ended with status {status} while it wrote {self.path}: {said or 'it did not say why'}")

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._said.close()
        self.path.unlink(missing_ok=True)


class FilmedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that records the first episode: a frame after the reset and after each step, up to 10,000 steps.

    Args:
        env: made with render_mode="rgb_array".
        video: gets the frames.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], video: VideoWriter) -> None:
        super().__init__(env)
        self._video, self._steps, self._is_on = video, 0, True
        if video.fps is None:
            video.fps = env.metadata.get("render_fps") or _USUAL_FPS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        result = self.env.reset(seed=seed, options=options)
        if self._is_on:
            self._video.add(self.env.render())
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the environment; the recording stops at its maximum length."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._is_on:
            self._video.add(self.env.render())
            self._steps += 1
            if self._steps == _MOST_STEPS and not (terminated or truncated):
                self._video.is_cut = truncated = True
            self._is_on = not (terminated or truncated)
        return obs, reward, terminated, truncated, info


class FilmedAgentEnv:
    """A wrapper of a multi-agent environment that records the first episode, as FilmedEnv does.

    Args:
        env: with PettingZoo's parallel API, made with render_mode="rgb_array".
        video: gets the frames.
    """

    def __init__(self, env: Any, video: VideoWriter) -> None:
        self.env = env
        self._video, self._steps, self._is_on = video, 0, True
        if video.fps is None:
            video.fps = (getattr(env, "metadata", None) or {}).get("render_fps") or _USUAL_FPS

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # during unpickling, before it is set
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        result: tuple[Any, Any] = self.env.reset(seed=seed, options=options)
        if self._is_on:
            self._video.add(self.env.render())
        return result

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        """One step of the environment; the recording stops at its maximum length."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        if self._is_on:
            self._video.add(self.env.render())
            self._steps += 1
            is_over = all(terminations[agent] or truncations[agent] for agent in actions)
            if self._steps == _MOST_STEPS and not is_over:
                self._video.is_cut = True
                truncations = dict.fromkeys(truncations, True)
            self._is_on = not (is_over or self._video.is_cut)
        return obs, rewards, terminations, truncations, infos
