"""Environments whose observations tell where they come from, environments that do wrong, and a policy that is a known rule.

A spawned process cannot import this file, so what it needs from here is pickled by value.
"""

import gc
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
import torch
from _pytest.doctest import DoctestModule
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from hypothesis import HealthCheck, settings

from ding_lite.envs import make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.processes import launches

torch.set_num_threads(1)  # a fork of a process whose threads of OpenMP have begun would wait for them

# A shell starts what runs in the background with Ctrl-C ignored, and every script that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Both go by the clock, and on a busy machine any example may take long.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# Else each process imports them itself; what tests send to a process imports pytest if there is an assertion in it.
multiprocessing.set_forkserver_preload(["torch", "gymnasium", "ding_lite.envs", "pytest"])
launches.PRELOADED.append("pytest")
_SEMAPHORES = f"mp{os.getpid()}"  # how names of semaphores begin that this process makes, or one that it starts
multiprocessing.current_process()._config["semprefix"] = f"/{_SEMAPHORES}"


class Layout(NamedTuple):
    """A way to lay out (index of the environment, number of the episode, step in it) as an observation."""

    space: spaces.Space[Any]
    encode: Callable[[int, int, int], Any]
    decode: Callable[[Any], np.ndarray]  # from nested [..., *shape] to [..., 3]


def _stack(*columns: Any) -> np.ndarray:
    return np.stack([np.asarray(column).astype(np.int64) for column in columns], -1)


def _vector(low: int, high: int, dtype: type) -> Layout:
    def encode(*place: int) -> np.ndarray:
        return np.array(place, dtype)

    return Layout(spaces.Box(low, high, (3,), dtype), encode, lambda obs: np.asarray(obs).astype(np.int64))


