"""The section of a run's configuration about its environments."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from ding_lite.basics import Config, ConfigError, di_engine_settings, ranged_field

_OF_RAY = ("ray_address", "num_cpus_per_worker", "num_gpus_per_worker", "worker_resources")

_IF_SET = frozenset({"id", "stop_value", "backend"})
"""Settings of which it matters whether the user has set them."""

EnvConfigType = TypeVar("EnvConfigType", bound="EnvConfig")


@dataclasses.dataclass
class EnvConfig(Config):
    """The environments for collection and for evaluation."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.ENV

    foreign: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("make_kwargs", "env_kwargs", "kwargs"), "set env_config, a dict with the keyword arguments of the environment."
    )

    stops_at_threshold: ClassVar[bool] = True
    """Whether the default of stop_value is gymnasium's reward threshold."""

    id: str = "CartPole-v1"
    """Id of the environment, for `gymnasium.make`. Changing it sets stop_value to the reward threshold that gymnasium has for
    this environment, but not with `dataclasses.replace`, which keeps the stop_value: use
    `copy.deepcopy(env).override({"id": ...})`. An evaluator with other environments sets it to their name."""

    collector_env_num: int = ranged_field(8, low=1, high=100_000)
    """Number of environments for collection, stepped together."""

    evaluator_env_num: int = ranged_field(8, low=1, high=100_000)
    """Number of environments for evaluation, stepped together."""

    max_episode_steps: int | None = ranged_field(None, low=1)
    """Steps after which an episode is truncated; None for the environment's own limit."""

    workers: int = ranged_field(1, low=1, high=10_000)
    """Number of workers that share the environments for collection. Each worker has its own random generators."""

    backend: Literal["local", "process", "ray"] = "local"
    """Where environments are stepped: "process" starts a process for each worker, and one for evaluation; "ray" starts these on
    a Ray cluster (extra `ray`)."""

    restart: bool = False
    """Restart a worker process if it is killed, hangs or raises an error; it continues from its last state."""

    ray_address: str | None = None
    """For "ray", the cluster, such as "auto" or "host:6379"; None for RAY_ADDRESS, or else a cluster of this machine."""

    num_cpus_per_worker: float | None = ranged_field(None, low=0)
    """For "ray", CPUs that a worker reserves. None reserves none: it starts where a CPU is free at that time."""

    num_gpus_per_worker: float = ranged_field(0.0, low=0)
    """For "ray", GPUs that a worker reserves."""

    worker_resources: dict[str, float] = dataclasses.field(default_factory=dict)
    """For "ray", amounts of other resources that a worker reserves, by the names of the cluster. On the command line
    NAME=AMOUNT ..."""

    env_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment: passed to `gymnasium.make`, or to the function that makes the environments. On the
    command line NAME=VALUE ..., such as `is_slippery=False map_name=8x8`, or one JSON object. VALUE is a number, True, False,
    None, JSON, or else a string."""

    log_info: tuple[str, ...] = ()
    """Keys of the infos of steps to log: the mean over each episode, as collect/custom_metrics/NAME_mean, _min, _max."""

    action_mask: bool = False
    """Add the mask of actions, "action_mask" in the infos of the environment, to the observations. Policies then only take
    actions that it allows. For Discrete and MultiDiscrete actions; not needed if observations have an "action_mask"."""

    info_columns: tuple[str, ...] = ()
    """Keys of the infos of steps to record in rollouts and replay, as `batch.info.NAME`: numbers as float32, NaN where missing;
    arrays as they are."""

    vectorization: Literal["none", "auto"] = "none"
    """"auto" to step environments of gymnasium's classic control all at once, as arrays, with the same results; all others are
    stepped one by one, as with "none"."""

    n_evaluator_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes per evaluation."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None to run until max_step. A configuration made as EnvConfig("name") has
    None. It becomes gymnasium's reward threshold, if there is one, when another id is set later, but not by
    `dataclasses.replace`; or when the environments for evaluation have another name than id."""

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        self = super().__new__(cls, *args, **kwargs)
        names = [field.name for field in dataclasses.fields(cls)]
        given = {*names[: len(args)], *kwargs}
        if given >= {*names}:  # dataclasses.replace passes all of them, also defaults
            stop_value = kwargs.get("stop_value")
            given = {"stop_value"} if stop_value not in (None, _threshold(_spec(str(kwargs.get("id"))))) else set()
        self.__dict__["_given"] = _IF_SET.intersection(given)
        return self

    @classmethod
    def default(cls: type[EnvConfigType], *args: Any, **kwargs: Any) -> EnvConfigType:
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
        if name == self.id:
            return
        if known is not None and known.id == name:
            if ":" in self.id and "stop_value" not in given:  # the module was not imported when the id was set
                super().__setattr__("stop_value", threshold if self.stops_at_threshold else None)
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
            super().__setattr__("stop_value", threshold if self.stops_at_threshold else None)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `make_envs` that are the same for collection and evaluation.

        They are those of `worker_options`, max_episode_steps, log_info, info_columns, action_mask, env_config and
        vectorization.
        """
        names = ("max_episode_steps", "log_info", "info_columns", "action_mask", "env_config", "vectorization")
        return {**self.worker_options(), **{name: copy.deepcopy(getattr(self, name)) for name in names}}

    def worker_options(self) -> dict[str, Any]:
        """Keyword arguments of `make_envs` and `make_multi_agent_envs` that say where environments are stepped.

        They are backend and restart, and for "ray" ray_address, num_cpus_per_worker, num_gpus_per_worker and worker_resources.
        With another backend the latter have no effect, and are left out with a warning. Several workers without a backend cause
        a warning too.
        """
        of_ray = {name: copy.deepcopy(getattr(self, name)) for name in _OF_RAY}
        if self.backend != "ray":
            if idle := [name for name, value in of_ray.items() if value]:
                warnings.warn(f"env.{idle[0]} has no effect with env.backend = {self.backend!r}.", stacklevel=3)
            of_ray = {}
        if self.workers > 1 and self.backend == "local" and "backend" not in self.__dict__["_given"]:
            warnings.warn(
                f"env.workers = {self.workers}: the {self.workers} pieces are stepped one after another in this process. Set "
                "env.backend to 'process' for worker processes, or to 'local' if this is meant.",
                stacklevel=3,
            )
        return {"backend": self.backend, "restart": self.restart, **of_ray}

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Set fields by name. With all fields, as `to_dict` returns them, those with their default do not count as set."""
        if values.keys() >= {field.name for field in dataclasses.fields(self)}:
            self.restore(values)
        else:
            super()._fill(values)

    def __setattr__(self, name: str, value: Any) -> None:
        is_made = name in self.__dict__  # otherwise the constructor sets it, for the first time
        is_other = is_made and name == "id" and value != self.id
        try:
            super().__setattr__(name, value)
        except ConfigError as error:
            if name != "env_config" or not isinstance(value, Mapping):
                raise
            advice = "Pass other objects in your own function, such as functools.partial(make_env, it)."
            raise ConfigError(f"{error} {advice}") from None
        if is_made:
            self.__dict__["_given"] |= _IF_SET & {name}
        if is_other:
            super().__setattr__("stop_value", _threshold(_spec(self.id)) if self.stops_at_threshold else None)
            self.__dict__["_given"] -= {"stop_value"}


