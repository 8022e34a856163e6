"""Making environments, and adapting those of other libraries."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, SupportsIndex

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from ding_lite.basics import add_note, did_you_mean, require_extra, seed_of
from ding_lite.basics.blocks import block
from ding_lite.basics.signatures import parameters_of, passed_signature_of
from ding_lite.envs.action_masks import ActionMask
from ding_lite.envs.atari import AtariMode, AtariPreprocessing, atari_mode, make_atari
from ding_lite.envs.batched_steps import Vectorization, require_vectorization
from ding_lite.envs.factories import EnvFactory, called, copied_settings, require_one_agent, settings_of
from ding_lite.envs.info_columns import names_of
from ding_lite.envs.infos import MeanInfo
from ding_lite.envs.local_vectors import LocalVectorEnv
from ding_lite.envs.pieces import Backend, WorkerSettings, sizes_and_hosts
from ding_lite.envs.step_interfaces import Stepper
from ding_lite.envs.vector_adapters import VectorEnvAdapter
from ding_lite.envs.vector_bases import SameStepVectorEnv
from ding_lite.envs.worker_envs import SplitVectorEnv

_STEPPER = "_ding_lite_stepper"
_PACKAGES = {
    "ale_py": ("atari", ("ALE/",)),
    "gymnasium_robotics": ("robotics", ("AdroitHand", "AntMaze", "Fetch", "FrankaKitchen", "Hand", "PointMaze")),
}
"""Packages that register environments: the extra, and the beginnings of their ids."""


def make_envs(
    env: str | Callable[..., gymnasium.Env[Any, Any]],
    num_envs: int = 1,
    seed: int = 0,
    *,
    env_config: Mapping[str, Any] | None = None,
    wrappers: Iterable[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
    log_info: Iterable[str] = (),
    info_columns: Iterable[str] = (),
    action_mask: bool = False,
    atari: AtariMode | None = None,
    vectorization: Vectorization = "none",
    workers: int = 1,
    backend: Backend = "local",
    restart: bool = False,
    timeout_s: float = 60.0,
    start_timeout_s: float = 120.0,
    ray_address: str | None = None,
    num_cpus_per_worker: float | None = None,
    num_gpus_per_worker: float = 0.0,
    worker_resources: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> LocalVectorEnv | SplitVectorEnv:
    """Create B environments as one `gymnasium.vector.VectorEnv`, stepped in this process or in worker processes.

    A worker process owns its environments and, once a collector or an evaluator uses them, a copy of the acting policy.
    It returns whole rollouts through shared memory. The processes end with `task.stop()`, with `close()`, and with this
    process. If they are used after `task.stop()`, they are restarted in the same state.

    Args:
        env: an id that `gymnasium.make` knows, also "module:Id" for a module that registers it, or a function that returns a
            new environment each time.
        num_envs: B.
        seed: random seed of the run, 0 to 2**63 - 1. Each episode is seeded from (seed, index of the environment, number of the
            episode).
        env_config: keyword arguments of each environment, for `gymnasium.make` or for the function; None for none.
        wrappers: wrappers for each environment, the innermost first.
        log_info: names in the infos of steps. Their means over an episode are added to the info of its last step, and all
            numbers in that info are logged.
        action_mask: whether the infos of the environment have a mask of its actions under "action_mask", which is added to the
            observations by `ActionMask`, the innermost wrapper. Policies then only take actions that the mask allows.
        atari: for Atari games, which are preprocessed, see `AtariPreprocessing`: "eval", the default, for whole games with
            their own rewards; "train", in which a lost life ends an episode, and rewards are clipped to their sign; "raw" for
            the game without preprocessing. The true score of each game is logged as custom_metrics/score_mean, _min, _max.
        vectorization: "auto" to step environments of gymnasium's classic control (CartPole, MountainCar,
            MountainCarContinuous, Pendulum and Acrobot) all at once, as arrays, with the same results bit for bit. It is
            used if there are enough of them, without wrappers and `render_mode`; `envs.is_vectorized` says whether. "none"
            for a plain loop over the environments.
        info_columns: names in the infos of steps whose values a collector records as columns, such as
            `batch.info.x_position`; see `InfoColumns`.
        workers: number of pieces into which the environments are split, each with its own random generator for acting. Results
            depend on this number, but not on the backend, with one exception where `max_lag` is 1 or more. Some counters are
            known only when worker processes return the rollout: ctx.env_episode, and with EpisodeCollector ctx.env_step. With
            "process" and "ray", middleware before the collector, such as eps_greedy_handler, read these `max_lag` iterations
            later than with "local".
        backend: "process" for one process per piece; "ray" for one worker of a Ray cluster per piece (extra `ray`); "local" to
            step the pieces one after another in this process.
        restart: if a worker process is killed, hangs or raises an error, restart it in the same state and repeat the request,
            with the same result. Each request takes a little longer.
        timeout_s: maximum seconds for a step of an environment, or a forward pass of the policy, in a worker process. With
            `restart`, a worker that hangs in every attempt is an error after about three times as long, for any number of
            workers.
        start_timeout_s: maximum seconds for a worker process to start, and then to make its environments.
        ray_address: for "ray", the cluster: an address for `ray.init`; None for RAY_ADDRESS, or else this machine.
        num_cpus_per_worker: for "ray", CPUs that a worker reserves; None for none: it starts on a machine with a free one.
        num_gpus_per_worker: for "ray", GPUs that a worker reserves.
        worker_resources: for "ray", amounts of other resources that a worker reserves, by the names of the cluster.
        **kwargs: for `gymnasium.make`, such as `render_mode`; with an Atari game also settings of `AtariPreprocessing`.
            `max_episode_steps`, the number of steps after which episodes are truncated, may be used with a function too; None
            for no limit of its own.

    Raises:
        ValueError: num_envs < 1, the seed is out of range, workers is not in 1 to num_envs, the backend or the
            vectorization is unknown, or `atari` does not fit the environment or its other arguments.
        TypeError: `env` is neither an id nor a function, kwargs are passed with a function, num_envs or seed is not an
            integer, or the environment does not know a keyword argument.
        gymnasium.error.Error: the id does not exist.
        ImportError: an Atari game without the extra `atari`, or a robot without the extra `robotics`.

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
    factory = env_factory(env, env_config=env_config, atari=atari, **kwargs)
    columns = names_of(() if info_columns is None else info_columns, "make_envs", "info_columns")
    means = names_of(() if log_info is None else log_info, "make_envs", "log_info")
    require_vectorization(vectorization, "make_envs")
    layers = _layers_of(() if wrappers is None else wrappers)
    if action_mask:
        layers = (ActionMask, *layers)
    if means:
        layers = (*layers, partial(MeanInfo, names=means))
    factories: list[EnvFactory] = [partial(_wrapped, factory, layers)] * num_envs
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
    name = env if isinstance(env, str) else getattr(env, "__name__", "make_envs")
    pieces = sizes_and_hosts("make_envs", name, num_envs, settings)
    if pieces is None:
        return LocalVectorEnv(factories, seed, info_columns=columns, vectorization=vectorization)
    return SplitVectorEnv(factories, seed, *pieces, columns, vectorization)


