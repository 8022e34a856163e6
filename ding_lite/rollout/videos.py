"""Videos of evaluation episodes, at intervals of evaluations, without a display."""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec

from ding_lite.basics import absolute, move_aside, remove_leftovers, seed_of, temporary_beside, write_atomically, writing
from ding_lite.basics.messages import describe_error
from ding_lite.engine import WorkCancelled
from ding_lite.envs import EpisodeResult, make_envs
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.envs.infos import MeanInfo
from ding_lite.policy import EvalMode
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.video_files import FilmedEnv, VideoWriter

_MEAN_INFO = f"{MeanInfo.__module__}:{MeanInfo.__name__}"
_NO_ENV = -1  # an index of no environment, so that the seeds of videos are unique
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs")  # what gymnasium.make_vec() leaves in a spec


class VideoRecorder:
    """Records videos to `folder/videos`, one episode for each evaluation in the schedule.

    It runs an extra episode on the calling thread, with a copy of the policy and in a new environment that is closed
    afterwards. So the results of a run do not depend on videos. The episode is determined by the seed, the number of the
    evaluation and the weights.

    `evaluation_000008_return_123.mp4` has a frame after the reset and after each step.
    The `.json` of the same name holds evaluation, env_step, train_iter, return, length, and complete, which is false if the
    video stopped at 10,000 steps. At evaluation 0, an existing folder `videos` of an earlier run is renamed to `videos.1` and
    so on.

    An error in a video causes one warning and the loss of this video; the run continues.

    Args:
        folder: folder of the run, such as cfg.exp_name. Each evaluator needs its own folder.
        env: an id or a spec that `gymnasium.make` knows, or a function that returns a new environment each time, made with
            render_mode="rgb_array".
        every: number of evaluations between two videos, starting with evaluation 0; or a function of the evaluation's number
            that returns whether to record it. None for `capped_cubic_video_schedule`.
        seed: random seed of the run.
        fps: frames per second; None for the value in the environment's metadata, or 30.

    Raises:
        ValueError: `every` or `fps` is not positive, or the spec has wrappers that cannot be created again.
        TypeError: `env` is none of these.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        env: str | EnvSpec | Callable[[], gymnasium.Env[Any, Any]],
        every: int | Callable[[int], bool] | None = None,
        seed: int = 0,
        fps: float | None = None,
    ) -> None:
        if isinstance(every, int) and every < 1:
            raise ValueError(f"VideoRecorder(every={every}): expected 1 evaluation or more.")
        if fps is not None and not fps > 0:
            raise ValueError(f"VideoRecorder(fps={fps}): expected more than 0 frames per second.")
        self.folder = absolute(folder) / "videos"
        self._make = _maker(env)
        self._is_due = _schedule_of(every)
        self._seed, self._fps = seed_of(seed, "VideoRecorder(seed={})"), fps
        self._is_first, self._has_warned = True, False
        if sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # otherwise pygame fails without a display

    def record(
        self,
        policy: EvalMode,
        evaluation: int,
        env_step: int,
        train_iter: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Path | None:
        """Record an episode with the current weights of the policy, if this evaluation is in the schedule.

        Args:
            policy: the acting mode; a copy of it acts on the CPU.
            evaluation: number of earlier evaluations in this run.
            env_step, train_iter: counters of the evaluation.
            is_stopping: checked before each step; once it is true, there is no video.

        Returns:
            The path of the video; None if there is none.
        """
        try:
            if self._is_first:
                remove_leftovers(self.folder)
            if evaluation == 0 and self._is_first:
                move_aside(self.folder)
            self._is_first = False
            if not self._is_due(evaluation):
                return None
            path = self._film(policy, {"evaluation": evaluation, "env_step": env_step, "train_iter": train_iter}, is_stopping)
        except WorkCancelled:
            return None
        except Exception as error:  # noqa: BLE001  a video must not end the run
            self._warn(evaluation, error)
            return None
        self._has_warned = False
        return path

    def _film(self, policy: EvalMode, details: dict[str, Any], is_stopping: Callable[[], bool]) -> Path:
        name = f"evaluation_{details['evaluation']:06d}"
        seed = episode_seed(self._seed, _NO_ENV, details["evaluation"])
        with writing(self.folder / name):
            self.folder.mkdir(parents=True, exist_ok=True)
        with VideoWriter(temporary_beside(self.folder / name), self._fps) as video:
            episode = self._play(_copied(policy, seed), seed, video, is_stopping)
            video.finish()
            details |= {"return": episode.return_, "length": episode.length, "complete": not video.is_cut}
            path = self.folder / f"{name}_return_{_short(episode.return_)}.mp4"
            write_atomically(path.with_suffix(".json"), json.dumps(details).encode())
            os.replace(video.path, path)
        for other in self.folder.glob(f"{name}_return_*"):  # of a run that was resumed from before this evaluation
            if other.stem != path.stem:
                other.unlink()
        return path

    def _play(self, mode: EvalMode, seed: int, video: VideoWriter, is_stopping: Callable[[], bool]) -> EpisodeResult:
        env = self._make(1, seed, wrappers=[partial(FilmedEnv, video=video)])
        try:
            (episode,) = LocalWorker(env, mode).play_episodes(1, is_stopping)
        finally:
            env.close()
        return episode

    def _warn(self, evaluation: int, error: Exception) -> None:
        if not self._has_warned:
            cause = "; ".join([describe_error(error), *getattr(error, "__notes__", ())])
            warnings.warn(f"evaluation {evaluation} has no video, the run continues without it: {cause}", stacklevel=3)
        self._has_warned = True


EpisodeRecorder = VideoRecorder  # its name in earlier versions


def capped_cubic_video_schedule(evaluation: int) -> bool:
    """Whether to record this evaluation: number 0, 1, 8, 27, 64, ..., 1000, and then every 1000th.

    Reference:
        gymnasium's capped_cubic_video_schedule, which cannot be imported without moviepy.
    """
    return round(evaluation ** (1 / 3)) ** 3 == evaluation if evaluation < 1000 else evaluation % 1000 == 0


def _schedule_of(every: int | Callable[[int], bool] | None) -> Callable[[int], bool]:
    if every is None:
        return capped_cubic_video_schedule
    return every if callable(every) else _each(every)


def _each(every: int) -> Callable[[int], bool]:
    return lambda evaluation: evaluation % every == 0


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _maker(env: Any) -> Callable[..., Any]:
    """A factory for this environment."""
    if isinstance(env, str):
        return partial(make_envs, env, render_mode="rgb_array")
    if not isinstance(env, EnvSpec):
        if not callable(env) or isinstance(env, gymnasium.Env):
            raise TypeError(
                f"VideoRecorder() wants an environment id, a spec, or a function that returns a new environment, got {env!r}."
            )
        return partial(make_envs, env)
    bare = copy.deepcopy(env)
    # MeanInfo, which log_info adds, changes only infos. Other wrappers may change observations or actions, and are needed.
    bare.additional_wrappers = tuple(it for it in bare.additional_wrappers if it.entry_point != _MEAN_INFO)
    kwargs, bare.kwargs = {name: it for name, it in bare.kwargs.items() if name not in _OF_VECTORS}, {}
    wrappers = kwargs.pop("wrappers", ())
    kwargs |= {"render_mode": "rgb_array", "disable_env_checker": True}
    _require_wrappers(bare, kwargs)

    def make() -> gymnasium.Env[Any, Any]:
        made = gymnasium.make(bare, **kwargs)
        for wrapper in wrappers:
            made = wrapper(made)
        return made

    return partial(make_envs, make)


def _require_wrappers(spec: EnvSpec, kwargs: dict[str, Any]) -> None:
    """Raise an error if the spec has a wrapper without its arguments, unless the environment comes with this wrapper.

    Raises:
        ValueError: naming the wrapper.
    """
    lacking = next((wrapper for wrapper in spec.additional_wrappers if wrapper.kwargs is None), None)
    if lacking is None:
        return
    try:
        gymnasium.make(spec, **kwargs).close()
    except ValueError as error:
        raise ValueError(
            f"the spec of {spec.id} has the wrapper {lacking.name}, but not its arguments: pass VideoRecorder(folder, factory) "
            'with a function that returns the wrapped environment, made with render_mode="rgb_array". For environments of '
            'make_envs(), that is with_render_mode(envs.factory, "rgb_array") of ding_lite.envs.'
        ) from error
    except Exception:  # noqa: BLE001  videos that cannot be recorded are a warning
        return


def _copied(policy: EvalMode, index: int) -> EvalMode:
    """An acting mode on the CPU with its own random generator and the current weights of `policy`."""
    # From the acting copy, because the policy's own model may be learning on another thread.
    actor = policy.actor.actor(policy.role, index, torch.device("cpu"))
    actor.copy_weights(policy.acting_snapshot)
    return EvalMode(actor, actor)
