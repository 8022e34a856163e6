"""What a script hands to middleware by mistake is refused at once, in its own words."""

import gymnasium
import pytest

from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    multistep_trainer,
    termination_checker,
    trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

CFG = DQNConfig()
ENVS = make_envs("CartPole-v1", 2)
SPACES = ENVS.single_observation_space, ENVS.single_action_space
POLICY = DQNPolicy(CFG.policy, *SPACES)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: StepCollector(CFG, POLICY, ENVS), "DQNPolicy does not act by itself: pass policy.collect_mode"),
        (lambda: interaction_evaluator(CFG, POLICY.learn_mode, ENVS), "LearnMode does not act by itself.*policy.eval_mode"),
        (lambda: StepCollector(CFG, POLICY.collect_mode, gymnasium.make("CartPole-v1")), "a vector environment is wanted"),
        (lambda: trainer(CFG, POLICY.collect_mode), "trainer wants policy.learn_mode, got .* of type CollectMode"),
        (lambda: multistep_trainer(POLICY.learn_mode, 100), "multistep_trainer wants policy.learn_mode, got 100"),
        (lambda: OffPolicyLearner(CFG, POLICY.learn_mode, []), r"wants a ReplayBuffer, got \[\] of type list"),
        (lambda: data_pusher(CFG, []), r"data_pusher wants a ReplayBuffer, got \[\] of type list"),
        (lambda: eps_greedy_handler(PPOConfig()), "eps_greedy_handler wants a configuration with policy.other.eps"),
        (lambda: CkptSaver(POLICY.learn_mode, "runs"), "CkptSaver wants the policy itself, got .* of type LearnMode"),
        (lambda: DQNPolicy(CFG, *SPACES), "DQNPolicy.* wants a DQNPolicyConfig, got a DQNConfig: pass cfg.policy"),
        (lambda: PPOPolicy(CFG.policy, *SPACES), "PPOPolicy.* wants a PPOPolicyConfig, got a DQNPolicyConfig"),
        (lambda: ReplayBuffer(1.5), r"ReplayBuffer\(capacity=1.5\) wants an integer, got a float"),
    ],
)
def test_another_object_is_refused_where_it_is_handed_over(mistake, words):
    with pytest.raises(TypeError, match=words):
        mistake()


@pytest.mark.parametrize("limit", ["a", 0, -1, True])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(ValueError, match=rf"termination_checker\(max_env_step={limit!r}\) wants a number of steps"):
        termination_checker(max_env_step=limit)


def test_learning_that_could_never_start_is_refused():
    with pytest.raises(ValueError, match="learning_starts = 1,000, and the replay buffer holds 999 transitions"):
        OffPolicyLearner(CFG, POLICY.learn_mode, ReplayBuffer(999))
