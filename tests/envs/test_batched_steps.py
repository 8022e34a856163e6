"""Environments that are stepped all at once: every number is that of the plain loop, bit for bit."""

import logging
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from both_modes import Both
from example_runs import small
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.wrappers import TimeLimit
from states import same

from ding_lite.config import ConfigError, DQNConfig
from ding_lite.envs import EnvDataError, LocalVectorEnv, make_envs
from ding_lite.envs.batched_steps import BatchedSteps, relied_on
from ding_lite.envs.classic_control import TASKS, BatchTask
from ding_lite.envs.known_sources import is_known
from ding_lite.envs.progress import ProgressVectorEnv, describe_progress, progress_size

NEAR_THE_END = {
    "CartPole-v1": np.array([2.38, 1.0, 0.0, 0.0]),
    "MountainCar-v0": np.array([0.49, 0.05]),
    "MountainCarContinuous-v0": np.array([0.44, 0.05], np.float32),
    "Pendulum-v1": np.array([3.0, 7.99]),
    "Acrobot-v1": np.array([3.0, 0.2, 1.0, -2.0]),
}
"""A state from which the episode soon ends, or a limit is reached."""
EVERY = pytest.mark.parametrize("env_id", NEAR_THE_END)


@pytest.fixture(autouse=True)
def any_number(monkeypatch):
    """Let any number of environments be stepped at once."""
    for task in TASKS:
        monkeypatch.setattr(task, "pays_from", 1)


@pytest.mark.few
@EVERY
@pytest.mark.parametrize("num_envs", [1, 3, 17])
def test_steps_are_those_of_the_plain_loop(env_id, num_envs):
    both = Both(env_id, num_envs, max_episode_steps=40)
    assert both.steps(45) >= num_envs
    both.read()
    both.agree(lambda envs: envs.set_attr("state", [NEAR_THE_END[env_id]] * num_envs))
    ended = sum(both.step()[2].sum() for _ in range(12))
    assert ended >= num_envs or env_id == "Pendulum-v1"
    both.read()
    assert both.steps(30) > 0
    assert both.was_batched()


def test_powers_are_rounded_as_in_the_environment():
    both = Both("Acrobot-v1")
    # Of these, the power of one number differs in the last bit from what numpy computes for an array.
    speeds = [one for one in both.generator.uniform(-4, 4, 30_000) if one**2 != one * one]
    if not speeds:
        pytest.skip("the C library of this machine rounds them in the same way")
    both.agree(lambda envs: envs.set_attr("state", [np.array([0.1, 0.2, 0.0, speeds[row % len(speeds)]]) for row in range(5)]))
    both.step()
    both.read()


