"""DQN with what pipelines may add: rewards of several steps, and replay by priority; alone, together, dueling or not."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, tree
from ding_lite.envs import make_envs
from ding_lite.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler, nstep_reward_enhancer
from ding_lite.policy import DQNPolicy, DQNPolicyConfig


def by_definition(policy: DQNPolicy, batch: dict) -> tuple[list[float], list[float]]:
    """Loss and error of each row."""
    losses, errors = [], []
    for i in range(len(batch["reward"])):
        q = policy.model(batch["obs"][i : i + 1])[0].tolist()
        online = policy.model(batch["next_obs"][i : i + 1])[0].tolist()
        judged = policy.target_model(batch["next_obs"][i : i + 1])[0].tolist()
        future = judged[online.index(max(online))] if policy.cfg.double else max(judged)
        discount = batch["discount"][i].item() if "discount" in batch else policy.cfg.discount_factor
        target = batch["reward"][i].item() + (0 if batch["terminated"][i] else discount * future)
        error = abs(q[batch["action"][i].item()] - target)
        losses.append(0.5 * error**2 if error < 1 else error - 0.5)
        errors.append(error)
    return losses, errors


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_loss_takes_the_discount_and_the_weight_of_each_row(double, dueling, varied, moved_apart):
    settings = {"seed": 0, "double": double, "model.dueling": dueling, "model.encoder_hidden_size_list": [8]}
    policy = DQNPolicy(DQNPolicyConfig().override(settings), spaces.Box(-1, 1, (5,)), spaces.Discrete(3))
    policy.model.double()
    policy.target_model.double()
    batch = varied()
    loss, stats = moved_apart(policy).loss(tree(batch))
    losses, errors = by_definition(policy, batch)
    expected = np.mean(np.asarray(losses) * batch.get("weight", torch.ones(len(losses))).numpy())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    if "weight" in batch:
        np.testing.assert_allclose(stats["priority"], errors, rtol=1e-12)


@pytest.mark.few
@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("options", [{"double": False}, {"double": True}, {"model.dueling": True}], ids=str)
def test_a_pipeline_learns_with_each_of_them(options, nstep, by_priority):
    cfg = DQNConfig(seed=3).override({"policy.nstep": nstep, "policy.collect.n_sample": 32, "policy.learn": {
        "learning_starts": 32, "update_per_collect": 4, "batch_size": 16,
    }})  # fmt: skip
    cfg.policy.override({"model.encoder_hidden_size_list": [8], **options})
    envs = make_envs("CartPole-v1", 4, seed=3)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = (PrioritizedReplayBuffer if by_priority else ReplayBuffer)(1000, seed=3)
    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(eps_greedy_handler(cfg))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(nstep_reward_enhancer(cfg))
        loop.use(data_pusher(cfg, buffer))
        loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        loop.run(max_step=5)
    columns, state = buffer.state_dict()["columns"], buffer.state_dict()

    assert policy.train_iter == 20
    np.testing.assert_allclose(np.unique(columns["discount"]), [0.99**k for k in range(nstep, 0, -1)], rtol=1e-6)
    assert columns["reward"].max() == pytest.approx(sum(0.99**k for k in range(nstep)))
    if by_priority:
        assert len(np.unique(state["scaled"])) > 10
