"""What goes wrong in an environment is an error that names environment, episode, step and action, and the seed if known."""

import re
import signal
import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.envs import EnvDataError, SpaceError, make_envs, make_multi_agent_envs
from ding_lite.envs.vector_adapters import VectorEnvAdapter

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)

BOX = spaces.Box(-9, 9, (2,), np.float32)


def raises():
    raise OSError("the simulator is gone")


def exits():
    sys.exit(3)


class Unprintable:
    def __repr__(self):
        raise ValueError("no words")


class Odd:
    def __array__(self, *args, **kwargs):
        raise KeyError("no array")


OBS = np.zeros(2, np.float32)
STEPS = {
    "raises": (raises, OSError, "the simulator is gone"),
    "calls sys.exit": (exits, RuntimeError, r"called sys.exit\(3\). An environment must not end the program: have it raise"),
    "a wrong shape": (lambda: (np.zeros(3, np.float32), 0.0, False, False, {}), EnvDataError, r"has shape \(3,\), its space"),
    "a wrong dtype": (lambda: (np.full(2, "a"), 0.0, False, False, {}), EnvDataError, "has dtype <U1, its space has float32"),
    "no array": (lambda: (Odd(), 0.0, False, False, {}), EnvDataError, "which numpy cannot convert to an array .KeyError"),
    "too large": (lambda: (np.full(2, 1e300), 0.0, False, False, {}), EnvDataError, r"is 1e\+300, which float32 cannot"),
    "NaN": (lambda: (np.full(2, np.nan, np.float32), 0.0, False, False, {}), EnvDataError, "is not finite"),
    "NaN at the end": (lambda: (np.full(2, np.nan, np.float32), 0.0, True, False, {}), EnvDataError, "is not finite"),
    "a reward of None": (lambda: (OBS, None, False, False, {}), EnvDataError, "the reward None, expected one number"),
    "a reward of a class": (lambda: (OBS, Unprintable(), False, False, {}), EnvDataError, "Unprintable, whose repr"),
    "a NaN reward": (lambda: (OBS, np.nan, False, False, {}), EnvDataError, "the reward nan, which is not finite"),
    "a reward of 1e39": (lambda: (OBS, 1e39, True, False, {}), EnvDataError, r"1e\+39, which float32 cannot hold: scale it"),
    "a reward of 10**400": (lambda: (OBS, 10**400, False, False, {}), EnvDataError, "the reward 1000.*float32 cannot hold"),
    "a reward of 10**9999": (lambda: (OBS, 10**9999, False, False, {}), EnvDataError, "the reward <int, whose .* cannot hold"),
    "a flag of 2": (lambda: (OBS, 0.0, 2, False, {}), EnvDataError, "returned terminated=2, expected True or False"),
    "four parts": (lambda: (OBS, 0.0, False, {}), EnvDataError, r"from step\(\), expected \(obs, reward"),
}
RESETS = {
    "raises": (raises, OSError, "the simulator is gone"),
    "calls sys.exit": (exits, RuntimeError, r"called sys.exit\(3\). An environment must not end the program"),
    "no pair": (lambda: OBS, EnvDataError, r"from reset\(\), expected \(obs, info\)"),
    "NaN": (lambda: (np.full(2, np.nan, np.float32), {}), EnvDataError, "is not finite"),
    "a wrong shape": (lambda: (np.zeros(3, np.float32), {}), EnvDataError, r"has shape \(3,\), its space"),
}


class Faulty(gymnasium.Env):
    """Ends its episode at action 8; at action 9 its step goes wrong, or, where that is asked for, the reset after it.

    Args:
        table: of faults, STEPS or RESETS.
        name: of the fault.
    """

    observation_space, action_space = BOX, spaces.Discrete(10)

    def __init__(self, table, name):
        self.in_reset, (self.fault, *_) = table == "reset", (RESETS if table == "reset" else STEPS)[name]
        self.is_due = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.fault() if self.is_due else (OBS, {})

    def step(self, action):
        self.is_due = self.in_reset and action == 9
        if action == 9 and not self.in_reset:
            return self.fault()
        return OBS, 1.0, action >= 8, False, {}


def words_of(error):
    return " | ".join([str(error), *getattr(error, "__notes__", ())])


def stepped(envs, *actions):
    """The second of two environments takes these."""
    for action in actions:
        envs.step(np.array([1, action]))


IN_WORKERS = ("raises", "calls sys.exit", "NaN", "a reward of 10**400")
WHERE = [*((name, "local") for name in STEPS), *((name, "process") for name in IN_WORKERS)]


