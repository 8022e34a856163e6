"""The page for users of RLlib: every name of ding_lite in its tables exists, and its list of settings is complete."""

import ast
import builtins
import functools
import importlib
import inspect
import re
from pathlib import Path

import gymnasium
import pytest
import torch

import ding_lite.commands.subcommands
import ding_lite.config
from ding_lite import Task
from ding_lite.contexts import MultiAgentContext
from ding_lite.data import ReplayBuffer, nested
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.middleware import (
    CkptSaver,
    MultiAgentCollector,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multi_agent_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import Policy, PPOPolicy, build_policy
from ding_lite.policy_base.rllib_names import MORE_PLACES, PLACES
from ding_lite.rollout import VideoRecorder
from ding_lite.run_configs import RunConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/from_rllib.md").read_text(encoding="utf-8")

NOT_MERGED = ("time/device_copy",)

PACKAGES = (
    *("config", "contexts", "data", "distributed", "engine", "envs", "functional", "metrics", "middleware", "nn", "policy"),
    *("processes", "reports", "rollout", "sinks"),
)
ARGUMENTS = {
    *("N", "T", "B"),  # of shapes
    *("action_space", "cfg", "function", "info", "loss", "loss_fn", "middleware", "name", "obs", "observation_space", "state"),
    "stats",
}
"""Names in calls and shapes that stand for a value of the user."""


def table_rows(text):
    """The rows of all tables, as lists of cells, without the rows that head them."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return [row for row in cells if row[-1] not in ("ding_lite", "---")]


def codes(cell):
    """What stands in backticks."""
    return [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", cell)]


CODES = sorted({code for row in table_rows(PAGE) for code in codes(row[-1])})


class Angle(gymnasium.Wrapper):
    """Adds a number to the info of each step."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "score": 1.0}


class Rows(list):
    """A sink that keeps the rows."""

    write = list.append

    def close(self):
        pass


class Pair:
    """Two agents for one step, with PettingZoo's parallel API."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 1, (1,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._each(self.observation_space("a").high), self._each({})

    def step(self, actions):
        self.agents = []
        obs = self._each(self.observation_space("a").high)
        return obs, self._each(1.0), self._each(True), self._each(False), self._each({})

    def _each(self, value):
        return dict.fromkeys(self.possible_agents, value)


def columns_of_agents(cfg):
    """The columns of a run with several agents."""
    envs, rows, task = make_multi_agent_envs(Pair, seed=0), Rows(), Task()
    policy = PPOPolicy(cfg.policy, envs.observation_space("a"), envs.action_space("a"))
    with task.start(ctx=MultiAgentContext()):
        task.use(MultiAgentCollector(cfg, {"both": policy.collect_mode}, envs, lambda agent: "both"))
        task.use(online_logger(cfg, sinks=[rows]))
        task.run(max_step=1)
    return {name for row in rows for name in row}


class Run:
    """A short run of PPO with two workers: its folder, the columns of its metrics, and its objects by name."""

    def __init__(self, folder):
        cfg = ding_lite.config.PPOConfig(exp_name=str(folder)).override(
            {
                "env.n_evaluator_episode": 2,
                "policy.collect.n_sample": 64,
                "policy.learn": {"epoch_per_collect": 1, "kl_coeff": 0.2},
            }
        )
        envs = make_envs("CartPole-v1", 2, seed=0, workers=2, backend="process", wrappers=[Angle])
        policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        rows, task = Rows(), Task()
        with task.start(ctx=MultiAgentContext()):
            task.use(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 2, seed=1)))
            task.use(StepCollector(cfg, policy.collect_mode, envs))
            task.use(gae_estimator(cfg, policy.collect_mode))
            task.use(multistep_trainer(cfg, policy.learn_mode))
            task.use(online_logger(cfg, sinks=[rows]))
            task.use(CkptSaver(policy, cfg.exp_name, train_freq=1))
            task.run(max_step=2)
        self.folder = folder
        self.columns = {name for row in rows for name in row} | columns_of_agents(
            ding_lite.config.PPOConfig(exp_name=f"{folder}_agents")
        )
        self.objects = {"task": task, "ctx": task.ctx, "policy": policy, "self": policy, "envs": envs, "torch": torch}
        self.objects |= {"batch": task.ctx.train_data, "buffer_": ReplayBuffer(10)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("runs") / "ppo")


@functools.cache
def exported():
    modules = [importlib.import_module(f"ding_lite.{package}") for package in PACKAGES]
    return {name: getattr(module, name) for module in modules for name in module.__all__}


@functools.cache
def parameters():
    """The names of the arguments of policies' hooks, and of the functions that the page names with them."""
    functions = Policy, Policy.compute_actions, build_policy, make_envs, Task().start, VideoRecorder, multi_agent_evaluator
    return {name for function in functions for name in inspect.signature(function).parameters}


def setting(path):
    """The value of a setting, `policy.learn.batch_size`, in the first configuration that has it."""
    kinds = [kind for kind in exported().values() if inspect.isclass(kind) and issubclass(kind, RunConfig)]
    for kind in kinds:
        found = kind()
        for name in path.split("."):
            found = getattr(found, name, None) if name in dir(found) else inspect.Parameter.empty
        if found is not inspect.Parameter.empty:
            return found
    raise LookupError(f"no configuration has cfg.{path}")


def require_option(option):
    setting(option.removeprefix("--").replace("-", "_"))


def require_command(words, run):
    """A command line, or a part of one: its program, and the options."""
    program, *rest = words
    if program == "ding-lite":
        name = {"eval": "evaluate"}.get(rest[0], rest[0])
        known = inspect.signature(getattr(ding_lite.commands.subcommands, name)).parameters
        unknown = [word for word in rest if word.startswith("--") and word[2:].replace("-", "_") not in known]
        assert not unknown
        return
    if program == "python":
        assert (ROOT / rest[0]).exists()
    for word in words:
        if word.startswith("--"):
            require_option(word)


def require_file(name, run):
    pattern = name.replace("_N.", "_*.")
    in_source = any(f'"{name}"' in path.read_text(encoding="utf-8") for path in (ROOT / "ding_lite").rglob("*.py"))
    assert (ROOT / name).exists() or any(run.folder.glob(pattern)) or in_source


def require_arguments(function, call):
    """The keyword arguments of a call exist; those that are passed on, `**hooks`, are hooks of build_policy."""
    if call.keywords:
        known = inspect.signature(function).parameters
        hooks = inspect.signature(build_policy).parameters if "hooks" in known else {}
        assert {keyword.arg for keyword in call.keywords} <= {*known, *hooks}


def resolve(node, run):
    """The object that an expression names; of a call the function, and of a user's value None.

    Raises:
        LookupError, AttributeError: there is no such name.
    """
    if isinstance(node, ast.Call):
        function = resolve(node.func, run)
        require_arguments(function, node)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            resolve(argument, run)
        return function
    if isinstance(node, ast.Attribute):
        path = ast.unparse(node)
        if path.startswith("cfg."):
            return setting(path.removeprefix("cfg."))
        if path.startswith("ding_lite."):
            module, _, name = path.rpartition(".")
            return getattr(importlib.import_module(module), name, None) or importlib.import_module(path)
        owner = resolve(node.value, run)
        return None if owner is None else getattr(owner, node.attr)
    if isinstance(node, ast.Subscript):
        owner = resolve(node.value, run)
        return None if owner is None else owner[ast.literal_eval(node.slice)]
    if isinstance(node, ast.Name):
        return named(node.id, run)
    if not isinstance(node, ast.Constant):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                resolve(child, run)
    return None


def named(name, run):
    known = {**vars(builtins), **exported(), **run.objects}
    if name in known:
        return known[name]
    batch = nested(run.objects["batch"])
    if name in ARGUMENTS or name in batch or name in run.columns or name in parameters():
        return None
    return getattr(Policy, name)


def require(code, run):
    """Raise an error unless everything that a piece of code names exists."""
    if re.fullmatch(r"(collect|learn|evaluate|time|system)/[\w/]*", code):
        pattern = code.replace("NAME", "[^/]+")
        assert any(re.match(pattern if code.endswith("/") else pattern + "$", column) for column in run.columns)
    elif code.endswith("=") and " " not in code:
        assert code[:-1] in parameters()
    elif code.startswith(("ding-lite ", "python ", "--")):
        require_command(code.split(), run)
    elif code.startswith("from "):
        exec(code, {})
    elif re.fullmatch(r"[\w/.]+(/|\.(pt|md|py|json|jsonl|log|txt))", code):
        require_file(code, run)
    else:
        resolve(ast.parse(code, mode="eval").body, run)


@pytest.mark.parametrize("code", [code for code in CODES if code not in NOT_MERGED])
def test_what_the_page_names_exists(code, run):
    require(code, run)


def test_the_page_names_what_is_not_merged():
    assert [code for code in NOT_MERGED if code not in CODES] == []


@pytest.mark.parametrize(
    "code",
    [
        *("StepColector", "cfg.policy.learn.batchsize", "ctx.sene", "task.runs(1)", "make_envs(id, 8, worker=2)"),
        *("ding-lite watches runs", "ding-lite play runs --videos 1", "python examples/a3c.py", "--env.ids 3", "workres="),
        *("learn/kll", "run.jsonl", "policy.config['gama']", "ding_lite.functional.gea", "from ding_lite.data import Buffer"),
    ],
)
def test_a_name_that_does_not_exist_is_found(code, run):
    with pytest.raises((AssertionError, AttributeError, LookupError, ImportError)):
        require(code, run)


def test_the_settings_by_names_of_rllib_are_complete():
    rows = table_rows(PAGE.partition("\n## Settings\n")[2])
    places = {**PLACES, **MORE_PLACES}

    assert sorted(name for row in rows for name in codes(row[0])) == sorted(places)
    for row in rows:
        here = {place for name in codes(row[0]) for place in places[name]}
        assert {code.removeprefix("cfg.policy.") for code in codes(row[1])} == here


def test_the_sections_that_the_page_links_to_exist():
    links = re.findall(r"\]\(([\w/]+\.md)?#([\w-]+)\)", PAGE)
    pages = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") if name else PAGE for name, _ in links}
    titles = {name: re.findall(r"^#+ (.+)$", text, re.MULTILINE) for name, text in pages.items()}
    anchors = {name: {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles[name]} for name in titles}

    assert len(links) > 20
    assert [link for link in links if link[1] not in anchors[link[0]]] == []