def env_factory(
    env: str | Callable[..., gymnasium.Env[Any, Any]],
    *,
    env_config: Mapping[str, Any] | None = None,
    atari: AtariMode | None = None,
    **kwargs: Any,
) -> EnvFactory:
    """A function that makes one environment, without wrappers, as `make_envs` does.

    Args:
        env, env_config, atari, **kwargs: as for `make_envs`.

    Raises:
        ValueError, TypeError, gymnasium.error.Error, ImportError: as `make_envs`.
    """
    own = settings_of(env_config, "make_envs")
    if isinstance(env, str):
        spec = copy.deepcopy(registered_spec(env))
        spec.order_enforce = False  # LocalVectorEnv keeps the order of reset and step, and checks the results
        twice = [name for name in own if kwargs.get(name) is not None]
        if twice:
            raise TypeError(f"make_envs() got {twice[0]!r} both in env_config and as an argument: pass it once.")
        kwargs = {**kwargs, **own}
        mode = atari_mode(spec, atari, kwargs)
        return partial(_made, spec, **kwargs) if mode == "raw" else partial(_made_atari, spec, mode, **kwargs)
    if callable(env) and not isinstance(env, gymnasium.Env):
        if atari is not None:
            raise ValueError(
                f"make_envs(atari={atari!r}) is for ids of Atari games, but a function makes the environments: use "
                "AtariPreprocessing in your function."
            )
        limit = kwargs.pop("max_episode_steps", None)
        if kwargs:
            raise TypeError(
                f"make_envs() got {sorted(kwargs)} for gymnasium.make, but a function makes the environments: pass them in "
                "env_config, and take them in your function."
            )
        factory = partial(called, env, **own) if own else env
        return factory if limit is None else partial(_limited, factory, limit)
    require_one_agent(env, "make_envs() got")
    fix = ": write make_envs(fn, n), which calls one function n times." if isinstance(env, (list, tuple)) else "."
    raise TypeError(f"make_envs() wants an environment id or a function that returns a new environment, got {env!r:.200}{fix}")


