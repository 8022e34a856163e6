"""Saved runs of several agents: every policy acts for its agents, as the run's own evaluator would let them."""

import json
import sys

import numpy as np
import pytest
import torch

from ding_lite import task
from ding_lite.commands import main
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import MultiAgentContext
from ding_lite.envs import make_multi_agent_envs
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.middleware import (
    CkptSaver,
    MultiAgentCollector,
    for_policy,
    gae_estimator,
    multi_agent_evaluator,
    multistep_trainer,
)
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy, PPOPolicyConfig, load_policy
from ding_lite.reports import ReportError
from ding_lite.rollout import evaluate_run, play_run

MODULE = """
import numpy as np
import torch
from gymnasium import spaces
from ding_lite.policy import Policy


class Race:
    '''Two runners on a line: each earns its own step, and the fast one twice of it; the slow one leaves after three steps.'''

    possible_agents = ("fast", "slow")
    metadata = {"name": "race_v0", "render_fps": 10}

    def __init__(self, limit=6, render_mode=None):
        self.limit, self.render_mode = limit, render_mode

    def observation_space(self, agent):
        return spaces.Box(-99, 99, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def see(self):
        return {agent: np.array([self.at[agent], self.t], np.float32) for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        start = np.random.default_rng(seed).integers(-5, 6, 2)
        self.at, self.t, self.agents = dict(zip(self.possible_agents, map(float, start))), 0, list(self.possible_agents)
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        for agent, action in actions.items():
            self.at[agent] += int(action) - 1
        obs, rewards = self.see(), {agent: self.at[agent] * (2 if agent == "fast" else 1) for agent in actions}
        ended = {agent: self.t >= (self.limit if agent == "fast" else 3) for agent in actions}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return obs, rewards, ended, dict.fromkeys(actions, False), {agent: {} for agent in actions}

    def render(self):
        return np.full((16, 16, 3), 100 + int(self.at["fast"]), np.uint8)


class Backward(Policy):
    def compute_actions(self, obs, state=None, **kwargs):
        return torch.zeros(len(obs), dtype=torch.int64), state, {}


def closure(cls):
    def made(**kwargs):
        return cls(**kwargs)

    return made


race = closure(Race)
"""


class Still(Policy):
    """Stays where it is."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.ones(len(obs), dtype=torch.int64), state, {}


@pytest.fixture
def races(tmp_path, monkeypatch):
    """A module with an environment, as beside the script of a user."""
    (tmp_path / "saved_races.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield __import__("saved_races")
    sys.modules.pop("saved_races", None)


def train(factory, make, saved=None, workers=1, **settings):
    """A run of one iteration in the folder run. Returns its policies.

    Args:
        factory: of the environments.
        make: a function of the spaces for each policy, by name; each policy acts for the agent of its name.
        saved: what CkptSaver gets of the policies; None for all of them.
    """
    cfg = PPOConfig(exp_name="run").override({"env.n_evaluator_episode": 2, "policy.collect.n_sample": 8})
    envs = make_multi_agent_envs(factory, 2, workers=workers, **settings)
    evaluator_envs = make_multi_agent_envs(factory, 2, seed=1, **settings)
    spaces = envs.observation_space("fast"), envs.action_space("fast")
    policies = {name: one(*spaces) for name, one in make.items()}
    policy_of = str if len(policies) > 1 else dict.fromkeys(envs.possible_agents, *policies)
    with task.start(ctx=MultiAgentContext()):
        task.use(multi_agent_evaluator(cfg, {name: one.eval_mode for name, one in policies.items()}, evaluator_envs, policy_of))
        task.use(MultiAgentCollector(cfg, {name: one.collect_mode for name, one in policies.items()}, envs, policy_of))
        for name, policy in policies.items():
            if isinstance(policy, PPOPolicy):
                task.use(for_policy(name, gae_estimator(cfg, policy.collect_mode)))
                task.use(for_policy(name, multistep_trainer(cfg, policy.learn_mode)))
        task.use(CkptSaver(policies if saved is None else saved(policies), cfg.exp_name))
        task.run(max_step=1)
    envs.close()
    return policies


def ppo(seed=0):
    return lambda *spaces: PPOPolicy(PPOPolicyConfig(seed=seed), *spaces)


def returns_by_hand(env, policies, seed, episodes):
    """The returns by agent of greedy episodes in one environment, without this library's environments."""
    found = []
    for number in range(episodes):
        obs, _ = env.reset(seed=episode_seed(seed, number, 0))
        returns = dict.fromkeys(env.agents, 0.0)
        while env.agents:
            actions = {agent: policies[agent].predict(obs[agent])[0] for agent in env.agents}
            obs, rewards, _, _, _ = env.step(actions)
            returns = {agent: returns[agent] + rewards.get(agent, 0.0) for agent in returns}
        found.append(returns)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_each_agent_acts_with_its_own_saved_policy(races, workers):
    policies = train(races.Race, {"fast": ppo(0), "slow": ppo(7)}, env_config={"limit": 5}, workers=workers)
    found = evaluate_run("run", 6, "final", seed=4)
    by_hand = returns_by_hand(races.Race(5), policies, 4, 6)

    assert found.returns == tuple(sum(one.values()) for one in by_hand)
    assert found.lengths == (5,) * 6
    assert found.agent_returns == {name: np.mean([one[name] for one in by_hand]) for name in ("fast", "slow")}
    assert found.policy_returns == found.agent_returns
    assert (found.algorithm, found.env) == ("PPOPolicy", "race_v0")
    assert returns_by_hand(races.Race(5), dict.fromkeys(policies, policies["fast"]), 4, 6) != by_hand
    assert json.loads(json.dumps(found.to_dict()))["agent_returns"] == found.agent_returns


