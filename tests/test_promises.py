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
from ding_lite import task
from ding_lite.config import DQNConfig, RunConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    multistep_trainer,
    onpolicy_data_fetcher,
)
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy, build_policy, compute_advantages

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


def test_the_table_of_algorithms_has_each_policy_and_the_readme_counts_them():
    assert {row[0] for row in ROWS} == set(algorithms())  # a policy may have several rows, such as one with memory
    assert re.findall(r"^\| Algorithms \| (\d+) \|", README, re.MULTILINE) == [str(len(set(algorithms())))]


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


@pytest.mark.few
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


def reward_loss(policy, model, dist_class, batch):
    return (model.values(batch["obs"]) - batch["reward"]).square().mean()


def test_a_mixin_of_ones_own_reads_the_configuration_in_set_up_and_its_constructor_is_not_called(recwarn):
    class Temperature:
        def __init__(self):
            raise AssertionError("the constructor is called")

        def set_up(self):
            self.temperature = self.config.get("temperature", 1.0)

    kind = build_policy("Warm", loss_fn=reward_loss, mixins=[Temperature])
    derived = PPOPolicy.with_updates("WarmPPO", mixins=[Temperature])
    for made in (kind, derived):
        assert made(None, OBS, ACTIONS["Discrete"]).temperature == 1.0
        assert made({"temperature": 0.5}, OBS, ACTIONS["Discrete"]).temperature == 0.5
    assert not recwarn.list


def test_compute_advantages_stops_at_the_ends_of_episodes_within_a_rollout():
    seen = []

    def postprocess_fn(policy, batch):
        seen.append(compute_advantages(batch, 0.0, 1.0, use_gae=False))
        return seen[-1]

    envs = make_envs("CartPole-v1", 4, seed=0)
    spaces_ = envs.single_observation_space, envs.single_action_space
    policy = build_policy("Own", loss_fn=reward_loss, postprocess_fn=postprocess_fn)(None, *spaces_)
    cfg = RunConfig().override({"policy.collect.n_sample": 400})
    lengths = []
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(lambda ctx: lengths.extend(episode.length for episode in ctx.finished_episodes))
        task.use(onpolicy_data_fetcher(cfg))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.run(max_step=1)

    batch = seen[-1]
    assert batch.reward.shape == (100, 4)
    assert batch.terminated[:-1].any()
    longest = max(*lengths, *(100 - 1 - int(ends.nonzero().max()) for ends in batch.terminated.T))
    assert batch.advantage.max() == longest < 100  # the reward of each step is 1


def test_postprocess_gets_shuffled_rows_from_replay():
    seen = []

    def postprocess_fn(policy, batch):
        seen.append((batch["obs"], batch["next_obs"]))
        return batch

    envs = make_envs("CartPole-v1", 4, seed=0)
    cfg = DQNConfig().override({"policy.learn.learning_starts": 64, "policy.learn.update_per_collect": 1})
    kind = DQNPolicy.with_updates("Own", postprocess_fn=postprocess_fn)
    policy, buffer_ = kind(cfg.policy, envs.single_observation_space, envs.single_action_space), ReplayBuffer(5000)
    with task.start(ctx=OnlineRLContext()):
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.run(max_step=4)

    obs, next_obs = seen[-1]
    assert obs.shape == (cfg.policy.learn.batch_size, 4)
    assert (next_obs[:-1] == obs[1:]).all(-1).sum() < 8  # of 63 pairs of neighbours, hardly one is of successive steps


def test_the_tests_that_the_page_on_reliability_names_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(?:(\w+)::)?(\w+)`", (ROOT / "docs/reliability.md").read_text(encoding="utf-8"))

    assert len(named) > 10
    for path, group, name in named:
        tests = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {name}\(", tests, re.MULTILINE), name
        assert not group or f"class {group}:" in tests, group
