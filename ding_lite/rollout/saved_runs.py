"""Saved runs: the policy of a run in new environments like its own, to evaluate it or to watch it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from ding_lite.basics import load_checkpoint, seed_of, temporary_beside, writing
from ding_lite.envs import EpisodeResult, LocalVectorEnv, env_factory, layers_with_state, made_from, rendering
from ding_lite.policy import Policy, checkpoint_path, load_policy
from ding_lite.reports import ReportError, bootstrap_band, iqm
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.video_files import FilmedEnv, VideoWriter

_RECORD = "run.json"
_AT_ONCE = 8  # environments


@dataclass(frozen=True)
class RunEvaluation:
    """The episodes of a saved policy."""

    run: str
    """Folder of the run."""

    algorithm: str
    """Class of the policy."""

    env: str
    """Name of the environments."""

    which: str
    """The checkpoint."""

    train_iter: int | None
    """Gradient steps of the checkpoint; None if it does not say."""

    seed: int
    """Seed of the environments. Episode n of environment k has the same seed in each evaluation with this seed."""

    returns: tuple[float, ...]
    """Undiscounted return of each episode."""

    lengths: tuple[int, ...]
    """Steps of each episode."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns, divided by the number of episodes."""
        return float(np.std(self.returns))

    @property
    def iqm(self) -> float:
        """Interquartile mean of the returns."""
        return float(iqm(np.array(self.returns)))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the interquartile mean."""
        low, high = bootstrap_band(np.array(self.returns))
        return float(low), float(high)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        low, high = self.interval
        summary = {"mean": self.mean, "std": self.std, "iqm": self.iqm, "iqm_low": low, "iqm_high": high}
        return {**vars(self), "returns": list(self.returns), "lengths": list(self.lengths), **summary}


def evaluate_run(
    run: str | PathLike[str],
    episodes: int = 100,
    which: str = "best",
    *,
    seed: int = 1_000_000,
    env: str | Callable[[], Any] | None = None,
    name: str | None = None,
    policy_class: str | type[Policy] | None = None,
    deterministic: bool = True,
    eps: float | None = None,
) -> RunEvaluation:
    """Run whole episodes with the policy of a saved run, in new environments like those of the run's evaluator.

    The environments are those that `run.json` names; modules that it names are imported, so evaluate only runs that you trust.

    Args:
        run: the folder of the run.
        episodes: number of episodes.
        which: the checkpoint, as for `load_policy`.
        seed: seed of the environments; the default is far from the usual seeds of training, so that episodes are new ones.
        env: an id, or a function that returns a new environment, or its place as "module:function"; None for the environments
            of the run.
        name: as for `load_policy`.
        policy_class: the class, or its place as "module:name", if the checkpoint names none that can be imported.
        deterministic: whether to act greedily. False explores as in training.
        eps: with deterministic=False, the probability of random actions, for policies that explore by it, such as DQN.

    Raises:
        CheckpointError, StateError: the policy cannot be loaded; see `load_policy`.
        ReportError: `run.json` is damaged, or the environment cannot be made here.
        ValueError: episodes < 1; or the policy explores by `eps`, which is missing.

    Example:
        >>> evaluate_run("runs/dqn", episodes=100).iqm  # doctest: +SKIP
        500.0
    """
    if not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"evaluate_run(episodes={episodes!r}): at least 1 episode is needed, a whole number.")
    seed = seed_of(seed, "evaluate_run(seed={})")
    record = _record_of(run)
    _extend_search_path(record)
    factory = _factory(record, env, run)
    policy = load_policy(run, which, name=name, policy_class=_class_at(policy_class))
    envs = _new_envs(factory, min(episodes, _AT_ONCE), seed)
    settings: dict[str, Any] = {} if eps is None else {"eps": eps}
    try:
        if not deterministic:
            policy.predict_mode.require_settings(settings)
        _warn_of_statistics(envs)
        mode = policy.eval_mode if deterministic else policy.collect_mode
        played = LocalWorker(envs, mode).play_episodes(episodes, **({} if deterministic else settings))
        return RunEvaluation(
            str(run),
            type(policy).__name__,
            envs.env_name,
            which,
            _train_iter(checkpoint_path(run, which)),
            seed,
            tuple(episode.return_ for episode in played),
            tuple(episode.length for episode in played),
        )
    finally:
        envs.close()


def play_run(
    run: str | PathLike[str],
    which: str = "best",
    *,
    video: str | PathLike[str] | None = None,
    episodes: int = 1,
    seed: int = 1_000_000,
    env: str | Callable[..., Any] | None = None,
    name: str | None = None,
    policy_class: str | type[Policy] | None = None,
) -> Iterator[tuple[EpisodeResult, Path | None]]:
    """Show episodes of the policy of a saved run in a window, or film them.

    Args:
        run, which, seed, name, policy_class: as for `evaluate_run`.
        video: path of an mp4 file; with several episodes, a number is added to its name. None opens the window of the
            environment, render_mode="human".
        episodes: number of episodes.
        env: as for `evaluate_run`, but a function needs the argument `render_mode`.

    Yields:
        Each episode after its end, and the path of its video.

    Raises:
        CheckpointError, StateError: the policy cannot be loaded; see `load_policy`.
        ReportError: the environment cannot be made or rendered here.
        ImportError: a video without the extra `video`.
        WriteError: the video cannot be written.
    """
    record = _record_of(run)
    if video is None and sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        raise ReportError("there is no display for a window: write a video with --video out.mp4.")
    render_mode = "human" if video is None else "rgb_array"
    if video is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # otherwise pygame fails without a display
    _extend_search_path(record)
    try:
        factory = rendering(_factory(record, env, run), render_mode)
    except ValueError as error:
        raise ReportError(f"the run in {run} cannot be shown: {error}") from None
    policy = load_policy(run, which, name=name, policy_class=_class_at(policy_class))
    for number in range(episodes):
        path = None if video is None else _numbered(Path(video), number, episodes)
        with contextlib.ExitStack() as stack:
            wrapped, film = factory, None
            if path is not None:
                with writing(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                film = stack.enter_context(VideoWriter(temporary_beside(path)))
                wrapped = functools.partial(_filmed, factory, film)
            envs = _new_envs(wrapped, 1, seed + number)
            stack.callback(envs.close)
            if envs.render_mode != render_mode:
                raise ReportError(f"{envs.env_name} does not support render_mode={render_mode!r}, it has {envs.render_mode!r}.")
            _warn_of_statistics(envs)
            (episode,) = LocalWorker(envs, policy.eval_mode).play_episodes(1)
            if film is not None and path is not None:
                film.finish()
                with writing(path):
                    os.replace(film.path, path)
        yield episode, path


def _record_of(run: str | PathLike[str]) -> Mapping[str, Any]:
    """What `run.json` says; empty if there is none."""
    path = Path(run) / _RECORD
    if not Path(run).exists():
        raise ReportError(f"there is no folder {run}: pass the folder of a run, such as runs/dqn.")
    try:
        found = json.loads(path.read_bytes())
    except OSError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} cannot be read: {error}.") from None
    envs = found.get("environments", []) if isinstance(found, dict) else None
    folders = found.get("search_path", []) if isinstance(found, dict) else None
    is_whole = isinstance(envs, list) and all(isinstance(one, dict) and {"stage", "name", "recipe"} <= set(one) for one in envs)
    if not is_whole or not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise ReportError(f"{path} is damaged: its entries 'environments' and 'search_path' are not those of a run.")
    return found  # type: ignore[no-any-return]


def _factory(record: Mapping[str, Any], env: str | Callable[..., Any] | None, run: str | PathLike[str]) -> Callable[..., Any]:
    """A function that makes one environment like those of the run, or the given one."""
    if env is not None:
        return _given_factory(env)
    by_stage = {known["stage"]: known for known in reversed(record.get("environments", []))}
    known = by_stage.get("evaluate") or by_stage.get("collect")
    fix = "name the environment: --env ID, or --env module:function for a function that makes it"
    if known is None:
        raise ReportError(f"{Path(run) / _RECORD} does not say which environments the run had: {fix}.")
    if isinstance(known["recipe"], str):
        raise ReportError(f"the environment {known['name']} cannot be made here, because {known['recipe']}: {fix}.")
    try:
        made: Callable[..., Any] = made_from(known["recipe"])
        if not callable(made):
            raise TypeError(f"{made!r:.60} is no function")
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise ReportError(f"the environment {known['name']} cannot be made here: {error}. Otherwise {fix}.") from None
    return made


def _given_factory(env: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function by which `make_envs` makes one of these environments."""
    found = _imported(env) if isinstance(env, str) and ":" in env else env
    try:
        return env_factory(found if callable(found) else env)
    except (gymnasium.error.Error, ImportError) as error:
        raise ReportError(f"the environment {env} cannot be made: {error}") from None