@dataclasses.dataclass
class OfflineEnvConfig(EnvConfig):
    """Environments for the evaluation of a policy that learns from a dataset. By default a run takes all of its gradient steps:
    its value at the end counts, and not the best one on the way."""

    stops_at_threshold: ClassVar[bool] = False

    id: str = "CartPole-v1"
    """Id of the environment, for `gymnasium.make`."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None to run until max_step."""


@dataclasses.dataclass
class AtariEnvConfig(EnvConfig):
    """Atari games, preprocessed; see `AtariPreprocessing`. In training, a lost life ends an episode, and rewards are clipped to
    their sign; evaluations play whole games with their own rewards."""

    id: str = "ALE/Pong-v5"
    """Id of the game, such as ALE/Breakout-v5. Changing it sets stop_value to None."""

    max_episode_steps: int | None = ranged_field(None, low=1)
    """Steps after which a game is truncated; None for the game's own limit, 108,000 frames."""

    frameskip: int = ranged_field(4, low=1, high=1000)
    """Frames for which an action is repeated."""

    noop_max: int = ranged_field(30, low=0, high=10_000)
    """Maximum number of frames without an action at the start of a game; their number is random."""

    repeat_action_probability: float = ranged_field(0.0, low=0, high=0.999)
    """Probability, in each frame, that the previous action is repeated ("sticky actions"); Machado et al. (2018) use 0.25."""

    use_fire_reset: bool = False
    """Each episode starts with a step that presses FIRE, in games that have this action, such as Breakout."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `make_envs` that are the same for collection and evaluation."""
        names = ("frameskip", "noop_max", "repeat_action_probability", "use_fire_reset")
        return {**super().options(), **{name: getattr(self, name) for name in names}}


def pendulum_envs() -> EnvConfig:
    """The environments of `PendulumRunConfig`: Pendulum-v1, with a stop_value of -170."""
    return EnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-170.0)


def mujoco_envs(env_id: str, stop_value: float) -> EnvConfig:
    """The environments of the presets for MuJoCo: evaluations are 10 episodes, one in each environment."""
    return EnvConfig.default(env_id, evaluator_env_num=10, n_evaluator_episode=10, stop_value=stop_value)


def _threshold(spec: Any) -> float | None:
    return None if spec is None else spec.reward_threshold


def _spec(env_id: str) -> Any:
    """Gymnasium's spec of this environment; None if it is not registered yet. If it never is, make_envs() raises an error.

    The module of "module:Id" is not imported here, because configurations are also read from files.
    """
    import gymnasium

    try:
        return gymnasium.spec(env_id.rpartition(":")[2])
    except (gymnasium.error.Error, ImportError):
        return None
