"""SplitWorker where processes are killed, hang or raise: the same rollouts as undisturbed, or an error in time."""

import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import psutil
import pytest

from ding_lite.envs import EnvDataError, make_envs
from ding_lite.policy import DQNPolicy, DQNPolicyConfig
from ding_lite.processes import WorkerDied, WorkerHangs
from ding_lite.rollout import make_worker

pytestmark = pytest.mark.timeout(60)

FAULTS = ["SIGKILL", "hang", "raise"]
ERRORS = {"SIGKILL": WorkerDied, "hang": WorkerHangs, "raise": ValueError}


@pytest.fixture
def faults(tmp_path):
    """The file from which environments take the faults that strike them."""
    (tmp_path / "faults").touch()
    return tmp_path / "faults"


def rounds(case, contents, envs, before=lambda number: None, count=3):
    """Rollouts and evaluations with learning between, and the state that it ends in."""
    policy = case.policy()
    collector, evaluator = make_worker(envs, policy.collect_mode), make_worker(envs, policy.eval_mode)
    found = []
    for number in range(count):
        before(number)
        rollout = collector.collect(6, **case.kwargs)
        found += [contents(rollout), evaluator.play_episodes(6)]
        case.change(policy, rollout)
    state = envs.state_dict()
    for episode in (one for piece in state.get("pieces", [state]) for one in piece["episodes"]):
        del episode["attributes"]  # those of the wrapper that fails are in one of the two only
    return [*found, contents(collector.collect(3, random=True)), policy.state_dict(), state, collector.state_dict()]


@pytest.mark.few
@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("dqn", "SIGKILL"),
        ("dqn", "hang"),
        ("dqn", "raise"),
        ("ppo", "SIGKILL"),
        ("recurrent", "SIGKILL"),
        ("recurrent", "hang"),
    ],
    indirect=["case"],
)
def test_a_worker_that_fails_in_a_step_and_is_restarted_gives_the_same_rollouts(case, contents, digest, faults, fault):
    def strike(number):
        if number == 1:
            faults.write_text(fault)

    settings = {"workers": 2, "backend": "process", "timeout_s": 1.5, "restart": True}
    expected = rounds(case, contents, case.envs(2))
    envs = case.envs(faults=faults, **settings)
    found = rounds(case, contents, envs, strike)
    assert digest(found) == digest(expected)
    assert faults.read_text() == ""
    assert 1 <= sum(host.restarts for host in envs.hosts) <= 2  # both pieces may have read it


@pytest.mark.few
def test_workers_that_are_killed_between_two_rollouts_and_restarted_give_the_same_rollouts(case, contents, digest, faults):
    def kill(number):
        os.kill(envs.hosts[number % 2].pid, signal.SIGKILL)
        if number == 2:
            os.kill(envs.hosts[1].pid, signal.SIGKILL)

    envs = case.envs(2, "process", restart=True)
    assert digest(rounds(case, contents, envs, kill)) == digest(rounds(case, contents, case.envs(2)))
    assert [host.restarts for host in envs.hosts] == [2, 2]


@pytest.mark.parametrize("steps", [10, 7], ids=["an episode begins", "within an episode"])
def test_a_restarted_worker_whose_rewards_would_differ_is_an_error(steps):
    def make():
        return gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1", max_episode_steps=5))

    envs = make_envs(make, 2, workers=2, backend="process", restart=True)
    policy = DQNPolicy(DQNPolicyConfig(), envs.single_observation_space, envs.single_action_space)
    worker = make_worker(envs, policy.collect_mode)
    worker.collect(steps)
    os.kill(envs.hosts[0].pid, signal.SIGKILL)
    with pytest.raises(EnvDataError, match=r"environment 0 did not come back to its rewards.*NormalizeReward"):
        worker.collect(5)
    envs.close()


