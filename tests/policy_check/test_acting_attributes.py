"""Attributes that acting reads and learning changes, which the copies that act do not see, are named in a warning."""

import warnings

import pytest
import torch

from ding_lite import OnlineRLContext, Task
from ding_lite.config import DQNConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, OffPolicyLearner, StepCollector, data_pusher
from ding_lite.policy import DQNPolicy


class Acting(DQNPolicy):
    """Acts with an exploration of its own."""

    acting_settings = ()
    eps = 1.0

    def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
        return super().compute_actions(obs, state, explore=explore, eps=self.share_of_random() if explore else 0.0)

    def share_of_random(self):
        return self.eps


class Annealed(Acting):
    def after_step(self):
        super().after_step()
        self.eps *= 0.9


class AnnealedByHelper(Acting):
    def share_of_random(self):
        return epsilon_of(self)

    def loss(self, batch):
        self.eps = self.eps - 0.01
        return super().loss(batch)


def epsilon_of(policy):
    return policy.eps


class InWeights(Annealed):
    def get_weights(self):
        return {"networks": super().get_weights(), "eps": self.eps}

    def set_weights(self, weights):
        super().set_weights(weights["networks"])
        self.eps = weights["eps"]


class InBuffer(Acting):
    def make_model(self):
        model = super().make_model()
        model.register_buffer("epsilon", torch.ones(()))
        return model

    def share_of_random(self):
        return float(self.model.epsilon)

    def after_step(self):
        super().after_step()
        self.model.epsilon *= 0.9


class ByTrainIter(Acting):
    def share_of_random(self):
        return 0.9**self.train_iter


class NotRead(Acting):
    """Learning changes what acting does not read."""

    turns = 0

    def after_step(self):
        super().after_step()
        self.turns += 1


class Counting(Acting):
    """Acting changes what it reads."""

    turns = 0

    def share_of_random(self):
        self.turns += 1
        return max(0.0, 1 - self.turns / 60)


class CountingWithState(Counting):
    def state_dict(self):
        return {**super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state):
        super().load_state_dict({name: it for name, it in state.items() if name != "turns"})
        self.turns = state["turns"]


class Caching(Acting):
    """Acting assigns what it does not read."""

    def share_of_random(self):
        self.last = self.eps
        return self.eps


class LeavingOut(Counting):
    not_saved = ("turns",)


def warned(kind, folder, words, **mode):
    cfg = DQNConfig().override(
        {
            "policy.learn.learning_starts": 8,
            "policy.learn.batch_size": 4,
            "policy.learn.update_per_collect": 1,
            "policy.collect.n_sample": 8,
        }
    )
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_ = ReplayBuffer(100, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext(), **mode) as loop:
            loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_)).use(CkptSaver(policy, folder, train_freq=1))
            loop.run(5)
    return [str(it.message) for it in caught if words in str(it.message)]


MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])


@MODES
@pytest.mark.parametrize("kind", [Annealed, AnnealedByHelper])
def test_what_acting_reads_and_learning_changes_is_named_once(kind, mode, tmp_path):
    (found,) = warned(kind, tmp_path, "acting hooks read it", **mode)
    assert f"learning changes self.eps of {kind.__name__}, from 1.0 to 0.9" in found
    assert "Compute it from self.train_iter" in found


@pytest.mark.parametrize("kind", [Acting, InWeights, InBuffer, ByTrainIter, NotRead, Counting, Caching])
def test_what_the_copies_get_or_do_not_read_is_not(kind, tmp_path):
    assert warned(kind, tmp_path, "acting hooks read it") == []


@pytest.mark.parametrize("kind", [InWeights, InBuffer, ByTrainIter])
def test_the_fixes_reach_the_copy_that_collects(kind):
    """What the warning advises."""
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = kind(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    obs = torch.rand(2, 4)
    rows = {"obs": obs, "next_obs": obs, "action": torch.tensor([0, 1]), "reward": torch.ones(2)}
    rows["terminated"] = torch.tensor([False, True])
    assert policy.collect_mode.current().share_of_random() == 1.0
    for _ in range(3):
        policy.learn_mode.forward(rows)
    assert policy.collect_mode.current().share_of_random() == pytest.approx(0.9**3)


@MODES
@pytest.mark.parametrize("kind", [Counting, CountingWithState])
def test_what_the_copy_that_collects_changes_by_itself_is_named_as_unsaved(kind, mode, tmp_path):
    """Also where the class has a state_dict, since that is called for the policy, not for the copy."""
    (found,) = warned(kind, tmp_path, "in the copy that collects", **mode)
    assert f"{kind.__name__} remembers something from iteration to iteration (turns), in the copy that collects" in found


@pytest.mark.parametrize("kind", [Acting, Annealed, Caching, LeavingOut])
def test_what_it_does_not_change_or_read_or_need_is_not(kind, tmp_path):
    assert warned(kind, tmp_path, "in the copy that collects") == []
