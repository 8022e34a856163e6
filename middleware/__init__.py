"""Middleware: what a script chains with `task.use`."""

from typing import TYPE_CHECKING

from ding_lite.middleware.checkpoints import CkptSaver
from ding_lite.middleware.collectors import EpisodeCollector, StepCollector
from ding_lite.middleware.datasets import offline_data_fetcher, offline_data_saver
from ding_lite.middleware.epsilon_schedules import eps_greedy_handler, eps_greedy_masker
from ding_lite.middleware.estimators import gae_estimator, montecarlo_return_estimator
from ding_lite.middleware.evaluators import interaction_evaluator
from ding_lite.middleware.fetchers import offpolicy_data_fetcher, onpolicy_data_fetcher
from ding_lite.middleware.hindsight import HERLearner, her_data_enhancer
from ding_lite.middleware.inferencers import inferencer, rolloutor
from ding_lite.middleware.initial_priorities import priority_calculator
from ding_lite.middleware.learners import OffPolicyLearner, multistep_trainer, trainer
from ding_lite.middleware.loggers import offline_logger, online_logger
from ding_lite.middleware.metric_evaluators import metric_evaluator
from ding_lite.middleware.multi_agent import AgentsCollector as AgentsCollector
from ding_lite.middleware.multi_agent import MultiAgentCollector, multi_agent_evaluator
from ding_lite.middleware.multi_agent import agents_evaluator as agents_evaluator
from ding_lite.middleware.nstep_rewards import nstep_reward_enhancer
from ding_lite.middleware.policy_wrappers import for_policy
from ding_lite.middleware.policy_wrappers import part as part
from ding_lite.middleware.populations import population_exploiter, population_trainer
from ding_lite.middleware.populations import population_stepper as population_stepper
from ding_lite.middleware.pushers import data_pusher, sequence_pusher, sqil_data_pusher
from ding_lite.middleware.reward_normalizers import reward_normalizer
from ding_lite.middleware.rewards import reward_estimator
from ding_lite.middleware.terminations import ddp_termination_checker, termination_checker

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.middleware.foreign_names import __getattr__ as __getattr__

__all__ = [
    "CkptSaver",
    "EpisodeCollector",
    "HERLearner",
    "MultiAgentCollector",
    "OffPolicyLearner",
    "StepCollector",
    "data_pusher",
    "ddp_termination_checker",
    "eps_greedy_handler",
    "eps_greedy_masker",
    "for_policy",
    "gae_estimator",
    "her_data_enhancer",
    "inferencer",
    "interaction_evaluator",
    "metric_evaluator",
    "montecarlo_return_estimator",
    "multi_agent_evaluator",
    "multistep_trainer",
    "nstep_reward_enhancer",
    "offline_data_fetcher",
    "offline_data_saver",
    "offline_logger",
    "offpolicy_data_fetcher",
    "online_logger",
    "onpolicy_data_fetcher",
    "population_exploiter",
    "population_trainer",
    "priority_calculator",
    "reward_estimator",
    "reward_normalizer",
    "rolloutor",
    "sequence_pusher",
    "sqil_data_pusher",
    "termination_checker",
    "trainer",
]