LAYOUTS: dict[str, Layout] = {
    "float32": _vector(0, 1000, np.float32),
    "float64": _vector(0, 1000, np.float64),
    "uint8": _vector(0, 255, np.uint8),
    "discrete": Layout(
        spaces.Discrete(10**6),
        lambda index, episode, step: np.int64(10**4 * index + 100 * episode + step),
        lambda obs: _stack(np.asarray(obs) // 10**4, np.asarray(obs) // 100 % 100, np.asarray(obs) % 100),
    ),
    "dict": Layout(
        spaces.Dict(who=spaces.Discrete(100), when=spaces.Box(0, 1000, (2,), np.float32)),
        lambda index, episode, step: {"who": index, "when": np.array([episode, step], np.float32)},
        lambda obs: _stack(obs["who"], obs["when"][..., 0], obs["when"][..., 1]),
    ),
    "tuple": Layout(
        spaces.Tuple(
            (
                spaces.MultiDiscrete([100, 1000]),
                spaces.Dict(step=spaces.Tuple((spaces.Box(0, 1000, (1, 1), np.int32), spaces.MultiBinary(2)))),
            )
        ),
        lambda index, episode, step: (
            np.array([index, episode]),
            {"step": (np.array([[step]], np.int32), np.array([1, 0], np.int8))},
        ),
        lambda obs: _stack(obs["0"][..., 0], obs["0"][..., 1], obs["1"]["step"]["0"][..., 0, 0]),
    ),
}

FLAGS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


def rule(place: np.ndarray) -> Any:
    """The action at (index, episode, step), [..., 3] to [...]: one of four, and every part of the place tells."""
    return (3 * place[..., 0] + 5 * place[..., 1] + place[..., 2]) % 4


class CountingEnv(gymnasium.Env):
    """Its observation is (index, number of the episode, step), and its reward 4 * step + action.

    Args:
        index: its own, in the observation.
        endings: (length, "terminated", "truncated" or "both") of its episodes, over and over.
        layout: of the observation, a name in LAYOUTS.
        in_place: whether every observation is written into the arrays of the first.
    """

    def __init__(
        self, index: int = 0, endings: Sequence[tuple[int, str]] = ((3, "terminated"),), layout: str = "float32", in_place=False
    ) -> None:
        self.index, self.endings, self.layout, self.in_place = index, endings, LAYOUTS[layout], in_place
        self.observation_space, self.action_space = self.layout.space, spaces.Discrete(4)
        self.episode, self.t, self.is_over = -1, 0, True
        self.seeds: list[int | None] = []
        self.closed = 0
        self._lent: Any = None

    @property
    def place(self) -> tuple[int, int, int]:
        return self.index, self.episode, self.t

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t, self.is_over = self.episode + 1, 0, False
        return self._observe(), {"began": self.episode}

    def step(self, action):
        if self.is_over:
            raise RuntimeError("stepped after the end of an episode")
        if not self.action_space.contains(action):
            raise RuntimeError(f"{action!r} is no action")
        self.t += 1
        length, ending = self.endings[self.episode % len(self.endings)]
        self.is_over = self.t == length
        terminated, truncated = FLAGS[ending] if self.is_over else (False, False)
        return self._observe(), float(4 * self.t + action), terminated, truncated, {"t": self.t}

    def close(self):
        self.closed += 1

    def _observe(self) -> Any:
        obs = self.layout.encode(*self.place)
        if not self.in_place:
            return obs
        self._lent = obs if self._lent is None else _overwritten(self._lent, obs)
        return self._lent


def _overwritten(old: Any, new: Any) -> Any:
    """`old` with the numbers of `new` written into its arrays."""
    if isinstance(old, dict):
        old.update({name: _overwritten(old[name], part) for name, part in new.items()})
    elif isinstance(old, tuple):
        return tuple(map(_overwritten, old, new))
    elif isinstance(old, np.ndarray):
        old[...] = new
    else:
        return new
    return old


class FaultyEnv(gymnasium.Env):
    """Well-behaved until its `at`-th step, counted from 1 over its whole life, or its first reset where `at` is 0.

    Args:
        at: when.
        result: what step() then returns, whole.
        error: what is raised then, by step() or reset().
        faults: instead of the right obs, reward, terminated or truncated; a callable is called for it.
    """

    def __init__(
        self,
        at: int = 1,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        result: Any = None,
        error: Exception | None = None,
        **faults: Any,
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(4)
        self.at, self.result, self.error, self.faults = at, result, error, faults
        self.steps = 0
        self.observation_space.seed(0)
        self._good = self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.at == self.steps == 0 and self.error is not None:
            raise self.error
        return (self.faults["obs"] if self.at == self.steps == 0 else self._good), {}

    def step(self, action):
        self.steps += 1
        faults: dict[str, Any] = {}
        if self.steps == self.at:
            if self.error is not None:
                raise self.error
            if self.result is not None:
                return self.result
            faults = self.faults
        right = {"obs": self._good, "reward": 1.0, "terminated": False, "truncated": False}
        return *({**right, **faults}[name] for name in right), {}


class RulePolicy(Policy):
    """Does what `rule` says of the place that an observation of a CountingEnv tells."""

    def __init__(self, env: VectorEnv, layout: str = "float32", seed: int = 0) -> None:
        self.layout = LAYOUTS[layout]
        super().__init__(PolicyConfig(seed=seed), env.single_observation_space, env.single_action_space)

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return torch.from_numpy(rule(self.layout.decode(obs))), state, {}

    def loss(self, batch):
        raise NotImplementedError("this policy does not learn")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, Any, Any]:
    """Mark most cases of costly tests slow, before tests are left out by their markers. And let long tests begin first: the
    other processes take over what waits behind them."""
    _mark_most_cases(items)
    result = yield
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    return result


def _mark_most_cases(items: Sequence[pytest.Item]) -> None:
    """Of tests with the marker few, a fifth of the cases, at least two and spread evenly, is not slow."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not any(map(item.get_closest_marker, ("slow", "ray", "compiled"))):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for several in cases.values():
        count = max(2, -(-len(several) // 5))
        kept = {index * (len(several) - 1) // (count - 1) for index in range(count)}
        for index, item in enumerate(several):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What was imported and collected stays until the end: half a million objects that no garbage collection looks at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """No file of tests is collected a second time for doctests."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


@pytest.fixture(scope="session")
def counting_env() -> type[CountingEnv]:
    """The class CountingEnv. Its instances, and functools.partial of it, can be sent to other processes."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return CountingEnv


@pytest.fixture(scope="session")
def vector() -> Callable[..., VectorEnv]:
    """From a kind and functions that make environments, a vector environment of these.

    Kinds: "ours"; or "sync", "sync without copies", "async", "async without shared memory", each with an autoreset mode behind
    it, as in "sync NextStep". Those in other processes are the caller's to close.
    """

    def make(kind: str, factories: Sequence[Callable[[], gymnasium.Env]]) -> VectorEnv:
        if kind == "ours":
            makers = iter(factories)
            return make_envs(lambda: next(makers)(), len(factories))
        where, mode = kind.rsplit(" ", 1)
        if where.startswith("async"):
            settings = {"context": "forkserver", "shared_memory": where == "async"}
            return AsyncVectorEnv(factories, autoreset_mode=mode, **settings)
        return SyncVectorEnv(factories, autoreset_mode=mode, copy=where == "sync")

    return make


@pytest.fixture(scope="session")
def layouts() -> dict[str, Layout]:
    """How CountingEnv may lay out its observations, by name."""
    return LAYOUTS


@pytest.fixture(scope="session")
def faulty_env() -> type[FaultyEnv]:
    """The class FaultyEnv."""
    return FaultyEnv


@pytest.fixture(scope="session")
def rule_policy() -> type[RulePolicy]:
    """The class RulePolicy."""
    return RulePolicy


@pytest.fixture(scope="session")
def action_rule() -> Callable[[np.ndarray], Any]:
    """The rule by which RulePolicy acts."""
    return rule


@pytest.fixture
def hosted() -> Iterator[Callable[[Any], Any]]:
    """A function that keeps a host until the end of the test, which closes it."""
    made = []

    def of(host: Any) -> Any:
        made.append(host)
        return host

    yield of
    for host in made:
        host.close()


def _description(thing: Any) -> Any:
    """Everything that tells two things apart, to the last bit, as nested tuples."""
    if isinstance(thing, torch.Tensor):
        thing = thing.cpu().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.dtype.str, thing.shape, thing.tobytes()
    if isinstance(thing, Mapping):
        return tuple((name, _description(part)) for name, part in sorted(thing.items()))
    if isinstance(thing, (list, tuple, np.ndarray)):
        return type(thing).__name__, tuple(_description(part) for part in thing)
    return type(thing).__name__, repr(thing)


@pytest.fixture(scope="session")
def digest() -> Callable[..., str]:
    """A hash of arrays, tensors and numbers, nested; episodes and rollouts are described by their parts."""
    return lambda *things: hashlib.sha256(repr(_description(things)).encode()).hexdigest()


@pytest.fixture(scope="session")
def census() -> Callable[[], dict[str, Any]]:
    """What this process holds: threads, descriptors, processes, memory shared with these and names of such memory.

    Other tests run beside this one: their semaphores have names of their own, and their browsers' names begin with a dot.
    """

    def count() -> dict[str, Any]:
        gc.collect()
        me = psutil.Process()
        names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
        return {
            "threads": threading.active_count(),
            "system threads": me.num_threads(),
            "descriptors": me.num_fds(),
            "processes": {child.pid for child in me.children(recursive=True)},
            "known children": len(multiprocessing.active_children()),
            "names": sorted(
                name for name in names if name.startswith(f"sem.{_SEMAPHORES}-") or not name.startswith((".", "sem."))
            ),
            "maps": maps.read_text().count("ding_lite") if (maps := Path("/proc/self/maps")).is_file() else 0,
        }

    return count
