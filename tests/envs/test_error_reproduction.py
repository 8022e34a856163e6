"""An error of an environment tells programs where it was, and its episode can be replayed up to it by one command."""

import os
import subprocess
import sys
import textwrap
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import EnvDataError, EnvLocation, NotReproducibleError, make_envs, reproduce_env_error, save_env_error
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.envs.vector_adapters import VectorEnvAdapter

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(120)


class TwoArgumentsError(Exception):
    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")


class HoldsALockError(Exception):
    def __init__(self, why):
        super().__init__(why)
        self.generator = (number for number in ())


KINDS = {
    "one argument": lambda why: OSError(why),
    "two arguments": lambda why: TwoArgumentsError(7, why),
    "cannot be pickled": HoldsALockError,
    "sys.exit": lambda why: SystemExit(why),
}


class Sim(gymnasium.Env):
    """Draws its states from its generator; raises when the sum of its state and the actions exceeds a limit."""

    observation_space = spaces.Box(-99, 99, (1,), np.float32)

    def __init__(self, kind="one argument", limit=5.0, action_space=None):
        self.kind, self.limit, self.action_space = kind, limit, action_space or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = self.np_random.random()
        return np.full(1, self.total, np.float32), {}

    def step(self, action):
        parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else [action]
        self.total += self.np_random.random() + sum(float(np.abs(part).mean()) for part in parts)
        if self.total > self.limit:
            raise KINDS[self.kind](f"the state is {self.total}")
        return np.full(1, self.total, np.float32), 1.0, bool(self.total > self.limit - 0.3), False, {}


def error_of(envs, seed=0):
    envs.reset()
    envs.action_space.seed(seed)
    try:
        for _ in range(1000):
            envs.step(envs.action_space.sample())
    except Exception as error:  # noqa: BLE001  returned to the test
        return error
    finally:
        envs.close()
    pytest.fail("no error was raised")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["local", "process"])
def test_an_error_has_its_place_as_fields(kind, backend):
    where = error_of(make_envs(partial(Sim, kind), 4, seed=3, workers=2, backend=backend)).env_location

    assert isinstance(where, EnvLocation)
    assert (where.run_seed, where.seed) == (3, episode_seed(3, where.env, where.episode))
    assert where.step == len(where.actions) - 1
    assert where.action == where.actions[-1]
    env = Sim(kind)
    env.reset(seed=where.seed)
    for action in where.actions[:-1]:
        env.step(action)
    with pytest.raises((Exception, SystemExit), match="the state is"):
        env.step(where.action)


def test_both_backends_give_the_same_place():
    local, process = (
        error_of(make_envs(Sim, 4, seed=3, workers=2, backend=backend)).env_location for backend in ("local", "process")
    )
    assert (local.env, local.name, local.episode, local.step, local.seed) == (
        *(process.env, process.name, process.episode, process.step, process.seed),
    )
    assert local.actions == process.actions


class BrokenReset(Sim):
    def reset(self, *, seed=None, options=None):
        if self.kind == "second" and getattr(self, "is_used", False):
            raise OSError("no second episode")
        self.is_used = True
        return super().reset(seed=seed)

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


def test_an_error_of_a_reset_has_no_step():
    where = error_of(make_envs(partial(BrokenReset, "second"), 1, seed=3)).env_location
    assert (where.env, where.episode, where.step, where.action, where.actions) == (0, 1, None, None, ())
    assert where.seed == episode_seed(3, 0, 1)


def test_wrong_data_has_a_place_too():
    envs = make_envs(partial(gymnasium.wrappers.TransformReward, Sim(), lambda reward: np.nan), 1, seed=3)
    assert (error_of(envs).env_location.step, envs.envs[0].unwrapped.kind) == (0, "one argument")


