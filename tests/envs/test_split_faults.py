"""Environments in worker processes that raise, lie, hang or are killed: reported in time, with environment, step and action."""

import os
import re
import signal
import sys
import threading
import time
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from ding_lite.envs import EnvDataError, SpaceError, make_envs
from ding_lite.processes import WorkerDied, WorkerError, WorkerHangs

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


class ThreeArguments(Exception):
    def __init__(self, first, second, third):
        super().__init__(f"{first}, {second}, {third}")


class Locked(Exception):
    """It cannot be pickled."""

    def __init__(self):
        super().__init__("held")
        self.lock = threading.Lock()


def raise_error(kind, *args):
    raise kind(*args)


FAULTS = {
    "three arguments": lambda: raise_error(ThreeArguments, 1, 2, 3),
    "unpicklable": lambda: raise_error(Locked),
    "exit": lambda: os._exit(3),
    "segmentation fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "raise": lambda: int("no number"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(60),
    "nan": lambda: np.array([0, np.nan], np.float32),
}
TWO = {"workers": 2, "backend": "process"}
ERRORS = {
    "three arguments": WorkerError,
    "unpicklable": WorkerError,
    "exit": WorkerDied,
    "segmentation fault": WorkerDied,
    "raise": ValueError,
    "kill": WorkerDied,
    "hang": WorkerHangs,
    "nan": EnvDataError,
}


class Faulty(gymnasium.Env):
    """Its observation is its action; the one that is asked to do 9 does it, in step or in the reset after it.

    Args:
        fault: what goes wrong.
        where: "step", "reset" or "made".
    """

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(20)

    def __init__(self, fault, where="step"):
        self.fault, self.where, self.resets = FAULTS[fault], where, 0
        if where == "made":
            self.fault()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        if self.where == "reset" and self.resets > 1:
            return self.fault(), {}
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action == 9 and self.where == "step":
            return self.fault(), 0.0, False, False, {}
        return np.full(2, action % 10, np.float32), 0.0, self.where == "reset" and action == 9, action == 19, {}


def notes(error):
    return " | ".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize(
    ("fault", "where", "words"),
    [
        (
            "raise",
            "step",
            r"raised by environment 3 \(.*\) in step 2 of its episode 1, which began with .*action np.int64\(9\)",
        ),
        ("three arguments", "step", r"ThreeArguments: 1, 2, 3 .*raised by environment 3 .* in step 2 of its episode 1"),
        ("unpicklable", "step", r"Locked: held .*raised by environment 3 .* in step 2 of its episode 1"),
        ("exit", "step", r"exited with status 3; it was at environment 3, episode 1, step 2 of it, action 9\."),
        ("segmentation fault", "step", r"signal 11 \(SIGSEGV\); it was at environment 3, episode 1, step 2 of it, action 9\."),
        ("raise", "reset", r"raised by the reset of environment 3 .* for its episode 1"),
        ("nan", "step", r"environment 3\b.*obs"),
        ("nan", "reset", r"environment 3\b.*obs"),
        ("kill", "step", r"killed by signal 9.*; it was at environment 3, episode 1, step 2 of it, action 9\."),
        ("kill", "reset", r"killed by signal 9.*; it was at environment 3, episode 1, in its reset\."),
        ("hang", "step", r"made no progress for 0.5 s at environment 3, episode 1, step 2 of it, action 9 and was killed"),
        ("hang", "reset", r"made no progress for 0.5 s at environment 3, episode 1, in its reset and was killed"),
    ],
)
def test_an_error_arrives_in_time_and_names_environment_episode_step_and_action(made, fault, where, words):
    envs = made(partial(Faulty, fault, where), 5, **TWO, timeout_s=0.5)
    envs.reset()
    for action in (19 if where == "step" else 0, 4, 14):
        envs.step(np.array([1, 2, 3, action, 5]))
    began = time.monotonic()
    with pytest.raises(ERRORS[fault]) as caught:
        envs.step(np.array([1, 2, 3, 9, 5]))
    assert time.monotonic() - began < 2.0
    assert re.search(words, notes(caught.value)), notes(caught.value)

    workers = [psutil.Process(host.pid) for host in envs.hosts if host.pid is not None]
    envs.close()
    assert not psutil.wait_procs(workers, timeout=2.0)[1]


def test_the_place_is_right_after_the_process_was_started_again(made):
    envs = made(partial(Faulty, "kill"), 4, **TWO)
    envs.reset()
    envs.step(np.array([0, 0, 19, 0]))
    envs.step(np.array([1, 2, 3, 4]))
    envs.release()
    envs.step(np.array([1, 2, 3, 4]))
    with pytest.raises(WorkerDied, match=r"it was at environment 2, episode 1, step 2 of it, action 9\."):
        envs.step(np.array([1, 2, 9, 4]))


