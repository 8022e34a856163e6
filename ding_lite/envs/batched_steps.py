"""Batched steps: environments of gymnasium's classic control, stepped all at once with numpy arrays."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ding_lite.basics import did_you_mean
from ding_lite.basics.messages import describe_error
from ding_lite.envs.classic_control import TASKS, Array, BatchTask, UnusualEnvError
from ding_lite.envs.known_sources import is_known, label_of, patch_of
from ding_lite.envs.results import Results

Vectorization = Literal["none", "auto"]
"""How the environments of a process are stepped: one after the other; or all at once, where that is possible."""

_logger = logging.getLogger(__name__)
_TASKS = {task.env_class: task for task in TASKS}
_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
_METHODS = {"step", "reset", "_dsdt", "_terminal", "_get_ob", "_get_obs"}
_HARMLESS = (bool, int, float, str, np.generic, np.ndarray, np.random.Generator, gymnasium.Space, EnvSpec)
"""Types of attributes; a step replaces arrays, and does not change them."""
_LONGEST_WAIT = 1024
_FOREVER = np.iinfo(np.int64).max


def require_vectorization(value: Any, who: str) -> None:
    """Raise an error for an unknown value of `vectorization`.

    Raises:
        ValueError: naming the function that got it, and the known values.
    """
    if value not in get_args(Vectorization):
        meant = did_you_mean(str(value), get_args(Vectorization))
        raise ValueError(f"{who}(vectorization={value!r}): expected 'none' or 'auto'{meant}")


class BatchedSteps:
    """Steps environments all at once, with the results of their own steps, bit for bit.

    Episodes begin with the `reset` of each environment. Their states are then kept in arrays, and the environments are behind
    until `release` writes the states back.

    A thread must hold `lock` while it steps, reads or changes the environments.

    Args:
        envs: the environments.
        vectorization: "none" to leave every step to the environments.
        name: name of the environments, for the log.

    Raises:
        ValueError: the value of `vectorization` is unknown.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], vectorization: Vectorization, name: str) -> None:
        require_vectorization(vectorization, "LocalVectorEnv")
        self._kind: type[BatchTask] | None = None
        self._task: BatchTask | None = None
        self._limits: list[list[tuple[Any, int]]] = []  # of each environment, with their steps when its state was read
        self._new_limits: list[list[tuple[Any, int]]] = []  # the same after a reset
        self._taken = self._left = self._whole = np.zeros(0, np.int64)
        self._has_ended = False
        self._waits, self._wait = 0, 1
        self._name, self._news, self._reason = name, "", ""
        if vectorization == "auto":
            try:
                self._kind = _kind_of(envs)
                _new_task(self._kind, envs)
            except UnusualEnvError as reason:
                self._kind, self._news = None, f"{name}: environments are stepped one after the other: {reason}"
            else:
                self._news = f"{name}: {len(envs)} environments are stepped at once, as arrays"
        self.lock = self._new_lock()
        """For one thread at a time, while environments are stepped at once; a plain loop needs none."""

    def _new_lock(self) -> AbstractContextManager[Any]:
        return threading.RLock() if self.is_used else nullcontext()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lock = self._new_lock()

    @property
    def is_used(self) -> bool:
        """Whether environments are stepped at once, where a step allows it."""
        return self._kind is not None

    def step(self, envs: Sequence[gymnasium.Env[Any, Any]], action: Any) -> Results | None:
        """Step the environments with actions [B, ...].

        Returns:
            The results; None if the environments must take this step themselves: for invalid actions, with unusual attributes,
            or if numbers become too large. They are up to date then.
        """
        if self._news:  # not earlier, because a run opens its log after the environments are made
            _logger.info(self._news)
            self._news = ""
        if self._kind is None:
            return None
        if self._has_ended or not self._kind.accepts(action, len(envs)):
            self._write_back()
            return None
        task = self._task or self._taken_over(envs)
        if task is None:
            return None
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                obs, reward, terminated = task.step(action)
        except (ArithmeticError, ValueError) as error:  # math.cos raises the latter
            self._write_back()
            self._try_later(describe_error(error))
            return None
        self._taken += 1
        truncated = self._taken >= self._left
        self._has_ended = bool(terminated.any() or truncated.any())
        infos: tuple[Any, ...] = tuple([{} for _ in envs])
        if not self._has_ended:
            return Results(obs, reward, None, None, infos)
        return Results(obs, reward, terminated, truncated, infos)

    def ends(self, indices: Sequence[int]) -> None:
        """The episodes of these environments ended in the last step, and they will be reset. They are up to date from then on:
        if an error or Ctrl-C comes between the resets, each one is where the plain loop would have left it."""
        if self._task is not None:
            self._write(self._task, indices)
            for index in indices:
                self._taken[index] = 0

    def begun(self, indices: Sequence[int]) -> None:
        """All environments whose episodes ended in the last step, these, have been reset."""
        if self._task is not None:
            self._task.read(indices)
            for index in indices:  # mostly a few, for which this takes less time than indexing with a list
                self._left[index], self._limits[index] = self._whole[index], self._new_limits[index]
            self._has_ended = False

    def release(self) -> None:
        """Write the states to the environments, which others then may read and change until the next step."""
        with self.lock:
            self._write_back()
            self._waits, self._wait = 0, 1

    def hand_out(self, values: Sequence[Any]) -> None:
        """Stop if an attribute of an environment, or the result of a method, could change an environment at any time."""
        if self.is_used and not all(map(_is_harmless, values)):
            self.stop("an attribute was read by which the script may change them at any time")

    def stop(self, reason: str) -> None:
        """From now on, leave every step to the environments."""
        with self.lock:
            self.release()
            self._kind, self._news = None, ""
            self.lock = self._new_lock()
        _logger.info("%s: environments are stepped one after the other: %s", self._name, reason)

    def _write_back(self) -> None:
        if self._task is not None:
            self._write(self._task, self._taken.nonzero()[0].tolist())
        self._task, self._has_ended = None, False

    def _write(self, task: BatchTask, indices: Sequence[int]) -> None:
        """Write the states of environments that were stepped. If it is done again, as after Ctrl-C, nothing changes."""
        for index in indices:
            taken = self._taken.item(index)
            task.write(index)
            for limit, before in self._limits[index]:
                limit._elapsed_steps = before + taken

    def _try_later(self, reason: str) -> None:
        """Leave the next steps to the environments, more of them each time."""
        self._waits, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        if reason != self._reason:
            self._reason = reason
            _logger.info("%s: some steps are taken one environment after the other: %s", self._name, reason)

    def _taken_over(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> BatchTask | None:
        """The task with the states of the environments; None if it cannot step them now."""
        if self._kind is None:
            return None
        if self._waits > 0:
            self._waits -= 1
            return None
        try:
            task = _new_task(self._kind, envs)
            task.read_all()
            limits = [_limits_of(env) for env in envs]
        except UnusualEnvError as reason:
            self._try_later(str(reason))
            return None
        self._limits = [[(limit, limit._elapsed_steps) for limit in each] for each in limits]
        self._new_limits = [[(limit, 0) for limit in each] for each in limits]
        self._left = _fewest(limits, lambda limit: limit._max_episode_steps - limit._elapsed_steps)
        self._whole = _fewest(limits, lambda limit: limit._max_episode_steps)
        self._taken, self._has_ended = np.zeros_like(self._left), False
        self._task = task
        return task


def _kind_of(envs: Sequence[gymnasium.Env[Any, Any]]) -> type[BatchTask]:
    """The task of these environments.

    Raises:
        UnusualEnvError: they are not of one class of classic control, or too few, or numpy rounds in another way.
    """
    kind = _TASKS.get(type(envs[0].unwrapped))
    if kind is None:
        raise UnusualEnvError(f"{type(envs[0].unwrapped).__name__} is not an environment of gymnasium's classic control")
    if len(envs) < kind.pays_from:
        raise UnusualEnvError(f"this is faster for fewer than {kind.pays_from}")
    if not _is_exact():
        raise UnusualEnvError(f"numpy {np.__version__} rounds arrays and single numbers differently here")
    return kind


def _new_task(kind: type[BatchTask], envs: Sequence[gymnasium.Env[Any, Any]]) -> BatchTask:
    """The task of these environments with their attributes.

    Raises:
        UnusualEnvError: an environment has other wrappers than `gymnasium.make` adds, or unusual methods or attributes.
    """
    for env in envs:
        for layer in _layers(env):
            if type(layer) not in _WRAPPERS and type(layer) is not kind.env_class:
                raise UnusualEnvError(f"{type(layer).__name__} is a wrapper, or an environment, with a step of its own")
            if replaced := vars(layer).keys() & _METHODS:
                raise UnusualEnvError(f"the method {replaced.pop()} of an environment was replaced")
            if any(vars(layer).get(name) is not None for name in ("_observation_space", "_action_space")):
                raise UnusualEnvError(f"{type(layer).__name__} has a space of its own")
    if patch := patch_of({type(layer) for env in envs for layer in _layers(env)}):
        raise UnusualEnvError(f"{patch} is not of gymnasium: a class was changed")
    for owner, name in relied_on(kind):
        if not is_known(owner, name):
            raise UnusualEnvError(f"{label_of(owner, name)} is not that of gymnasium 1.1 to 1.4")
    return kind([env.unwrapped for env in envs])


def relied_on(kind: type[BatchTask]) -> list[tuple[Any, str]]:
    """The functions of gymnasium that are replaced, or that resets call: the class or module of each, and its name."""
    wrappers = [(wrapper, name) for wrapper in (gymnasium.Wrapper, *_WRAPPERS) for name in ("step", "reset")]
    return [*kind.functions, (kind.env_class, "reset"), (gymnasium.Env, "reset"), *wrappers]


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, the outermost one first, and the environment."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _limits_of(env: Any) -> list[Any]:
    """Its wrappers with a time limit.

    Raises:
        UnusualEnvError: a wrapper still checks the first steps, or counts steps in an unknown way.
    """
    limits: list[Any] = []
    for layer in _layers(env):
        if type(layer) is PassiveEnvChecker and not (layer.checked_step and getattr(layer, "checked_data_reuse", True)):
            raise UnusualEnvError("gymnasium checks the first steps")
        if type(layer) is OrderEnforcing and not layer.has_reset:
            raise UnusualEnvError("an environment was not reset")
        if type(layer) is TimeLimit:
            if {type(layer._elapsed_steps), type(layer._max_episode_steps)} != {int}:
                raise UnusualEnvError("a time limit is not an integer")
            limits.append(layer)
    return limits


def _fewest(limits: Sequence[Sequence[Any]], steps_of: Callable[[Any], int]) -> Array:
    """The smallest number of steps that the time limits of each environment give."""
    return np.array([max(min([_FOREVER, *map(steps_of, each)]), -_FOREVER) for each in limits], np.int64)


def _is_harmless(value: Any) -> bool:
    """Whether nobody can change an environment by this value, other than before its next step."""
    if type(value) is tuple:
        return all(map(_is_harmless, value))
    return value is None or isinstance(value, _HARMLESS)


@functools.lru_cache(maxsize=1)
def _is_exact() -> bool:
    """Whether numpy computes arrays as it computes single numbers here, with the types of numpy 2."""
    numbers: Array = np.linspace(-40, 40, 97)
    return int(np.__version__.partition(".")[0]) >= 2 and all(
        function(numbers).tolist() == [float(function(number)) for number in numbers]
        for function in (np.cos, np.sin, np.square, lambda number: (number + np.pi) % (2 * np.pi))
    )