@pytest.mark.parametrize(("name", "backend"), WHERE)
def test_an_error_in_a_step_names_its_place(made, name, backend):
    _, kind, words = STEPS[name]
    envs = made(partial(Faulty, "step", name), 2, backend=backend)
    envs.reset()
    stepped(envs, 1, 8, 2, 3)
    with pytest.raises(kind) as caught:
        stepped(envs, 9)
    found = words_of(caught.value)
    assert re.search(words, found), found
    assert re.search(r"environment 1\b", found)
    assert re.search(r"in step 2 of its episode 1, which began with \{'seed': \d+\}, at the action np.int64\(9\)", found), found


@pytest.mark.parametrize(("name", "backend"), [*((name, "local") for name in RESETS), ("calls sys.exit", "process")])
def test_an_error_in_a_reset_names_its_place(made, name, backend):
    _, kind, words = RESETS[name]
    envs = made(partial(Faulty, "reset", name), 2, backend=backend)
    envs.reset()
    stepped(envs, 8, 1)
    with pytest.raises(kind) as caught:
        stepped(envs, 9)
    found = words_of(caught.value)
    assert re.search(words, found), found
    assert re.search(r"reset .*for its episode 2, which began with \{'seed': \d+\}", found), found
    assert re.search(r"environment 1\b", found)


class Unlike(gymnasium.Env):
    """Plays well once; played again, its step 2 or its reset does what was asked for."""

    observation_space, action_space = BOX, spaces.Discrete(10)
    is_again = False

    def __init__(self, name, at):
        self.name, self.at = name, at

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observed(None), {}

    def step(self, action):
        self.t += 1
        return self._observed(self.t - 1), 1.0, False, False, {}

    def _observed(self, at):
        return (
            {"raise": raises, "exit": exits, "other": lambda: OBS + 1}[self.name]() if self.is_again and at == self.at else OBS
        )


@pytest.mark.parametrize("at", [None, 2])
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("raise", OSError, "the simulator is gone"),
        ("exit", RuntimeError, r"called sys.exit\(3\)"),
        ("other", EnvDataError, "did not come back to its observation"),
    ],
)
def test_an_error_while_a_saved_episode_is_replayed_names_its_place(made, name, kind, words, at):
    envs = made(partial(Unlike, name, at), 2)
    envs.reset()
    for action in (4, 5, 6)[: None if at == 2 else 0]:
        envs.step(np.array([1, action]))
    state = envs.state_dict()
    envs.envs[1].is_again = True
    with pytest.raises(kind, match=words if name != "raise" else None) as caught:
        envs.load_state_dict(state)
    found = words_of(caught.value)
    place = "for its episode 0" if at is None else "in step 2 of its episode 0"
    assert re.search(rf"{place}, which began with \{{'seed': \d+\}}", found), found
    assert ("at the action np.int64(6)" in found) == (at == 2), found
    assert re.search(r"environment 1\b", found)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["raises", "calls sys.exit", "NaN", "NaN at the end", "a NaN reward", "a reward of 1e39"])
def test_a_step_of_a_foreign_environment_is_told_with_its_place(mode, name):
    _, kind, words = STEPS[name]
    stepper = VectorEnvAdapter(SyncVectorEnv([partial(Faulty, "step", name)] * 2, autoreset_mode=mode))
    out = np.empty((2, 2), np.float32)
    stepper.begin(out, seed=3)
    skipped = [2] if mode is AutoresetMode.NEXT_STEP else []  # the step that is only a reset
    for action in (1, 8, *skipped, 2, 3):
        stepper.advance(np.array([1, action]), out.copy())
    with pytest.raises(kind) as caught:
        stepper.advance(np.array([1, 9]), out.copy())
    found = words_of(caught.value)
    assert re.search(words, found), found
    if kind is EnvDataError:
        assert re.search(r"environment 1\b", found)
        assert "It was in step 2 of its episode 1 since reset(seed=3), at the action np.int64(9)" in found
    else:
        steps = [5 if skipped else 4, 2]
        where = f"(environments 0 to 1 were in the steps {steps} of the episodes [0, 1], since reset(seed=3))"
        assert f" in a step of all its 2 environments together {where}, at the actions array([1, 9])" in found
        assert "of its episodes" not in found


