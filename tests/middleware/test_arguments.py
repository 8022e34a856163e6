"""What a script hands to middleware by mistake is refused at once, in its own words."""

import argparse
import types

import gymnasium
import pytest

from ding_lite.config import DDPGConfig, DQNConfig, PPOConfig, RainbowConfig, REINFORCEConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    montecarlo_return_estimator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_logger,
    offpolicy_data_fetcher,
    online_logger,
    reward_normalizer,
    sequence_pusher,
    termination_checker,
    trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

CFG = DQNConfig()
ENVS = make_envs("CartPole-v1", 2)
SPACES = ENVS.single_observation_space, ENVS.single_action_space
POLICY = DQNPolicy(CFG.policy, *SPACES)
PPO_CFG = PPOConfig()
PPO = PPOPolicy(PPO_CFG.policy, *SPACES)


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
        (lambda: eps_greedy_handler(DDPGConfig()), "policy.other.eps.*of type DDPGConfig, which has no 'policy.other.eps'"),
        (lambda: eps_greedy_handler(RainbowConfig()), "policy.other.eps, such as DQNConfig, got .* of type RainbowConfig"),
        (lambda: nstep_reward_enhancer(CFG.policy), "wants a configuration with policy.nstep, .* of type DQNPolicyConfig"),
        (lambda: gae_estimator(CFG, PPO.collect_mode), "gae_estimator wants .* policy.collect.gae_lambda .* type DQNConfig"),
        (lambda: gae_estimator(PPO_CFG, PPO), "gae_estimator wants policy.collect_mode, got .* of type PPOPolicy"),
        (lambda: gae_estimator(PPO_CFG, PPO.learn_mode), "gae_estimator wants policy.collect_mode, got .* type LearnMode"),
        (
            lambda: montecarlo_return_estimator(REINFORCEConfig(), PPO.learn_mode),
            "montecarlo_return_estimator wants policy.collect_mode, got .* of type LearnMode",
        ),
        (lambda: montecarlo_return_estimator(None), "wants a configuration with policy.collect.discount_factor or .* got None"),
        (lambda: reward_normalizer(None, PPO.learn_mode), "reward_normalizer wants a configuration with .*discount_factor"),
        (
            lambda: OffPolicyLearner(PPO_CFG, PPO.learn_mode, ReplayBuffer(10)),
            "OffPolicyLearner wants a configuration with policy.learn.update_per_collect, such as DQNConfig, .* type PPOConfig",
        ),
        (lambda: StepCollector(CFG.policy, POLICY.collect_mode, ENVS), "StepCollector wants the run's configuration"),
        (lambda: EpisodeCollector(None, POLICY.collect_mode, ENVS), "EpisodeCollector wants the run's configuration"),
        (lambda: interaction_evaluator(CFG.policy, POLICY.eval_mode, ENVS), "interaction_evaluator wants the run's config"),
        (lambda: online_logger(CFG.policy), "online_logger wants the run's configuration, such as DQNConfig, got .*'log'"),
        (
            lambda: StepCollector(CFG, POLICY.collect_mode, ENVS, random_collect_size="1000"),
            r"StepCollector\(random_collect_size='1000'\) wants an integer, got a str",
        ),
        (lambda: CkptSaver(POLICY, "runs", train_freq="100"), r"CkptSaver\(train_freq='100'\) wants an integer, got a str"),
        (lambda: CkptSaver(POLICY, "runs", keep_last=None), r"CkptSaver\(keep_last=None\) wants an integer"),
        (lambda: CkptSaver(POLICY, None), "CkptSaver wants the run's folder, such as cfg.exp_name, got None"),
        (lambda: CkptSaver(POLICY, CFG), "CkptSaver wants the run's folder, such as cfg.exp_name, got DQNConfig"),
        (lambda: CkptSaver(POLICY.learn_mode, "runs"), "CkptSaver wants the policy itself, got .* of type LearnMode"),
        (lambda: DQNPolicy(CFG, *SPACES), "DQNPolicy.* wants a DQNPolicyConfig, got a DQNConfig: pass cfg.policy"),
        (lambda: PPOPolicy(CFG.policy, *SPACES), "PPOPolicy.* wants a PPOPolicyConfig, got a DQNPolicyConfig"),
        (lambda: ReplayBuffer(1.5), r"ReplayBuffer\(capacity=1.5\) wants an integer, got a float"),
    ],
)
def test_another_object_is_refused_where_it_is_handed_over(mistake, words):
    with pytest.raises(TypeError, match=words):
        mistake()