CHANGES = [
    ("CartPole-v1", "gravity", [1, 5.5, 9.8, 20.0, -3.0]),
    ("CartPole-v1", "force_mag", 11),
    ("CartPole-v1", "kinematics_integrator", "semi-implicit"),
    ("CartPole-v1", "_sutton_barto_reward", True),
    ("CartPole-v1", "theta_threshold_radians", [0.01, 0.02, 0.03, 0.1, 0.2]),
    ("CartPole-v1", "_max_episode_steps", [2, 3, 4, 7, 30]),
    ("CartPole-v1", "_elapsed_steps", [2, 3, 4, 5, 6]),
    ("MountainCar-v0", "max_speed", [0.001, 0.002, 0.01, 0.07, 1]),
    ("MountainCar-v0", "goal_velocity", 0.02),
    ("MountainCar-v0", "goal_position", [0, 0.0, -0.0, -0.5, -0.45]),
    ("MountainCar-v0", "state", [np.array([-1.19, -0.06])] * 5),
    ("MountainCarContinuous-v0", "state", [np.array([-1.19, -0.06], np.float32)] * 5),
    ("MountainCarContinuous-v0", "power", [0.001, 0.002, 0.5, 0, 1]),
    ("MountainCarContinuous-v0", "max_action", [0.3, 0.5, 1, 1.5, 2.0]),
    ("MountainCarContinuous-v0", "max_speed", 0.001),
    ("Pendulum-v1", "max_torque", [0.1, 1, 2.0, 2.5, 3]),
    ("Pendulum-v1", "l", [1, 2, 0.5, 1.25, 3]),
    ("Pendulum-v1", "g", 9.81),
    ("Acrobot-v1", "LINK_MASS_1", [1, 2.5, 0.7, 1.1, 3.3]),
    ("Acrobot-v1", "book_or_nips", "nips"),
    ("Acrobot-v1", "LINK_LENGTH_1", [0.5, 1, 1.5, 0.7, 2]),
    ("Acrobot-v1", "MAX_VEL_1", 0.1),
    ("Acrobot-v1", "AVAIL_TORQUE", [[-2, 0.5, 3.0]] * 5),
]
ALONE = [
    ("CartPole-v1", "kinematics_integrator", ["euler", "other", "euler", "other", "other"]),
    ("CartPole-v1", "steps_beyond_terminated", 0),
    ("CartPole-v1", "length", 0),
    ("CartPole-v1", "force_mag", 1e308),
    ("CartPole-v1", "gravity", "9.8"),
    ("CartPole-v1", "state", [np.zeros(4, np.float32)] * 5),
    ("CartPole-v1", "state", [np.zeros(3)] * 5),
    ("CartPole-v1", "_max_episode_steps", 3.5),
    ("MountainCar-v0", "max_speed", [0.0, -0.0, 0, 0.07, 0.07]),
    ("MountainCar-v0", "state", [(0.3, [1])] * 5),
    ("MountainCar-v0", "state", [(np.inf, 0.0)] * 5),
    ("MountainCar-v0", "state", [(1e308, 0.0)] * 5),
    ("MountainCarContinuous-v0", "goal_velocity", 1e-60),
    ("MountainCarContinuous-v0", "min_action", 1.0),
    ("MountainCarContinuous-v0", "max_action", 1e300),
    ("Pendulum-v1", "m", 0),
    ("Pendulum-v1", "max_torque", 1e39),
    ("Pendulum-v1", "max_torque", [0.0, 0.0, -0.0, 0, 1e-60]),
    ("Pendulum-v1", "max_speed", [0.0, -0.0, 0, 8, 8]),
    ("Pendulum-v1", "state", [np.array([0.5, np.nan])] * 5),
    ("Acrobot-v1", "torque_noise_max", 0.5),
    ("Acrobot-v1", "LINK_MOI", True),
    ("Acrobot-v1", "MAX_VEL_1", [0.0, -0.0, 0, 4.0, 4.0]),
    ("Acrobot-v1", "AVAIL_TORQUE", [[1, 2]] * 5),
]


@pytest.mark.few
@pytest.mark.parametrize(
    ("env_id", "name", "values", "is_known"), [*((*one, True) for one in CHANGES), *((*one, False) for one in ALONE)]
)
def test_changed_environments_are_those_of_the_plain_loop(env_id, name, values, is_known):
    both = Both(env_id, max_episode_steps=20)
    both.steps(3)
    both.agree(lambda envs: envs.set_attr(name, values))
    both.step()
    both.read()
    both.steps(25 if is_known else 4)
    both.read()
    if is_known:
        both.steps(1)
        assert both.was_batched()


