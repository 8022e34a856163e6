"""Environments that are stepped all at once, when something else happens: patches, other threads, errors and Ctrl-C."""

import copy
import functools
import threading
from unittest import mock

import gymnasium
import numpy as np
import pytest
from both_modes import Both
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.wrappers import TimeLimit
from states import same

from ding_lite.envs import EnvDataError, make_envs
from ding_lite.envs.batched_steps import relied_on
from ding_lite.envs.classic_control import TASKS, CartPole
from ding_lite.envs.episode_starts import EpisodeStarts

IDS = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")


@pytest.fixture(autouse=True)
def any_number(monkeypatch):
    """Let any number of environments be stepped at once."""
    for task in TASKS:
        monkeypatch.setattr(task, "pays_from", 1)


@pytest.mark.parametrize(("env_id", "task"), [*zip(IDS, TASKS)], ids=IDS)
def test_a_wrapped_function_of_gymnasium_is_used(env_id, task):
    for owner, name in relied_on(task):
        original = getattr(owner, name)
        # It has the name of the original one; `inspect.getsource` shows the source of the original one, too.
        same_name = functools.wraps(original)(lambda *args, original=original, **kwargs: original(*args, **kwargs))
        with mock.patch.object(owner, name, same_name):
            assert not make_envs(env_id, 2, vectorization="auto").is_vectorized, (owner, name)
    assert make_envs(env_id, 2, vectorization="auto").is_vectorized


def drawing(reset, name, values):
    """A `reset` that draws an attribute for each episode."""

    @functools.wraps(reset)
    def drawing_reset(self, *, seed=None, options=None):
        result = reset(self, seed=seed, options=options)
        setattr(self, name, values[seed % len(values)])
        return result

    return drawing_reset


def doubled(self, action, step=CartPoleEnv.step):
    obs, reward, *others = step(self, action)
    return obs, 2 * reward, *others


class Gusts:
    """An attribute that is another one at each reading, set as an attribute of a class."""

    def __get__(self, env, kind=None):
        env.gust = (getattr(env, "gust", 0) + 1) % 3
        return 5.0 + env.gust

    def __set__(self, env, value):
        pass


def weak(env, name):
    return 3.0 if name == "force_mag" else object.__getattribute__(env, name)


class Weak(gymnasium.Env):
    """A base class that is added to one of gymnasium."""

    __getattribute__ = weak


def falls(self, action):
    return np.zeros(4, np.float32), 7.0, True, False, {}


PATCHES = {
    "step": ("CartPole-v1", CartPoleEnv, "step", functools.wraps(CartPoleEnv.step)(doubled)),
    "reset": ("CartPole-v1", CartPoleEnv, "reset", drawing(CartPoleEnv.reset, "length", [0.3, 1.0, 3.0])),
    "reset of the base class": ("Pendulum-v1", gymnasium.Env, "reset", drawing(gymnasium.Env.reset, "g", [5.0, 10.0, 15.0])),
    "reset of a wrapper": ("Pendulum-v1", TimeLimit, "reset", drawing(TimeLimit.reset, "_max_episode_steps", [3, 4, 6])),
    "descriptor": ("CartPole-v1", CartPoleEnv, "force_mag", Gusts()),
    "property": ("Pendulum-v1", PendulumEnv, "g", property(lambda env: 4.0, lambda env, value: None)),
    "__getattribute__": ("CartPole-v1", CartPoleEnv, "__getattribute__", weak),
    "code": (
        "CartPole-v1",
        CartPoleEnv.step,
        "__code__",
        (lambda self, action: (np.zeros(4, "f4"), 7.0, True, False, {})).__code__,
    ),
}


@pytest.mark.parametrize(("env_id", "owner", "name", "value"), PATCHES.values(), ids=PATCHES)
def test_a_patched_class_is_stepped_as_in_the_plain_loop(env_id, owner, name, value, monkeypatch):
    monkeypatch.setattr(owner, name, value, raising=False)
    both = Both(env_id, uses=False)
    both.steps(12)
    both.read()


def test_an_added_base_class_is_used():
    bases = CartPoleEnv.__bases__
    CartPoleEnv.__bases__ = (Weak,)
    try:
        Both("CartPole-v1", uses=False).steps(3)
    finally:
        CartPoleEnv.__bases__ = bases


def test_mocks_are_used():
    result = np.zeros(4, np.float32), 7.0, False, False, {}
    for options in ({"autospec": True}, {}):
        with mock.patch.object(CartPoleEnv, "step", return_value=result, **options):
            both = Both("CartPole-v1", uses=False)
            assert both.step()[1].tolist() == [7.0] * 5


class Meanwhile:
    """Calls a function in another thread, which may wait until the current call of the environments has ended."""

    def __init__(self, fn):
        self.fn, self.threads = fn, []

    def __call__(self):
        self.threads.append(threading.Thread(target=self.fn))
        self.threads[-1].start()
        self.threads[-1].join(0.01)

    def end(self):
        assert self.threads
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)


