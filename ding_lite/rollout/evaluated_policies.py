"""Evaluated policies: the probabilities and samples of a policy's actions, for off-policy evaluation."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor

from ding_lite.data import Tree, nested, to_device, tree
from ding_lite.data.trees import is_tree, map_leaves
from ding_lite.functional import squashed_gaussian_log_prob, unsquash
from ding_lite.nn import ActionDistribution, clip_actions, get_action_mask, masked
from ding_lite.policy import BoxActionMixin, CollectMode, EpsilonGreedyMixin, EvalMode, LearnMode, Policy
from ding_lite.policy_check import require_shapes

_NEVER = -1e30  # a masked action has a lower logit, but not minus infinity


def log_prob_of(policy: EvalMode, batch: Tree | Mapping[str, Any], eps: float | None = None) -> Tensor:
    """Log-probabilities, or log-densities, of the actions of a batch under a policy.

    Policies with a distribution, such as PPO and A2C, have those of the distribution from which they sample. Policies that
    choose the action with the highest value, such as DQN, have those of epsilon-greedy acting.

    Args:
        policy: policy.eval_mode.
        batch: obs [N, *obs_shape], action [N, *action_shape]: a tree, or a mapping of tensors and arrays, such as
            `dataset.rows(...)`.
        eps: probability of a random action of epsilon-greedy policies; None for others.

    Returns:
        [N] float, on the CPU; minus infinity for actions that the policy never takes.

    Raises:
        ValueError: eps is missing, not in [0, 1], or has no effect; the policy is recurrent; it has no probabilities; or the
            batch does not fit its spaces.
        TypeError: the batch is something else, or has no obs or action.
    """
    evaluated = evaluated_policy(policy, eps, "log_prob_of")
    correlation = getattr(evaluated.actor.cfg.collect, "noise_correlation", 0)
    if correlation:
        warnings.warn(
            f"log_prob_of takes actions as independent, and {type(evaluated.actor).__name__} collects with "
            f"collect.noise_correlation = {correlation}: for the actions that it collected, for example as `behaviour`, the "
            "result is wrong. Use fitted_q_evaluation_metric for these.",
            stacklevel=2,
        )
    if not isinstance(batch, Mapping) and not is_tree(batch):
        raise TypeError(
            f"log_prob_of wants a batch with obs and action, got {batch!r:.80} of type {type(batch).__name__}: pass a tree, or "
            "a dict of tensors and arrays."
        )
    columns = nested(batch) if is_tree(batch) else batch
    if lacking := [name for name in ("obs", "action") if name not in columns]:
        raise TypeError(f"log_prob_of got a batch without {lacking[0]!r}: it has {', '.join(map(str, columns)) or 'nothing'}.")
    return evaluated.log_prob(tree({name: map_leaves(_narrowed, columns[name]) for name in ("obs", "action")}))


def _narrowed(leaf: Any) -> Any:
    """An array of float64 as float32, as datasets give it to a policy; everything else unchanged."""
    return leaf.astype(np.float32) if isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 else leaf


class EvaluatedPolicy(abc.ABC):
    """The actions of a policy, with its current weights.

    Args:
        actor: the acting copy of the policy.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.device: torch.device = actor.device

    @torch.no_grad()
    def log_prob(self, batch: Tree) -> Tensor:
        """See `log_prob_of`."""
        require_shapes("log_prob_of", self.actor, batch)
        obs, action = (to_device(nested(batch[name]), self.device) for name in ("obs", "action"))
        log_prob = self._log_prob(obs, action)
        return log_prob.masked_fill(log_prob < _NEVER, -torch.inf).cpu()

    def log_probs(self, obs: Any) -> Tensor | None:
        """The log-probabilities of all actions, [N, A], of a policy with Discrete actions; None for others."""
        return None

    @abc.abstractmethod
    def sample(self, obs: Any, generator: Generator) -> Any:
        """Actions [N, *action_shape] on the device, as the environment gets them, without gradient."""

    @abc.abstractmethod
    def _log_prob(self, obs: Any, action: Any) -> Tensor:
        """The log-probabilities of actions, [N]."""


class _Categorical(EvaluatedPolicy):
    """A policy with Discrete actions: that of a distribution, or epsilon-greedy."""

    def __init__(self, actor: Any, eps: float | None) -> None:
        super().__init__(actor)
        self._eps, self._start = eps, int(actor.action_space.start)

    @torch.no_grad()
    def log_probs(self, obs: Any) -> Tensor:
        if self._eps is None:
            return self.actor.model.logits(obs).log_softmax(-1)  # type: ignore[no-any-return]
        q_value, mask = self.actor.q_values(obs), get_action_mask(obs)
        allowed = torch.ones_like(q_value) if mask is None else mask.to(q_value)
        best = torch.zeros_like(q_value).scatter_(-1, masked(q_value, obs).argmax(-1, keepdim=True), 1.0)
        return ((1 - self._eps) * best + self._eps * allowed / allowed.sum(-1, keepdim=True)).log()

    def sample(self, obs: Any, generator: Generator) -> Any:
        return torch.multinomial(self.log_probs(obs).exp(), 1, generator=generator).squeeze(-1) + self._start

    def _log_prob(self, obs: Any, action: Any) -> Tensor:
        return self.log_probs(obs).gather(-1, (action.long() - self._start).unsqueeze(-1)).squeeze(-1)