@pytest.mark.parametrize(
    ("env_id", "action"),
    [
        ("CartPole-v1", np.array([0, 1, 2, 0, 1])),
        ("CartPole-v1", np.array([0, 1, -1, 0, 1])),
        ("CartPole-v1", np.array([0, 1, np.nan, 0, 1])),
        ("CartPole-v1", np.array([0.0, 1, 1, 0, 1])),
        ("CartPole-v1", np.zeros(4, np.int64)),
        ("CartPole-v1", np.zeros((5, 1), np.int64)),
        ("CartPole-v1", [0, 1, 1, 0, 1]),
        ("CartPole-v1", np.array([0, 1, 1, 0, 1], np.uint8)),
        ("MountainCar-v0", np.array([0, 1, 2, 0, 1], np.uint8)),
        ("MountainCar-v0", np.array([0, 1, 2, 0, 1], np.int32)),
        ("MountainCar-v0", np.array([0, 1, 2, 3, 1])),
        ("Acrobot-v1", np.array([-1, 0, 1, 2, -3])),
        ("Acrobot-v1", np.array([-1, 0, 3, 2, -3])),
        ("Pendulum-v1", np.full((5, 1), np.nan, np.float32)),
        ("Pendulum-v1", np.full((5, 1), np.inf, np.float32)),
        ("Pendulum-v1", np.full((5, 1), 0.1)),
        ("Pendulum-v1", np.full((5, 2), 0.1, np.float32)),
        ("MountainCarContinuous-v0", np.full((5, 1), 1e30, np.float32)),
        ("MountainCarContinuous-v0", np.full((4, 1), 0.1, np.float32)),
    ],
    ids=repr,
)
def test_unusual_actions_have_the_same_results_and_errors(env_id, action):
    both = Both(env_id)
    both.steps(2)
    both.step(action)
    both.agree(lambda envs: envs.state_dict())
    both.read()


def test_numbers_that_become_too_large_are_the_same_error():
    both = Both("CartPole-v1")
    both.agree(lambda envs: envs.set_attr("state", [np.array([1.7e308, 1.7e308, 0, 0])] * 5))
    kind, message, _ = both.step()
    assert kind == EnvDataError.__name__
    assert "not finite" in message


def test_an_observation_outside_its_bounds_is_the_same_warning():
    both = Both("Pendulum-v1")
    both.agree(lambda envs: envs.set_attr("max_speed", 9))
    both.agree(lambda envs: envs.set_attr("state", [np.array([1.5, 8.9])] * 5))
    both.step()
    assert "its Box allows -8.0 to 8.0" in both.warnings[0]


def test_an_error_between_the_end_of_an_episode_and_its_reset_is_the_same():
    both = Both("CartPole-v1")
    both.steps(2)
    both.agree(lambda envs: envs.set_attr("state", [np.array([5.0, 0, 0, 0])] * 5))
    both.filter = "error"
    assert both.step()[0] == "UserWarning"
    both.filter = "always"
    both.step()
    both.read()
    both.steps(3)


class Shifted(gymnasium.ActionWrapper):
    def action(self, action):
        return 1 - action


class OwnCartPole(CartPoleEnv):
    def step(self, action):
        obs, _, *others = super().step(action)
        return obs, 2.0, *others


def patched():
    env = CartPoleEnv()
    env.step = OwnCartPole().step
    return env


def with_int32():
    env = CartPoleEnv()
    env.action_space = gymnasium.spaces.Discrete(2, dtype=np.int32)
    return env


def with_float16():
    env = TimeLimit(CartPoleEnv(), 9)
    env.observation_space = gymnasium.spaces.Box(-5, 5, (4,), np.float16)
    return env


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", {"wrappers": [Shifted]}),
        ("CartPole-v1", {"log_info": ["speed"]}),
        ("CartPole-v1", {"render_mode": "rgb_array"}),
        ("FrozenLake-v1", {}),
        (OwnCartPole, {"max_episode_steps": 9}),
        (patched, {}),
        (with_int32, {}),
        (with_float16, {}),
        (lambda: Shifted(CartPoleEnv()), {"max_episode_steps": 9}),
    ],
    ids=["wrapper", "log_info", "render_mode", "other", "subclass", "patched", "int32", "float16", "function"],
)
def test_any_other_environment_is_stepped_by_itself(env, options):
    if env is patched:
        assert not make_envs(env, 2, vectorization="auto").is_vectorized
    else:
        Both(env, uses=False, **options).steps(12)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (lambda: gymnasium.make("CartPole-v1"), {}),
        (lambda: gymnasium.make("Pendulum-v1", max_episode_steps=30), {"max_episode_steps": 7}),
        (PendulumEnv, {}),
        ("CartPole-v0", {"env_config": {"sutton_barto_reward": True}}),
        ("CartPole-v1", {"info_columns": ["speed"]}),
    ],
    ids=["checked", "two limits", "no limit", "arguments", "info columns"],
)
def test_usual_wrappers_and_arguments_are_known(env, options):
    both = Both(env, **options)
    both.steps(20)
    if "info_columns" in options:
        both.agree(lambda envs: envs.step_info())
    both.read()