READS = {
    "get_attr": lambda envs: envs.get_attr("state"),
    "call": lambda envs: envs.call("gravity"),
    "envs": lambda envs: envs.envs,
    "render": lambda envs: envs.render(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_another_thread_may_read_in_the_middle_of_a_step(read, monkeypatch):
    both = Both("CartPole-v1", 3, max_episode_steps=4)
    both.steps(2)
    meanwhile, step, begin = Meanwhile(lambda: read(both.batched)), CartPole.step, EpisodeStarts.begin

    def watched_step(self, action):
        result = step(self, action)
        meanwhile()
        return result

    def watched_begin(self, options=None):
        result = begin(self, options)
        if self is both.batched.starts[1]:
            meanwhile()
        return result

    monkeypatch.setattr(gymnasium.logger, "min_level", gymnasium.logger.ERROR)  # render() without a render_mode warns
    monkeypatch.setattr(CartPole, "step", watched_step)
    monkeypatch.setattr(EpisodeStarts, "begin", watched_begin)
    both.steps(7)
    both.read()
    both.steps(4)
    meanwhile.end()
    both.read()


def test_another_thread_does_not_step_in_the_middle_of_a_change():
    both = Both("Pendulum-v1")
    both.steps(2)
    action, change = both.draw(), EpisodeStarts.change
    meanwhile = Meanwhile(lambda: both.batched.advance(action, both.batched.new_obs()))

    def watched_change(self, one):
        if self is both.batched.starts[2]:
            meanwhile()
        return change(self, one)

    with mock.patch.object(EpisodeStarts, "change", watched_change):
        both.batched.set_attr("g", 5.0)
        meanwhile.end()
    both.plain.set_attr("g", 5.0)
    both.plain.advance(action, both.plain.new_obs())
    both.read()
    both.steps(3)


def test_copies_are_independent():
    both = Both("CartPole-v1")
    both.steps(2)
    both.batched = copy.deepcopy(both.batched)
    both.each = both.plain, both.batched
    both.steps(3)
    assert both.was_batched()


def test_an_error_between_two_resets_of_a_step_undoes_none():
    both = Both("CartPole-v1")
    both.steps(1)
    states = [np.array([2.39, 3.0, 0, 0]), np.array([9.0, 0, 0, 0]), *[np.zeros(4)] * 3]
    both.agree(lambda envs: envs.set_attr("state", states))
    both.filter = "error"
    assert both.step()[0] == "UserWarning"  # of environment 1, after environment 0 was reset
    both.filter = "always"
    both.read()
    both.agree(lambda envs: envs.running_episodes)
    both.steps(12)


@pytest.mark.parametrize("is_read", [False, True])
def test_ctrl_c_in_a_reset_leaves_what_it_leaves_in_the_plain_loop(is_read):
    both = Both("CartPole-v1", max_episode_steps=4)
    both.steps(3)
    action, original = both.draw(), gymnasium.utils.seeding.np_random
    for envs in both.each:
        is_interrupted = iter([False, False, True])

        def np_random(seed=None, is_interrupted=is_interrupted):
            if next(is_interrupted):
                raise KeyboardInterrupt
            return original(seed)

        with mock.patch.object(gymnasium.utils.seeding, "np_random", np_random), pytest.raises(KeyboardInterrupt):
            envs.advance(action, envs.new_obs())
    if is_read:
        both.read()
    both.steps(3)
    both.read()
    both.steps(9)


@pytest.mark.parametrize("is_read", [False, True])
def test_ctrl_c_while_states_are_written_counts_each_step_once(is_read):
    both = Both("CartPole-v1", max_episode_steps=9)
    both.steps(3)
    write = CartPole.write

    def interrupted(self, row):
        write(self, row)
        if row == 2:
            raise KeyboardInterrupt

    with mock.patch.object(CartPole, "write", interrupted), pytest.raises(KeyboardInterrupt):
        both.batched.get_attr("state")
    if is_read:
        both.read()
    both.steps(2)
    both.read()
    both.steps(9)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("ended", [True, False])
def test_after_an_error_current_is_not_memory_that_nobody_wrote(ended):
    both = Both("CartPole-v1")
    both.steps(2)
    both.agree(lambda envs: envs.set_attr("x_threshold", 2.4 if ended else 1e305))
    both.agree(lambda envs: envs.set_attr("state", [np.array([1e300, 0, 0, 0]), *[np.zeros(4)] * 4]))
    before = both.plain.current.copy()
    for envs in both.each:
        out = np.full((5, 4), 12345, np.float32)
        with pytest.raises(EnvDataError, match="not finite"):
            envs.advance(np.ones(5, np.int64), out)
        assert same(envs.current, before)
        assert same(envs.state_dict()["current"].numpy(), before)
    both.agree(lambda envs: envs.pause([3]))
    both.agree(lambda envs: envs.set_attr("state", [np.zeros(4)] * 5))
    assert same(both.step()[0][3], before[3])
