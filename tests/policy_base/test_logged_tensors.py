"""Statistics are logged with the values that they had when they were returned, whatever changes their tensors later."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import tree
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer
from ding_lite.policy import PPOPolicy
from ding_lite.policy_base import Policy
from ding_lite.policy_base.logged_tensors import HeldStats

OBS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
OUTSIDE = {"level": torch.tensor(0.0)}


class Changing(Policy):
    """Returns tensors that later steps change: one of its own, one of a dict, an array, a parameter, and an average."""

    learns_from = "transitions"

    def after_init(self):
        self.temperature, self.levels, self.array, self.average = torch.tensor(1.0), [torch.tensor(0.0)], np.zeros(()), None
        OUTSIDE["level"].zero_()

    def loss(self, batch):
        loss = self.model.logits(batch.obs).square().mean()
        if self.average is None:
            self.average = loss.detach().clone()
        held = {"temperature": self.temperature, "level": self.levels[0], "outside": OUTSIDE["level"], "array": self.array}
        first = next(iter(self.model.parameters())).flatten()[0]
        return loss, {**held, "average": self.average, "weight": first, "computed": 2 * self.temperature, "number": 3.0}

    def after_step(self):
        self.temperature.mul_(0.5)
        self.levels[0] += 1
        OUTSIDE["level"].add_(2)
        self.array += 1
        self.average.lerp_(torch.tensor(9.0), 0.5)


class Compiled(Policy):
    """The part of it that can be compiled."""

    learns_from = "transitions"

    def after_init(self):
        self.temperature, self.level = torch.tensor(1.0), torch.tensor(0.0)

    def loss(self, batch):
        first = next(iter(self.model.parameters())).flatten()[0]
        held = {"temperature": self.temperature, "level": self.level, "weight": first}
        return self.model.logits(batch.obs).square().mean(), {**held, "computed": 2 * self.temperature}

    def after_step(self):
        self.temperature.mul_(0.5)
        self.level += 1


def steps_of(policy, count):
    batch = tree({"obs": torch.ones(4, 3), "action": torch.zeros(4, dtype=torch.int64)})
    return [policy.learn_mode.forward(batch) for _ in range(count)]


@pytest.mark.filterwarnings("error:.*learn.compile")
@pytest.mark.parametrize("compile", ["off", "on"])
@pytest.mark.parametrize("dry", [False, True])
def test_each_step_has_the_values_of_its_own_time(compile, dry):
    policy = (Compiled if compile == "on" else Changing)({"seed": 0, "learn.compile": compile}, OBS, ACTIONS)
    weights = []
    if dry:
        policy.dry_run()
    outputs = []
    for _ in range(9):
        weights.append(next(iter(policy.model.parameters())).flatten()[0].item())
        outputs += steps_of(policy, 1)
    found = {name: [float(one[name]) for one in outputs] for name in outputs[0]}

    assert found["temperature"] == [0.5**i for i in range(9)]
    assert found["computed"] == [2 * 0.5**i for i in range(9)]
    assert found["level"] == list(range(9))
    assert found["weight"] == weights
    assert len(set(weights)) == 9
    if compile == "off":
        assert found["outside"] == list(range(0, 18, 2))
        assert found["array"] == list(range(9))
        assert found["number"] == [3.0] * 9
        assert len(set(found["average"])) == 9


def test_what_learning_itself_returns_has_the_values_of_its_time_too():
    class Own(Policy):
        learns_from = "transitions"

        def after_init(self):
            self.stored = {"level": torch.tensor(0.0)}

        def learn_on_batch(self, batch):
            self.stored["level"] += 1
            return self.stored

    policy = Own({"seed": 0}, OBS, ACTIONS)
    assert [float(one["level"]) for one in steps_of(policy, 9)] == list(range(1, 10))
    assert policy.stored["level"] == 9  # its own dict stays as it is


def test_the_mean_over_minibatches_is_that_of_the_values_of_their_time():
    class Own(PPOPolicy):
        def after_init(self):
            self.temperature = torch.tensor(1.0)

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, "temperature": self.temperature}

        def after_step(self):
            super().after_step()
            self.temperature.mul_(0.9)

    cfg = PPOConfig().override({"policy.collect.n_sample": 64, "policy.learn.batch_size": 32})
    envs, task = make_envs("CartPole-v1", 4, seed=0), Task()
    policy = Own(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs)).use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode)).run(1)
        found = float(task.ctx.train_output["temperature"])

    assert found == pytest.approx(np.mean([0.9**i for i in range(2 * cfg.policy.learn.epoch_per_collect)]), rel=1e-5)


def test_what_is_computed_anew_is_not_copied_for_long():
    held, kept = HeldStats(), torch.tensor(1.0)
    for _ in range(20):
        stats = {"new": torch.rand(()), "rows": torch.rand(4), "kept": kept, "view": kept.detach(), "number": 1.0, "text": "a"}
        found = held.kept(stats)
    assert [name for name in stats if found[name] is not stats[name]] == ["kept", "view"]
    assert found == stats


def test_statistics_are_detached():
    held, loss = HeldStats(), torch.ones((), requires_grad=True) * 2
    for _ in range(9):
        found = held.kept({"loss": loss, "number": 2.0})
    assert not found["loss"].requires_grad
    assert found == {"loss": 2.0, "number": 2.0}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_a_copy_of_it_knows_nothing_yet(copied):
    held, kept = HeldStats(), torch.tensor(1.0)
    for _ in range(9):
        held.kept({"kept": kept, "new": torch.rand(())})

    new = torch.tensor(2.0)
    assert copied(held).kept({"new": new})["new"] is not new
    assert held.kept({"new": new})["new"] is new
