"""Builders: policies made from functions instead of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ding_lite.policy_base.configs import PolicyConfig
from ding_lite.policy_base.derivations import Hook, derive
from ding_lite.policy_base.policy import Policy


def build_policy(
    name: str,
    *,
    loss_fn: Hook | None = None,
    postprocess_fn: Hook | None = None,
    stats_fn: Hook | None = None,
    extra_action_out_fn: Hook | None = None,
    gradients_fn: Hook | None = None,
    optimizer_fn: Hook | None = None,
    make_model: Hook | None = None,
    before_init: Hook | None = None,
    before_loss_init: Hook | None = None,
    after_init: Hook | None = None,
    mixins: Sequence[type] = (),
    get_default_config: Callable[[], PolicyConfig | Mapping[str, Any]] | None = None,
    base: type[Policy] = Policy,
) -> type[Policy]:
    """A class of policies made from functions; a loss alone is enough.

    Each function gets the policy first, and may save things on it for those that are called after it. In `batch`, `batch.obs`
    and `batch["obs"]` are the same.

    Args:
        name: of the class.
        loss_fn: (policy, model, dist_class, batch) -> scalar tensor, or (scalar tensor, dict to log).
            `model.from_batch(batch)` gives the logit and the next recurrent state, `dist_class(logit, model)` a distribution
            with `logp(action)` and `entropy()`. `batch` has rows [N, ...], unless the base takes rollouts.
        postprocess_fn: (policy, batch, other_agent_batches, episode) -> batch with columns added or changed. Of a rollout it
            is given [T, B, ...]; the last two are None, and may be left out.
        stats_fn: (policy, batch) -> dict to log; called after the loss, so that it may use what that saved.
        extra_action_out_fn: (policy) or (policy, obs, state, model, dist) -> dict of outputs [B, ...], which land in the batch.
        gradients_fn: (policy, optimizer, loss) -> dict to log, or None, changing `param.grad` in place; or a list of (gradient,
            parameter). It may call `loss.backward()` or `torch.autograd.grad` itself, then in each call; where it does not, the
            gradients are there when it is called. Which it is, is found out when the policy is tried out.
        optimizer_fn: (policy, config) -> torch optimizer of `policy.params`.
        make_model: (policy, observation_space, action_space, config) -> module; the default is an actor and a critic.
        before_init, before_loss_init, after_init: (policy, observation_space, action_space, config): before anything is made;
            before the loss is first called, where constructors of mixins are called; when all is done.
        mixins: classes whose methods come before those of the base, such as `LearningRateSchedule`.
        get_default_config: () -> configuration, typed or a mapping such as {"lr": 1e-3, "gamma": 0.99}.
        base: the class to derive from.

    Raises:
        TypeError: a hook that is no function, or wants another number of arguments.

    Example:
        >>> def loss_fn(policy, model, dist_class, batch):
        ...     logit, _ = model.from_batch(batch)
        ...     return -(dist_class(logit, model).logp(batch.action) * batch.reward).mean()
        >>> build_policy("OneStepPolicy", loss_fn=loss_fn).__name__
        'OneStepPolicy'
    """
    given = {
        "loss_fn": loss_fn,
        "postprocess_fn": postprocess_fn,
        "stats_fn": stats_fn,
        "extra_action_out_fn": extra_action_out_fn,
        "gradients_fn": gradients_fn,
        "optimizer_fn": optimizer_fn,
        "make_model": make_model,
        "before_init": before_init,
        "before_loss_init": before_loss_init,
        "after_init": after_init,
        "get_default_config": get_default_config,
    }
    return derive(base, name, mixins, {hook: fn for hook, fn in given.items() if fn is not None})
