"""`build_policy`: a class of policies from functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ding_lite.basics import foreign_arguments
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.derivations import Hook, derive
from ding_lite.policy_base.foreign_hooks import FOREIGN_HOOKS
from ding_lite.policy_base.policy import Policy


@foreign_arguments(FOREIGN_HOOKS)
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
    mixins: Sequence[type] | None = None,
    get_default_config: Callable[[], PolicyConfig | Mapping[str, Any]] | None = None,
    base: type[Policy] = Policy,
) -> type[Policy]:
    """Make a class of policies from functions; `loss_fn` alone is enough.

    The first argument of each function is the policy. Functions may store values on it for later ones. `batch.obs` and
    `batch["obs"]` are the same.

    Args:
        name: name of the class.
        loss_fn: (policy, model, dist_class, batch) -> scalar tensor, or (scalar tensor, dict to log).
            `model.from_batch(batch)` returns the logit and the next recurrent state, `dist_class(logit, model)` a distribution
            with `logp(action)` and `entropy()`. `batch` has rows [N, ...], unless the base class takes rollouts.
        postprocess_fn: (policy, batch, other_agent_batches, episode) -> batch with columns added or changed. Rollouts are
            [T, B, ...]. The last two arguments may be omitted; if the function uses them, an error says what replaces them.
        stats_fn: (policy, batch) -> dict to log; called after `loss_fn`, so it may use values that `loss_fn` stored.
        extra_action_out_fn: (policy) or (policy, obs, state, model, dist) -> dict of outputs [B, ...], which become columns of
            the batch.
        gradients_fn: (policy, optimizer, loss) -> dict to log, or None, changing `param.grad` in place; or a list of (gradient,
            parameter). It may compute the gradients itself with `loss.backward()` or `torch.autograd.grad`, but then in every
            call. The dry run finds out whether it does; if not, the gradients are computed before the call.
        optimizer_fn: (policy, config) or (policy) -> torch optimizer of `policy.params`.
        make_model: (policy, observation_space, action_space, config) -> module; the default is an actor and a critic.
        before_init, before_loss_init, after_init: (policy, observation_space, action_space, config): called before the
            networks are created; before the loss is first called, to set up mixins; at the end of the constructor.
        mixins: classes whose methods override those of the base class, such as `LearningRateSchedule`.
        get_default_config: () -> configuration, typed or a mapping such as {"lr": 1e-3, "gamma": 0.99}.
        base: the base class.

    Raises:
        TypeError: a hook is not a function, or takes another number of arguments; or an argument is a hook of RLlib that does
            not exist here, with what to use instead.

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
    return derive(base, name, mixins or (), {hook: fn for hook, fn in given.items() if fn is not None})
