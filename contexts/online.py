"""The context of online RL: the data that middleware share in an iteration of evaluating, collecting and learning."""

from __future__ import annotations

import dataclasses
from typing import Any

from ding_lite.contexts.foreign_names import FOREIGN_FIELDS
from ding_lite.contexts.train_outputs import TrainOutput
from ding_lite.data import Episodes, Trajectories, Tree
from ding_lite.engine import Context

_FETCHER = {
    "provider": "a fetcher such as offpolicy_data_fetcher or onpolicy_data_fetcher, or an estimator such as gae_estimator",
    "consumer": "a learner such as trainer or multistep_trainer",
    "result": "train_output",
}
_LEARNER = {
    "provider": "a learner such as OffPolicyLearner, trainer or multistep_trainer",
    "copied_to": "learn_metrics",
}
_INFERENCER = {"provider": "an inferencer"}
_STEP_COLLECTOR = {"provider": "a collector such as StepCollector"}
_EPISODE_COLLECTOR = {"provider": "a collector such as EpisodeCollector"}
_KEPT = {"kept": True}


@dataclasses.dataclass
class OnlineRLContext(Context):
    """One iteration of online RL. Counters are kept from iteration to iteration, data is not."""

    foreign_fields = FOREIGN_FIELDS

    total_step: int = 0
    """Iterations finished before this one. Counted by the task."""

    env_step: int = dataclasses.field(default=0, metadata=_KEPT)
    """Environment steps since the start, summed over environments. Kept. Written by collectors."""

    env_episode: int = dataclasses.field(default=0, metadata=_KEPT)
    """Episodes finished since the start, summed over environments. Kept. Written by collectors."""

    train_iter: int = dataclasses.field(default=0, metadata=_KEPT)
    """Gradient steps since the start. Kept. Written by learners."""

    train_data: Any = dataclasses.field(default=None, metadata=_FETCHER)
    """The training batch, a tree: [B, ...] from a fetcher, [T, B, ...] from an estimator."""

    train_output: TrainOutput | None = dataclasses.field(default=None, metadata=_LEARNER)
    """Values of learning to log, scalar tensors by name: one dict per gradient step, or one of means.
    `ctx.train_output["loss"]` is the mean over the steps."""

    collect_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the policy's `compute_actions` while collecting, such as `eps`. Written by eps_greedy_handler."""

    obs: Tree | None = dataclasses.field(default=None, metadata=_INFERENCER)
    """The current observations, a tensor or tree [B, ...]. Written by inferencer."""

    action: Any = dataclasses.field(default=None, metadata=_INFERENCER)
    """The actions, a list by environment. Written by inferencer."""

    inference_output: dict[int, dict[str, Any]] | None = dataclasses.field(default=None, metadata=_INFERENCER)
    """The policy's outputs, by environment: action and extra outputs. Written by inferencer."""

    trajectories: Trajectories | None = dataclasses.field(default=None, metadata=_STEP_COLLECTOR)
    """This iteration's rollout, leaves [T, B, ...]; None before collection, and if whole episodes were collected instead.
    Written by StepCollector and rolloutor. May be replaced by a list of transitions."""

    episodes: Episodes | None = dataclasses.field(default=None, metadata=_EPISODE_COLLECTOR)
    """This iteration's whole episodes, in the order of `finished_episodes`; None before collection. Written by
    EpisodeCollector. May be replaced by a list of episodes."""

    trajectory_end_idx: list[int] = dataclasses.field(default_factory=list)
    """Index in `trajectories` of each environment's last transition. Written by StepCollector and rolloutor."""

    policy_version: int = -1
    """Version of the weights with which this iteration's data was collected; -1 if there are none, or if actions were random.
    Written by collectors."""

    finished_episodes: list[Any] = dataclasses.field(default_factory=list)
    """Episodes that ended while collecting, with return and length (`ding_lite.envs.EpisodeResult`). Written by collectors."""

    eval_value: float = -float("inf")
    """Mean return of this iteration's evaluation; minus infinity if there was none. Written by evaluators."""

    last_eval_iter: int = dataclasses.field(default=-1, metadata=_KEPT)
    """`train_iter` at the last evaluation; -1 before the first. Kept. Written by evaluators."""

    last_eval_value: float = dataclasses.field(default=-float("inf"), metadata=_KEPT)
    """Mean return of the last evaluation. Kept. Written by evaluators."""

    eval_weights: dict[str, Any] | None = None
    """The weights that were evaluated, tensors by name; None if there was no evaluation. Written by evaluators."""

    collect_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Metrics of collection: each middleware appends the result of its `MetricsLogger.reduce()`. Read by loggers."""

    learn_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Metrics of learning, in the same form."""

    eval_metrics: list[dict[Any, Any]] = dataclasses.field(default_factory=list)
    """Metrics of completed evaluations, in the same form."""