def test_one_policy_acts_for_all_agents(races):
    policy = train(races.race, {"all": ppo()})["all"]
    found = evaluate_run("run", 4, "final", seed=2)
    by_hand = returns_by_hand(races.Race(), {"fast": policy, "slow": policy}, 2, 4)

    assert found.returns == tuple(sum(one.values()) for one in by_hand)
    assert found.policy_returns == {"all": pytest.approx(np.mean(list(found.agent_returns.values())))}


def test_one_policy_that_was_saved_without_a_name_acts_for_all_agents(races):
    train(races.Race, {"all": ppo()}, lambda policies: policies["all"])
    assert evaluate_run("run", 2, "final").policy_returns.keys() == {"all"}


def test_an_opponent_without_weights_is_named_with_its_class(races, tmp_path, capsys):
    policies = train(races.Race, {"fast": ppo(), "slow": still}, only_fast)
    with pytest.raises(ReportError, match=r"does not hold the policy 'slow', .*--policy-class slow=MODULE:NAME"):
        evaluate_run("run", 2)

    found = evaluate_run("run", 3, "final", policy_class={"slow": Still}, seed=1)
    assert found.returns == tuple(sum(one.values()) for one in returns_by_hand(races.Race(), policies, 1, 3))
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "3", "--policy-class", "slow=saved_races:Backward", "--out", "out.json"]) == 0
    printed, (row,) = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert f"mean return by agent: fast {row['agent_returns']['fast']:.6g}, slow " in printed
    assert "mean return by policy: fast " in printed
    assert row["algorithm"] == "PPOPolicy, Backward"


def still(*spaces):
    return Still({}, *spaces)


def only_fast(policies):
    return {"fast": policies["fast"]}


def test_a_policy_with_weights_that_were_not_saved_is_refused(races):
    train(races.Race, {"fast": ppo(), "slow": ppo(1)}, only_fast)
    with pytest.raises(ReportError, match=r"a new PPOPolicy has other weights than that of the run: save it too"):
        evaluate_run("run", 2, policy_class={"slow": PPOPolicy})


@pytest.mark.few
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "fast"}, "has several agents, and all of its policies act: leave the name 'fast' out"),
        ({"policy_class": {"fats": PPOPolicy}}, "names the policy 'fats'.*did you mean 'fast'"),
        ({"policy_of": {"fast": "fast"}}, "does not say which policy acts for the agent 'slow'"),
    ],
)
def test_a_mistake_is_named(races, settings, words):
    train(races.Race, {"fast": ppo(), "slow": ppo(1)})
    with pytest.raises(ReportError, match=words):
        evaluate_run("run", 2, **settings)


def test_an_environment_that_cannot_be_made_again_is_named_with_the_option_that_names_it(races, capsys):
    train(lambda **kwargs: races.Race(**kwargs), {"all": ppo()})
    with pytest.raises(ReportError, match=r"race_v0 cannot be made here, because .*<lambda>.*--env module:function"):
        evaluate_run("run", 2)
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "2", "--env", "saved_races:race"]) == 0
    assert "race_v0" in capsys.readouterr().out


def test_each_episode_is_filmed(races, tmp_path, capsys):
    policies = train(races.race, {"fast": ppo(0), "slow": ppo(7)})
    capsys.readouterr()
    assert main(["play", "run", "--which", "final", "--video", "film.mp4", "--episodes", "2", "--seed", "4"]) == 0
    first, *_ = returns_by_hand(races.Race(), policies, 4, 1)

    printed = capsys.readouterr().out
    assert f"return {sum(first.values()):g} (fast {first['fast']:g}, slow {first['slow']:g}) in 6 steps: film_1.mp4" in printed
    assert all((tmp_path / f"film_{number}.mp4").read_bytes()[4:8] == b"ftyp" for number in (1, 2))
    ((episode, _),) = play_run("run", "final", video="one.mp4", seed=4)
    assert dict(episode.info["return"]) == first


def test_exploring_wants_its_setting_for_each_policy(races):
    cfg = DQNConfig(exp_name="run")
    envs = make_multi_agent_envs(races.Race, 2)
    policy = DQNPolicy(cfg.policy, envs.observation_space("fast"), envs.action_space("fast"))
    with task.start(ctx=MultiAgentContext()):
        task.use(MultiAgentCollector(cfg, {"all": policy.collect_mode}, envs, lambda agent: "all", {"eps": 0.5}))
        task.use(CkptSaver({"all": policy}, cfg.exp_name))
        task.run(max_step=1)

    with pytest.raises(ValueError, match="DQNPolicy explores by eps"):
        evaluate_run("run", 2, "final", deterministic=False)
    greedy, wild = (evaluate_run("run", 8, "final", **one) for one in ({}, {"deterministic": False, "eps": 1.0}))
    assert greedy.returns != wild.returns
    assert load_policy("run", "final").train_iter == 0
