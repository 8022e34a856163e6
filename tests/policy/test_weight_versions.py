"""Each change of the weights reaches the copies that act, however it was made."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer
from ding_lite.policy import DQNPolicy, PPOPolicy

OBS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
SYNCHRONOUS, OVERLAPPING = {"max_lag": 0}, {"async_mode": True, "max_lag": 0}


@pytest.fixture
def envs():
    return make_envs("CartPole-v1", 4, seed=0)


SHORT = {"policy.collect.n_sample": 16, "policy.learn.batch_size": 8, "policy.learn.epoch_per_collect": 2}


def short():
    """A configuration of PPO with few gradient steps in an iteration."""
    return PPOConfig().override(SHORT)


def made(kind, envs, seed=0):
    cfg = DQNConfig() if issubclass(kind, DQNPolicy) else short()
    return kind(cfg.override({"seed": seed}).policy, envs.single_observation_space, envs.single_action_space)


class LoadsByItself(PPOPolicy):
    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])


class SavesTheModelAlone(LoadsByItself):
    def state_dict(self):
        return {"model": {name: tensor.clone() for name, tensor in self.model.state_dict().items()}}


@pytest.mark.parametrize("kind", [LoadsByItself, SavesTheModelAlone])
def test_a_load_state_dict_that_calls_torch_changes_the_acting_weights(kind, envs):
    one, other = made(kind, envs, 1), made(kind, envs, 2)
    before, snapshot = one.eval_mode.forward(OBS)[0], one.snapshot()
    one.load_state_dict(other.state_dict())
    after = one.eval_mode.forward(OBS)[0]

    assert (after == other.eval_mode.forward(OBS)[0]).all()
    assert (after != before).any()
    assert one.snapshot() is not snapshot


def test_weights_that_torch_loads_act_after_bump_version(envs):
    pretrained, policy = made(DQNPolicy, envs, 5), made(DQNPolicy, envs)
    policy.eval_mode.forward(OBS)
    policy.model.load_state_dict(pretrained.model.state_dict())
    policy.bump_version()

    assert (policy.eval_mode.forward(OBS)[0] == pretrained.eval_mode.forward(OBS)[0]).all()


def test_a_learn_on_batch_without_bump_version_changes_the_acting_weights(envs):
    class Quiet(PPOPolicy):
        def learn_on_batch(self, batch):
            loss, _ = self.loss(self.loss_batch(batch))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return {}

    cfg, policy, versions = short(), made(Quiet, envs), []
    with Task().start(ctx=OnlineRLContext()) as task:
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(lambda ctx: versions.append(ctx.policy_version))
        task.run(4)

    assert versions == [0, 1, 2, 3]


def test_each_gradient_step_is_one_version(envs):
    cfg, policy = short(), made(PPOPolicy, envs)
    with Task().start(ctx=OnlineRLContext()) as task:
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.run(2)

    assert policy.learn_mode.version == policy.train_iter > 0


@pytest.mark.few
@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
def test_weights_that_are_set_between_two_runs_collect_in_the_next(lag, is_final, envs):
    def collected_by(**mode):
        cfg, own = short(), make_envs("CartPole-v1", 4, seed=0)
        policy = made(PPOPolicy, own)
        start = policy.state_dict()
        with Task().start(ctx=OnlineRLContext(), max_lag=lag, **mode) as task:
            task.use(StepCollector(cfg, policy.collect_mode, own))
            task.use(gae_estimator(cfg, policy.collect_mode))
            task.use(multistep_trainer(cfg, policy.learn_mode))
            task.run(2, final=is_final)
            policy.set_weights(start["model"])
            version = policy.version
            task.run(1)
            return task.ctx.policy_version - version, float(task.ctx.train_output["entropy"])

    found = collected_by(async_mode=True)
    assert found[0] == 0
    assert found == collected_by()


def test_random_numbers_of_after_init_depend_on_the_seed(envs):
    class Curious(PPOPolicy):
        def after_init(self):
            self.predictor = nn.Linear(4, 4)

    torch.manual_seed(1)
    one = made(Curious, envs)
    torch.manual_seed(2)
    other, another = made(Curious, envs), made(Curious, envs, 1)

    torch.testing.assert_close(one.predictor.weight, other.predictor.weight, rtol=0, atol=0)
    assert not torch.equal(one.predictor.weight, another.predictor.weight)


def test_mixins_are_called_in_the_order_of_the_bases(envs):
    calls = []

    def logging(label, base):
        class Logging(base):
            def set_weights(self, weights):
                calls.append(f"{label}.set_weights")
                return super().set_weights(weights)

            def learn_on_batch(self, batch):
                calls.append(f"{label}.learn_on_batch")
                return super().learn_on_batch(batch)

            def load_state_dict(self, state):
                calls.append(f"{label}.load_state_dict")
                return super().load_state_dict(state)

        return Logging

    Mixin = logging("Mixin", object)
    Derived = logging("Derived", Mixin)

    class First(Mixin, PPOPolicy):
        pass

    class Both(First, Derived):
        pass

    policy = made(Both, envs)
    policy.set_weights(policy.get_weights())
    assert calls == ["Derived.set_weights", "Mixin.set_weights"]
    calls.clear()
    policy.load_state_dict({"model": policy.get_weights()})
    assert calls[:2] == ["Derived.load_state_dict", "Mixin.load_state_dict"]


def test_threads_that_ask_for_the_columns_wait_for_the_dry_run(envs):
    policy, found, barrier = made(PPOPolicy, envs), [], threading.Barrier(4)

    def ask():
        barrier.wait(30)
        found.append(policy.columns)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 1
    assert "log_prob" in found[0]
