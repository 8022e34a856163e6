"""Several policies in one pipeline: what each learns from, what is counted and logged, and runs that overlap."""

import json
import os
import signal
import sys
import warnings
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_cases import mostly_slow

from ding_lite import PipelineError, Task, contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import contract_of, load_checkpoint
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.middleware import (
    CkptSaver,
    MultiAgentCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    for_policy,
    gae_estimator,
    interaction_evaluator,
    multi_agent_evaluator,
    multistep_trainer,
    online_logger,
    termination_checker,
)
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy

pytestmark = pytest.mark.timeout(240)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Chase:
    """A hider and two seekers on a ring of 8: seekers earn 1 where the hider is, the hider loses 1 for each of them.

    A seeker that was there is out; the episode ends for all after `limit` steps.
    """

    possible_agents = ("hider", "seeker_0", "seeker_1")
    limit = 10

    def observation_space(self, agent):
        return spaces.Box(0, 8, (2,) if agent == "hider" else (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3 if agent == "hider" else 2)

    def reset(self, seed=None, options=None):
        self.at = dict(zip(self.possible_agents, np.random.default_rng(seed).integers(8, size=3)))
        self.agents, self.t = list(self.possible_agents), 0
        return self.see(), {agent: {} for agent in self.agents}

    def see(self):
        place = {agent: float(self.at[agent]) for agent in self.possible_agents}
        hider = np.array([place["hider"], self.t % 8], np.float32)
        return {"hider": hider} | {
            agent: np.array([place["hider"], place[agent], self.t % 8], np.float32) for agent in self.agents if agent != "hider"
        }

    def step(self, actions):
        self.t += 1
        for agent, action in actions.items():
            self.at[agent] = (self.at[agent] + (int(action) - 1 if agent == "hider" else 2 * int(action) - 1)) % 8
        found = [agent for agent in self.agents if agent != "hider" and self.at[agent] == self.at["hider"]]
        rewards = {agent: float(agent in found) for agent in self.agents} | {"hider": -float(len(found))}
        terminations = {agent: agent in found for agent in self.agents}
        truncations = dict.fromkeys(self.agents, self.t >= self.limit)
        result = self.see(), rewards, terminations, truncations, {agent: {"steps": self.t} for agent in self.agents}
        self.agents = [] if self.t >= self.limit else [agent for agent in self.agents if agent not in found]
        return result


class Random(Policy):
    """Acts by chance."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.randint(self.action_space.n, (len(obs),), generator=self.generator), [], {}


def role(agent):
    return agent.partition("_")[0]


def chase(seed=0, count=3, **settings):
    return make_multi_agent_envs(Chase, count, seed=seed, **settings)


def config(folder, make=PPOConfig, **changes):
    changes = {"env.stop_value": None, "env.n_evaluator_episode": 3, "policy.collect.n_sample": 30, **changes}
    if make is PPOConfig:
        changes = {"policy.learn": {"epoch_per_collect": 2, "batch_size": 16}, **changes}
    cfg = make(exp_name=str(folder), seed=3).override(changes)
    cfg.policy.eval.evaluator.eval_freq = 20
    return cfg


def policies_for(cfg, env, hider=Random, seeker=PPOPolicy):
    make = {"hider": (hider, "hider"), "seeker": (seeker, "seeker_0")}
    return {
        name: kind(cfg.policy if kind is not Random else {"seed": 9}, env.observation_space(agent), env.action_space(agent))
        for name, (kind, agent) in make.items()
    }


def modes(policies, mode):
    return {name: getattr(policy, mode) for name, policy in policies.items()}


def collected(cfg, **kwargs):
    env = chase()
    policies = policies_for(cfg, env, **kwargs)
    ctx = MultiAgentContext(env_step=4, env_episode=1, train_iter=2)
    MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, role)(ctx)
    return ctx, policies


# The collector.


def test_each_policy_gets_a_context_of_its_own_with_the_rollout_of_its_agents(tmp_path):
    ctx, policies = collected(config(tmp_path))
    hider, seeker = ctx.parts["hider"], ctx.parts["seeker"]

    assert (hider.trajectories.num_steps, hider.trajectories.num_envs) == (10, 3)
    assert (seeker.trajectories.num_steps, seeker.trajectories.num_envs) == (10, 6)
    assert hider.trajectories.valid is None
    assert 0 < len(seeker.trajectories) < 60
    assert seeker.trajectory_end_idx[-1] == len(seeker.trajectories) - 1
    assert (ctx.env_step, ctx.env_episode) == (4 + 30, 1 + 3)
    for it in (hider, seeker):
        assert (it.env_step, it.env_episode, it.policy_version) == (34, 4, 0)
    assert [one.return_ for one in ctx.finished_episodes] == [0.0] * 3
    assert [one.info["return"]["hider"] for one in ctx.finished_episodes] == [
        -sum(one.info["return"][name] for name in ("seeker_0", "seeker_1")) for one in ctx.finished_episodes
    ]


def test_the_parts_are_new_in_every_iteration(tmp_path):
    cfg, env, seen = config(tmp_path), chase(), []
    task = Task()
    with task.start(ctx=MultiAgentContext()):
        task.use(MultiAgentCollector(cfg, modes(policies_for(cfg, env), "collect_mode"), env, role))
        task.use(lambda ctx: seen.append(ctx.parts))
        task.run(max_step=3)

    assert len({id(it) for parts in seen for it in (parts, *parts.values())}) == 9


def test_what_stands_in_collect_kwargs_reaches_every_policy(tmp_path):
    asked = []

    class Told(Random):
        def compute_actions(self, obs, state=None, *, eps=None, **kwargs):
            asked.append(eps)
            return super().compute_actions(obs, state)

    cfg, env = config(tmp_path), chase()
    collect = MultiAgentCollector(cfg, modes(policies_for(cfg, env, hider=Told), "collect_mode"), env, role)
    asked.clear()
    collect(MultiAgentContext(collect_kwargs={"eps": 0.25}))

    assert asked == [0.25] * 10


# The pipeline.


def test_the_contract_says_what_is_touched_in_the_context_of_all(tmp_path):
    cfg = config(tmp_path)
    policies = policies_for(cfg, chase())
    estimate = contract_of(for_policy("seeker", gae_estimator(cfg, policies["seeker"].collect_mode)))
    train = contract_of(for_policy("seeker", multistep_trainer(cfg, policies["seeker"].learn_mode)))

    assert (estimate.reads, estimate.writes, estimate.may_write) == (("parts",), ("parts",), ())
    assert (estimate.uses, estimate.stage) == ((policies["seeker"].learn_mode,), "process")
    assert (train.reads, train.writes) == (("parts", "train_iter"), ("parts", "train_iter"))
    assert (train.may_read, train.may_write, train.stage) == (("learn_metrics",), ("learn_metrics",), "learn")
    assert contract_of(for_policy("seeker", lambda ctx: None)) is None

    @contract(reads_after=("train_iter",), writes_after=("train_iter",), stage="record")
    def late(ctx):
        yield

    around = contract_of(for_policy("seeker", late))
    assert (around.reads, around.writes) == (("parts",), ("parts",))
    assert (around.reads_after, around.writes_after) == (("train_iter",), ("train_iter",))


def test_a_pipeline_without_a_collector_of_agents_or_with_another_context_is_refused(tmp_path):
    cfg, env = config(tmp_path), chase()
    policies = policies_for(cfg, env)
    train = for_policy("seeker", multistep_trainer(cfg, policies["seeker"].learn_mode))
    task = Task()
    with (
        task.start(ctx=MultiAgentContext()),
        pytest.raises(
            PipelineError, match=r"reads ctx.parts, but no earlier middleware writes it: add a collector such as MultiAgent"
        ),
    ):
        task.use(train).run(max_step=1)
    task = Task()
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match="OnlineRLContext declares no such field"):
        task.use(MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, role)).use(train).run(max_step=1)


# The evaluator.


def test_an_evaluation_is_scored_by_the_mean_return_of_each_agent(tmp_path):
    cfg, told = config(tmp_path), []

    def evaluate(score=None, stop_value=None):
        env, task = chase(), Task()
        cfg.env.stop_value = stop_value
        with task.start(ctx=MultiAgentContext()):
            task.use(multi_agent_evaluator(cfg, modes(policies_for(cfg, env), "eval_mode"), env, role, score))
            task.use(lambda ctx: told.append(task.finish))
            task.run(max_step=2)
        return task.ctx

    ctx = evaluate()
    assert ctx.last_eval_value == 0.0
    assert ctx.total_step == 1
    means = {}

    def of_the_seekers(returns):
        means.update(returns)
        return -returns["hider"]

    reached = evaluate(of_the_seekers).last_eval_value
    assert list(means) == list(Chase.possible_agents)
    assert reached == -means["hider"] == means["seeker_0"] + means["seeker_1"] > 0
    assert evaluate(of_the_seekers, stop_value=reached).total_step == 0
    assert evaluate(of_the_seekers, stop_value=reached + 1e-6).total_step == 1
    assert told == [False, True, False, True, True, False, True]


def test_what_is_evaluated_is_not_filmed(tmp_path):
    cfg, env = config(tmp_path, **{"log.video_every": 2}), chase()
    with pytest.raises(ValueError, match=r"cfg.log.video_every = 2, and multi_agent_evaluator films nothing: set it to 0"):
        multi_agent_evaluator(cfg, modes(policies_for(cfg, env), "eval_mode"), env, role)


@pytest.mark.slow
def test_one_agent_alone_is_evaluated_as_by_the_ordinary_evaluator(tmp_path):
    class Alone:
        possible_agents = ("it",)

        def __init__(self):
            self.env = make_envs("CartPole-v1", 1).envs[0]

        def observation_space(self, agent):
            return self.env.observation_space

        def action_space(self, agent):
            return self.env.action_space

        def reset(self, seed=None, options=None):
            self.agents = ["it"]
            return tuple({"it": it} for it in self.env.reset(seed=seed, options=options))

        def step(self, actions):
            result = self.env.step(actions["it"])
            self.agents = [] if result[2] or result[3] else ["it"]
            return tuple({"it": it} for it in result)

    def run(several):
        cfg = config(tmp_path / str(several))
        env = make_multi_agent_envs(Alone, 3, seed=3) if several else make_envs("CartPole-v1", 3, seed=3)
        evaluated = make_multi_agent_envs(Alone, 2, seed=4) if several else make_envs("CartPole-v1", 2, seed=4)
        own = env.envs[0].env if several else env.envs[0]
        policy = PPOPolicy(cfg.policy, own.observation_space, own.action_space)
        task, seen = Task(), []
        with task.start(ctx=MultiAgentContext() if several else OnlineRLContext()):
            if several:
                task.use(multi_agent_evaluator(cfg, {"p": policy.eval_mode}, evaluated, lambda agent: "p"))
                task.use(MultiAgentCollector(cfg, {"p": policy.collect_mode}, env, lambda agent: "p"))
                task.use(for_policy("p", gae_estimator(cfg, policy.collect_mode)))
                task.use(for_policy("p", multistep_trainer(cfg, policy.learn_mode)))
            else:
                task.use(interaction_evaluator(cfg, policy.eval_mode, evaluated))
                task.use(StepCollector(cfg, policy.collect_mode, env))
                task.use(gae_estimator(cfg, policy.collect_mode))
                task.use(multistep_trainer(cfg, policy.learn_mode))
            task.use(lambda ctx: seen.append((ctx.eval_value, ctx.env_step, ctx.env_episode, ctx.train_iter)))
            task.run(max_step=12)
        return seen, {name: it.tolist() for name, it in policy.get_weights().items()}

    found = run(several=True)
    assert found == run(several=False)
    assert found[0][-1][3] > 40


# Whole runs.


def learn_chase(
    folder, async_mode, max_lag, algorithm="ppo", before=lambda envs, ctx: None, max_step=5, resume=None, **settings
):
    """All that a run of two learners comes to.

    Args:
        max_step: number of iterations.
        resume: folder of the run that is continued.
        before: called in each iteration with the environments for collection and the context.
        **settings: where the environments are, for both collection and evaluation.
    """
    dqn = algorithm == "dqn"
    learn = {"policy.learn": {"learning_starts": 20, "update_per_collect": 3, "batch_size": 16}} if dqn else {}
    cfg, env, evaluated = config(folder, DQNConfig if dqn else PPOConfig, **learn), chase(**settings), chase(1, **settings)
    kind = DQNPolicy if dqn else PPOPolicy
    policies = policies_for(cfg, env, kind, kind)
    buffers = {name: ReplayBuffer(1000, seed=3) for name in policies}
    task = Task()
    with task.start(async_mode=async_mode, max_lag=max_lag, resume=resume, ctx=MultiAgentContext()):
        task.use(multi_agent_evaluator(cfg, modes(policies, "eval_mode"), evaluated, role, lambda it: -it["hider"]))
        task.use(contract(reads=("total_step",), uses=(env,), stage="collect")(partial(before, env)))
        if dqn:
            task.use(eps_greedy_handler(cfg))
        task.use(MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, role))
        for name, policy in policies.items():
            if dqn:
                task.use(for_policy(name, data_pusher(cfg, buffers[name])))
                task.use(for_policy(name, OffPolicyLearner(cfg, policy.learn_mode, buffers[name])))
            else:
                task.use(for_policy(name, gae_estimator(cfg, policy.collect_mode)))
                task.use(for_policy(name, multistep_trainer(cfg, policy.learn_mode)))
        task.use(CkptSaver(policies, cfg.exp_name, train_freq=15))
        task.use(online_logger(cfg, train_show_freq=1, show_every_s=1e9))
        task.run(max_step=max_step)
    for one in (env, evaluated):
        one.close()
    names = ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter", "last_eval_value")
    states = {name: policy.state_dict() for name, policy in policies.items()}
    counters = [getattr(task.ctx, it) for it in names]
    return states, {name: it.state_dict() for name, it in buffers.items()}, counters, curve_of(folder)


def curve_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    by_place = ("time", "system/", "collect/workers_unanswered")
    return [
        {key: value for key, value in row.items() if not key.startswith(by_place) and not key.endswith("_throughput")}
        for row in rows
    ]


@pytest.mark.parametrize(("algorithm", "max_lag"), mostly_slow([("ppo", 3), ("dqn", 1)], ("dqn", 1)))
def test_asynchronous_runs_are_the_run_on_one_thread_with_that_lag(algorithm, max_lag, tmp_path, digest):
    expected = digest(*learn_chase(tmp_path / "one", False, max_lag, algorithm))

    assert digest(*learn_chase(tmp_path / "threads", True, max_lag, algorithm)) == expected


@pytest.mark.parametrize("max_lag", mostly_slow([0, 1], 1))
def test_runs_with_worker_processes_are_the_run_on_one_thread_with_as_many_local_workers(max_lag, tmp_path, digest):
    def change(envs, ctx):
        if ctx.total_step in (1, 3):
            envs.set_attr("limit", [4 + ctx.total_step, 5, 6])
            assert envs.get_attr("limit") == (4 + ctx.total_step, 5, 6)

    def kill(envs, ctx):
        change(envs, ctx)
        if max_lag and ctx.total_step in (2, 3):
            os.kill(envs.hosts[ctx.total_step % 2].pid, signal.SIGKILL)

    expected = digest(*learn_chase(tmp_path / "local", False, max_lag, before=change, max_step=5, workers=2))
    processes = {"workers": 2, "backend": "process", "restart": bool(max_lag)}
    assert digest(*learn_chase(tmp_path / "processes", max_lag > 0, max_lag, before=kill, max_step=5, **processes)) == expected


@pytest.mark.slow
def test_a_resumed_run_with_worker_processes_is_the_run_that_was_never_interrupted(tmp_path, digest):
    def change(envs, ctx):
        if ctx.total_step < 2:
            envs.set_attr("limit", [4 + ctx.total_step, 5, 6])

    processes = {"workers": 2, "backend": "process", "before": change}
    whole = learn_chase(tmp_path / "whole", False, 0, max_step=4, **processes)
    learn_chase(tmp_path / "part", False, 0, max_step=2, **processes)
    resumed = learn_chase(tmp_path / "part", False, 0, max_step=4, resume=str(tmp_path / "part"), **processes)
    assert digest(resumed[0], resumed[2][:4]) == digest(whole[0], whole[2][:4])


@pytest.mark.parametrize("algorithm", mostly_slow(["ppo", "dqn"], "dqn"))
def test_lag_makes_another_run(algorithm, tmp_path, digest):
    plain = digest(*learn_chase(tmp_path / "plain", False, None, algorithm))

    assert digest(*learn_chase(tmp_path / "none", True, 0, algorithm)) == plain
    assert digest(*learn_chase(tmp_path / "one", True, None, algorithm)) != plain


@pytest.mark.slow
def test_each_policy_has_its_columns_in_the_curve_and_each_agent_its_return(tmp_path):
    states, _, counters, curve = learn_chase(tmp_path, True, 1)
    row = curve[-1]

    assert counters[3] == states["hider"]["train_iter"] + states["seeker"]["train_iter"] == row["train_iter"]
    for name in ("hider", "seeker"):
        assert np.isfinite(row[f"learn/{name}/policy_loss"])
        assert row[f"learn/{name}/policy_lag"] > 0
    assert "learn/policy_loss" not in row
    assert row["evaluate/score"] == -row["evaluate/custom_metrics/return/hider_mean"] == counters[5]
    assert row["collect/custom_metrics/return/hider_mean"] == pytest.approx(
        -row["collect/custom_metrics/return/seeker_0_mean"] - row["collect/custom_metrics/return/seeker_1_mean"]
    )
    means = {name: row[f"collect/custom_metrics/return/{name}_mean"] for name in Chase.possible_agents}
    by_policy = {name: row[f"collect/custom_metrics/policy_return/{name}_mean"] for name in ("hider", "seeker")}
    assert by_policy["hider"] == pytest.approx(means["hider"])
    assert by_policy["seeker"] == pytest.approx((means["seeker_0"] + means["seeker_1"]) / 2)
    evaluated = {name: row[f"evaluate/custom_metrics/policy_return/{name}_mean"] for name in ("hider", "seeker")}
    assert evaluated["hider"] == pytest.approx(-2 * evaluated["seeker"])
    assert row["evaluate/custom_metrics/policy_return/seeker_min"] <= evaluated["seeker"]
    times = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"time/collect", "time/inference", "time/env_step", "time/hider/learn", "time/seeker/learn"} <= times.keys()


@pytest.mark.slow
def test_checkpoints_of_several_policies_hold_each_under_its_name(tmp_path, digest):
    states, _, _, curve = learn_chase(tmp_path, False, 0)
    folder, regular = tmp_path / "ckpt", [0]
    for row in curve:
        if row["train_iter"] >= regular[-1] + 15:
            regular.append(row["train_iter"])
    final, best = load_checkpoint(folder / "final.pt"), load_checkpoint(folder / "best.pt")
    cfg = config(tmp_path)
    fresh = policies_for(cfg, chase(), PPOPolicy, PPOPolicy)
    for name, policy in fresh.items():
        policy.load_state_dict(final["policies"][name])
        assert digest(policy.state_dict()) == digest(states[name])
        policy.load_state_dict(best["policies"][name])
    assert {file.name for file in folder.glob("iteration_*.pt")} == {f"iteration_{step}.pt" for step in regular[1:]}
    assert len(regular) > 2
    assert best["eval_value"] >= -1e9
    assert final["counters"]["env_step"] == 150


def test_a_policy_that_does_not_learn_plays_beside_one_that_does_and_is_saved_with_it(tmp_path):
    cfg, env = config(tmp_path), chase()
    policies = policies_for(cfg, env)
    before = policies["seeker"].get_weights()
    task = Task()
    with task.start(ctx=MultiAgentContext(), async_mode=True):
        task.use(multi_agent_evaluator(cfg, modes(policies, "eval_mode"), chase(seed=1), role))
        task.use(MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, role))
        task.use(for_policy("seeker", gae_estimator(cfg, policies["seeker"].collect_mode)))
        task.use(for_policy("seeker", multistep_trainer(cfg, policies["seeker"].learn_mode)))
        task.use(CkptSaver(policies, cfg.exp_name))
        task.use(termination_checker(max_env_step=120))
        task.run(max_step=100)

    assert any((policies["seeker"].get_weights()[name] != it).any() for name, it in before.items())
    assert policies["hider"].train_iter == 0
    assert load_checkpoint(tmp_path / "ckpt/final.pt")["policies"].keys() == {"hider", "seeker"}


class BeatLast(Policy):
    """Plays what beats the other's last move, and rock at first."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.where(obs == 3, 0, (obs + 1) % 3), state, {}


class Lead(Policy):
    """Repeats what the other did last, and begins with paper."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.where(obs == 3, 1, obs), state, {}


def test_in_rock_paper_scissors_the_best_response_to_who_beats_the_last_move_wins_every_round(tmp_path):
    pytest.importorskip("pygame")
    rps_v2 = pytest.importorskip("pettingzoo.classic.rps_v2")
    env, cfg = make_multi_agent_envs(rps_v2.parallel_env, 2), config(tmp_path)
    spaces_of = env.observation_space("player_0"), env.action_space("player_0")
    policies = {"leads": Lead({}, *spaces_of), "follows": BeatLast({}, *spaces_of)}
    policy_of = {"player_0": "leads", "player_1": "follows"}.get
    ctx = MultiAgentContext()
    MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, policy_of)(ctx)
    leads, follows = (ctx.parts[name].trajectories.columns for name in policies)

    assert [it.info["return"] for it in ctx.finished_episodes] == [{"player_0": 15.0, "player_1": -15.0}] * 2
    assert leads["truncated"].tolist() == [[False, False]] * 14 + [[True, True]]
    np.testing.assert_array_equal(follows["action"][1:], (leads["action"][:-1] + 1) % 3)
    np.testing.assert_array_equal(leads["next_obs"], follows["action"])


def test_a_part_that_says_how_to_collect_is_refused():
    words = r"for_policy\('hider', eps_greedy_handler\) would have no effect.*before MultiAgentCollector"
    with pytest.raises(ValueError, match=words):
        for_policy("hider", eps_greedy_handler(DQNConfig()))


@pytest.mark.parametrize("trained", ["one that acts", "another one"])
def test_a_run_that_trains_none_of_the_policies_that_act_is_a_warning(trained, tmp_path):
    env, cfg = chase(), config(tmp_path)
    policies, others = (policies_for(cfg, env, hider=PPOPolicy) for _ in range(2))
    learning = (policies if trained == "one that acts" else others)["seeker"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=MultiAgentContext()) as loop:
            loop.use(MultiAgentCollector(cfg, modes(policies, "collect_mode"), env, role))
            loop.use(for_policy("seeker", gae_estimator(cfg, learning.collect_mode)))
            loop.use(for_policy("seeker", multistep_trainer(cfg, learning.learn_mode))).run(max_step=1)
    found = [str(one.message) for one in caught if "no learner of this run trains" in str(one.message)]
    assert len(found) == (trained == "another one")
    assert all(text.startswith("MultiAgentCollector collects with a policy") for text in found)
