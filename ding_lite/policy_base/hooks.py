"""The hooks of a policy, in the order in which they are called, with their defaults.

At the end of the file are the hooks of `reset_config` and of the dry run. `learn_on_batch` is in policy.py; `get_weights` and
`set_weights` are in weights.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Tree, nested
from ding_lite.data.trees import map_leaves
from ding_lite.nn import action_distribution, make_actor_critic
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.data_parallel import StepAverage
from ding_lite.policy_base.optimizers import clip_gradients, configured_optimizer


def set_up_by_hooks(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate the constructor of a mixin, for hooks to call: `LearningRateSchedule.__init__(policy, lr)`.

    If the mixin is the first base of a class, Python calls this constructor to construct the policy, before the policy has a
    configuration. The call is then passed on to the next base.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "cfg" in vars(self):
            init(self, *args, **kwargs)
        else:
            owner: Any = next(kind for kind in type(self).__mro__ if vars(kind).get("__init__") is __init__)
            super(owner, self).__init__(*args, **kwargs)

    __init__.is_called_by_hooks = True  # type: ignore[attr-defined]
    return __init__


def _valid_rows(obs: Any, valid: Tensor | None) -> Any:
    """The observations where `valid`; all of them if it is None."""
    return obs if valid is None else map_leaves(lambda leaf: leaf[valid], obs)


def require_reached_hooks(policy_class: type, base: type) -> None:
    """Refuse a class whose mixins come after a policy among its bases, so that their hooks would never be called.

    Args:
        policy_class: the new class.
        base: the class whose methods would come first, `Policy`.

    Raises:
        TypeError: names the mixin, its hooks and the order that works.
    """
    order = policy_class.__mro__
    for mixin in order[order.index(base) :]:
        hidden = [name for name in vars(mixin) if not name.startswith("__") and hasattr(base, name)]
        if hidden and mixin not in base.__mro__:
            raise TypeError(
                f"{policy_class.__name__}: {', '.join(hidden)} of {mixin.__name__} would never be called, because "
                f"{mixin.__name__} comes after a policy among the bases. Write it first: "
                f"class {policy_class.__name__}({mixin.__name__}, ...)."
            )


class Hooks:
    """The methods and class attributes that an algorithm overrides. `Policy` calls them."""

    config_type: ClassVar[type[PolicyConfig]] = PolicyConfig
    """The type of the configuration."""

    learns_from: ClassVar[Literal["rollouts", "transitions"]] = "rollouts"
    """The batch of `learn_on_batch`: a rollout [T, B, ...], or rows [B, ...] from a replay buffer."""

    loss_takes: ClassVar[Literal["rollouts", "transitions"]] = "transitions"
    """The batch of `loss`: a rollout [T, B, ...], or rows [N, ...]."""

    derived: ClassVar[Mapping[str, tuple[int, ...]]] = dict.fromkeys(
        ("value", "next_value", "advantage", "return_", "weight", "discount"), ()
    )
    """Columns that the pipeline may add to collected data, with the shape of one element. The default lists those that
    estimators, enhancers and prioritised replay add; the dry run adds them to the dummy batch. "info.x_position" is the
    column `batch.info.x_position`, which environments with info_columns record."""

    acting_settings: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments of `compute_actions` without which it would not explore, such as eps. The pipeline sets them in
    ctx.collect_kwargs; a pipeline that does not is refused."""

    bootstraps_from_actions: ClassVar[bool] = False
    """Whether targets have the value of the best allowed action in the next state, so that a truncated state needs an action
    that its `action_mask` allows."""

    stats_take_rollouts: ClassVar[bool] = False
    """Whether `stats` takes the batch of `learn_on_batch` instead of the batch of `loss`."""

    step_inputs: ClassVar[tuple[str, ...]] = ()
    """Attributes that the loss reads, numbers that change between gradient steps, such as the weight of an entropy bonus. In
    compiled gradient steps they are scalar tensors. Other numbers are part of the compiled step; a change compiles another."""

    hook_calls: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "__init__": (
            *("before_init", "check_spaces", "make_model", "take_model", "make_optimizer", "before_loss_init", "set_up"),
            "after_init",
        ),
        "act": ("compute_actions", "extra_action_out"),
        "learn": ("postprocess", "learn_on_batch", "after_learning"),
        "learn_on_batch": ("loss_batch", "gradient_step", "stats"),
        "gradient_step": ("before_step", "loss", "compute_gradients", "after_step"),
        "compute_gradients": ("gradients",),
    }
    """By method of the library, what it calls, in this order, each at least once; "act" stands for a step of acting."""

    cfg: PolicyConfig
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    model: Any
    generator: Generator
    params: list[nn.Parameter]

    averaging: StepAverage | None = None
    """During a gradient step of several processes that learn together: averages gradients over them."""

    # Hooks, in the order in which they are called.

    def before_init(self) -> None:
        """Called when spaces, configuration, device and seed are set, and before the networks are made."""

    def check_spaces(self) -> None:
        """Raise SpaceError if the algorithm does not support the spaces."""

    def make_model(self) -> nn.Module:
        """Make the networks, as one module; by default an actor and a critic. Torch is seeded with the policy's seed here."""
        model = self.cfg.model
        return make_actor_critic(
            self.observation_space,
            self.action_space,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            getattr(model, "share_encoder", False),
            model.normalize_obs,
            model.layer_norm,
            getattr(model, "mixture_components", 0),
        )

    def take_model(self, model: nn.Module) -> nn.Module:
        """The networks, if the constructor was called with `model`; `make_model` is not called then.

        By default, this is the module, with a `distribution` over actions if it has `logits` but no distribution. Policies that
        need more of a model check it here, or add to it.
        """
        if hasattr(model, "logits") and not hasattr(model, "distribution"):
            model.distribution = action_distribution(self.action_space)
        return model

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """Make the optimizer. By default, the one of `cfg.learn.optimizer`: Adam or RMSProp with `cfg.learn.learning_rate`."""
        return configured_optimizer(self.cfg.learn, params)

    def before_loss_init(self) -> None:
        """Called in the constructor, after the model and the optimizer have been created. By default, calls `set_up` of each
        mixin that has it."""
        for base in type(self).__mro__:
            if "set_up" in vars(base):
                vars(base)["set_up"](self)

    def after_init(self) -> None:
        """Called at the end of the constructor of `Policy`, before the rest of a subclass's constructor runs."""

    def get_initial_state(self) -> list[Any]:
        """The recurrent state at the start of an episode: tensors, arrays, numbers or other objects; by default empty.

        The batch has element k as the column `state_in_k`, and its value after the step as `state_out_k`.
        """
        return []

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions for a batch of observations.

        By default, actions are sampled from the actor, with log_prob as an extra output; without exploration, they are the mode
        of the distribution.

        Args:
            obs: tensors [B, *obs_shape] on the device, nested like the space.
            state: recurrent state, a batch for each element of `get_initial_state`.
            explore: False for evaluation.
            **kwargs: the settings in `ctx.collect_kwargs`. If they are named in the signature, also `prev_action_batch` and
                `prev_reward_batch`: arrays [B, ...] of the previous step, zeros at the start of an episode; `info_batch`, a
                list with the info of each observation, also after a reset; and `episodes`, a list of `RunningEpisode`.
                `predict` passes none of these.

        Returns:
            action [B, *action_shape]; the next recurrent state; extra outputs [B, ...] by name, which become columns of the
            batch.
        """
        return self.drawn(self.model.logits(obs), state, explore)

    def drawn(self, logit: Tensor, state: Sequence[Any], explore: bool) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """The result of `compute_actions` for a distribution over actions with these parameters [B, width]."""
        if not explore:
            return self.model.distribution.mode(logit), state, {}
        action, log_prob = self.model.distribution.sample(logit, self.generator)
        return action, state, {"log_prob": log_prob}

    def extra_action_out(self, obs: Any, state: Sequence[Any]) -> dict[str, Any]:
        """More outputs [B, ...] of a step, which become columns of the batch; called after `compute_actions` if it explores."""
        return {}

    @property
    def has_critic(self) -> bool:
        """Whether `with_values` can be called."""
        return type(self).with_values is not Hooks.with_values

    def with_values(self, batch: Tree) -> Tree:
        """Add the critic's value and next_value [T, B] to a rollout."""
        raise TypeError(
            f"{type(self).__name__} has no critic, so it cannot add values to a rollout: use a PPOPolicy, or build the policy "
            "with ValueNetworkMixin."
        )

    def postprocess(self, batch: Tree) -> Tree:
        """Prepare a batch for `learn_on_batch`, for example add columns. Columns may be assigned, `batch["advantage"] = ...`,
        but their values must not be changed in place: other middleware use them."""
        return batch

    def before_step(self) -> None:
        """Called before each gradient step, for example to set a learning rate."""

    def step_variant(self) -> Hashable:
        """The value, derived from `train_iter`, on which `loss` branches, such as whether the actor learns in this step. With
        `learn.compile`, each value has its own compiled step; `loss` calls this method and does not read `train_iter`, which
        changes in each step."""
        return ()

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The scalar loss of a batch, and a dict to log: detached scalars on the device. May return the loss alone."""
        raise NotImplementedError(f"{type(self).__name__} has no loss: override loss or learn_on_batch.")

    def batch_mean(self, values: Tensor) -> Tensor:
        """The mean of values over the batch of a gradient step, of all processes that learn together.

        It is a scalar without gradient, for a loss that depends on a statistic of its batch, such as a scale. The loss itself
        is a mean over the rows of this process.

        Args:
            values: a number for each row, any shape, float.
        """
        return values.detach().mean() if self.averaging is None else self.averaging.mean(values)

    def compute_gradients(self, loss: Tensor) -> dict[str, Any]:
        """Set `param.grad` of each parameter. Returns a dict to log."""
        loss.backward()  # type: ignore[no-untyped-call]
        if self.averaging is not None:
            self.averaging.average(self.params)
        return self.gradients(self.params)

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Change the gradients in place. By default, clip their norm to `cfg.learn.grad_clip_norm`. Returns a dict to log."""
        limit = self.cfg.learn.grad_clip_norm
        return {} if limit is None else {"grad_norm": clip_gradients(params, limit)}

    def after_step(self) -> None:
        """Called after each gradient step, for example to update a target network."""

    def stats(self, batch: Tree) -> dict[str, Any]:
        """More values to log; called once per `learn_on_batch`, after `loss`.

        Args:
            batch: the batch of `loss`, rows [N, ...]; or, if `stats_take_rollouts` as for PPO, the whole rollout [T, B, ...].
                The model's last outputs, such as `self.model.value_function()`, are then those of the last minibatch.
        """
        return {}

    def after_learning(self, batch: Tree) -> None:
        """Called after `learn_on_batch`. By default, updates the statistics of the model's normalizer, if there is one.

        The statistics are those of the batches learned from. A rollout counts once. A transition from replay counts each time
        it is sampled, so older transitions count more than with statistics of the collected data. In return, statistics only
        change where weights change: they are published, saved and copied with the weights, also if iterations overlap, and
        learning from a data set has them too.

        The update comes after learning because columns such as log_prob were computed with the earlier statistics.
        """
        normalizer = getattr(self.model, "normalizer", None)
        if normalizer is None:
            return
        columns = nested(batch)
        for part in [columns] if "obs" in columns else columns.values():  # a batch, or batches of several buffers
            if isinstance(part, dict) and "obs" in part:
                normalizer.update(_valid_rows(part["obs"], part.get("valid")))

    # Hooks of `reset_config`.

    def settings_changed(self, names: frozenset[str]) -> None:
        """Called by `reset_config`, when the configuration has changed: update what was made from it. By default, the
        parameter groups of the optimizer are.

        Hooks that read `self.cfg` when they are called need nothing. An error undoes the change.

        Args:
            names: dotted names of the settings that have changed, such as "learn.learning_rate".
        """

    def require_effect(self, names: frozenset[str]) -> None:
        """Called by `reset_config` after `settings_changed`: raise FixedSettingError if a change has no effect, for example
        because another setting takes precedence.

        Args:
            names: dotted names of the settings that have changed.
        """

    # Hooks of the dry run.

    def check_model(self, obs: Any) -> None:
        """Check the outputs of the model for dummy observations [B, *obs_shape]. Called by the dry run, if the constructor was
        called with `model`.

        Raises:
            HookError: an output has another shape than the hooks expect.
        """

    def dummy_batch(self, batch: Tree) -> Tree:
        """The dummy batch of the dry run, changed as the pipeline changes its batches: a rollout, or rows of a rollout."""
        return batch
