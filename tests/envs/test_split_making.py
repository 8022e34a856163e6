"""make_envs() with workers: what it refuses, and scripts as they are written."""

import subprocess
import sys

import psutil
import pytest
from slow_cases import mostly_slow

from ding_lite.envs import LocalVectorEnv, SplitVectorEnv, make_envs

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, r"make_envs\(workers=0\) for 3 environments: each worker needs .*, expected 1 to 3."),
        (
            {"workers": 4, "backend": "process"},
            r"make_envs\(workers=4\) for 3 environments: each worker needs .*, expected 1 to 3.",
        ),
        ({"workers": 1.5}, r"make_envs\(workers=1.5\) for 3 environments"),
        (
            {"workers": 2, "backend": "thread"},
            r"make_envs\(backend='thread'\): unknown backend, use 'local', 'process' or 'ray'.",
        ),
        (
            {"backend": "process", "timeout_s": 0},
            r"worker 'CartPole-v1, environments 0 to 2' wants .* timeout_s > 0, got .*timeout_s=0",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_mend(settings, words):
    with pytest.raises(ValueError, match=words):
        make_envs("CartPole-v1", 3, **settings)


def test_the_pieces_are_as_even_as_it_goes(made):
    assert type(made("CartPole-v1", 3)) is LocalVectorEnv
    assert [(piece.start, piece.stop) for piece in made("CartPole-v1", 7, workers=3).slices] == [(0, 3), (3, 5), (5, 7)]
    assert type(made("CartPole-v1", 1, backend="process")) is SplitVectorEnv


def test_a_worker_is_named_after_its_environments(made):
    envs = made("CartPole-v1", 3, workers=2, backend="process")
    assert [host.name for host in envs.hosts] == ["CartPole-v1, environments 0 to 1", "CartPole-v1, environments 2 to 2"]
    names = {child.pid for child in psutil.Process().children(recursive=True)}
    assert {host.pid for host in envs.hosts} <= names


SCRIPT = """
import gymnasium
import numpy as np
from ding_lite.envs import make_envs
print("the script runs in", __name__, flush=True)
TABLE = np.arange(3000.0)
class Space(gymnasium.spaces.Box):
    pass
class Mine(gymnasium.Env):
    observation_space = Space(-9999, 9999, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, table): self.table = table
    def reset(self, *, seed=None, options=None): return np.zeros(1, np.float32), {"made of": Mine}
    def step(self, action): return np.ones(1, np.float32), self.table[-1] + scale(action), False, False, {"made of": Mine}
def scale(action): return 10 * float(action)
envs = make_envs(lambda: Mine(TABLE), 3, workers=2, backend="process",
                 wrappers=[lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: -reward)])
envs.reset(options={"whatever": 1})
for _ in range(2):
    obs, reward, *_, infos = envs.step([0, 1, 1])
print(type(envs.single_observation_space) is Space, all(made is Mine for made in infos["made of"]), reward.tolist(), flush=True)
envs.release()
print(envs.step([0, 0, 1])[1].tolist(), *[host.pid for host in envs.hosts], flush=True)
"""


ENDS = ["", "import sys; circle = [envs]; circle.append(circle); del envs; sys.exit(3)"]


@pytest.mark.parametrize("end", mostly_slow(ENDS, ENDS[0]))
def test_a_script_without_a_guard_runs_once_and_leaves_no_process_however_it_ends(tmp_path, end):
    (tmp_path / "script.py").write_text(SCRIPT + end, encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3 * ("exit" in end), "")
    first, second, third = done.stdout.splitlines()
    assert first == "the script runs in __main__"
    assert second == "True True [-2999.0, -3009.0, -3009.0]"
    rewards, pids = third.rsplit("]", 1)
    assert rewards == "[-2999.0, -2999.0, -3009.0"
    _, alive = psutil.wait_procs([psutil.Process(int(pid)) for pid in pids.split() if psutil.pid_exists(int(pid))], timeout=5)
    assert not alive