def test_a_foreign_environment_of_one_is_told_with_the_step_and_the_episode_of_that_one():
    stepper = VectorEnvAdapter(SyncVectorEnv([partial(Faulty, "step", "raises")]))
    out = np.empty((1, 2), np.float32)
    stepper.begin(out)
    stepper.advance(np.array([1]), out.copy())
    with pytest.raises(Exception) as caught:  # noqa: PT011
        stepper.advance(np.array([9]), out.copy())

    assert "in a step of its only environment (step 1 of its episode 0), at the actions array([9])" in words_of(caught.value)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_reset_of_a_foreign_environment_is_told_as_that(mode):
    stepper = VectorEnvAdapter(SyncVectorEnv([partial(Faulty, "reset", "NaN")] * 2, autoreset_mode=mode))
    out = np.empty((2, 2), np.float32)
    stepper.begin(out, seed=3)
    if mode is AutoresetMode.NEXT_STEP:
        stepper.advance(np.array([1, 9]), out.copy())
    with pytest.raises(EnvDataError, match=r"environment 1 .*It was in the reset for its episode 1 since reset\(seed=3\)"):
        stepper.advance(np.array([1, 9]), out.copy())


class Pair:
    """Two agents, of which y goes wrong at action 9, and both end at action 8."""

    possible_agents = ("x", "y")

    def __init__(self, name):
        self.fault = STEPS[name][0]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(10)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, OBS), {}

    def step(self, actions):
        right = OBS, 1.0, bool(actions["y"] == 8), False, {}
        results = {"x": right, "y": self.fault() if actions["y"] == 9 else right}
        self.agents = [] if actions["y"] == 8 or results["y"][2] is True else self.agents
        if not self.agents:
            results["x"] = (*right[:2], True, *right[3:])
        return tuple({agent: result[part] for agent, result in results.items()} for part in range(5))


@pytest.mark.parametrize("name", [name for name in STEPS if name != "four parts"])
def test_an_environment_of_several_agents_is_told_with_its_place(name):
    _, kind, words = STEPS[name]
    env = make_multi_agent_envs(partial(Pair, name), 2)
    out = {name: slots.obs_spec for name, slots in env.assign_slots(str, ("x", "y")).items()}
    env.begin()

    def step(action):
        actions = {"x": np.array([1, 1]), "y": np.array([1, action])}
        env.advance(actions, {name: np.empty((2, 2), np.float32) for name in out})

    for action in (1, 8, 2, 3):
        step(action)
    with pytest.raises(kind) as caught:
        step(9)
    found = words_of(caught.value)
    assert re.search(words, found), found
    assert re.search(r"environment 1\b", found)
    assert re.search(
        r"in step 2 of its episode 1, which began with \{'seed': \d+\}, at the actions \{'x': np.int64\(1\)", found
    )
    if kind is EnvDataError:
        assert "agent 'y'" in found


def test_a_factory_that_calls_sys_exit_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"^the factory of environment 0, called sys.exit\(3\). An environment must not"):
        make_envs(exits, 2)
    with pytest.raises(RuntimeError, match=r"^the factory of environment 0, called sys.exit\(3\)"):
        make_multi_agent_envs(exits, 2)


def test_a_signal_that_ends_the_program_ends_it_also_amid_a_step(made):
    class Signalled(Faulty):
        def step(self, action):
            signal.raise_signal(signal.SIGUSR2)
            return super().step(action)

    before = signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(7))
    try:
        envs = made(partial(Signalled, "step", "raises"), 1)
        envs.reset()
        with pytest.raises(SystemExit) as caught:
            envs.step(np.array([1]))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert caught.value.code == 7


EMPTY = spaces.Box(-1, 1, (0,))


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (EMPTY, ""),
        (spaces.Box(0, 255, (3, 0, 4), np.uint8), ""),
        (spaces.Dict(a=BOX, b=spaces.Dict()), r"\['b'\]"),
        (spaces.Dict(a=BOX, b=spaces.Tuple([EMPTY])), r"\['b'\]\['0'\]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_a_space_without_numbers_is_refused_by_name(faulty_env, which, space, name):
    with pytest.raises(SpaceError, match=rf"^environment 0, {which}{name} is .*, whose elements hold no numbers: remove"):
        make_envs(partial(faulty_env, **{which: space}), 2)


def test_an_agents_space_without_numbers_is_refused_by_name():
    class Blind(Pair):
        def observation_space(self, agent):
            return EMPTY if agent == "y" else BOX

    with pytest.raises(SpaceError, match=r"^environment 0, observation_space of agent 'y' is Box.*hold no numbers"):
        make_multi_agent_envs(partial(Blind, "raises"), 1)