def test_a_replaced_function_of_gymnasium_is_used(monkeypatch):
    monkeypatch.setattr(CartPoleEnv, "step", OwnCartPole.step)
    assert not make_envs("CartPole-v1", 2, vectorization="auto").is_vectorized


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_the_functions_of_this_gymnasium_are_known(task: type[BatchTask]):
    unknown = [one for one in relied_on(task) if not is_known(*one)]
    assert not unknown, "compare them with ding_lite/envs/classic_control.py, and add the hashes of their sources"


def test_few_environments_are_stepped_one_by_one(monkeypatch, caplog):
    monkeypatch.setattr(TASKS[0], "pays_from", 5)
    with caplog.at_level(logging.INFO, "ding_lite"):
        few, more = (make_envs("CartPole-v1", count, vectorization="auto") for count in (4, 5))
        assert [few.is_vectorized, more.is_vectorized, caplog.records] == [False, True, []]
        for envs in (few, more, more):
            envs.reset()
            envs.step(np.zeros(envs.num_envs, np.int64))
        assert more.envs
        assert not more.is_vectorized
    assert [record.message for record in caplog.records] == [
        "CartPole-v1: environments are stepped one after the other: this is faster for fewer than 5",
        "CartPole-v1: 5 environments are stepped at once, as arrays",
        "CartPole-v1: environments are stepped one after the other: `envs` was read, by which the script may change them at "
        "any time",
    ]


def test_the_log_says_why_steps_are_taken_one_by_one(caplog):
    with caplog.at_level(logging.INFO, "ding_lite"):
        both = Both("CartPole-v1")
        both.agree(lambda envs: envs.set_attr("gravity", "9.8"))
        for _ in range(3):
            both.step()
    assert [record.message for record in caplog.records] == [
        "CartPole-v1: 5 environments are stepped at once, as arrays",
        "CartPole-v1: some steps are taken one environment after the other: gravity is '9.8' of type str",
    ]


@pytest.mark.parametrize("name", ["envs", "unwrapped", "np_random", "action_space", "spec", "AVAIL_TORQUE", "render_mode"])
def test_environments_that_a_script_holds_are_stepped_by_themselves(name):
    both = Both("Acrobot-v1")
    both.steps(3)
    held = [envs.envs if name == "envs" else envs.get_attr(name) for envs in both.each]
    is_safe = name in ("np_random", "action_space", "spec", "render_mode")
    assert both.batched.is_vectorized == is_safe
    both.steps(2)
    for one in () if is_safe else held:
        if name == "AVAIL_TORQUE":
            one[0][1] = 0.25
        else:
            one[0].unwrapped.LINK_MASS_1 = 2.0
    try:
        both.steps(3)
    finally:
        gymnasium.envs.classic_control.AcrobotEnv.AVAIL_TORQUE[1] = 0.0


@pytest.mark.few
@pytest.mark.parametrize("is_at_a_start", [False, True])
@EVERY
def test_a_state_of_one_mode_continues_in_the_other(env_id, is_at_a_start):
    both = Both(env_id, max_episode_steps=10)
    both.steps(10 if is_at_a_start else 13)
    state = both.agree(lambda envs: envs.state_dict())
    both.steps(12)
    both.plain.load_state_dict(both.batched.state_dict())
    both.steps(4)
    both.agree(lambda envs: envs.load_state_dict(state))
    both.steps(12)
    both.agree(lambda envs: envs.state_dict())
    both.agree(lambda envs: envs.load_state_dict({**state, "returns": state["returns"] + 1}))  # refused, and brought back
    both.steps(3)