def test_a_process_that_is_killed_between_two_steps_is_an_error(made):
    envs = made("CartPole-v1", 4, **TWO)
    envs.reset()
    envs.step(np.zeros(4, np.int64))
    os.kill(envs.hosts[1].pid, signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=r"^worker 'CartPole-v1, environments 2 to 3' .*at environments 2 to 3, between two steps"
    ):
        envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("is_released", [False, True])
def test_what_a_process_that_died_knew_is_an_error_until_the_environments_are_reset_or_restored(made, is_released):
    """A new process would repeat the episodes since its last known state."""
    envs, undisturbed = (made("CartPole-v1", 4, seed=3, **TWO) for _ in range(2))
    for env in (envs, undisturbed):
        env.reset()
        env.step(np.zeros(4, np.int64))
    saved, after = undisturbed.state_dict(), undisturbed.step(np.ones(4, np.int64))[0]
    os.kill(envs.hosts[1].pid, signal.SIGKILL)
    if is_released:
        envs.release()
    else:
        with pytest.raises(WorkerDied, match="was killed by signal 9"):
            envs.step(np.ones(4, np.int64))
    for use in (lambda: envs.step(np.ones(4, np.int64)), envs.state_dict, lambda: envs.running_episodes):
        with pytest.raises(WorkerDied, match=r"environments 2 to 3' has ended before, and its state is lost: .*reset its env"):
            use()

    envs.load_state_dict(saved)
    assert np.array_equal(envs.step(np.ones(4, np.int64))[0], after)
    os.kill(envs.hosts[1].pid, signal.SIGKILL)
    envs.load_state_dict(saved)
    assert np.array_equal(envs.step(np.ones(4, np.int64))[0], after)
    os.kill(envs.hosts[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        envs.state_dict()
    assert np.array_equal(envs.reset(seed=3)[0], undisturbed.reset(seed=3)[0])


def test_after_an_error_of_one_worker_the_environments_can_be_used_again(made):
    envs = made(partial(Faulty, "raise"), 4, **TWO)
    envs.reset()
    with pytest.raises(ValueError, match="no number"):
        envs.step(np.array([9, 1, 2, 3]))
    envs.reset()
    assert envs.step(np.array([1, 2, 3, 4]))[0][:, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("fault", ["raise", "kill", "hang"])
def test_a_restarted_worker_continues_with_the_same_steps(made, tmp_path, fault, digest):
    class Once(Faulty):
        def __init__(self, folder, fault):
            super().__init__(fault)
            self.fault = partial(self._once, folder / "struck", FAULTS[fault])

        @staticmethod
        def _once(path, strike):
            if not path.exists():
                path.touch()
                strike()
            return np.full(2, 9, np.float32)

    results = []
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
        if name == "undisturbed":
            (tmp_path / name / "struck").touch()
        envs = made(partial(Once, tmp_path / name, fault), 4, **TWO, restart=True, timeout_s=1.5)
        results.append([envs.reset()[0]])
        results[-1] += [
            envs.step(np.array(action))[:4] for action in ([1, 2, 3, 4], [19, 1, 2, 3], [5, 6, 9, 7], [1, 19, 2, 3])
        ]
    assert digest(results[0]) == digest(results[1])
    assert (tmp_path / "disturbed" / "struck").exists()
    assert [host.restarts for host in envs.hosts] == [0, 1]


@pytest.mark.parametrize("fault", ["raise", "kill", "hang"])
def test_an_environment_that_cannot_be_made_is_an_error_and_no_process_is_left(fault):
    make_envs("CartPole-v1", 1, backend="process").close()  # the fork server stays
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(ERRORS[fault]) as caught:
        make_envs(partial(Faulty, fault, "made"), 4, **TWO, start_timeout_s=3)
    if fault == "raise":
        assert "raised while environment 0 was made" in caught.value.__notes__
        assert "in __init__" in str(caught.value.__cause__)
    else:
        assert "environments 0 to 1, being made" in str(caught.value)
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


class Odd(gymnasium.Env):
    """Of another size in every process."""

    action_space = spaces.Discrete(2)

    def __init__(self, what):
        if what == "obs":
            self.observation_space = spaces.Box(-1, 1, (os.getpid(),))
        else:
            self.observation_space, self.action_space = spaces.Discrete(2), spaces.Discrete(os.getpid())


@pytest.mark.parametrize("what", ["obs", "action"])
def test_pieces_with_other_spaces_are_refused(what):
    with pytest.raises(SpaceError, match=r"environment 2 has the spaces .*, environment 0 has .*: they must be the same"):
        make_envs(partial(Odd, what), 4, **TWO)


def test_a_long_way_back_is_no_hang(made):
    class Slow(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(100), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return 0, {}

        def step(self, action):
            time.sleep(0.02)
            self.t += 1
            return self.t, 0.0, False, False, {}

    envs = made(Slow, workers=1, backend="process", timeout_s=0.3)
    envs.reset()
    for _ in range(40):
        envs.step(np.array([0]))
    envs.release()
    assert envs.step(np.array([0]))[0].tolist() == [41]
