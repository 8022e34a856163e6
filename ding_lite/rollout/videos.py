"""Videos of evaluation episodes: one now and then, by the number of the evaluation, without a display."""

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

from ding_lite.basics import move_aside, remove_leftovers, seed_of, temporary_beside, write_atomically, writing
from ding_lite.engine import BrokenOff
from ding_lite.envs import Episode, episode_seed, make_envs
from ding_lite.policy import EvalMode
from ding_lite.rollout.films import Film, Filmed
from ding_lite.rollout.workers import LocalWorker

_NO_ENV = -1  # the index of no environment, so that the seeds of videos are nobody else's
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs")  # what gymnasium.make_vec() leaves in a spec


class EpisodeRecorder:
    """Films evaluation episodes into `folder/videos`, one for each evaluation that the schedule names.

    It plays an episode of its own, with a copy of the policy and in an environment that is made for it and closed after it, in
    the thread that asks: nothing that counts in a run depends on whether it is filmed. The episode is a function of the seed,
    the number of the evaluation and the weights.

    `evaluation_000008_return_123.mp4` shows what follows the reset and each step, so one frame more than the episode has steps.
    The `.json` of the same name holds evaluation, env_step, train_iter, return, length, and complete: false where the episode
    goes on after 10,000 steps and the video does not. What an earlier run left in `videos` is moved aside, to `videos.1` and
    so on, when evaluation 0 comes.

    Whatever goes wrong with a video costs that video and one warning, never the run.

    Args:
        folder: of the run, such as cfg.exp_name. An evaluator wants a folder of its own.
        env: an id or a spec that `gymnasium.make` knows, or a function that returns a new environment each time, made with
            render_mode="rgb_array".
        every: evaluations from one video to the next, beginning with evaluation 0; or a function of the number of an evaluation
            that says whether to film it. None for `cubes`.
        seed: of the run.
        fps: frames a second; None for what the environment's metadata say, or 30.

    Raises:
        ValueError: `every` or `fps` is not positive, or the spec names wrappers that it cannot make again.
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
            raise ValueError(f"EpisodeRecorder(every={every}): at least 1 evaluation lies between two videos.")
        if fps is not None and not fps > 0:
            raise ValueError(f"EpisodeRecorder(fps={fps}): a video has more than 0 frames a second.")
        self.folder = Path(folder) / "videos"
        self._make = _maker(env)
        self._is_due: Callable[[int], bool] = every if callable(every) else cubes if every is None else _each(every)
        self._seed, self._fps = seed_of(seed, "EpisodeRecorder(seed={})"), fps
        self._is_first, self._has_warned = True, False
        if sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains of the missing display

    def record(
        self,
        policy: EvalMode,
        evaluation: int,
        env_step: int,
        train_iter: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Path | None:
        """Film an episode with the weights that the policy acts with, if this evaluation is one to film.

        Args:
            policy: acts, through a copy of it on the CPU.
            evaluation: how many there were before in this run.
            env_step, train_iter: of the evaluation.
            is_stopping: asked before each step; once it is true, there is no video.

        Returns:
            The video; None where there is none.
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
        except BrokenOff:
            return None
        except Exception as error:  # noqa: BLE001  a picture of the run is not worth the run
            self._warn(evaluation, error)
            return None
        self._has_warned = False
        return path

    def _film(self, policy: EvalMode, told: dict[str, Any], is_stopping: Callable[[], bool]) -> Path:
        name = f"evaluation_{told['evaluation']:06d}"
        seed = episode_seed(self._seed, _NO_ENV, told["evaluation"])
        with writing(self.folder / name):
            self.folder.mkdir(parents=True, exist_ok=True)
        with Film(temporary_beside(self.folder / name), self._fps) as film:
            episode = self._play(_copied(policy, seed), seed, film, is_stopping)
            film.finish()
            told |= {"return": episode.return_, "length": episode.length, "complete": not film.is_cut}
            path = self.folder / f"{name}_return_{_short(episode.return_)}.mp4"
            write_atomically(path.with_suffix(".json"), json.dumps(told).encode())
            os.replace(film.path, path)
        for other in self.folder.glob(f"{name}_return_*"):  # of a run that was resumed from before this evaluation
            if other.stem != path.stem:
                other.unlink()
        return path

    def _play(self, mode: EvalMode, seed: int, film: Film, is_stopping: Callable[[], bool]) -> Episode:
        env = self._make(1, seed, wrappers=[partial(Filmed, film=film)])
        try:
            (episode,) = LocalWorker(env, mode).play_episodes(1, is_stopping)
        finally:
            env.close()
        return episode

    def _warn(self, evaluation: int, error: Exception) -> None:
        if not self._has_warned:
            cause = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
            warnings.warn(f"evaluation {evaluation} has no video, and the run goes on without: {cause}", stacklevel=3)
        self._has_warned = True


def cubes(evaluation: int) -> bool:
    """Whether to film this evaluation: number 0, 1, 8, 27, 64, ..., 1000, and from there on each 1000th.

    Reference:
        gymnasium's capped_cubic_video_schedule, which cannot be imported without moviepy.
    """
    return round(evaluation ** (1 / 3)) ** 3 == evaluation if evaluation < 1000 else evaluation % 1000 == 0


def _each(every: int) -> Callable[[int], bool]:
    return lambda evaluation: evaluation % every == 0


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _maker(env: Any) -> Callable[..., Any]:
    """`make_envs` for this one."""
    if isinstance(env, str):
        return partial(make_envs, env, render_mode="rgb_array")
    if not isinstance(env, EnvSpec):
        if not callable(env) or isinstance(env, gymnasium.Env):
            raise TypeError(
                f"EpisodeRecorder() wants an environment id, a spec, or a function that returns a new environment, got {env!r}."
            )
        return partial(make_envs, env)
    bare = copy.deepcopy(env)
    # Those of our own change nothing that is seen or acted on.
    bare.additional_wrappers = tuple(it for it in bare.additional_wrappers if not it.entry_point.startswith("ding_lite.envs."))
    for wrapper in bare.additional_wrappers:
        if wrapper.kwargs is None:
            raise ValueError(
                f"the spec of {env.id} names the wrapper {wrapper.name}, but not how it was made: pass "
                'EpisodeRecorder(folder, factory), where factory() returns it whole, made with render_mode="rgb_array".'
            )
    kwargs, bare.kwargs = {name: it for name, it in bare.kwargs.items() if name not in _OF_VECTORS}, {}
    wrappers = kwargs.pop("wrappers", ())
    kwargs |= {"render_mode": "rgb_array", "disable_env_checker": True}

    def make() -> gymnasium.Env[Any, Any]:
        made = gymnasium.make(bare, **kwargs)
        for wrapper in wrappers:
            made = wrapper(made)
        return made

    return partial(make_envs, make)


def _copied(policy: EvalMode, index: int) -> EvalMode:
    """A mode with random numbers of its own, on the CPU, and the weights that `policy` acts with next."""
    # From the copy that acts: the policy's own model may be learning at this moment, in another thread.
    actor = policy.actor.actor(policy.role, index, torch.device("cpu"))
    actor.copy_weights(policy.weights)
    return EvalMode(actor, actor)
