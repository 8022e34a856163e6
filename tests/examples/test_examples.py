"""The examples, as a user starts them."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import OFFLINE, config_of, dataset_of, load_example
from slow_cases import mostly_slow

from ding_lite.basics import RunFiles
from ding_lite.engine import Task

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
AGENTS = {"ippo", "rock_paper_scissors"}  # need the extra `agents`
ATARI = {"dqn_atari", "ppo_atari"}  # need the extra `atari`
MUJOCO = {"sac_mujoco", "td3_mujoco", "ppo_mujoco"}  # need the extra `mujoco`
NEEDED = {
    **dict.fromkeys(AGENTS, ("pettingzoo", "mpe2")),
    **dict.fromkeys(ATARI, ("ale_py", "cv2")),
    **dict.fromkeys(MUJOCO, ("mujoco",)),
    "her_fetch": ("gymnasium_robotics",),
}
_FEW_ATARI = {
    "env.collector-env-num": 2,
    "env.evaluator-env-num": 2,
    "env.max-episode-steps": 20,
    "policy.collect.n-sample": 8,
    "policy.learn.batch-size": 4,
}
_FEW_MUJOCO = {"env.max-episode-steps": 20, "policy.collect.n-sample": 64}
_FEW_RANDOM = {**_FEW_MUJOCO, "policy.random-collect-size": 256, "policy.learn.learning-starts": 256}
FEW_STEPS = {
    "her_fetch": {
        "env.collector-env-num": 2,
        "env.evaluator-env-num": 1,
        "env.max-episode-steps": 10,
        "policy.collect.n-sample": 20,
        "policy.random-collect-size": 20,
        "policy.learn.learning-starts": 20,
        "policy.learn.update-per-collect": 2,
    },
    "ippo": {"env.collector-env-num": 2, "env.evaluator-env-num": 2, "policy.collect.n-sample": 50},
    "pbt": {"policy.collect.n-sample": 32, "population.interval": 1, "population.num-members": 2},
    "dqn_atari": {**_FEW_ATARI, "policy.other.replay-buffer-size": 100, "policy.learn.learning-starts": 8},
    "ppo_atari": _FEW_ATARI,
    "ppo_mujoco": _FEW_MUJOCO,
    "sac_mujoco": _FEW_RANDOM,
    "td3_mujoco": _FEW_RANDOM,
}


def require_extras(name):
    """Skip the test if an extra that this example needs is not installed."""
    for module in NEEDED.get(name, ()):
        pytest.importorskip(module)


def few_steps(name):
    """Options for an example whose own settings take long."""
    found = [word for key, value in FEW_STEPS.get(name, {}).items() for word in (f"--{key}", value)]
    return [*found, "--dataset", dataset_of(config_of(load_example(name)).env.id).name] if name in OFFLINE else found


@pytest.fixture
def start_here(monkeypatch, capsys):
    """Runs an example as a program, in this process, which has imported torch already."""

    def run(name, *options, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return subprocess.CompletedProcess(sys.argv, ended.value.code, *capsys.readouterr())

    return run


def test_there_is_an_example_for_each_algorithm():
    value_based = {"dqn", "c51", "qrdqn", "iqn", "rainbow", "r2d2"}
    others = {
        "ddpg",
        "td3",
        "sac",
        "ppo",
        "ppo_continuous",
        "ppo_lstm",
        "ppo_transformer",
        "a2c",
        "reinforce",
        "impala",
        "rnd",
        "icm",
    }
    techniques = {"custom_context", "dqn_async", "ppo_ddp", "curriculum", "her", "her_fetch", "sqil", "gail", "icm", "pbt"}

    assert set(NAMES) == value_based | others | techniques | AGENTS | ATARI | MUJOCO | OFFLINE


@pytest.mark.few
@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_run_reach_the_task(name, tmp_path, start_here, monkeypatch):
    require_extras(name)
    given = {}

    def start(self, *args, **settings):
        given.update(settings)
        raise SystemExit(0)

    monkeypatch.setattr(Task, "start", start)
    start_here(name, "--max-lag", 2, "--watchdog-s", 600, "--env.backend", "local", *few_steps(name), cwd=tmp_path)

    assert (given["max_lag"], given["watchdog_s"]) == (2, 600)
    assert name == "pbt" or given["resume"] is None  # whose members start first, and are not resumed by themselves
    assert given["async_mode"] == (name == "dqn_async")


# The others begin like one of these, or need seconds.
FAST = ["bc", "cql", "custom_context", "dqn", "dqn_async", "impala", "ippo", "iqn", "pbt", "ppo", "r2d2", "reinforce", "sac"]


@pytest.mark.few
@pytest.mark.parametrize("name", mostly_slow(NAMES, *FAST))
def test_a_short_run_prints_its_result_exits_1_and_can_be_resumed(name, tmp_path, start_here):
    require_extras(name)
    options = ("--exp-name", "here", "--env.n-evaluator-episode", 2, "--seed", 3, *few_steps(name))
    ended = start_here(name, "--max-step", 2, *options, cwd=tmp_path)

    assert ended.returncode == (name not in OFFLINE), ended.stderr
    assert ("not reached" in ended.stdout) == (name not in OFFLINE)
    assert (tmp_path / "here/ckpt/final.pt").is_file()
    assert (tmp_path / "here/config.json").is_file()  # which --resume reads
    assert RunFiles(tmp_path / "here").load()[0]["done"] == 2


@pytest.mark.few
@pytest.mark.parametrize("name", ["custom_context", "ppo", "sac"])
def test_a_run_that_has_nothing_to_reach_exits_0(name, tmp_path, start_here):
    ended = start_here(name, "--max-step", 1, "--env.stop-value", "None", "--env.n-evaluator-episode", 1, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.few
@pytest.mark.parametrize("name", ["dqn", "ppo", "ppo_continuous"])
def test_a_run_leaves_its_curve_and_its_configuration(name, tmp_path, start_here):
    start_here(name, "--max-step", 1, "--exp-name", "here", "--seed", 5, "--env.n-evaluator-episode", 1, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "here/metrics.jsonl").read_text().splitlines()]

    assert rows[0]["evaluate/episode_return_mean"] is not None
    assert json.loads((tmp_path / "here/config.json").read_text())["seed"] == 5


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_the_pipeline_in_the_example_is_the_documents(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    block = {
        "dqn": [
            "task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))",
            "task.use(eps_greedy_handler(cfg))",
            "task.use(StepCollector(cfg, policy.collect_mode, collector_env))",
            "task.use(data_pusher(cfg, buffer_))",
            "task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))",
            "task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))",
        ],
        "ppo": [
            "task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))",
            "task.use(StepCollector(cfg, policy.collect_mode, collector_env))",
            "task.use(gae_estimator(cfg, policy.collect_mode))",
            "task.use(multistep_trainer(cfg, policy.learn_mode))",
            "task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))",
        ],
    }[name]

    assert "\n".join(f"        {line}" for line in block) in text


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_asynchronous_mode_and_worker_processes_are_options(name, tmp_path, start_here):
    options = ("--async-mode", "--env.workers", 2, "--env.backend", "process", "--env.stop-value", "None")
    ended = start_here(name, *options, "--max-step", 3, "--exp-name", "here", "--env.n-evaluator-episode", 2, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "here/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["total_step"] == 2


def test_the_asynchronous_example_reports_what_overlapping_brought_and_exits_1(tmp_path, start_here):
    options = ("--max-step", 4, "--exp-name", "here", "--env.n-evaluator-episode", 1, "--env.workers", 2)
    ended = start_here("dqn_async", *options, cwd=tmp_path)

    assert ended.returncode == 1, ended.stderr
    assert "not reached" in ended.stdout
    assert "speed-up over sequential" in ended.stdout, ended.stderr
    assert json.loads((tmp_path / "here/timeline.json").read_text())["traceEvents"]
    assert (tmp_path / "here/timeline.svg").is_file()


def on_a_terminal(command, cwd):
    """What a program prints on a terminal, and its exit status."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, cwd=cwd, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color"})
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # nobody holds the other end any more
        pass
    os.close(ours)
    return shown.decode(), process.wait()