def test_objects_of_a_recurrent_state_outlive_the_death_of_a_worker_as_they_were(noting_case, contents, digest):
    def run(envs, kill=lambda number: None):
        policy = noting_case.policy()
        worker = make_worker(envs, policy.collect_mode)
        found = []
        for number in range(3):
            kill(number)
            found.append(contents(worker.collect(6, **noting_case.kwargs)))
        return [*found, policy.state_dict()]

    envs = noting_case.envs(2, "process", restart=True)
    found = run(envs, lambda number: os.kill(envs.hosts[number % 2].pid, signal.SIGKILL))
    assert digest(found) == digest(run(noting_case.envs(2)))
    assert [host.restarts for host in envs.hosts] == [2, 1]


@pytest.mark.parametrize("fault", FAULTS)
def test_without_restart_the_error_arrives_in_time_and_tells_the_place(dqn_case, faults, fault):
    envs = dqn_case.envs(2, "process", faults, timeout_s=0.5)
    worker = make_worker(envs, dqn_case.policy().collect_mode)
    worker.collect(2)
    faults.write_text(fault)
    began = time.monotonic()
    with pytest.raises(ERRORS[fault], match=r"environment \d, episode 0, step 3 of it" if fault != "raise" else None) as caught:
        worker.collect(40)
    assert time.monotonic() - began < 2.0
    if fault == "raise":
        assert any("in step 3 of its episode" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("fault", FAULTS)
def test_after_an_error_without_restart_the_worker_works_again(dqn_case, faults, fault):
    envs = dqn_case.envs(2, "process", faults, timeout_s=0.5)
    policy = dqn_case.policy()
    worker = make_worker(envs, policy.collect_mode)
    policy.set_weights(policy.get_weights())
    faults.write_text(fault)
    with pytest.raises(ERRORS[fault]):
        worker.collect(40)
    worker.begin()
    assert worker.collect(3).version == 1
    policy.state_dict()


def test_a_policy_that_cannot_be_sent_is_refused_and_the_environments_stay_usable(dqn_case):
    envs = dqn_case.envs(2, "process")
    policy = dqn_case.policy()
    policy.lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        make_worker(envs, policy.collect_mode)
    assert any("to send them to worker" in note for note in caught.value.__notes__)
    assert len(make_worker(envs, dqn_case.policy().eval_mode).play_episodes(5)) == 5


def test_weights_that_could_not_be_sent_with_one_request_are_sent_with_the_next(dqn_case):
    policy = dqn_case.policy()
    worker = make_worker(dqn_case.envs(2, "process"), policy.collect_mode)
    worker.collect(1)
    policy.set_weights(policy.get_weights())
    with pytest.raises(TypeError, match="cannot pickle"):
        worker.collect(1, what=threading.Lock())
    assert worker.collect(1).version == 1


def test_a_wrong_argument_for_the_policy_is_an_error_and_the_next_rollout_is_well(dqn_case):
    worker = make_worker(dqn_case.envs(2, "process"), dqn_case.policy().collect_mode)
    with pytest.raises(TypeError):
        worker.collect(2, eps="much")
    assert len(worker.collect(2, eps=0.5).trajectories) == 10


SCRIPT = """
import gymnasium
import numpy as np
import torch
from ding_lite.envs import make_envs
from ding_lite.policy import Policy, PolicyConfig
from ding_lite.rollout import make_worker
print("the script runs in", __name__, flush=True)
TABLE = torch.arange(3000.0)
class Mine(Policy):
    def make_model(self): return torch.nn.Linear(4, 2000)
    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        assert not torch.isnan(self.model(obs)).any()
        return (TABLE[-1] + obs[:, 0] > 2999).long(), state, {}
envs = make_envs(lambda: gymnasium.make("CartPole-v1"), 3, workers=2, backend="process")
policy = Mine(PolicyConfig(), envs.single_observation_space, envs.single_action_space)
worker = make_worker(envs, policy.collect_mode)
print(worker.collect(5).trajectories.columns["action"].shape, [host.pid for host in envs.hosts], flush=True)
"""


@pytest.mark.slow
def test_a_policy_of_a_script_without_a_guard_acts_and_leaves_no_process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "the script runs in __main__"
    assert second.startswith("(5, 3) [")
    pids = [int(pid) for pid in second[second.index("[") + 1 : -1].split(",")]
    assert not psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5)[1]