def _class_at(place: str | type[Policy] | None) -> type[Policy] | None:
    if not isinstance(place, str):
        return place
    found = _imported(place)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ReportError(f"there is no class of policies at {place!r}: name it as module:name, such as my_module:MyPolicy.")
    return found


def _imported(place: str) -> Any:
    """The object at "module:name"; None if there is none."""
    module, _, path = place.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


def _new_envs(factory: Callable[[], Any], count: int, seed: int) -> LocalVectorEnv:
    try:
        return LocalVectorEnv([factory] * count, seed)
    except gymnasium.error.Error as error:
        raise ReportError(f"the environment cannot be made: {error}") from None


def _filmed(factory: Callable[[], Any], video: VideoWriter) -> Any:
    return FilmedEnv(factory(), video)


def _numbered(path: Path, number: int, count: int) -> Path:
    path = path if path.suffix == ".mp4" else path.with_name(f"{path.name}.mp4")
    return path if count == 1 else path.with_name(f"{path.stem}_{number + 1}{path.suffix}")


def _train_iter(path: Path) -> int | None:
    """The gradient steps after which these weights were saved; None if the file does not say."""
    state = load_checkpoint(path)
    found = state.get("evaluated_at", state.get("counters", {}).get("train_iter"))
    return found if isinstance(found, int) else None


def _extend_search_path(record: Mapping[str, Any]) -> None:
    """Let modules beside the script of the run be imported."""
    sys.path += [folder for folder in record.get("search_path", []) if folder not in sys.path]


def _warn_of_statistics(envs: LocalVectorEnv) -> None:
    """Warn if a wrapper has statistics of training, which new environments do not have."""
    layer: Any = envs.envs[0]
    while isinstance(layer, gymnasium.Wrapper):
        is_own = type(layer).__module__.startswith("ding_lite.")  # whose state belongs to an episode or a game
        if isinstance(layer, (NormalizeObservation, NormalizeReward)) or (not is_own and layer in layers_with_state(layer)):
            warnings.warn(
                f"the wrapper {type(layer).__name__} has a state that it built up in training, and new environments begin "
                "without it, so that the returns may differ from those in training: normalise observations in the policy "
                "instead, by policy.model.normalize_obs.",
                stacklevel=3,
            )
        layer = layer.env