def test_vector_environments_of_others_give_what_is_known(tmp_path):
    envs = SyncVectorEnv([Sim] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    adapter = VectorEnvAdapter(envs)
    out = np.zeros((2, 1), np.float32)
    adapter.begin(out, 3)
    with pytest.raises(OSError, match="the state is") as caught:
        [adapter.advance(np.ones(2, np.int64), out) for _ in range(100)]
    where = caught.value.env_location
    assert (where.env, where.name, where.seed, where.actions, where.run_seed) == (None, "Sim", None, None, 3)
    assert save_env_error(caught.value, tmp_path) is None


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.Box(-1, 1, (2,)),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
        spaces.Dict({"b": spaces.MultiDiscrete([2, 3]), "a": spaces.Box(-1, 1, (), np.float64)}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_file_replays_the_same_error_with_the_same_actions(space, tmp_path):
    make = partial(Sim, action_space=space, limit=9.0)
    error = error_of(make_envs(make, 3, seed=3))
    path = save_env_error(error, tmp_path)

    with pytest.raises(OSError, match="the state is") as again:
        reproduce_env_error(path, make)
    assert again.value.args == error.args
    one, other = error.env_location, again.value.env_location
    assert (one.env, one.episode, one.step, one.seed, repr(one.actions)) == (
        *(other.env, other.episode, other.step, other.seed, repr(other.actions)),
    )


def test_an_error_of_a_reset_is_replayed(tmp_path):
    path = save_env_error(error_of(make_envs(partial(BrokenReset, "second"), 1, seed=3)), tmp_path)
    where = reproduce_env_error(path, BrokenReset)  # of another kind, so that there is no error
    assert (where.episode, where.step) == (1, None)


class Telling(Sim):
    """In step 2 of each episode but the first one, its info has a value of another kind, or it raises an error if `fault`."""

    def __init__(self, fault=False):
        super().__init__(limit=np.inf)
        self.fault, self.episodes = fault, 0

    def reset(self, **kwargs):
        self.steps, self.episodes = 0, self.episodes + 1
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        obs, reward, _, _, _ = super().step(action)
        is_wrong = self.steps == 3 and self.episodes > 1
        if is_wrong and self.fault:
            raise OSError("no more steps")
        return obs, reward, self.steps == 4, False, {"forces": np.zeros(3), "speed": np.ones(2) if is_wrong else 1.0}


def fault_of(envs, records):
    envs.reset()
    try:
        for _ in range(9):
            envs.advance(np.zeros(envs.num_envs, np.int64), envs.new_obs())
            if records:
                envs.step_info()
    except (EnvDataError, OSError) as error:
        return error
    pytest.fail("no error was raised")


def restarted():
    """The environment in its second episode, as a replay needs, because it counts its episodes."""
    env = Telling()
    env.episodes = 1
    return env


def test_an_error_of_a_column_of_infos_is_replayed(tmp_path):
    error = fault_of(make_envs(Telling, 2, seed=3, info_columns=("forces", "speed")), records=True)
    with pytest.raises(EnvDataError, match=r"'speed' is array.*, expected a number, as in the first step") as again:
        reproduce_env_error(save_env_error(error, tmp_path), restarted)

    assert again.value.args == error.args
    one, other = error.env_location, again.value.env_location
    assert (one.episode, one.step) == (other.episode, other.step) == (1, 2)


def test_the_columns_of_infos_are_not_checked_in_a_replay_of_another_error(tmp_path):
    envs = make_envs(partial(Telling, fault=True), 2, seed=3, info_columns=("forces", "spede"))
    path = save_env_error(fault_of(envs, records=False), tmp_path)
    assert load_checkpoint(path)["info_columns"] is None
    assert reproduce_env_error(path, restarted).step == 2  # of another kind, so that there is no error


def test_files_of_earlier_versions_without_columns_are_replayed(tmp_path):
    path = save_env_error(error_of(make_envs(Sim, 1, seed=3)), tmp_path)
    saved = load_checkpoint(path)
    del saved["info_columns"]
    save_checkpoint(saved, path)
    with pytest.raises(OSError, match="the state is"):
        reproduce_env_error(path, Sim)


def test_other_errors_are_not_saved(tmp_path):
    assert save_env_error(OSError("of something else"), tmp_path) is None
    assert not [*tmp_path.iterdir()]


def test_without_an_import_path_the_note_names_the_call(tmp_path):
    error = error_of(make_envs(lambda: Sim(), 1, seed=3))
    path = save_env_error(error, tmp_path)
    note = error.__notes__[-1]
    assert "because it is made by 'test_without_an_import_path_the_note_names_the_call.<locals>.<lambda>'" in note
    assert f"reproduce_env_error({str(path)!r}, make_env)" in note
    with pytest.raises(NotReproducibleError, match="cannot be reproduced without the script"):
        reproduce_env_error(path)
    with pytest.raises(OSError, match="the state is"):
        reproduce_env_error(path, Sim)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = save_checkpoint({"model": {}}, tmp_path / "final.pt")
    with pytest.raises(ValueError, match="is not an episode of save_env_error"):
        reproduce_env_error(path)


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    error = error_of(make_envs(Sim, 1, seed=3))
    with pytest.warns(UserWarning, match="the episode up to the error is not saved"):
        assert save_env_error(error, tmp_path / "file") is None


def test_an_episode_that_is_too_long_to_be_recorded_is_not_saved(monkeypatch, tmp_path):
    monkeypatch.setattr("ding_lite.envs.episode_starts._LONGEST", 3)
    error = error_of(make_envs(partial(Sim, limit=30.0), 1, seed=3))
    assert error.env_location.step >= 3
    assert error.env_location.actions is None
    assert save_env_error(error, tmp_path) is None


SIMULATOR = """
import gymnasium
import numpy as np


class Sim(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, limit):
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = self.np_random.random()
        return np.full(1, self.total, np.float32), {}

    def step(self, action):
        self.total += self.np_random.random() + int(action)
        if self.total > self.limit:
            raise OSError(f"the state is {self.total}")
        return np.full(1, self.total, np.float32), 1.0, bool(self.total > self.limit - 0.5), False, {}


gymnasium.register("FaultySim-v0", Sim)
"""

SCRIPT = """
import sys

import gymnasium
import simulator

from ding_lite import task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, online_logger
from ding_lite.policy import DQNPolicy

if __name__ == "__main__":
    cfg = DQNConfig(exp_name="my run")
    backend, async_mode = sys.argv[1:]
    wrappers = [gymnasium.wrappers.FlattenObservation]
    envs = make_envs("FaultySim-v0", 4, seed=3, workers=2, backend=backend, wrappers=wrappers, limit=7.5)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OnlineRLContext(), async_mode=async_mode == "async"):
        task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 1.0}))
        task.use(online_logger(cfg))
        task.run(max_step=100)
"""


@pytest.mark.slow
def test_the_printed_command_replays_the_error_in_a_new_process(tmp_path):
    (tmp_path / "simulator.py").write_text(SIMULATOR)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    failed = run([sys.executable, "train.py", "process", "async"], env=dict(os.environ))
    lines = failed.stderr.splitlines()
    command = lines[-1].partition("To replay the episode up to this error: ")[2]
    assert command == "python -m ding_lite replay 'my run/env_error.pt'", failed.stderr
    again = run(["bash", "-c", command.replace("python", sys.executable, 1)], env=dict(os.environ))

    assert (failed.returncode, again.returncode) == (1, 1), again.stderr
    error = next(line for line in lines if line.startswith("OSError"))
    place = next(line for line in lines if line.startswith("raised by environment"))
    assert error in again.stderr.splitlines()
    assert place.partition(" (<")[0] in again.stderr
    assert place.partition("in step")[2] in again.stderr