OFTEN_EVALUATED = ("--env.n-evaluator-episode", "1", "--policy.eval.evaluator.eval-freq", "1", "--env.stop-value", "None")


@pytest.mark.slow
def test_a_run_is_a_live_view_on_a_terminal(tmp_path):
    command = [sys.executable, EXAMPLES / "ppo.py", *OFTEN_EVALUATED, "--max-step", "4", "--exp-name", "here"]
    shown, status = on_a_terminal(command, tmp_path)

    assert status == 0, shown
    for words in ("━", "100%", "evaluate", "collect", "learn", "elapsed"):
        assert words in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0  # the cursor was hidden, and is shown again


@pytest.mark.slow
def test_logging_has_every_sink_and_a_video_by_an_option(tmp_path, start_here):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    pytest.importorskip("imageio_ffmpeg")
    logs = ("--log.tensorboard", "--log.wandb", "offline", "--log.video-every", 1, "--env.log-info", "no_such_info")
    with pytest.warns(UserWarning, match="log_info names 'no_such_info'"):
        ended = start_here("dqn", *logs, "--max-step", 2, "--exp-name", "here", "--env.n-evaluator-episode", 1, cwd=tmp_path)

    here = tmp_path / "here"
    assert {"config.json", "metrics.jsonl", "metrics.csv", "pipeline.svg"} <= {path.name for path in here.iterdir()}
    assert list(here.glob("tensorboard/events*")), ended.stderr
    assert list(here.glob("wandb/offline-run-*")), ended.stderr
    assert list(here.glob("videos/*.mp4")), ended.stderr


def test_a_run_prints_readable_lines_into_a_pipe_and_ctrl_c_saves_it(tmp_path):
    command = [sys.executable, EXAMPLES / "ppo.py", *OFTEN_EVALUATED, "--exp-name", "here"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)

    for line in lines:
        assert all(words in line for words in ("step ", "steps/s ", "eval ", "loss "))
    assert "\x1b" not in "".join(lines) + rest
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "SIGINT was received: the final state is saved in here/ckpt/final.pt" in errors
    assert (tmp_path / "here/ckpt/final.pt").is_file()
