"""What a script hands to middleware by mistake is refused at once, in its own words."""

import argparse
import types

import gymnasium
import pytest
import torch

from ding_lite.config import DDPGConfig, DQNConfig, IQLConfig, PPOConfig, RainbowConfig, REINFORCEConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    MultiAgentCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    inferencer,
    interaction_evaluator,
    montecarlo_return_estimator,
    multi_agent_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_logger,
    offpolicy_data_fetcher,
    online_logger,
    reward_normalizer,
    rolloutor,
    sequence_pusher,
    termination_checker,
    trainer,
)
from ding_lite.policy import DiscreteIQLPolicy, DQNPolicy, PPOPolicy
from ding_lite.policy_check import NonFiniteError

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
        (lambda: StepCollector(CFG, POLICY.collect_mode, gymnasium.make("CartPole-v1")), "expected a vector environment"),
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
            "OffPolicyLearner wants a configuration with policy.learn.update_per_collect, .* PPOConfig, .* multistep_trainer",
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
        (
            lambda: DiscreteIQLPolicy(IQLConfig().policy, *SPACES),
            "DiscreteIQLPolicy.* wants a DiscreteIQLPolicyConfig, got a IQLPolicyConfig: pass cfg.policy of the run's "
            "configuration, such as DiscreteIQLConfig",
        ),
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


MODES = {
    "learn_mode": {
        "trainer": lambda mode: trainer(CFG, mode),
        "multistep_trainer": lambda mode: multistep_trainer(PPO_CFG, mode),
        "OffPolicyLearner": lambda mode: OffPolicyLearner(CFG, mode, ReplayBuffer(2000)),
        "offpolicy_data_fetcher": lambda mode: offpolicy_data_fetcher(CFG, ReplayBuffer(2000), mode),
        "reward_normalizer": lambda mode: reward_normalizer(CFG, mode),
    },
    "collect_mode": {
        "StepCollector": lambda mode: StepCollector(CFG, mode, ENVS),
        "EpisodeCollector": lambda mode: EpisodeCollector(CFG, mode, ENVS),
        "inferencer": lambda mode: inferencer(0, mode, ENVS),
        "rolloutor": lambda mode: rolloutor(mode, ENVS),
        "gae_estimator": lambda mode: gae_estimator(PPO_CFG, mode),
        "montecarlo_return_estimator": lambda mode: montecarlo_return_estimator(PPO_CFG, mode),
        r"MultiAgentCollector \(policy 'one'\)": lambda mode: MultiAgentCollector(
            CFG, {"one": mode}, None, lambda agent: "one"
        ),
    },
    "eval_mode": {
        "interaction_evaluator": lambda mode: interaction_evaluator(CFG, mode, ENVS),
        r"multi_agent_evaluator \(policy 'one'\)": lambda mode: multi_agent_evaluator(
            CFG, {"one": mode}, None, lambda agent: "one"
        ),
    },
}
OTHER_MODES = ["learn_mode", "collect_mode", "eval_mode", None]
WRONG = [
    pytest.param(make, who, wanted, given, id=f"{who.split()[0]}-{given}")
    for wanted, makers in MODES.items()
    for who, make in makers.items()
    for given in OTHER_MODES
    if given != wanted
]


@pytest.mark.parametrize(("make", "who", "wanted", "given"), WRONG)
def test_another_face_and_the_policy_itself_are_refused_where_they_are_given(make, who, wanted, given):
    mode = PPO if given is None else getattr(PPO, given)
    told = "the policy itself" if given is None else f"policy.{given}"
    words = rf"{who} wants policy.{wanted}, got {told}, of type {type(mode).__name__}.*: pass policy.{wanted}\.$"
    with pytest.raises(TypeError, match=words):
        make(mode)


def test_several_policies_are_given_by_name():
    with pytest.raises(TypeError, match=r'MultiAgentCollector wants a dict of policies by name, such as {"first": policy.coll'):
        MultiAgentCollector(CFG, PPO.collect_mode, None, lambda agent: "one")


class Elsewhere:
    """A policy of a script's own, which is all of its modes."""

    train_iter = version = 0
    learn_mode = collect_mode = eval_mode = property(lambda self: self)

    def forward(self, batch):
        return {}

    def attach(self, name, thing):
        pass

    with_values = learner = None


@pytest.mark.parametrize("who", ["trainer", "multistep_trainer", "OffPolicyLearner", "reward_normalizer", "gae_estimator"])
def test_a_policy_made_elsewhere_is_taken_by_what_it_has(who):
    make = next(makers[who] for makers in MODES.values() if who in makers)

    assert callable(make(Elsewhere()))


@pytest.mark.parametrize("make", [trainer, multistep_trainer])
def test_a_call_without_the_configuration_says_how_to_call_it(make):
    words = rf"{make.__name__} wants policy.learn_mode, got 50 of type int, .*: write {make.__name__}\(cfg, policy.learn_mode\)"
    with pytest.raises(TypeError, match=words + r".*online_logger\(cfg, train_show_freq=...\)"):
        make(POLICY.learn_mode, 50)


@pytest.mark.parametrize("limit", ["a", 0, -1, True, float("nan")])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(ValueError, match=rf"termination_checker\(max_env_step={limit!r}\) wants a number of steps"):
        termination_checker(max_env_step=limit)


def test_learning_that_could_never_start_is_refused():
    with pytest.raises(ValueError, match="learning_starts = 1,000, and the replay buffer holds 999 transitions"):
        OffPolicyLearner(CFG, POLICY.learn_mode, ReplayBuffer(999))


def test_a_policy_that_learns_from_rollouts_is_not_given_transitions_in_any_order():
    envs = make_envs("CartPole-v1", 2, seed=0)
    ppo = PPOPolicy(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ValueError, match="OffPolicyLearner draws transitions in any order, and PPOPolicy learns from rollouts"):
        OffPolicyLearner(DQNConfig(), ppo.learn_mode, ReplayBuffer(100))


@pytest.mark.parametrize("make", [StepCollector, EpisodeCollector])
def test_the_configuration_of_another_algorithm_is_refused(make):
    envs = make_envs("CartPole-v1", 2, seed=0)
    ppo = PPOPolicy(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
    with pytest.raises(TypeError, match="was made with, PPOPolicyConfig, got a DQNConfig with a DQNPolicyConfig: use the same"):
        make(DQNConfig(), ppo.collect_mode, envs)
    with pytest.raises(TypeError, match="multistep_trainer wants the configuration that the policy was made with"):
        multistep_trainer(DQNConfig(), ppo.learn_mode)
    dqn = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    with pytest.raises(TypeError, match="was made with, DQNPolicyConfig, got a PPOConfig with a PPOPolicyConfig"):
        make(PPOConfig(), dqn.collect_mode, envs)


@pytest.mark.parametrize(("column", "name"), [("reward", "reward"), ("obs", "obs")])
def test_a_batch_with_nan_is_named_by_its_column(column, name):
    envs = make_envs("CartPole-v1", 2, seed=0)
    dqn = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    batch = {
        "obs": torch.zeros(4, 4),
        "action": torch.zeros(4, dtype=torch.int64),
        "reward": torch.zeros(4),
        "next_obs": torch.zeros(4, 4),
        "terminated": torch.zeros(4, dtype=torch.bool),
        "truncated": torch.zeros(4, dtype=torch.bool),
    }
    batch[column].view(-1)[0] = float("nan")
    with pytest.raises(NonFiniteError, match=f"DQNPolicy is nan in gradient step 0: {name} of the batch it learns from"):
        dqn.learn_mode.forward(batch)
