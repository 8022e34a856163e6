"""Off-policy metrics: how good a policy is, from a dataset, for `metric_evaluator(cfg, policy.eval_mode, dataset, metric)`."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.data import Tree, flatten, nested
from ding_lite.datasets import OfflineDataset
from ding_lite.envs.arrays import actions_to_arrays
from ding_lite.functional import doubly_robust as doubly_robust_terms
from ding_lite.functional import effective_sample_size, weighted_standard_error
from ding_lite.functional import importance_sampling as importance_sampling_terms
from ding_lite.nn import ActionBounds, clip_actions
from ding_lite.policy import EvalMode
from ding_lite.rollout.evaluated_policies import evaluated_policy, require_no_memory
from ding_lite.rollout.fitted_q import FittedQ, FittedQConfig, require_dataset, require_discount, require_ends

Metric: TypeAlias = Callable[[EvalMode, OfflineDataset], "float | dict[str, float]"]
LogProb: TypeAlias = Callable[[Tree], Tensor]
"""From a batch, with obs and action, to log-probabilities [N]."""

_ROWS = 8192  # evaluated at once
_ROUNDING = 1e-4  # of log-probabilities, from float32
_LARGEST = 230.0  # logarithm of the largest ratio, so that squares are finite
_FEWEST_STEPS = 100  # for a warning about the mean ratio
_STD_ERRORS, _FAR, _LEAST_SHARE = 6.0, 0.2, 0.3


def importance_sampling_metric(
    gamma: float,
    weighted: bool = False,
    per_decision: bool = True,
    eps: float | None = None,
    behaviour: LogProb | None = None,
) -> Metric:
    """A metric: the discounted return of the policy, by importance sampling from the episodes of a dataset.

    The policy that is evaluated is the one that samples actions, see `log_prob_of`. Episodes that the dataset holds up to their
    end count, terminated or truncated; the value is that of as many steps as the episodes have. Unfinished ones are left out.

    The metric returns value; std_error, its standard error, see `weighted_standard_error`, if there are several episodes;
    effective_sample_size, which is much smaller than episodes if the policy differs too much from the one that collected;
    mean_ratio, the mean ratio of the probabilities of the actions under both policies, over all steps; behaviour_value, the
    mean discounted return of the episodes; and episodes, their number.

    The expected mean_ratio is 1. If it is so far from 1 that it cannot be by chance, a warning says so: log_prob is wrong, or
    the policy takes actions that the one that collected never takes, or it has learned from these episodes by heart.

    Args:
        gamma: discount per step, in [0, 1].
        weighted: normalise the weights: biased, and much less variable.
        per_decision: weigh each reward by the ratios up to its step, instead of by those of the whole episode.
        eps: probability of a random action of epsilon-greedy policies; None for others.
        behaviour: log-probabilities under the policy that collected, for a dataset without the column log_prob, which
            `offline_data_saver` records of policies that have them.

    Raises:
        ValueError: gamma is not in [0, 1]. In an evaluation: the dataset has no finished episode or no log_prob; log_prob is
            NaN or infinite, or above 0 where actions have no Box, so that they have probabilities and not densities; or as by
            `log_prob_of`.

    Reference:
        Precup et al. (2000), "Eligibility Traces for Off-Policy Policy Evaluation".
    """
    _require_gamma("importance_sampling_metric", gamma)

    def measure(policy: EvalMode, dataset: OfflineDataset) -> dict[str, float]:
        episodes = _finished(policy, dataset, "importance_sampling_metric")
        log_ratio, reward, valid = _padded(policy, episodes, eps, behaviour, "importance_sampling_metric")
        terms = importance_sampling_terms(log_ratio, reward, valid, gamma=gamma, weighted=weighted, per_decision=per_decision)
        found = _summary(terms, log_ratio, reward, valid, gamma, "importance_sampling_metric")
        if weighted and len(terms) > 1:
            error = weighted_standard_error(log_ratio, reward, valid, gamma=gamma, per_decision=per_decision)
            found["std_error"] = float(error)
        return found

    measure.__name__ = "importance_sampling_metric"
    return measure


def doubly_robust_metric(
    gamma: float,
    weighted: bool = False,
    eps: float | None = None,
    behaviour: LogProb | None = None,
    cfg: FittedQConfig | None = None,
) -> Metric:
    """A metric: the discounted return of the policy, by importance sampling around the values of fitted Q evaluation.

    The network is fitted anew in each evaluation, on all transitions. Its value of the observation after the last step stands
    for the rest of truncated and unfinished episodes, so that all episodes count, and the value is that without a time limit.

    The metric returns what that of `importance_sampling_metric` does, fitted_value, the value by the network alone, and
    td_error, its error.

    Args:
        gamma: discount per step, in [0, 1]; 1 needs a dataset in which all episodes terminate.
        weighted, eps, behaviour: as for `importance_sampling_metric`.
        cfg: settings of the network.

    Raises:
        ValueError: gamma is not in [0, 1]. In an evaluation: gamma is 1 and an episode does not terminate; or as by
            `importance_sampling_metric`.

    Reference:
        Jiang and Li (2016), https://arxiv.org/abs/1511.03722; Thomas and Brunskill (2016), https://arxiv.org/abs/1604.00923.
    """
    _require_gamma("doubly_robust_metric", gamma)

    def measure(policy: EvalMode, dataset: OfflineDataset) -> dict[str, float]:
        require_dataset(policy, dataset, "doubly_robust_metric")
        require_ends("doubly_robust_metric", gamma, dataset)
        log_ratio, reward, valid = _padded(policy, dataset, eps, behaviour, "doubly_robust_metric")
        fitted = FittedQ(policy, dataset, gamma, eps, cfg).fit()
        q_value, value = (_in_chunks(dataset, fn) for fn in (fitted.q_values, fitted.values))
        last = np.cumsum(dataset.lengths) - 1
        terminated = dataset.take(last, ("terminated",)).terminated
        last_value = fitted.values(last, later=True).masked_fill(terminated, 0)
        values = _episodes(q_value, valid), _episodes(value, valid), last_value
        terms = doubly_robust_terms(log_ratio, reward, *values, valid, gamma=gamma, weighted=weighted)
        first = value[torch.from_numpy(last - dataset.lengths + 1)]
        fit = {"fitted_value": float(first.double().mean()), "td_error": fitted.error}
        found = {**_summary(terms, log_ratio, reward, valid, gamma, "doubly_robust_metric"), **fit}
        if weighted and len(terms) > 1:
            later = torch.cat((values[1][1:], torch.zeros_like(values[1][:1])))
            ends = torch.from_numpy(dataset.lengths)[None] - 1
            later = later.scatter(0, ends, last_value.double()[None])
            gained = reward - values[0] + gamma * later
            found["std_error"] = float(weighted_standard_error(log_ratio, gained, valid, values[1][0], gamma=gamma))
        return found

    measure.__name__ = "doubly_robust_metric"
    return measure


def fitted_q_evaluation_metric(gamma: float, eps: float | None = None, cfg: FittedQConfig | None = None) -> Metric:
    """A metric: the discounted return of the policy, by a network that learns its values from a dataset; see `FittedQ`.

    It needs no log-probabilities of the policy that collected. Policies with a distribution are evaluated as they sample,
    others as they act in evaluations, or epsilon-greedily. The network is fitted anew in each evaluation.

    The metric returns value, the mean over the first observations of the episodes; td_error, the error of the network; and
    episodes, their number.

    Args:
        gamma: discount per step, in [0, 1]; 1 needs a dataset in which all episodes terminate.
        eps: probability of a random action of epsilon-greedy policies; None for others.
        cfg: settings of the network.

    Raises:
        ValueError: gamma is not in [0, 1]. In an evaluation: as by `FittedQ`.

    Reference:
        Le et al. (2019), https://arxiv.org/abs/1903.08738, algorithm 3.
    """
    _require_gamma("fitted_q_evaluation_metric", gamma)

    def measure(policy: EvalMode, dataset: OfflineDataset) -> dict[str, float]:
        require_dataset(policy, dataset, "fitted_q_evaluation_metric")
        require_ends("fitted_q_evaluation_metric", gamma, dataset)
        fitted = FittedQ(policy, dataset, gamma, eps, cfg).fit()
        first = np.cumsum(dataset.lengths) - dataset.lengths
        value = float(fitted.values(first).double().mean())
        return {"value": value, "td_error": fitted.error, "episodes": float(dataset.num_episodes)}

    measure.__name__ = "fitted_q_evaluation_metric"
    return measure


def _require_gamma(who: str, gamma: Any) -> None:
    """Refuse another first argument than gamma, such as those of the metric that is made."""
    if not isinstance(gamma, (numbers.Real, Tensor)):
        raise TypeError(
            f"{who} makes a metric, and its first argument is gamma, a number in [0, 1], got one of type "
            f"{type(gamma).__name__}: write {who}(0.99)(policy.eval_mode, dataset)."
        )
    require_discount(who, float(gamma))


METRIC_FACTORIES = (importance_sampling_metric, doubly_robust_metric, fitted_q_evaluation_metric)
"""Functions that make a metric."""


def action_agreement(policy: EvalMode, dataset: OfflineDataset) -> float:
    """A metric: the share of recorded actions that the policy takes too, for actions without a Box.

    Raises:
        ValueError: actions have a Box, or there are none; or the policy is recurrent.
    """
    require_dataset(policy, dataset, "action_agreement")
    require_no_memory(policy, "action_agreement")
    if any(isinstance(box, spaces.Box) for box in _leaves(policy.current().action_space)):
        raise ValueError("action_agreement compares actions for equality, and these have a Box: use negative_action_error.")

    def agree(rows: Any) -> Tensor:
        recorded, chosen = _both_actions(policy, dataset, rows)
        equal = [(leaf == recorded[path]).reshape(len(rows), -1).all(-1) for path, leaf in chosen.items()]
        return torch.stack(equal).all(0)

    return float(_in_chunks(dataset, agree).double().mean())


def negative_action_error(policy: EvalMode, dataset: OfflineDataset) -> float:
    """A metric: minus the mean squared error of the policy's actions, so at most 0, and larger is better. For actions in a Box,
    scaled to [-1, 1].

    Raises:
        ValueError: actions are not in a Box with finite bounds, or there are none; or the policy is recurrent.
    """
    require_dataset(policy, dataset, "negative_action_error")
    require_no_memory(policy, "negative_action_error")
    space = policy.current().action_space
    if not isinstance(space, spaces.Box) or not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(f"negative_action_error wants actions in a Box with finite bounds, got {space}: use action_agreement.")
    bounds = ActionBounds(space)

    def square(rows: Any) -> Tensor:
        unit = [bounds.to_unit(clip_actions(space, actions[()])) for actions in _both_actions(policy, dataset, rows)]
        return (unit[0] - unit[1]).square().mean(-1)

    return -float(_in_chunks(dataset, square).double().mean())


def action_log_prob(policy: EvalMode, dataset: OfflineDataset, eps: float | None = None) -> float:
    """A metric: the mean log-probability of the recorded actions under the policy; see `log_prob_of`.

    Of epsilon-greedy policies: `functools.partial(action_log_prob, eps=0.05)`.
    """
    require_dataset(policy, dataset, "action_log_prob")
    return float(_log_probs(policy, dataset, eps, "action_log_prob").double().mean())


def _both_actions(policy: EvalMode, dataset: OfflineDataset, rows: Any) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """The recorded actions and those of the policy, leaves by path."""
    batch = dataset.take(rows, ("obs", "action"))
    chosen = policy.forward(nested(batch.obs))[0]
    space = policy.current().action_space
    both = nested(batch.action), actions_to_arrays(chosen, space)
    recorded, own = ({path: torch.as_tensor(leaf) for path, leaf in flatten(actions)} for actions in both)
    return recorded, own


def _leaves(space: Any) -> list[Any]:
    parts = getattr(space, "spaces", None)
    if parts is None:
        return [space]
    return [leaf for part in (parts.values() if hasattr(parts, "values") else parts) for leaf in _leaves(part)]


def _finished(policy: EvalMode, dataset: OfflineDataset, who: str) -> OfflineDataset:
    require_dataset(policy, dataset, who)
    chosen = np.flatnonzero(dataset.finished)
    if not len(chosen):
        raise ValueError(
            f"{who} got the dataset {dataset.name}, in which no episode is recorded up to its end: record longer, or use "
            "doubly_robust_metric or fitted_q_evaluation_metric."
        )
    return dataset.select(chosen)


def _padded(
    policy: EvalMode, dataset: OfflineDataset, eps: float | None, behaviour: LogProb | None, who: str
) -> tuple[Tensor, Tensor, Tensor]:
    """log_ratio, reward and valid of all episodes, [T, B]."""
    require_dataset(policy, dataset, who)
    if behaviour is None and "log_prob" not in dataset.columns:
        raise ValueError(
            f"{who} found no log_prob in the dataset {dataset.name}, the log-probabilities of the policy that collected: "
            "offline_data_saver records them of policies that have them, such as PPO. Otherwise pass "
            "behaviour=lambda batch: log_prob_of(collecting_policy.eval_mode, batch), or use fitted_q_evaluation_metric."
        )
    if behaviour is None:
        recorded = dataset.take(range(len(dataset)), ("log_prob",)).log_prob
        where = f"{who} found log_prob = {{}} in row {{}} of the dataset {dataset.name}"
    else:
        recorded = _in_chunks(dataset, lambda rows: _behaviour_log_prob(behaviour, dataset, rows, who))
        where = f"{who} got {{}} from behaviour for row {{}} of the dataset {dataset.name}"
    _require_log_probs(recorded, where, policy.current().action_space)
    log_ratio = _log_probs(policy, dataset, eps, who).double() - recorded.double()
    lengths = torch.from_numpy(dataset.lengths)
    valid = torch.arange(int(lengths.max()))[:, None] < lengths
    reward = dataset.take(range(len(dataset)), ("reward",)).reward
    return _episodes(log_ratio, valid), _episodes(reward, valid), valid


def _require_log_probs(log_prob: Tensor, where: str, action_space: Any) -> None:
    """Refuse numbers [N] that are no log-probabilities of recorded actions; `where` has places for the number and its row."""
    if log_prob.ndim != 1:
        raise ValueError(f"{where.format(f'numbers of shape {[*log_prob.shape[1:]]}', 0)}: it wants one number for each row.")
    has_densities = any(isinstance(leaf, spaces.Box) for leaf in _leaves(action_space))
    for is_wrong, problem in (
        (
            log_prob.isnan(),
            "which is no number: find out where it comes from, or leave the episode out, dataset.select([...]).",
        ),
        (
            log_prob.isneginf(),
            "so the policy that collected takes a recorded action with probability 0: pass the log-probabilities of the policy "
            "that really collected, with its exploration.",
        ),
        (
            (log_prob > _ROUNDING) & (not has_densities),
            "and logarithms of probabilities are at most 0: if these are probabilities, give np.log(p).",
        ),
        (log_prob.isposinf(), "which is no density: find out where it comes from, or leave the episode out."),
    ):
        if len(rows := is_wrong.nonzero()):
            row = int(rows[0])
            raise ValueError(f"{where.format(f'{log_prob[row].item():g}', row)}, {problem}")


def _mean_ratio(log_ratio: Tensor, valid: Tensor, who: str) -> float:
    """The mean ratio of all steps; warns if it is not 1, as it is expected to be, and not by chance.

    Below 1, it only warns if ratios are so equal that no rare large ones can be missing from them.
    """
    ratio = log_ratio[valid].clamp(max=_LARGEST).exp()
    count, mean = len(ratio), float(ratio.mean())
    if count < _FEWEST_STEPS:
        return mean
    # The step of a martingale: the errors of an episode's steps are not correlated.
    is_far = abs(mean - 1) > max(_FAR, _STD_ERRORS * float(ratio.std()) / count**0.5)
    share = mean**2 / max(float(ratio.square().mean()), 1e-300)
    if is_far and (mean > 1 or share > _LEAST_SHARE):
        other = (
            "has learned from these episodes by heart: evaluate it on others, see dataset.split"
            if mean > 1
            else "often takes actions that the dataset does not have"
        )
        warnings.warn(
            f"{who} found that the ratio of the probabilities of a recorded action under the policy and under the one that "
            f"collected is {mean:.3g} on average over {count:,} steps, and 1 is expected: do not trust the estimate. Either "
            f"log_prob, or behaviour, has not the log-probabilities of the policy that collected, or the policy {other}.",
            stacklevel=4,
        )
    return mean


def _behaviour_log_prob(behaviour: LogProb, dataset: OfflineDataset, rows: Any, who: str) -> Tensor:
    if not callable(behaviour):
        fix = "lambda batch: log_prob_of(collecting_policy.eval_mode, batch)"
        raise TypeError(
            f"{who} wants a function of a batch as behaviour, got a {type(behaviour).__name__}: pass behaviour={fix}."
        )
    found = torch.as_tensor(behaviour(dataset.take(rows, ("obs", "action"))))
    if found.shape != (len(rows),):
        raise ValueError(
            f"{who} wants log-probabilities [{len(rows)}] of a batch from behaviour, got {[*found.shape]}: return "
            "one for each row."
        )
    return found


def _log_probs(policy: EvalMode, dataset: OfflineDataset, eps: float | None, who: str) -> Tensor:
    evaluated = evaluated_policy(policy, eps, who)
    return _in_chunks(dataset, lambda rows: evaluated.log_prob(dataset.take(rows, ("obs", "action"))))


def _in_chunks(dataset: OfflineDataset, fn: Callable[[Any], Tensor]) -> Tensor:
    """The results of a function of rows for all transitions, [N]."""
    return torch.cat([fn(range(begin, min(begin + _ROWS, len(dataset)))) for begin in range(0, len(dataset), _ROWS)])


def _episodes(values: Tensor, valid: Tensor) -> Tensor:
    """Values of all transitions [N] as padded episodes [T, B] float64."""
    padded = torch.zeros(valid.T.shape, dtype=torch.float64)
    padded[valid.T] = values.double()
    return padded.T


def _summary(terms: Tensor, log_ratio: Tensor, reward: Tensor, valid: Tensor, gamma: float, who: str) -> dict[str, float]:
    count = len(terms)
    as_collected = importance_sampling_terms(torch.zeros_like(reward), reward, valid, gamma=gamma)
    found = {
        "value": float(terms.mean()),
        "effective_sample_size": float(effective_sample_size(log_ratio, valid)),
        "mean_ratio": _mean_ratio(log_ratio, valid, who),
        "behaviour_value": float(as_collected.mean()),
        "episodes": float(count),
    }
    if count > 1:
        found["std_error"] = float(terms.std() / count**0.5)  # of the plain estimates
    return found


action_error = negative_action_error  # its name in earlier versions
importance_sampling = importance_sampling_metric  # its name in earlier versions
doubly_robust = doubly_robust_metric  # its name in earlier versions
fitted_q_evaluation = fitted_q_evaluation_metric  # its name in earlier versions
