"""The section of a run's configuration about its environments."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ding_lite.basics import Config, di_engine_settings, ranged_field


@dataclasses.dataclass
class EnvConfig(Config):
    """The environments for collection and for evaluation."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.ENV

    id: str = "CartPole-v1"
    """Id of the environment, for `gymnasium.make`. Changing it sets stop_value to the reward threshold that gymnasium has for
    this environment. An evaluator with other environments sets it to their name."""

    collector_env_num: int = ranged_field(8, low=1, high=100_000)
    """Number of environments for collection, stepped together."""

    evaluator_env_num: int = ranged_field(8, low=1, high=100_000)
    """Number of environments for evaluation, stepped together."""

    max_episode_steps: int | None = ranged_field(None, low=1)
    """Steps after which an episode is truncated; None for the environment's own limit."""

    workers: int = ranged_field(1, low=1, high=10_000)
    """Number of workers that share the environments for collection. Each worker has its own random generators."""

    backend: Literal["local", "process"] = "local"
    """Where environments are stepped: "process" starts a process for each worker, and one for evaluation."""

    restart: bool = False
    """Restart a worker process if it is killed, hangs or raises an error; it continues from its last state."""

    log_info: tuple[str, ...] = ()
    """Keys of the infos of steps to log: the mean over each episode, as collect/custom_metrics/NAME_mean, _min, _max."""

    action_mask: bool = False
    """Add the mask of actions, "action_mask" in the infos of the environment, to the observations. Policies then only take
    actions that it allows. For Discrete and MultiDiscrete actions; not needed if observations have an "action_mask"."""

    n_evaluator_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes per evaluation."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None to run until max_step. By default, gymnasium's reward threshold of
    the environments for evaluation, if there is one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        self = super().__new__(cls, *args, **kwargs)
        names = [field.name for field in dataclasses.fields(cls)]
        self.__dict__.update(_given=frozenset((*names[: len(args)], *kwargs)), _is_made=False)
        return self

    def __post_init__(self) -> None:
        self.__dict__["_is_made"] = True

    @classmethod
    def default(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        """A configuration whose values count as defaults, not as set by the user."""
        config = cls(*args, **kwargs)
        config.__dict__["_given"] = frozenset()
        return config

    def settle(self, name: str, threshold: float | None) -> None:
        """Set id and stop_value from the environments for evaluation, if these have another name than `id`.

        A stop_value that the user set, in code or on the command line, is kept. An id that the user set is kept only if it is
        not registered in gymnasium; otherwise it is replaced, with a warning.

        Args:
            name: name of the environments.
            threshold: gymnasium's reward threshold of the environments; None if there is none.
        """
        given: frozenset[str] = self.__dict__["_given"]
        known = _spec(self.id)
        if name == self.id or (known is not None and known.id == name):
            return
        if "id" not in given or known is not None:
            if "id" in given:
                warnings.warn(
                    f"cfg.env.id = {self.id!r} was set, but the environments for evaluation are {name}: this name is used. "
                    "Make the environments with make_envs(cfg.env.id, ...), or set cfg.env.id to their name.",
                    stacklevel=4,
                )
            super().__setattr__("id", name)
        if "stop_value" not in given:
            super().__setattr__("stop_value", threshold)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `make_envs` that are the same for collection and evaluation."""
        names = ("backend", "restart", "max_episode_steps", "log_info", "action_mask")
        return {name: getattr(self, name) for name in names}

    def __setattr__(self, name: str, value: Any) -> None:
        changed = name == "id" and value != self.__dict__.get("id", value)
        super().__setattr__(name, value)
        if self.__dict__["_is_made"]:
            self.__dict__["_given"] |= {name}
        if changed:
            spec = _spec(self.id)
            super().__setattr__("stop_value", None if spec is None else spec.reward_threshold)
            self.__dict__["_given"] -= {"stop_value"}


def pendulum_envs() -> EnvConfig:
    """The environments of `PendulumRunConfig`: Pendulum-v1, with a stop_value of -170."""
    return EnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-170.0)


def mujoco_envs(env_id: str, stop_value: float) -> EnvConfig:
    """The environments of the presets for MuJoCo: evaluations are 10 episodes, one in each environment."""
    return EnvConfig.default(env_id, evaluator_env_num=10, n_evaluator_episode=10, stop_value=stop_value)


def _spec(env_id: str) -> Any:
    """Gymnasium's spec of this environment; None if it is not registered yet. If it never is, make_envs() raises an error."""
    import gymnasium

    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError):
        return None
