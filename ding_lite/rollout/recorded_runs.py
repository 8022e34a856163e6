"""Recorded runs: episodes of the policy of a saved run as a dataset."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics import command_line, library_versions, seed_of
from ding_lite.datasets import DatasetError, DatasetWriter, OfflineDataset
from ding_lite.envs import LocalVectorEnv
from ding_lite.policy.saved_policies import checkpoint_path, default_checkpoint
from ding_lite.reports import ReportError
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.noisy_actions import NoisyMode
from ding_lite.rollout.saved_envs import assignment_of, extend_search_path, factory_of, new_envs, record_of, warn_of_statistics
from ding_lite.rollout.saved_players import PolicyClass, SavedPlayers, with_eps

_AT_ONCE = 8  # environments
_STEPS = 4096  # of a call to collect


def record_run(
    run: str | PathLike[str],
    path: str | PathLike[str],
    steps: int = 100_000,
    which: str | None = None,
    *,
    seed: int = 2_000_000,
    env: str | Callable[[], Any] | None = None,
    name: str | None = None,
    policy_class: PolicyClass | None = None,
    deterministic: bool = False,
    eps: float | None = None,
    noise_sigma: float | None = None,
    append: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> OfflineDataset:
    """Record whole episodes of the policy of a saved run as a dataset, in new environments like those of its evaluator.

    Modules that the files of the run name are imported: record only runs that you trust.

    Args:
        run, which, env, name, policy_class: as for `evaluate_run`.
        path: folder of the dataset.
        seed: seed of the environments; the default is another one than that of `evaluate_run`, so that a policy that learns
            from the dataset is evaluated on other episodes.
        steps: transitions; the episodes that are under way then are completed.
        deterministic: whether to act greedily. False explores as in training, and the dataset has log_prob where the policy
            gives it.
        eps: with deterministic=False, the probability of random actions, for policies that explore by it, such as DQN.
        noise_sigma: with deterministic=True, the standard deviation of normal noise on actions in a Box, for actions scaled to
            [-1, 1]. Critics that learn from greedy actions alone do not know what other actions lead to.
        append: whether to add to a dataset that exists.
        settings: further settings to act with, as for `evaluate_run`.

    Returns:
        The dataset.

    Raises:
        CheckpointError, StateDictError: the policy cannot be loaded; see `load_policy`.
        ReportError: `run.json` is damaged, the environment cannot be made here, or the run has several agents.
        DatasetError: there is a dataset already, and `append` is False; or its spaces differ, or it has these very episodes.
        ValueError: steps < 1; `eps` is no probability, or in `settings` too; the policy explores by `eps`, which is missing;
            `eps` is given with deterministic=True, or `noise_sigma` without it; `noise_sigma` is not above 0, or the policy has
            other actions than it is for.
        TypeError: the policy does not use a setting.
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(f"record_run(steps={steps!r}): at least 1 step is needed, a whole number.")
    used = with_eps("record_run", settings, eps)
    if eps is not None and deterministic:
        raise ValueError(
            f"eps = {eps!r} has no effect on greedy actions: leave it out, or pass deterministic=False, on the command line "
            "leave --greedy out."
        )
    if noise_sigma is not None and not deterministic:
        raise ValueError(
            "noise_sigma is noise on greedy actions, and deterministic=False explores as in training: pass deterministic=True, "
            "on the command line --greedy."
        )
    seed = seed_of(seed, "record_run(seed={})")
    which = default_checkpoint(run) if which is None else which
    record = record_of(run)
    extend_search_path(record)
    factory = factory_of(record, env, run)
    players = SavedPlayers(run, which, name, policy_class, assignment_of(record))
    if players.has_agents:
        raise ReportError(f"the run in {run} has several agents, and a dataset is of one: record a run with one agent.")
    writer = DatasetWriter(path, append)
    envs = new_envs(factory, _AT_ONCE, seed, players)
    try:
        noisy = {} if noise_sigma is None else {"greedy_mode": functools.partial(NoisyMode, sigma=noise_sigma, seed=seed)}
        worker = players.worker(envs, used, deterministic, **noisy)
        assert isinstance(worker, LocalWorker)
        assert isinstance(envs, LocalVectorEnv)
        warn_of_statistics(envs)
        source = {
            "run": str(run),
            "which": which,
            "checkpoint": str(checkpoint_path(run, which)),
            "deterministic": deterministic,
            **({} if noise_sigma is None else {"noise_sigma": float(noise_sigma)}),
            **({"settings": used} if used else {}),
            "seed": seed,
            "environments": [{"stage": "collect", "name": envs.env_name}],
            "policies": [{"algorithm": players.algorithm}],
            "command": command_line(),
            "versions": library_versions(),
        }
        if append:
            _require_new_episodes(path, source)
        writer.begin(envs.single_observation_space, envs.single_action_space, source)
        left = int(steps)
        while left > 0:
            found = worker.collect_episodes(min(left, _STEPS), False, "steps", **used).transitions
            writer.add(found)
            left -= int(found.lengths.sum())
        writer.flush()
    finally:
        envs.close()
        writer.close()
    return OfflineDataset(path)


def _require_new_episodes(path: str | PathLike[str], source: Mapping[str, Any]) -> None:
    """Refuse to record the episodes of a policy with a seed a second time."""
    if not (Path(path) / "dataset.json").exists():
        return
    same = "checkpoint", "seed", "deterministic", "noise_sigma", "settings"
    for known in OfflineDataset(path).sources:
        if all(known.get(name) == source.get(name) for name in same):
            raise DatasetError(
                f"the dataset {path} has episodes of {source['checkpoint']} with seed {source['seed']} already: pass another "
                "seed."
            )
