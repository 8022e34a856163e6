"""Middleware: what a script chains with `task.use`.

Room: ding_lite.middleware, floor 6. Imports every floor below.
"""

from ding_lite.middleware.checkpoints import CkptSaver
from ding_lite.middleware.collectors import StepCollector, inferencer, rolloutor
from ding_lite.middleware.estimators import gae_estimator
from ding_lite.middleware.evaluators import interaction_evaluator
from ding_lite.middleware.explorers import eps_greedy_handler
from ding_lite.middleware.fetchers import offpolicy_data_fetcher
from ding_lite.middleware.learners import OffPolicyLearner, multistep_trainer, trainer
from ding_lite.middleware.loggers import offline_logger, online_logger
from ding_lite.middleware.pushers import data_pusher
from ding_lite.middleware.terminations import termination_checker

__all__ = [
    "CkptSaver",
    "OffPolicyLearner",
    "StepCollector",
    "data_pusher",
    "eps_greedy_handler",
    "gae_estimator",
    "inferencer",
    "interaction_evaluator",
    "multistep_trainer",
    "offline_logger",
    "offpolicy_data_fetcher",
    "online_logger",
    "rolloutor",
    "termination_checker",
    "trainer",
]
