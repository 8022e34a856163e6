"""Making multi-agent environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, SupportsIndex

from ding_lite.basics import seed_of
from ding_lite.envs.factories import TURNS, called, settings_of, takes_turns
from ding_lite.envs.info_columns import names_of
from ding_lite.envs.multi_agent import AgentEnvFactory, MultiAgentVectorEnv
from ding_lite.envs.pieces import Backend, WorkerSettings, sizes_and_hosts
from ding_lite.envs.worker_agent_envs import SplitMultiAgentVectorEnv


def make_multi_agent_envs(
    factory: AgentEnvFactory,
    num_envs: int = 1,
    *,
    seed: int = 0,
    env_config: Mapping[str, Any] | None = None,
    workers: int = 1,
    backend: Backend = "local",
    restart: bool = False,
    timeout_s: float = 60.0,
    start_timeout_s: float = 120.0,
    info_columns: Iterable[str] = (),
    ray_address: str | None = None,
    num_cpus_per_worker: float | None = None,
    num_gpus_per_worker: float = 0.0,
    worker_resources: Mapping[str, float] | None = None,
) -> MultiAgentVectorEnv | SplitMultiAgentVectorEnv:
    """N copies of a multi-agent environment, stepped in this process or in worker processes.

    A worker process owns its copies and, once a collector or an evaluator uses them, a copy of each acting policy. It returns
    whole rollouts through shared memory; see `make_envs`.

    Args:
        factory: returns a new environment with PettingZoo's parallel API, such as `rps_v2.parallel_env`.
        num_envs: N.
        seed: random seed of the run. Each episode is seeded from (seed, index of the copy, number of the episode).
        env_config: keyword arguments for `factory`; None for none.
        workers: number of pieces into which the copies are split, each with its own random generators for acting. Results
            depend on this number, but not on the backend, with the exception that `make_envs` names.
        backend, restart, timeout_s, start_timeout_s: as for `make_envs`.
        info_columns: keys of the infos of steps that a collector records as columns, as for `make_envs`: for each agent those
            of its own info.
        ray_address, num_cpus_per_worker, num_gpus_per_worker, worker_resources: as for `make_envs`.

    Raises:
        ValueError: num_envs < 1, workers is not in 1 to num_envs, or the backend is unknown.
        TypeError: `factory` is not a function, or does not return such an environment, such as one whose agents take turns.
        SpaceError: the copies have different agents or spaces.
    """
    if not isinstance(num_envs, SupportsIndex) or num_envs < 1:
        raise ValueError(f"make_multi_agent_envs(num_envs={num_envs!r}): at least 1 environment is needed.")
    if not callable(factory) and takes_turns(factory):
        raise TypeError(f"make_multi_agent_envs() got a {type(factory).__name__}, {TURNS}")
    if not callable(factory):
        raise TypeError(
            "make_multi_agent_envs() wants a function that returns a new environment, such as rps_v2.parallel_env, got "
            f"{factory!r}."
        )
    columns = names_of(info_columns, "make_multi_agent_envs")
    own = settings_of(env_config, "make_multi_agent_envs")
    factories = [partial(called, factory, **own) if own else factory] * num_envs
    seed = seed_of(seed, "make_multi_agent_envs(seed={})")
    settings = WorkerSettings(
        workers,
        backend,
        restart,
        timeout_s,
        start_timeout_s,
        ray_address,
        num_cpus_per_worker,
        num_gpus_per_worker,
        worker_resources,
    )
    pieces = sizes_and_hosts("make_multi_agent_envs", getattr(factory, "__name__", "make_multi_agent_envs"), num_envs, settings)
    if pieces is None:
        return MultiAgentVectorEnv(factories, seed, info_columns=columns)
    return SplitMultiAgentVectorEnv(factories, seed, *pieces, columns)


make_agent_envs = make_multi_agent_envs  # its name in earlier versions
