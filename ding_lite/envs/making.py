"""Making environments, and taking those made elsewhere.

Room: ding_lite.envs, floor 2. Imports the room's other files.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, SupportsIndex

import gymnasium
from gymnasium.vector import VectorEnv

from ding_lite.engine import require_extra
from ding_lite.envs.factories import EnvFactory
from ding_lite.envs.foreign import ForeignStepper
from ding_lite.envs.steps import Stepper
from ding_lite.envs.vectors import LocalVectorEnv

_STEPPER = "_ding_lite_stepper"


def make_envs(
    env: str | EnvFactory,
    num_envs: int = 1,
    seed: int = 0,
    *,
    wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
    **kwargs: Any,
) -> LocalVectorEnv:
    """B environments as one `gymnasium.vector.VectorEnv` that this process steps.

    Args:
        env: an id that `gymnasium.make` knows, or a function that returns a new environment each time.
        num_envs: B.
        seed: of the run. Each episode is seeded from (seed, index of the environment, number of the episode).
        wrappers: put around each environment, the first innermost.
        **kwargs: for `gymnasium.make`, such as `max_episode_steps` or `render_mode`.

    Raises:
        ValueError: num_envs < 1.
        TypeError: `env` is neither, kwargs come with a function, or num_envs is no integer.
        gymnasium.error.Error: an id that does not exist.
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
    if isinstance(env, str):
        _register(env)
        spec = copy.deepcopy(gymnasium.spec(env))
        spec.order_enforce = False  # LocalVectorEnv keeps the order of reset and step, and checks what comes back
        factory: EnvFactory = partial(gymnasium.make, spec, disable_env_checker=True, **kwargs)
    elif callable(env) and not isinstance(env, gymnasium.Env):
        if kwargs:
            raise TypeError(
                f"make_envs() got {sorted(kwargs)} for gymnasium.make, but makes environments by your function: set them there."
            )
        factory = env
    else:
        raise TypeError(f"make_envs() wants an environment id or a function that returns a new environment, got {env!r}.")
    return LocalVectorEnv([partial(_wrapped, factory, wrappers)] * num_envs, seed)


def stepper(env: VectorEnv[Any, Any, Any]) -> Stepper:
    """What steps this vector environment; the same one each time it is asked for the same environment.

    Raises:
        TypeError: not a vector environment.
    """
    if isinstance(env, LocalVectorEnv):
        return env
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"a vector environment is wanted, got {env!r} of type {type(env).__name__}: make one with make_envs(...), or take "
            "gymnasium.make_vec(...)."
        )
    found = env.__dict__.get(_STEPPER)
    if found is None:
        found = env.__dict__[_STEPPER] = ForeignStepper(env)
    return found


def _register(env_id: str) -> None:
    """Atari games have to be registered by their package, which gymnasium does not import by itself."""
    if env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        require_extra("ale_py", "atari", f"make_envs({env_id!r})")
        gymnasium.register_envs(importlib.import_module("ale_py"))


def _wrapped(factory: EnvFactory, wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]]) -> Any:
    env = factory()
    for wrapper in wrappers:
        env = wrapper(env)
    return env