class EasyDict(dict):
    """A dict whose keys are attributes, as configurations of other libraries are."""

    def __getattr__(self, name):
        if name in self:
            return EasyDict(self[name]) if isinstance(self[name], dict) else self[name]
        raise AttributeError(name)


FOREIGN = {
    "None": None,
    "dict": CFG.to_dict(),
    "namespace": types.SimpleNamespace(exp_name="x", policy=types.SimpleNamespace(learn=None)),
    "argparse": argparse.Namespace(batch_size=64),
    "easy dict": EasyDict(policy={"cuda": True, "learn": {"multi_gpu": False}, "collect": {}}, env={"manager": {}}),
    "class": DQNConfig,
    "policy": CFG.policy,
    "text": "dqn.yaml",
}

TAKES_CONFIGURATION = {
    "nstep_reward_enhancer": nstep_reward_enhancer,
    "eps_greedy_handler": eps_greedy_handler,
    "StepCollector": lambda cfg: StepCollector(cfg, POLICY.collect_mode, ENVS),
    "EpisodeCollector": lambda cfg: EpisodeCollector(cfg, POLICY.collect_mode, ENVS),
    "interaction_evaluator": lambda cfg: interaction_evaluator(cfg, POLICY.eval_mode, ENVS),
    "OffPolicyLearner": lambda cfg: OffPolicyLearner(cfg, POLICY.learn_mode, ReplayBuffer(2000)),
    "offpolicy_data_fetcher": lambda cfg: offpolicy_data_fetcher(cfg, ReplayBuffer(2000)),
    "sequence_pusher": lambda cfg: sequence_pusher(cfg, ReplayBuffer(2000)),
    "gae_estimator": lambda cfg: gae_estimator(cfg, PPO.collect_mode),
    "online_logger": online_logger,
    "offline_logger": offline_logger,
}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", TAKES_CONFIGURATION)
def test_a_configuration_that_is_none_of_ours_is_refused_by_the_middleware_that_takes_it(name, foreign):
    if foreign == "None" and name.endswith("_logger"):
        return  # they may be without one
    if foreign == "policy" and name in ("offpolicy_data_fetcher", "gae_estimator"):
        foreign_cfg = PPO_CFG.policy
    else:
        foreign_cfg = FOREIGN[foreign]
    with pytest.raises(
        TypeError, match=rf"^{name} wants .*such as \w+Config, got .* of type \w+, which has no '[\w.]+'"
    ) as caught:
        TAKES_CONFIGURATION[name](foreign_cfg)
    hint = {"dict": "DQNConfig().override(settings)", "class": "Pass an instance, DQNConfig()", "policy": "not cfg.policy"}
    assert hint.get(foreign, "") in str(caught.value)


@pytest.mark.parametrize("missing", ["env", "log"])
def test_an_evaluator_names_the_setting_that_a_configuration_made_elsewhere_lacks(missing):
    settings = EasyDict({name: part for name, part in CFG.to_dict().items() if name != missing})
    with pytest.raises(TypeError, match=rf"interaction_evaluator wants a configuration with {missing}\.\w+, such as DQNConfig"):
        interaction_evaluator(settings, POLICY.eval_mode, ENVS)
    interaction_evaluator(EasyDict(CFG.to_dict()), POLICY.eval_mode, ENVS)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (
            lambda: StepCollector(CFG, POLICY.collect_mode, ENVS, random_collect_size=-5),
            r"StepCollector\(random_collect_size=-5\) is out of range: it is at least 0",
        ),
        (lambda: CkptSaver(POLICY, "runs", train_freq=0), r"CkptSaver\(train_freq=0\) is out of range: it is at least 1"),
        (lambda: CkptSaver(POLICY, "runs", keep_last=0), r"CkptSaver\(keep_last=0\) is out of range: it is at least 1"),
        (lambda: online_logger(CFG, train_show_freq=0), r"online_logger\(train_show_freq=0\) is out of range"),
    ],
)
def test_a_number_out_of_range_is_refused_where_it_is_handed_over(mistake, words):
    with pytest.raises(ValueError, match=words):
        mistake()


@pytest.mark.parametrize("limit", ["a", 0, -1, True])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(ValueError, match=rf"termination_checker\(max_env_step={limit!r}\) wants a number of steps"):
        termination_checker(max_env_step=limit)


def test_learning_that_could_never_start_is_refused():
    with pytest.raises(ValueError, match="learning_starts = 1,000, and the replay buffer holds 999 transitions"):
        OffPolicyLearner(CFG, POLICY.learn_mode, ReplayBuffer(999))