def with_render_mode(factory: Callable[..., Any], render_mode: str) -> Callable[..., Any]:
    """A factory of environments like those of this one, made with this `render_mode`.

    Args:
        factory: of an environment, as `make_envs` or `make_multi_agent_envs` passes it on, or a function with the argument
            `render_mode`, or with **kwargs.
        render_mode: such as "rgb_array" or "human".

    Raises:
        ValueError: the function has no such argument.
    """
    if isinstance(factory, partial) and factory.func in (_wrapped, _limited):
        inner, *others = factory.args
        return partial(factory.func, with_render_mode(inner, render_mode), *others, **factory.keywords)
    maker = _function_in(factory)
    if maker is not None and "render_mode" not in _parameters(maker) and not _takes_any(maker):
        raise ValueError(
            f"the environment is made by {getattr(maker, '__name__', maker)!r:.80}, which has no argument render_mode: "
            "give it one, and pass it to the environment."
        )
    return partial(factory, render_mode=render_mode)


def may_ignore_render_mode(factory: Callable[..., Any]) -> bool:
    """Whether `with_render_mode` passes the render mode to a function of any arguments, which may not read it."""
    maker = _function_in(factory)
    return maker is not None and "render_mode" not in _parameters(maker)


def _function_in(factory: Callable[..., Any]) -> Callable[..., Any] | None:
    """The user's function that makes the environment, below what `make_envs` puts around it; None if gymnasium makes it."""
    if not isinstance(factory, partial):
        return factory
    if factory.func in (_wrapped, _limited):
        return _function_in(factory.args[0])
    if factory.func in (_made, _made_atari):
        return None
    return factory.args[0] if factory.func is called else factory


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
    """Gymnasium's spec of an environment. Of "module:Id", the module is imported first, which registers it. Atari games and
    robots are registered first too: gymnasium does not import the packages that do.

    Raises:
        gymnasium.error.Error: the id does not exist.
        ImportError: the module cannot be imported; an Atari game without the extra `atari`, or a robot without the extra
            `robotics`.
    """
    module, _, env_id = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if env_id not in gymnasium.registry:
        for package, (extra, beginnings) in _PACKAGES.items():
            if env_id.startswith(beginnings):
                require_extra(package, extra, f"make_envs({env_id!r})")
                gymnasium.register_envs(importlib.import_module(package))
    return gymnasium.spec(env_id)


def _made(spec: EnvSpec, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    with _names_of_arguments(spec, kwargs, gymnasium.make):
        return gymnasium.make(spec, disable_env_checker=True, **copied_settings(kwargs))


def _made_atari(spec: EnvSpec, mode: AtariMode, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    with _names_of_arguments(spec, kwargs, gymnasium.make, AtariPreprocessing):
        return make_atari(spec, mode, **copied_settings(kwargs))


@block
def _names_of_arguments(spec: EnvSpec, kwargs: Mapping[str, Any], *takers: Callable[..., Any]) -> Iterator[None]:
    """Add a note to an error about an unknown argument, with the nearest name, or the names that the environment takes."""
    try:
        yield
    except TypeError as error:
        known = [name for taker in (make_envs, *takers) for name in inspect.signature(taker).parameters]
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
    except Exception:  # noqa: BLE001  only for a message about another error
        return []
    return _parameters(entry)


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The named parameters of a function; empty if unknown."""
    try:
        parameters = parameters_of(function).values()
    except (TypeError, ValueError):  # some builtin functions
        return []
    return [it.name for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]


def _takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function, such as PettingZoo's `parallel_env`, has **kwargs; a class has them for its wrappers."""
    if isinstance(function, type):
        return False
    try:
        parameters = passed_signature_of(function).parameters.values()
    except (TypeError, ValueError):  # some builtin functions
        return False
    return any(it.kind is it.VAR_KEYWORD for it in parameters)


def _layers_of(wrappers: Any) -> tuple[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]], ...]:
    """The wrappers as a tuple.

    Raises:
        TypeError: not several functions or classes.
    """
    if not isinstance(wrappers, Iterable) or isinstance(wrappers, str):
        fix = f"write wrappers=[{getattr(wrappers, '__name__', 'wrapper')}]" if callable(wrappers) else "pass a list of them"
        raise TypeError(f"make_envs(wrappers={wrappers!r:.80}) wants several wrappers, got one: {fix}.")
    layers = tuple(wrappers)
    for layer in layers:
        if not callable(layer) or isinstance(layer, gymnasium.Env):
            raise TypeError(
                f"make_envs(wrappers=...) wants classes or functions of an environment, got {layer!r:.80} of type "
                f"{type(layer).__name__}: pass the class, or functools.partial of it."
            )
    return layers


def _wrapped(factory: EnvFactory, wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]]) -> Any:
    env = factory()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


rendering = with_render_mode  # its name in earlier versions
