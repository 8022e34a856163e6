"""The hooks of a policy, in the order in which they are called, with what they do by default."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Tree, has_leaf, map_leaves, nested
from ding_lite.nn import Adam, make_actor_critic
from ding_lite.policy_base.configs import PolicyConfig


def set_up_by_hooks(init: Callable[..., None]) -> Callable[..., None]:
    """A mixin's constructor, which a hook calls once the policy is there: `LearningRateSchedule.__init__(policy, lr)`.

    Where Python calls it, because the mixin stands first among the bases, the next constructor of a base takes its place.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "cfg" in vars(self):
            init(self, *args, **kwargs)
        else:
            owner: Any = next(kind for kind in type(self).__mro__ if vars(kind).get("__init__") is __init__)
            super(owner, self).__init__(*args, **kwargs)

    return __init__


class Hooks:
    """What an algorithm fills in; what calls it is `Policy`."""

    config_type: ClassVar[type[PolicyConfig]] = PolicyConfig
    """What `cfg` has to be, where it is no mapping."""

    learns_from: ClassVar[Literal["rollouts", "transitions"]] = "rollouts"
    """What `learn_on_batch` is given: rollouts [T, B, ...], or rows [B, ...] from a replay buffer."""

    loss_takes: ClassVar[Literal["rollouts", "transitions"]] = "transitions"
    """What `loss` is given."""

    derived: ClassVar[Mapping[str, tuple[int, ...]]] = dict.fromkeys(
        ("value", "next_value", "advantage", "return_", "weight", "discount"), ()
    )
    """Columns that the pipeline may add to what is collected, and the shape of one element: estimators, enhancers and
    prioritised replay add these; a policy that wants others says so."""

    acting_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that `compute_actions` takes from the pipeline, by ctx.collect_kwargs, and without which it would not explore:
    a pipeline that does not set them is refused."""

    stats_take_rollouts: ClassVar[bool] = False
    """Whether `stats` is given what `learn_on_batch` is given, instead of what `loss` is."""

    cfg: PolicyConfig
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    model: Any
    generator: Generator
    params: list[nn.Parameter]

    # Hooks, in the order in which they are called.

    def before_init(self) -> None:
        """Before anything but spaces, configuration and device is there."""

    def check_spaces(self) -> None:
        """Refuse spaces that the algorithm cannot use, by raising SpaceError."""

    def make_model(self) -> nn.Module:
        """The networks, in one module: here, an actor and a critic. Random numbers drawn here come from the policy's seed."""
        model = self.cfg.model
        return make_actor_critic(
            self.observation_space,
            self.action_space,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            getattr(model, "share_encoder", False),
            getattr(model, "normalize_obs", False),
        )

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """What turns gradients into steps: Adam at `cfg.learn.learning_rate`."""
        return Adam(params, lr=self.cfg.learn.learning_rate, fused=True)

    def before_loss_init(self) -> None:
        """Before the loss is first called, on the dummy batch: where mixins are set up. Here, each from the configuration."""
        for base in type(self).__mro__:
            if "set_up" in vars(base):
                vars(base)["set_up"](self)

    def after_init(self) -> None:
        """At the end of the constructor of `Policy`; what constructors of derived classes add behind it is not there yet."""

    def get_initial_state(self) -> list[Any]:
        """The recurrent state at the start of an episode: tensors, arrays, numbers or other objects; empty for none.

        Element k lies in the batch as `state_in_k`, with what `compute_actions` made of it as `state_out_k`.
        """
        return []

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Actions for a batch of observations: here, drawn from the actor, with their log_prob, or the most probable.

        Args:
            obs: tensors [B, *obs_shape] on the device, nested as the space is.
            state: recurrent state, a batch for each element of `get_initial_state`.
            explore: False to do its best.
            **kwargs: what `ctx.collect_kwargs` holds; and where the signature names them `prev_action_batch` and
                `prev_reward_batch`, arrays [B, ...] of the step before, zeros where an episode begins.

        Returns:
            action [B, *action_shape]; the next state; extra outputs [B, ...] by name, which land in the batch.
        """
        return self.drawn(self.model.logits(obs), state, explore)

    def drawn(self, logit: Tensor, state: Sequence[Any], explore: bool) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """What `compute_actions` gives, from the numbers [B, width] that the distribution over actions takes."""
        if not explore:
            return self.model.distribution.mode(logit), state, {}
        action, log_prob = self.model.distribution.sample(logit, self.generator)
        return action, state, {"log_prob": log_prob}

    def extra_action_out(self, obs: Any, state: Sequence[Any]) -> dict[str, Any]:
        """More outputs [B, ...] of each step, which land in the batch; called after `compute_actions`, where it explores."""
        return {}

    def dummy_batch(self, batch: Tree) -> Tree:
        """What the pipeline makes of a dummy rollout, or of rows of it, before the policy learns from it."""
        return batch

    def postprocess(self, batch: Tree) -> Tree:
        """The batch as `learn_on_batch` wants it, such as with columns added."""
        return batch

    @property
    def has_critic(self) -> bool:
        """Whether `with_values` can be called."""
        return type(self).with_values is not Hooks.with_values

    def with_values(self, batch: Tree) -> Tree:
        """A rollout with the critic's value and next_value [T, B]."""
        raise TypeError(
            f"{type(self).__name__} has no critic, so it cannot add values to a rollout: use a PPOPolicy, or build the policy "
            "with ValueNetworkMixin."
        )

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The scalar loss of a batch, and what to log of it: detached scalars on the device. May return the loss alone."""
        raise NotImplementedError(f"{type(self).__name__} has no loss: write one, or a learn_on_batch of its own.")

    def compute_gradients(self, loss: Tensor) -> dict[str, Any]:
        """Set `param.grad` of each parameter. Returns what to log."""
        loss.backward()  # type: ignore[no-untyped-call]
        return self.gradients(self.params)

    def gradients(self, params: list[nn.Parameter]) -> dict[str, Tensor]:
        """Change the gradients before the step: here, clip their norm at `cfg.learn.grad_clip_norm`. Returns what to log."""
        limit = self.cfg.learn.grad_clip_norm
        return {} if limit is None else {"grad_norm": nn.utils.clip_grad_norm_(params, limit, foreach=True)}

    def after_step(self) -> None:
        """What follows a gradient step, such as moving a target network."""

    def stats(self, batch: Tree) -> dict[str, Any]:
        """More to log, computed once a call of `learn_on_batch`, always after `loss`."""
        return {}

    def after_learning(self, batch: Tree) -> None:
        """What follows `learn_on_batch`: here, a model that normalises observations takes these into its statistics.

        Not before, since what was collected, such as log_prob, is of the network as it was.
        """
        normalizer = getattr(self.model, "normalizer", None)
        if normalizer is not None and has_leaf(batch, "obs"):
            obs = nested(batch.obs)
            normalizer.update(map_leaves(lambda leaf: leaf[batch.valid], obs) if has_leaf(batch, "valid") else obs)
