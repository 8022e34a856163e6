"""Hindsight experience replay: learning from goals that were achieved instead of those that were desired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from gymnasium.vector import VectorEnv

from ding_lite.basics import foreign_arguments
from ding_lite.config import HERConfig, RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, GoalRewards, HindsightSampler
from ding_lite.middleware.arguments import require_settings
from ding_lite.middleware.fetchers import replay_fetcher
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.learners import OffPolicyLearner
from ding_lite.policy import LearnMode

Rewards = GoalRewards | Callable[[Any, Any, Any], Any]


class HERLearner(OffPolicyLearner):
    """Sample a batch, replace goals by goals that their episodes achieved, and learn from it, `update_per_collect` times.

    The outcome of an action does not depend on the goal. So the desired goal of some transitions is replaced by one
    that the same episode achieved, and their rewards are computed for it: `compute_reward` is called once for each batch. The
    batch has the same columns as one of OffPolicyLearner; see `HindsightSampler` for the ones that change. So there are
    rewards to learn from even if no goal was reached.

    Reads and writes the same fields as OffPolicyLearner. If the policy learns on a GPU, batches are prepared in advance too.

    Args:
        cfg: uses her.strategy and her.ratio, and the settings of OffPolicyLearner. Rewards must be those of single steps.
        policy: policy.learn_mode.
        buffer_: an EpisodeReplayBuffer, filled by data_pusher with rollouts of a StepCollector or EpisodeCollector.
        compute_reward: result of `goal_rewards(env)`; or a function (achieved_goal, desired_goal, info) of arrays [N, ...] that
            returns rewards [N]. `info` has the recorded `env.info_columns`, [N, ...] by name. With a function, `terminated` is
            not changed; `GoalRewards` may have one for it too.
        prefetch: as for OffPolicyLearner.

    Raises:
        TypeError: another buffer, or no function; or the configuration has no section `her`.
        ValueError: policy.nstep is more than 1; or, in an iteration, the function returns another shape, or the replayed
            observations have no goals.

    Reference:
        Andrychowicz et al. (2017), https://arxiv.org/abs/1707.01495, algorithm 1.
    """

    @foreign_arguments(ARGUMENTS["HERLearner"])
    def __init__(
        self,
        cfg: RunConfig,
        policy: LearnMode,
        buffer_: EpisodeReplayBuffer,
        compute_reward: Rewards,
        prefetch: bool | None = None,
    ) -> None:
        super().__init__(cfg, policy, _sampler("HERLearner", cfg, buffer_, compute_reward), prefetch=prefetch)


@foreign_arguments(ARGUMENTS["her_data_enhancer"])
def her_data_enhancer(
    cfg: RunConfig, buffer_: EpisodeReplayBuffer, compute_reward: Rewards, policy: LearnMode | None = None
) -> Callable[[OnlineRLContext], Iterator[None] | None]:
    """Sample a batch in which goals are replaced by goals that their episodes achieved; for `trainer`, or your own middleware.

    Writes:
        ctx.train_data: see `HindsightSampler`; None while there are too few transitions.

    Args:
        cfg: uses her.strategy and her.ratio, and the settings of offpolicy_data_fetcher.
        buffer_, compute_reward: as for HERLearner.
        policy: if given, only the columns that its hooks read are fetched, as far as they are known.

    Raises:
        TypeError, ValueError: as HERLearner.
    """
    source = _sampler("her_data_enhancer", cfg, buffer_, compute_reward)
    enhance = replay_fetcher("her_data_enhancer", cfg, source, policy)
    enhance.__qualname__ = "her_data_enhancer.<locals>.enhance"  # its name in messages
    return enhance


def _sampler(who: str, cfg: RunConfig, buffer_: object, compute_reward: object) -> HindsightSampler:
    """The source of batches of both middleware."""
    require_settings(who, cfg, "her.strategy", "her.ratio", such_as="HERConfig")
    if not isinstance(buffer_, EpisodeReplayBuffer):
        raise TypeError(
            f"{who} wants an EpisodeReplayBuffer, which knows the episode of each transition, got a {type(buffer_).__name__}: "
            "make it with EpisodeReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed). Prioritised replay is not "
            "possible, because priorities belong to the stored goals."
        )
    her = cast("HERConfig", cfg).her  # other configurations may have this section too
    nstep = getattr(cfg.policy, "nstep", 1)
    if nstep > 1:
        raise ValueError(
            f"{who} computes the rewards of single steps, and policy.nstep = {nstep}: set policy.nstep = 1, and leave "
            "nstep_reward_enhancer out."
        )
    if isinstance(compute_reward, GoalRewards):
        return HindsightSampler(buffer_, compute_reward, her.strategy, her.ratio)
    if not callable(compute_reward):
        hint = "pass goal_rewards(env)" if isinstance(compute_reward, VectorEnv) else "use goal_rewards(env)"
        raise TypeError(
            f"{who} wants compute_reward, a function of (achieved_goal, desired_goal, info) for many goals, got "
            f"{compute_reward!r:.60} of type {type(compute_reward).__name__}: {hint}, with goal_rewards from ding_lite.envs."
        )
    return HindsightSampler(buffer_, GoalRewards(compute_reward), her.strategy, her.ratio)