def test_paused_environments_are_those_of_the_plain_loop():
    both = Both("CartPole-v1", max_episode_steps=60)
    is_paused = np.zeros(5, np.bool_)
    while not is_paused.all():
        ended = np.any(both.step()[2:4], axis=0)
        indices = np.flatnonzero(ended & ~is_paused).tolist()
        both.agree(partial(LocalVectorEnv.pause, indices=indices))
        is_paused |= ended
    both.agree(lambda envs: envs.resume())
    both.steps(8)
    both.agree(lambda envs: [envs.begin(out := envs.new_obs(), 5, {"low": -0.1, "high": 0.2}), out])
    both.steps(8)
    assert both.was_batched()


def test_pieces_are_vectorized_each(made):
    trace = []
    for vectorization in ("none", "auto"):
        envs = made("Pendulum-v1", 6, 4, workers=2, max_episode_steps=5, vectorization=vectorization)
        envs.reset()
        assert envs.is_vectorized == (vectorization == "auto")
        results = [envs.step(np.full((6, 1), 0.1 * t, np.float32)) for t in range(12)]
        trace.append([[list(map(np.asarray, one[:4])), sorted(one[4])] for one in results])
        trace[-1].append(envs.get_attr("last_u"))
    assert same(*trace)


def test_environments_of_a_worker_process_are_stepped_at_once_too():
    factories, progress = [CartPoleEnv] * 5, np.zeros(progress_size(5), np.int64)
    plain, watched = LocalVectorEnv(factories, 1), ProgressVectorEnv(factories, 1, 0, progress, vectorization="auto")
    assert watched.is_vectorized
    for envs in (plain, watched):
        envs.begin(envs.new_obs())
        for _ in range(12):
            envs.advance(np.array([0, 1, 0, 1, 1]), envs.new_obs())
    assert same(plain.current, watched.current)
    assert same(plain.get_attr("state"), watched.get_attr("state"))
    assert same(plain.state_dict(), watched.state_dict())
    assert describe_progress(progress, 5, 0) == "environments 0 to 4, between two steps"


def test_a_whole_run_is_that_of_the_plain_loop(tmp_path):
    found = []
    for vectorization in ("none", "auto"):
        module, cfg = small("dqn", tmp_path / vectorization, **{"env.vectorization": vectorization, "max_step": 3})
        module.main(cfg)
        files = [torch.load(path, weights_only=True) for path in sorted((tmp_path / vectorization / "ckpt").glob("*.pt"))]
        found.append([{key: it for key, it in file.items() if key not in ("made_with", "metrics")} for file in files])
    assert found[0]
    assert same(*found)


def test_an_unknown_value_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match=r"make_envs\(vectorization='fast'\): expected 'none' or 'auto'"):
        make_envs("CartPole-v1", 2, vectorization="fast")
    with pytest.raises(ValueError, match=r"LocalVectorEnv\(vectorization='aut'\): .* did you mean 'auto'"):
        LocalVectorEnv([CartPoleEnv], vectorization="aut")
    with pytest.raises(ConfigError, match=r"env.vectorization: .*'fast' .* Literal\['none', 'auto'\]"):
        DQNConfig().override({"env.vectorization": "fast"})


def test_no_environment_is_changed_by_reading():
    """A script that reads all the time gets the numbers of the plain loop."""
    both = Both("MountainCarContinuous-v0", max_episode_steps=4)
    for _ in range(9):
        both.steps(1)
        both.read()
    assert isinstance(both.batched._batch, BatchedSteps)
    assert both.was_batched()
