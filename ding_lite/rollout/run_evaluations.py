"""Evaluations of saved runs: their policies in new environments like those of the run, to measure them or to watch them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.basics import downloaded_run, is_uri, load_checkpoint, seed_of, temporary_beside, writing
from ding_lite.envs import EpisodeResult, with_render_mode
from ding_lite.envs.names import name_of_envs
from ding_lite.metrics.sums import mean_of
from ding_lite.policy.saved_policies import checkpoint_path, counters_in, default_checkpoint
from ding_lite.reports import ReportError, bootstrap_band, iqm
from ding_lite.rollout.saved_envs import assignment_of, extend_search_path, factory_of, new_envs, record_of, warn_of_statistics
from ding_lite.rollout.saved_players import PolicyClass, SavedPlayers, with_eps
from ding_lite.rollout.video_files import FilmedAgentEnv, FilmedEnv, VideoWriter

_AT_ONCE = 8  # environments


@dataclass(frozen=True)
class RunEvaluation:
    """The episodes of a saved policy, or of the policies of several agents."""

    run: str
    """Folder of the run."""

    algorithm: str
    """Class of the policy; of several policies, their classes, joined."""

    env: str
    """Name of the environments."""

    which: str
    """The checkpoint."""

    train_iter: int | None
    """Gradient steps of the checkpoint; None if it does not say."""

    seed: int
    """Seed of the environments. Episode n of environment k has the same seed in each evaluation with this seed."""

    returns: tuple[float, ...]
    """Undiscounted return of each episode; with several agents, the sum over them, as their evaluator logs it."""

    lengths: tuple[int, ...]
    """Steps of each episode."""

    agent_returns: Mapping[str, float] = field(default_factory=dict)
    """Mean return of each agent, over the episodes in which it took part; empty for runs with one agent."""

    policy_returns: Mapping[str, float] = field(default_factory=dict)
    """Mean return of the agents of each policy; empty for runs with one agent."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that were given to act with, besides eps."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Population standard deviation of the returns: the mean squared deviation is over all episodes, as in np.std."""
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
        found = {**vars(self), "returns": list(self.returns), "lengths": list(self.lengths), **summary}
        return {name: value for name, value in found.items() if value != {}}


def evaluate_run(
    run: str | PathLike[str],
    episodes: int = 100,
    which: str | None = None,
    *,
    seed: int = 1_000_000,
    env: str | Callable[[], Any] | None = None,
    name: str | None = None,
    policy_class: PolicyClass | Mapping[str, PolicyClass] | None = None,
    policy_of: Callable[[Any], str] | Mapping[Any, str] | None = None,
    deterministic: bool = True,
    eps: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunEvaluation:
    """Run whole episodes with the policy of a saved run, in new environments like those of the run's evaluator.

    In a run with several agents, all of its policies act, each for its agents. The environments are those that `run.json`
    names; modules that it names are imported, so evaluate only runs that you trust.

    Args:
        run: the folder of the run, or the URI of its copy.
        episodes: number of episodes.
        which: the checkpoint, as for `load_policy`.
        seed: seed of the environments; the default is far from the usual seeds of training, so that episodes are new ones.
        env: an id, or a function that returns a new environment, or its place as "module:function"; None for the environments
            of the run.
        name: as for `load_policy`; a run with several agents takes none.
        policy_class: the class, or its place as "module:name", if the checkpoint names none that can be imported. With several
            policies a mapping from names to classes, also for policies without weights that the run has not saved.
        policy_of: function or mapping from an agent to the name of its policy; None for the one of the run.
        deterministic: whether to act greedily. False explores as in training.
        eps: with deterministic=False, the probability of random actions, for policies that explore by it, such as DQN.
        settings: further settings to act with, as for `Policy.predict`, such as {"target_return": 300} of a Decision
            Transformer.

    Raises:
        CheckpointError, StateDictError: the policy cannot be loaded; see `load_policy`.
        ReportError: `run.json` is damaged, the environment cannot be made here, or a policy was not saved.
        ValueError: episodes < 1; the policy explores by `eps`, which is missing; or `eps` is given with deterministic=True.
        TypeError: the policy does not use a setting.

    Example:
        >>> evaluate_run("runs/dqn", episodes=100).iqm  # doctest: +SKIP
        500.0
    """
    _require_episodes("evaluate_run", episodes)
    if is_uri(run):
        options: dict[str, Any] = {"name": name, "policy_class": policy_class, "policy_of": policy_of, "settings": settings}
        with downloaded_run(os.fspath(run)) as folder:
            found = evaluate_run(folder, episodes, which, seed=seed, env=env, deterministic=deterministic, eps=eps, **options)
        return dataclasses.replace(found, run=str(run))
    which = default_checkpoint(run) if which is None else which
    seed = seed_of(seed, "evaluate_run(seed={})")
    record = record_of(run)
    extend_search_path(record)
    factory = factory_of(record, env, run)
    players = SavedPlayers(run, which, name, policy_class, policy_of or assignment_of(record))
    envs = new_envs(factory, min(episodes, _AT_ONCE), seed, players)
    given, used = dict(settings or {}), with_eps("evaluate_run", settings, eps)
    try:
        worker = players.worker(envs, used, deterministic)
        warn_of_statistics(envs)
        played = worker.play_episodes(episodes, **used)
        return RunEvaluation(
            str(run),
            players.algorithm,
            name_of_envs(envs),
            which,
            _train_iter(checkpoint_path(run, which)),
            seed,
            tuple(episode.return_ for episode in played),
            tuple(episode.length for episode in played),
            *((_means(played, "return"), _means(played, "policy_return")) if players.has_agents else ({}, {})),
            given,
        )
    finally:
        envs.close()


def play_run(
    run: str | PathLike[str],
    which: str | None = None,
    *,
    video: str | PathLike[str] | None = None,
    episodes: int = 1,
    seed: int = 1_000_000,
    env: str | Callable[..., Any] | None = None,
    name: str | None = None,
    policy_class: PolicyClass | Mapping[str, PolicyClass] | None = None,
    policy_of: Callable[[Any], str] | Mapping[Any, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[tuple[EpisodeResult, Path | None]]:
    """Show episodes of the policy of a saved run in a window, or film them.

    Args:
        run, which, seed, name, policy_class, policy_of, settings: as for `evaluate_run`.
        video: path of an mp4 file; with several episodes, a number is added to its name. None opens the window of the
            environment, render_mode="human".
        episodes: number of episodes.
        env: as for `evaluate_run`, but a function needs the argument `render_mode`.

    Yields:
        Each episode after its end, and the path of its video. With several agents, the return is the sum over them, and the
        episode's `info["return"]` has that of each agent.

    Raises:
        CheckpointError, StateDictError: the policy cannot be loaded; see `load_policy`.
        ReportError: the environment cannot be made or rendered here.
        ValueError: episodes < 1.
        TypeError: the policy does not use a setting.
        ImportError: a video without the extra `video`.
        WriteError: the video cannot be written.
    """
    _require_episodes("play_run", episodes)
    if is_uri(run):
        options: dict[str, Any] = {"name": name, "policy_class": policy_class, "policy_of": policy_of, "settings": settings}
        with downloaded_run(os.fspath(run)) as folder:
            yield from play_run(folder, which, video=video, episodes=episodes, seed=seed, env=env, **options)
        return
    which = default_checkpoint(run) if which is None else which
    record = record_of(run)
    if video is None and sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        raise ReportError("there is no display for a window: write a video with --video out.mp4.")
    render_mode = "human" if video is None else "rgb_array"
    if video is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # otherwise pygame fails without a display
    extend_search_path(record)
    try:
        factory = with_render_mode(factory_of(record, env, run), render_mode)
    except ValueError as error:
        raise ReportError(f"the run in {run} cannot be shown: {error}") from None
    players = SavedPlayers(run, which, name, policy_class, policy_of or assignment_of(record))
    for number in range(episodes):
        path = None if video is None else _numbered(Path(video), number, episodes)
        with contextlib.ExitStack() as stack:
            wrapped, film = factory, None
            if path is not None:
                with writing(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                film = stack.enter_context(VideoWriter(temporary_beside(path)))
                wrapped = functools.partial(_filmed, factory, film, players.has_agents)
            envs = new_envs(wrapped, 1, seed + number, players)
            stack.callback(envs.close)
            has = getattr(envs.envs[0], "render_mode", None)
            if has != render_mode:
                raise ReportError(f"{name_of_envs(envs)} does not support render_mode={render_mode!r}, it has {has!r}.")
            used = dict(settings or {})
            worker = players.worker(envs, used, deterministic=True)
            warn_of_statistics(envs)
            (episode,) = worker.play_episodes(1, **used)
            if film is not None and path is not None:
                film.finish()
                with writing(path):
                    os.replace(film.path, path)
        yield episode, path


def _require_episodes(who: str, episodes: Any) -> None:
    if not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"{who}(episodes={episodes!r}): at least 1 episode is needed, a whole number.")


def _means(episodes: Sequence[EpisodeResult], kind: str) -> dict[str, float]:
    """The means of these numbers in the infos of episodes, each over the episodes that have it."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info[kind].items():
            found.setdefault(str(name), []).append(value)
    return {name: mean_of(values) for name, values in found.items()}


def _filmed(factory: Callable[[], Any], video: VideoWriter, has_agents: bool) -> Any:
    return (FilmedAgentEnv if has_agents else FilmedEnv)(factory(), video)


def _numbered(path: Path, number: int, count: int) -> Path:
    path = path if path.suffix == ".mp4" else path.with_name(f"{path.name}.mp4")
    return path if count == 1 else path.with_name(f"{path.stem}_{number + 1}{path.suffix}")


def _train_iter(path: Path) -> int | None:
    """The gradient steps after which these weights were saved; None if the file does not say."""
    state = load_checkpoint(path)
    found = state.get("evaluated_at", counters_in(state, path).get("train_iter"))
    return found if isinstance(found, int) else None
