"""call, set_attr and get_attr: environments change as in gymnasium, and replays repeat the changes at the same step."""

import os
import re
import signal
import sys
import threading
import warnings
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import EnvDataError, make_multi_agent_envs, reproduce_env_error, save_env_error, stepper

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)

KINDS = [{}, {"workers": 2, "backend": "local"}, {"workers": 2, "backend": "process"}]
EVERY = pytest.mark.parametrize("options", KINDS, ids=["one", "pieces", "processes"])


class Hill(gymnasium.Env):
    """Its observations and rewards depend on every change, and on when it was made."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.slope, self.level, self.table, self.steps = 1.0, 0, [1, 2], 0

    @property
    def double(self):
        return 2 * self.slope

    @double.setter
    def double(self, value):
        self.slope = value / 2 + self.level  # depends on what was changed before

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.steps = self.np_random.normal(), 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        self.height += self.slope + 0.1 * self.level + self.table[int(action)]
        return self._observe(), float(self.height), False, self.steps == 5, {}

    def raise_level(self, by=1, *, times=1):
        self.level += by * times
        return self.level, self.steps

    def tilt(self):
        self.slope += 0.0 * self.height + 0.5  # the height exists only after a reset

    def _observe(self):
        return np.array([self.height, self.level], np.float32)


class Shifted(gymnasium.Wrapper):
    """Shifts rewards."""

    shift = 0.0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + self.shift, *rest


def hills(made, options, seed=3):
    return made(Hill, 3, seed, wrappers=[Shifted], **options)


def steps(envs, count, action=0):
    return [[part.tolist() for part in envs.step(np.full(envs.num_envs, action))[:4]] for _ in range(count)]


CHANGES = [
    lambda envs: envs.set_attr("slope", 2.5),
    lambda envs: envs.set_attr("shift", [1.0, 2.0, 3.0]),
    lambda envs: envs.call("raise_level", 2, times=3),
    lambda envs: envs.set_attr("table", [[5, 6]] * 3),
    lambda envs: envs.set_attr("double", np.float32(3)),
    lambda envs: envs.set_attr("slope", 0.5),
]


@EVERY
def test_attributes_and_methods_are_those_of_the_environments(made, options):
    envs = hills(made, options)
    envs.reset()
    envs.set_attr("slope", 4.0)
    envs.set_attr("shift", (1.0, 2.0, 3.0))
    steps(envs, 2)

    assert envs.get_attr("slope") == (4.0,) * 3
    assert envs.get_attr("shift") == (1.0, 2.0, 3.0)
    assert envs.call("raise_level", 2, times=2) == ((4, 2),) * 3
    assert envs.call("level") == envs.get_attr("level") == (4,) * 3


def test_the_attribute_is_set_where_gymnasium_sets_it(made):
    ours, theirs = hills(made, {}), gymnasium.vector.SyncVectorEnv([lambda: Shifted(Hill())] * 3)
    for envs in (ours, theirs):
        envs.set_attr("slope", [1, 2, 3])
        envs.set_attr("shift", 5)

    assert [env.unwrapped.slope for env in ours.envs] == [env.unwrapped.slope for env in theirs.envs] == [1, 2, 3]
    assert [env.shift for env in ours.envs] == [env.shift for env in theirs.envs] == [5] * 3
    adapter = stepper(theirs)
    adapter.set_attr("shift", 6)
    assert adapter.get_attr("shift") == (6, 6, 6)
    assert adapter.get_attr("level") == theirs.call("level") == (0, 0, 0)


@pytest.mark.few
@EVERY
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda envs: envs.set_attr("slop", 2),
            AttributeError,
            "environment 0 .*Hill.*no attribute 'slop': did you mean 'slope'",
        ),
        (lambda envs: envs.get_attr("shfit"), AttributeError, "environment 0 .* no attribute 'shfit': did you mean 'shift'"),
        (lambda envs: envs.call("raise_levle"), AttributeError, "environment 0 .* did you mean 'raise_level'"),
        (lambda envs: envs.get_attr("raise_level"), TypeError, r"is a method: use envs\.call\('raise_level'\)"),
        (lambda envs: envs.call("slope", 3), TypeError, "got arguments, but 'slope' .* is 1.0, not a method"),
        (lambda envs: envs.set_attr("slope", [1, 2]), ValueError, "2 values for 3 environments.*itself is a list"),
        (lambda envs: envs.set_attr("slope", torch.ones(1)), TypeError, r"envs.set_attr\('slope'\) is tensor.* of type Tensor"),
        (lambda envs: envs.call("raise_level", [{1}]), TypeError, r"argument 0 of envs.call\('raise_level'\)\[0\] is \{1\}"),
        (lambda envs: envs.call("reset"), ValueError, r"use envs\.reset\(\)"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(made, options, change, error, words):
    envs, same = hills(made, options), hills(made, options)
    envs.reset()
    same.reset()
    with pytest.raises(error, match=words):
        change(envs)

    assert steps(envs, 6) == steps(same, 6)


def test_the_error_of_a_method_names_the_environment(made):
    envs = hills(made, {})
    with pytest.raises(TypeError) as caught:
        envs.call("raise_level", "a")
    assert any("raised by raise_level() of environment 0" in note for note in caught.value.__notes__)


@pytest.mark.few
@pytest.mark.parametrize("when", [0, 2, 5, 7])
@EVERY
def test_a_restored_environment_has_had_the_same_changes_at_the_same_steps(made, options, when, tmp_path):
    envs = hills(made, options)
    if when:
        envs.reset()
    for number, change in enumerate([*CHANGES, *([lambda envs: envs.call("tilt")] if when else [])]):
        change(envs)
        if when:
            steps(envs, when % 5, number % 2)
    path = save_checkpoint({"envs": envs.state_dict()}, tmp_path / "envs.pt")
    if not when:
        envs.reset()
    expected = steps(envs, 8), envs.get_attr("slope"), envs.get_attr("level"), envs.get_attr("shift"), envs.get_attr("table")
    restored = hills(made, options, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored.load_state_dict(load_checkpoint(path)["envs"])
    if not when:
        restored.reset()

    names = ("slope", "level", "shift", "table")
    assert (steps(restored, 8), *map(restored.get_attr, names)) == expected


@EVERY
def test_a_state_is_loaded_into_environments_that_were_changed_in_another_way(made, options):
    envs, other = hills(made, options), hills(made, options)
    envs.reset()
    other.reset()
    steps(envs, 2)
    state = envs.state_dict()
    expected = steps(envs, 8)
    for change in CHANGES:
        change(other)
        steps(other, 2)
    other.load_state_dict(state)

    assert steps(other, 8) == expected
    assert other.get_attr("slope") == (1.0,) * 3


@pytest.mark.parametrize("begins", [False, True])
def test_after_a_refused_state_the_changes_are_as_before(made, begins):
    envs, same, other = (hills(made, {}, seed) for seed in (3, 3, 5))
    for one in (envs, same):
        if begins:
            one.reset()
        for change in CHANGES:
            change(one)
            if begins:
                steps(one, 2)
    other.reset()
    other.call("raise_level", 7)
    steps(other, 2)
    state = other.state_dict()
    state["current"][0, 0] += 1
    with pytest.raises(EnvDataError, match="environment 0 did not come back to its observation"):
        envs.load_state_dict(state)
    if not begins:
        assert envs.reset()[0].tolist() == same.reset()[0].tolist()

    assert envs.get_attr("level") == same.get_attr("level")
    assert steps(envs, 8) == steps(same, 8)
    again = hills(made, {})
    again.load_state_dict(envs.state_dict())
    assert steps(again, 8) == steps(same, 8)


@pytest.mark.parametrize("restart", [False, True])
def test_a_process_that_was_replaced_repeats_the_changes(made, restart):
    envs, same = hills(made, {**KINDS[2], "restart": restart}), hills(made, KINDS[1])
    envs.reset()
    same.reset()
    for change in CHANGES:
        for one in (envs, same):
            steps(one, 2)
            change(one)
        if restart:
            os.kill(envs.hosts[0].pid, signal.SIGKILL)
        else:
            envs.release()

    assert steps(envs, 7) == steps(same, 7)
    assert envs.get_attr("level") == same.get_attr("level")


def test_changes_outlast_episodes_and_a_reset_with_a_seed(made):
    envs = hills(made, {})
    envs.reset()
    envs.set_attr("slope", 4.0)
    steps(envs, 7)
    envs.reset(seed=1)
    steps(envs, 2)
    restored = hills(made, {})
    restored.load_state_dict(envs.state_dict())

    assert envs.get_attr("slope") == restored.get_attr("slope") == (4.0,) * 3
    assert steps(restored, 8) == steps(envs, 8)


def test_of_an_attribute_that_is_set_often_only_the_last_value_is_kept(made):
    envs = made(Hill, 1, 0)
    envs.reset()
    for number in range(50):
        envs.set_attr("slope", number)
        envs.set_attr("table", [[number, 1]])
        if number == 20:
            envs.call("raise_level")
        steps(envs, 1)
    envs.reset()
    (start,) = envs.starts

    kept = [(change.get("set") or change["call"], change.get("value")) for change in start.changes.before]
    assert kept == [("slope", 20), ("table", [20, 1]), ("raise_level", None), ("slope", 49), ("table", [49, 1])]


def test_a_thousand_calls_cause_one_warning(made):
    envs = made(Hill, 1, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1010):
            envs.call("raise_level")
    (warning,) = caught
    assert re.search("environment 0 .* has had 1000 calls such as 'raise_level'.*set_attr", str(warning.message))


def test_a_read_waits_for_a_thread_that_works_in_the_environments_unless_it_is_that_thread(made):
    envs, found = made("CartPole-v1", 2), []
    go = threading.Event()

    def work():
        go.wait(10)
        found.append(envs.get_attr("gravity"))

    worker = threading.Thread(target=work)
    worker.start()
    envs.set_worker_thread(worker)
    threading.Timer(0.01, go.set).start()
    assert envs.get_attr("gravity") == (9.8, 9.8)
    assert found == [(9.8, 9.8)]


def test_a_value_that_the_environment_changes_is_recorded_as_it_was_given(made):
    given = [9, 9]
    envs = hills(made, {})
    envs.set_attr("table", [given] * 3)
    given[0] = 0
    envs.envs[1].unwrapped.table[0] = -1
    restored = hills(made, {})
    restored.load_state_dict(envs.state_dict())

    assert envs.get_attr("table") == ([9, 9], [-1, 9], [9, 9])
    assert restored.get_attr("table") == ([9, 9],) * 3


class Breaking(Hill):
    def step(self, action):
        if self.level == 3 and self.steps == 2:
            raise OSError("too steep")
        return super().step(action)


def test_the_episode_up_to_an_error_is_replayed_with_its_changes(made, tmp_path):
    envs = made(Breaking, 2, 0)
    envs.reset()
    envs.call("raise_level")
    steps(envs, 6)
    envs.call("raise_level", 2)
    with pytest.raises(OSError, match="too steep") as caught:
        steps(envs, 3)
    path = save_env_error(caught.value, tmp_path)
    with pytest.raises(OSError, match="too steep") as again:
        reproduce_env_error(Path(path), Breaking)

    assert again.value.env_location.step == caught.value.env_location.step == 2


class Pair:
    """Two agents for four steps; the rewards depend on changes."""

    possible_agents = ("a", "b")
    bonus = 0.0

    def __init__(self, size=1):
        self.level, self.size = 0, size

    def observation_space(self, agent):
        return spaces.Box(-99, 99, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.at = self.possible_agents, float(np.random.default_rng(seed).integers(9))
        self.steps = 0
        return self._each(np.array([self.at], np.float32)), self._each({})

    def step(self, actions):
        self.steps += 1
        self.at = (self.at + 1 + self.level + self.size) % 50
        ends = self.steps == 4
        self.agents = () if ends else self.possible_agents
        obs = self._each(np.array([self.at], np.float32))
        return obs, self._each(self.bonus + self.at), self._each(False), self._each(ends), self._each({})

    def raise_level(self):
        self.level += 1
        return self.level

    def _each(self, value):
        return dict.fromkeys(self.possible_agents, value)


def pairs(seed=0, **options):
    envs = make_multi_agent_envs(Pair, 2, seed=seed, **options)
    envs.assign_slots({"a": "p", "b": "p"}, ("p",))
    return envs


def agent_steps(envs, count):
    out = {"p": np.empty((4, 1), np.float32)}
    results = []
    for _ in range(count):
        step = envs.advance({"p": np.zeros(4, np.int64)}, out).steps["p"]
        results.append((out["p"].tolist(), step.reward.tolist()))
        out = {"p": np.empty((4, 1), np.float32)}
    return results


@EVERY
@pytest.mark.parametrize("begins", [False, True])
def test_environments_of_several_agents_are_changed_and_restored(begins, options):
    options = {**options, "env_config": {"size": 3}}
    envs, restored, dirty = pairs(**options), pairs(9, **options), pairs(**options)
    assert envs.get_attr("size") == (3, 3)
    for one in (envs, dirty):
        if begins:
            one.begin()
            agent_steps(one, 2)
    envs.set_attr("bonus", [1.0, 2.0])
    assert envs.call("raise_level") == (1, 1)
    dirty.call("raise_level")
    if begins:
        agent_steps(envs, 5)
    envs.set_attr("bonus", [3.0, 4.0])
    state = envs.state_dict()
    for one in (restored, dirty):
        one.load_state_dict(state)
    if not begins:
        for one in (envs, restored, dirty):
            one.begin()
    expected = agent_steps(envs, 6)

    assert agent_steps(restored, 6) == agent_steps(dirty, 6) == expected
    assert restored.get_attr("bonus") == (3.0, 4.0)
    with pytest.raises(AttributeError, match="environment 0 .* no attribute 'bonsu': did you mean 'bonus'"):
        envs.set_attr("bonsu", 1)
    for one in (envs, restored, dirty):
        one.close()


@pytest.mark.parametrize("begins", [False, True])
def test_a_replaced_process_repeats_the_changes_of_several_agents(begins):
    envs, same = pairs(workers=2, backend="process", restart=True), pairs()
    if begins:
        envs.begin()
        same.begin()
    for number in range(3):
        for one in (envs, same):
            if begins:
                agent_steps(one, 2)
            one.set_attr("bonus", [1.0 + number, 2.0])
            assert one.call("raise_level") == (number + 1,) * 2
        if number == 1:
            envs.release()
        else:
            os.kill(envs.hosts[number % 2].pid, signal.SIGKILL)
    if not begins:
        envs.begin()
        same.begin()

    assert agent_steps(envs, 7) == agent_steps(same, 7)
    assert envs.get_attr("level") == same.get_attr("level") == (3, 3)
    envs.close()
