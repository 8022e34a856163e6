"""The section of a run's configuration about its environments."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Literal

from ding_lite.basics import Config, ranged_field


@dataclasses.dataclass
class EnvConfig(Config):
    """Environments to collect and to evaluate in."""

    id: str = "CartPole-v1"
    """What `gymnasium.make` calls it. Changing it sets stop_value to the threshold that gymnasium has for the new one. An
    evaluator of other environments puts their name here."""

    collector_env_num: int = ranged_field(8, low=1, high=100_000)
    """Environments to collect in, stepped together."""

    evaluator_env_num: int = ranged_field(8, low=1, high=100_000)
    """Environments to evaluate in, stepped together."""

    max_episode_steps: int | None = ranged_field(None, low=1)
    """Steps after which an episode is truncated; None leaves that to the environment."""

    workers: int = ranged_field(1, low=1, high=10_000)
    """Into how many pieces the environments to collect in are split, each acting with random numbers of its own."""

    backend: Literal["local", "process"] = "local"
    """Where environments are stepped: "process" gives each piece, and those to evaluate in, a process of its own."""

    restart: bool = False
    """Start a worker process again, where it was, when it is killed, hangs or raises."""

    log_info: tuple[str, ...] = ()
    """Names in the infos of steps whose mean over each episode is logged, as collect/custom_metrics/NAME_mean, _min, _max."""

    n_evaluator_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes an evaluation."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None runs to the end. Where nobody sets it, it is that of the
    environments that are evaluated in, if gymnasium has one for them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        self = super().__new__(cls, *args, **kwargs)
        names = [field.name for field in dataclasses.fields(cls)]
        self.__dict__.update(_given=frozenset((*names[: len(args)], *kwargs)), _is_made=False)
        return self

    def __post_init__(self) -> None:
        self.__dict__["_is_made"] = True

    @classmethod
    def default(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        """One whose values count as defaults, not as set by the user."""
        config = cls(*args, **kwargs)
        config.__dict__["_given"] = frozenset()
        return config

    def settle(self, name: str, threshold: float | None) -> None:
        """Take the name and the stop_value from the environments that are evaluated in.

        What the user has set holds, in code or on the command line; what is only the default of another environment does not.
        An id that was set holds unless gymnasium knows it as another environment.

        Args:
            name: what they are called.
            threshold: the mean return at which gymnasium calls them solved; None where it says nothing.
        """
        given: frozenset[str] = self.__dict__["_given"]
        known = _spec(self.id)
        if name == self.id or (known is not None and known.id == name):
            return
        if "id" not in given or known is not None:
            if "id" in given:
                warnings.warn(
                    f"cfg.env.id = {self.id!r} was set, but the environments that are evaluated in are {name}: this name is "
                    "taken. Make them by make_envs(cfg.env.id, ...), or set cfg.env.id to their name.",
                    stacklevel=4,
                )
            super().__setattr__("id", name)
        if "stop_value" not in given:
            super().__setattr__("stop_value", threshold)

    def options(self) -> dict[str, Any]:
        """For `make_envs`: what holds for the environments to collect in and for those to evaluate in."""
        names = ("backend", "restart", "max_episode_steps", "log_info")
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
    """Pendulum-v1, swung up and held."""
    return EnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-170.0)


def _spec(env_id: str) -> Any:
    """What gymnasium knows of this environment, or None: registered later, or never, which make_envs() will say."""
    import gymnasium

    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError):
        return None
