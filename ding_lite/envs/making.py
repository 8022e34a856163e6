"""Making environments, and adapting those of other libraries."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, SupportsIndex

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from ding_lite.basics import add_note, did_you_mean, require_extra, seed_of
from ding_lite.envs.adapters import VectorEnvAdapter
from ding_lite.envs.factories import EnvFactory, called, copied_settings, settings_of
from ding_lite.envs.infos import MeanInfo
from ding_lite.envs.steps import Stepper
from ding_lite.envs.vector_bases import SameStepVectorEnv
from ding_lite.envs.vectors import LocalVectorEnv
from ding_lite.envs.worker_envs import SplitVectorEnv, local_host, process_host

_STEPPER = "_ding_lite_stepper"


def make_envs(
    env: str | Callable[..., gymnasium.Env[Any, Any]],
    num_envs: int = 1,
    seed: int = 0,
    *,
    env_config: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
    log_info: Sequence[str] = (),
    info_columns: Sequence[str] = (),
    workers: int = 1,
    backend: Literal["local", "process"] = "local",
    restart: bool = False,
    timeout_s: float = 60.0,
    start_timeout_s: float = 120.0,
    **kwargs: Any,
) -> LocalVectorEnv | SplitVectorEnv:
    """Create B environments as one `gymnasium.vector.VectorEnv`, stepped in this process or in worker processes.

    A worker process owns its environments and, once a collector or an evaluator uses them, a copy of the acting policy.
    It returns whole rollouts through shared memory. The processes end with `task.stop()`, with `close()`, and with this
    process. If they are used after `task.stop()`, they are restarted in the same state.

    Args:
        env: an id that `gymnasium.make` knows, or a function that returns a new environment each time.
        num_envs: B.
        seed: random seed of the run, 0 to 2**63 - 1. Each episode is seeded from (seed, index of the environment, number of the
            episode).
        env_config: keyword arguments of each environment, for `gymnasium.make` or for the function; None for none.
        wrappers: wrappers for each environment, the innermost first.
        log_info: names in the infos of steps. Their means over an episode are added to the info of its last step, and all
            numbers in that info are logged.
        info_columns: names in the infos of steps whose values a collector records as columns, such as
            `batch.info.x_position`; see `InfoColumns`.
        workers: number of pieces into which the environments are split, each with its own random generator for acting. Results
            depend on this number, but not on the backend.
        backend: "process" for one process per piece; "local" to step the pieces one after another in this process.
        restart: if a worker process is killed, hangs or raises an error, restart it in the same state and repeat the request,
            with the same result. Each request takes a little longer.
        timeout_s: maximum seconds for a step of an environment, or a forward pass of the policy, in a worker process. With
            `restart`, a worker that hangs in every attempt is an error after about three times as long, for any number of
            workers.
        start_timeout_s: maximum seconds for a worker process to start, and then to make its environments.
        **kwargs: for `gymnasium.make`, such as `render_mode`. `max_episode_steps`, the number of steps after which episodes are
            truncated, may be used with a function too; None for no limit of its own.

    Raises:
        ValueError: num_envs < 1, the seed is out of range, workers is not in 1 to num_envs, or the backend is unknown.
        TypeError: `env` is neither an id nor a function, kwargs are passed with a function, num_envs or seed is not an
            integer, or the environment does not know a keyword argument.
        gymnasium.error.Error: the id does not exist.
        ImportError: an Atari game without the extra `atari`.

    Example:
        >>> envs = make_envs("CartPole-v1", 2, seed=0)
        >>> obs, info = envs.reset()
        >>> obs.shape, envs.single_action_space
        ((2, 4), Discrete(2))
    """
    if not isinstance(num_envs, SupportsIndex):
        raise TypeError(f"make_envs(num_envs={num_envs!r}) wants an integer, got a {type(num_envs).__name__}.")
    if num_envs < 1:
        raise ValueError(f"make_envs(num_envs={num_envs}): at least 1 environment is needed.")
    seed = seed_of(seed, "make_envs(seed={})")
    own = settings_of(env_config, "make_envs")
    if isinstance(env, str):
        spec = copy.deepcopy(registered_spec(env))
        spec.order_enforce = False  # LocalVectorEnv keeps the order of reset and step, and checks the results
        twice = [name for name in own if kwargs.get(name) is not None]
        if twice:
            raise TypeError(f"make_envs() got {twice[0]!r} both in env_config and as an argument: pass it once.")
        factory: EnvFactory = partial(_made, spec, **{**kwargs, **own})
    elif callable(env) and not isinstance(env, gymnasium.Env):
        limit = kwargs.pop("max_episode_steps", None)
        if kwargs:
            raise TypeError(
                f"make_envs() got {sorted(kwargs)} for gymnasium.make, but a function makes the environments: pass them in "
                "env_config, and take them in your function."
            )
        factory = partial(called, env, **own) if own else env
        factory = factory if limit is None else partial(_limited, factory, limit)
    else:
        raise TypeError(f"make_envs() wants an environment id or a function that returns a new environment, got {env!r}.")
    if isinstance(log_info, str):
        raise TypeError(f"make_envs(log_info={log_info!r}) wants several names, got one string: write ({log_info!r},).")
    if isinstance(info_columns, str) or not all(isinstance(name, str) for name in info_columns):
        raise TypeError(f"make_envs(info_columns={info_columns!r}) wants several names: write info_columns=('x_position',).")
    if log_info:
        wrappers = (*wrappers, partial(MeanInfo, names=tuple(log_info)))
    for wrapper in wrappers:
        if not callable(wrapper) or isinstance(wrapper, gymnasium.Env):
            raise TypeError(
                f"make_envs(wrappers=...) wants classes or functions of an environment, got {wrapper!r:.80} of type "
                f"{type(wrapper).__name__}: pass the class, or functools.partial of it."
            )
    factories: list[EnvFactory] = [partial(_wrapped, factory, wrappers)] * num_envs
    if not isinstance(workers, SupportsIndex) or not 1 <= workers <= num_envs:
        raise ValueError(
            f"make_envs(workers={workers!r}) for {num_envs} environments: each worker needs at least one environment, "
            f"expected 1 to {num_envs}."
        )
    if backend not in ("local", "process"):
        raise ValueError(f"make_envs(backend={backend!r}): unknown backend, use 'local' or 'process'.")
    if backend == "local" and workers == 1:
        return LocalVectorEnv(factories, seed, info_columns=info_columns)
    sizes = [num_envs // workers + (index < num_envs % workers) for index in range(workers)]
    name = env if isinstance(env, str) else getattr(env, "__name__", "make_envs")
    host = local_host if backend == "local" else partial(process_host, name, timeout_s, start_timeout_s, restart)
    return SplitVectorEnv(factories, seed, sizes, host, info_columns)


def stepper(env: VectorEnv[Any, Any, Any]) -> Stepper:
    """The adapter that steps this vector environment; always the same one for the same environment.

    Raises:
        TypeError: not a vector environment.
    """
    if isinstance(env, SameStepVectorEnv):
        return env  # type: ignore[return-value]
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"expected a vector environment, got {env!r} of type {type(env).__name__}: make one with make_envs(...) or "
            "gymnasium.make_vec(...)."
        )
    found = env.__dict__.get(_STEPPER)
    if found is None:
        found = env.__dict__[_STEPPER] = VectorEnvAdapter(env)
    return found


def _limited(factory: EnvFactory, limit: int) -> gymnasium.Env[Any, Any]:
    return TimeLimit(factory(), limit)


def registered_spec(env_id: str) -> EnvSpec:
    """Gymnasium's spec of an environment. Atari games are registered first: gymnasium does not import the package that does.

    Raises:
        gymnasium.error.Error: the id does not exist.
        ImportError: an Atari game without the extra `atari`.
    """
    if env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        require_extra("ale_py", "atari", f"make_envs({env_id!r})")
        gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.spec(env_id)


def _made(spec: EnvSpec, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(spec, disable_env_checker=True, **copied_settings(kwargs))
    except TypeError as error:
        known = [*inspect.signature(make_envs).parameters, *inspect.signature(gymnasium.make).parameters]
        own = _parameters_of(spec)
        for name in sorted(kwargs.keys() - {*known, *own}):
            meant = did_you_mean(name, [*known, *own])
            takes = f" It takes {', '.join(own)}." if own and meant == "." else ""
            if own or meant != ".":
                add_note(error, f"make_envs() passed {name!r} to {spec.id}{meant}{takes}")
        raise


def _parameters_of(spec: EnvSpec) -> list[str]:
    """The named parameters of the class or function that makes an environment; empty if unknown."""
    try:
        entry = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
        parameters = inspect.signature(entry).parameters.values()
    except Exception:  # noqa: BLE001  only for a message about another error
        return []
    return [it.name for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]


def _wrapped(factory: EnvFactory, wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]]) -> Any:
    env = factory()
    for wrapper in wrappers:
        env = wrapper(env)
    return env