class _Distributed(EvaluatedPolicy):
    """A policy with a distribution over actions of any space."""

    @torch.no_grad()
    def sample(self, obs: Any, generator: Generator) -> Any:
        model = self.actor.model
        return clip_actions(self.actor.action_space, model.distribution.sample(model.logits(obs), generator)[0])

    def _log_prob(self, obs: Any, action: Any) -> Tensor:
        log_prob: Tensor = self.actor.model.distribution.evaluate(self.actor.model.logits(obs), action)[0]
        return log_prob


class _Squashed(EvaluatedPolicy):
    """A policy with a squashed Gaussian over Box actions."""

    @torch.no_grad()
    def sample(self, obs: Any, generator: Generator) -> Any:
        return self.actor.model.bounds(self.actor.model.actor.sample(obs, generator)[0])

    def _log_prob(self, obs: Any, action: Any) -> Tensor:
        model = self.actor.model
        mean, log_std = model.actor(obs)
        # An element whose bounds are equal has one value, and no density.
        is_free = model.bounds.reach > 0
        raw = unsquash(model.bounds.to_unit(action))
        log_prob = squashed_gaussian_log_prob(mean[:, is_free], log_std[:, is_free], raw[:, is_free])
        # The density of the action of the environment is that of the unit action, divided by the reach of each element.
        log_reach: Tensor = model.bounds.reach[is_free].log().sum()
        return log_prob - log_reach


class _Deterministic(EvaluatedPolicy):
    """A policy whose evaluation mode chooses one action."""

    @torch.no_grad()
    def sample(self, obs: Any, generator: Generator) -> Any:
        action = self.actor.compute_actions(obs, [], explore=False)[0]
        return clip_actions(self.actor.action_space, action)

    def _log_prob(self, obs: Any, action: Any) -> Tensor:
        raise ValueError(
            f"{type(self.actor).__name__} has no probabilities of actions, evaluations choose one action: use "
            "fitted_q_evaluation_metric, or compare its actions with negative_action_error."
        )


def require_eval_mode(policy: object, who: str) -> None:
    """Raise TypeError if this is not policy.eval_mode."""
    if not isinstance(policy, EvalMode):
        kind = type(policy).__name__
        fix = (
            "pass that mode"
            if isinstance(policy, (Policy, CollectMode, LearnMode))
            else ("for a policy of another library, see 'A policy of your own' in docs/off_policy_evaluation.md")
        )
        raise TypeError(f"{who} wants policy.eval_mode, got {policy!r:.80} of type {kind}: {fix}.")


def require_no_memory(policy: EvalMode, who: str) -> None:
    """Raise ValueError for a policy whose actions depend on earlier steps of the episode. The noise of BoxActionMixin does not
    count, because evaluations have none."""
    actor = policy.current()
    if not isinstance(actor, BoxActionMixin) and actor.get_initial_state():
        raise ValueError(
            f"{who} wants a policy whose actions depend on the observation alone, and {type(actor).__name__} is recurrent."
        )


def evaluated_policy(policy: EvalMode, eps: float | None, who: str) -> EvaluatedPolicy:
    """The actions of a policy, with the weights that the mode acts with.

    Args:
        policy: policy.eval_mode.
        eps: see `log_prob_of`.
        who: the caller, for messages.

    Raises:
        TypeError: it is something else than policy.eval_mode.
        ValueError: see `log_prob_of`.
    """
    require_eval_mode(policy, who)
    require_no_memory(policy, who)
    actor = policy.current()
    name, model = type(actor).__name__, actor.model
    if isinstance(actor, EpsilonGreedyMixin):
        if eps is None or not 0 <= eps <= 1:
            raise ValueError(
                f"{who} got eps={eps!r}, and {name} chooses the action with the highest value: pass the probability of a "
                "random action of the policy to evaluate, such as eps=0.05."
            )
        return _Categorical(actor, eps)
    if eps is not None:
        raise ValueError(
            f"{who} got eps={eps!r}, which has no effect on {name}, because it is not epsilon-greedy: leave it out."
        )
    if isinstance(getattr(model, "distribution", None), ActionDistribution) and hasattr(model, "logits"):
        return _Categorical(actor, None) if isinstance(actor.action_space, spaces.Discrete) else _Distributed(actor)
    if isinstance(actor, BoxActionMixin) and actor.stochastic and actor.squashed:
        return _Squashed(actor)
    return _Deterministic(actor)
