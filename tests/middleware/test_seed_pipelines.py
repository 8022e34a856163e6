"""The two pipelines of the document that ding_lite follows, word for word."""

import textwrap
from pathlib import Path

import pytest
import torch

from ding_lite import task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

README = Path(__file__).resolve().parent.parent.parent / "README.md"

OFF_POLICY = """
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=100000)
"""

ON_POLICY = """
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=100000)
"""

MIDDLEWARE = {
    "CkptSaver": CkptSaver,
    "OffPolicyLearner": OffPolicyLearner,
    "StepCollector": StepCollector,
    "data_pusher": data_pusher,
    "eps_greedy_handler": eps_greedy_handler,
    "gae_estimator": gae_estimator,
    "interaction_evaluator": interaction_evaluator,
    "multistep_trainer": multistep_trainer,
}


def materials(cfg, make_policy, **settings):
    collector_env = make_envs("CartPole-v1", 8, seed=cfg.seed, **settings)
    return {
        **MIDDLEWARE,
        "task": task,
        "OnlineRLContext": OnlineRLContext,
        "cfg": cfg,
        "collector_env": collector_env,
        "evaluator_env": make_envs("CartPole-v1", 8, seed=cfg.seed + 1, **settings),
        "policy": make_policy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space),
        "buffer_": ReplayBuffer(50_000),
    }


def test_the_off_policy_block_is_the_readmes_which_solves_cartpole():
    """Where the documentation is tested, the README is run."""
    assert textwrap.dedent(OFF_POLICY) in README.read_text(encoding="utf-8")


@pytest.mark.timeout(900)  # it learns
def test_the_on_policy_block_runs_word_for_word_until_cartpole_is_solved(tmp_path):
    cfg = PPOConfig()
    cfg.exp_name = tmp_path / "run"
    names = materials(cfg, PPOPolicy)
    exec("if True:" + ON_POLICY, names)

    assert not task.running
    assert task.ctx.last_eval_value >= 475
    assert 0 < task.ctx.env_step <= 60_000
    assert task.ctx.train_iter == names["policy"].train_iter > 0
    assert {path.name for path in (tmp_path / "run" / "ckpt").iterdir()} >= {"best.pt", "final.pt"}


@pytest.mark.parametrize(
    ("block", "config", "policy"), [(OFF_POLICY, DQNConfig, DQNPolicy), (ON_POLICY, PPOConfig, PPOPolicy)], ids=["off", "on"]
)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(block, config, policy, tmp_path):
    def weights(seed, touch_global):
        cfg = config().override({"policy.eval.evaluator.eval_freq": 4, "policy.collect.n_sample": 64})
        cfg.seed, cfg.exp_name = seed, tmp_path / "run"
        if "update_per_collect" in cfg.policy.learn.to_dict():
            cfg.override({"policy.learn": {"learning_starts": 64, "update_per_collect": 4}})
        else:
            cfg.override({"policy.learn": {"epoch_per_collect": 2, "batch_size": 32}})
        names = materials(cfg, policy, max_episode_steps=20)
        if touch_global:
            torch.manual_seed(12345)
        exec("if True:" + block.replace("100000", "4"), names)
        return torch.cat([leaf.flatten() for leaf in names["policy"].get_weights().values()])

    first = weights(0, touch_global=False)

    assert torch.equal(first, weights(0, touch_global=True)), "global random numbers change the result"
    assert not torch.equal(first, weights(1, touch_global=False))


def test_the_pipelines_differ_in_three_lines():
    off, on = (set(block.split("\n")) for block in (OFF_POLICY, ON_POLICY))

    assert len(off - on) == 3
    assert len(on - off) == 2
