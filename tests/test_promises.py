"""What the documents promise and no other test would miss: the tables of algorithms, files without extras, versions."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import ding_lite.policy
from ding_lite.config import DQNConfig, from_command_line
from ding_lite.policy import DQNPolicy, Policy

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\w+Policy)`([^|]*)\| ([^|]+) \| (Discrete|Box|any) \| (.+) \|$",
    (ROOT / "docs/policies.md").read_text(),
    re.MULTILINE,
)
"""Of the table of algorithms: policy, what is said behind it, what it learns from, its actions, its examples."""

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = {
    "Discrete": spaces.Discrete(2),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "others": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([2, 3])}),
}


def algorithms():
    return [
        name
        for name, cls in vars(ding_lite.policy).items()
        if isinstance(cls, type) and issubclass(cls, Policy) and cls is not Policy and name.endswith("Policy")
    ]


def test_the_table_of_algorithms_has_each_policy_and_the_readme_counts_its_rows():
    assert {row[0] for row in ROWS} == set(algorithms())
    assert re.findall(r"^\| Algorithms \| (\d+) \|", README, re.MULTILINE) == [str(len(ROWS))]


@pytest.mark.parametrize(("name", "actions"), sorted({(row[0], row[3]) for row in ROWS}))
def test_a_policy_takes_the_actions_that_the_table_names_and_refuses_others(name, actions):
    policy_type = getattr(ding_lite.policy, name)
    taken = ACTIONS if actions == "any" else {actions: ACTIONS[actions]}
    for kind, space in ACTIONS.items():
        if kind in taken:
            policy_type(None, OBS, space)
        else:
            with pytest.raises((TypeError, ValueError), match=r"\w"):
                policy_type(None, OBS, space)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_example_of_a_policy_makes_that_policy(row):
    for path in re.findall(r"\(\.\./(examples/\w+\.py)\)", row[4]):
        assert re.search(rf"\b{row[0]}\(", (ROOT / path).read_text(encoding="utf-8")), path


def test_the_readme_names_the_versions_of_python_that_can_install_it():
    low, high = re.findall(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (ROOT / "setup.py").read_text())[0]

    assert f"Python 3.{low} to 3.{int(high) - 1}" in README


def test_a_run_without_any_extra_leaves_json_lines_and_csv(tmp_path):
    program = """
import sys
for name in ("tyro", "rich", "psutil", "matplotlib", "jinja2", "tensorboard", "wandb", "imageio_ffmpeg", "pygame"):
    sys.modules[name] = None
from ding_lite import task
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer, online_logger
from ding_lite.policy import PPOPolicy

cfg = PPOConfig(exp_name="run").override({"policy.collect.n_sample": 32, "policy.learn.epoch_per_collect": 1})
envs = make_envs("CartPole-v1", 2)
policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
with task.start(ctx=OnlineRLContext()):
    task.use(StepCollector(cfg, policy.collect_mode, envs))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    task.use(online_logger(cfg))
    task.run(max_step=2)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_step"] == 64
    names, *_, cells = (line.split(",") for line in (tmp_path / "run/metrics.csv").read_text().splitlines())
    assert dict(zip(names, cells))["env_step"] == "64"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_each_example_takes_every_option_on_the_command_line(example):
    pytest.importorskip("tyro")
    names = runpy.run_path(str(example), run_name="read")
    (config,) = re.findall(r"from_command_line\(\s*(\w+)", example.read_text(encoding="utf-8"))
    given = from_command_line(names[config], ["--env.id", "Acrobot-v1", "--seed", "3", "--exp-name", "runs/a"])

    assert (given.env.id, given.seed, given.policy.seed, given.exp_name) == ("Acrobot-v1", 3, 3, "runs/a")


def test_a_learning_rate_that_is_set_after_the_policy_was_made_changes_nothing_that_is_there():
    cfg = DQNConfig()
    policy = DQNPolicy(cfg.policy, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    before = policy.optimizer.param_groups[0]["lr"]
    cfg.policy.learn.learning_rate = 1e-6

    assert policy.optimizer.param_groups[0]["lr"] == before == 1e-3
