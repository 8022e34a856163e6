"""`Policy`: a model, how it acts, and how it learns. Algorithms override its hooks."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from ding_lite.basics import foreign_attributes
from ding_lite.basics.config_classes import all_values
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.signatures import parameters_of
from ding_lite.compiling import CompiledSteps, batch_copy
from ding_lite.data import Spec, Tree, flatten, nested, tree
from ding_lite.data.minibatches import rollout_rows
from ding_lite.data.trees import first_leaf, has_leaf, holds_objects
from ding_lite.envs import action_masks
from ding_lite.envs.spaces import space_spec
from ding_lite.metrics import MetricsLogger
from ding_lite.nn import ParametrizedDistribution, action_distribution, seeded
from ding_lite.policy_base.act_modes import CollectMode
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.constructions import Construction, ConstructorSignature
from ding_lite.policy_base.data_parallel import StepAverage
from ding_lite.policy_base.derivations import Hook, derive
from ding_lite.policy_base.device_names import available_device
from ding_lite.policy_base.foreign_hooks import FOREIGN_ATTRIBUTES, FOREIGN_HOOKS
from ding_lite.policy_base.hooks import Hooks, require_reached_hooks
from ding_lite.policy_base.learner_groups import LearnerGroup
from ding_lite.policy_base.live_settings import FixedSettingError, is_of_optimizer
from ding_lite.policy_base.logged_tensors import HeldStats
from ding_lite.policy_base.nonfinite_steps import NonfiniteSteps
from ding_lite.policy_base.short_names import resolve
from ding_lite.policy_base.state import PolicyState
from ding_lite.policy_base.weights import PolicyWeights, WeightsSnapshot
from ding_lite.policy_check import (
    STANDARD,
    AttributesOfActing,
    HookReads,
    are_finite,
    explain_learning,
    explained_size,
    idle_for_optimizer,
    idle_for_rollouts,
    is_read_by_users,
    loss_error,
    require_batch,
    require_declarations,
    require_known_shapes,
    require_mapping,
    require_methods,
    require_model,
    require_no_recurrent_state,
    require_optimizer,
    require_real,
    try_out,
    warn_of_idle_settings,
    warn_of_misfit,
    warn_of_unlearned,
    with_stats,
)
from ding_lite.policy_state import all_or_nothing, group_settings
from ding_lite.ranks import current_ranks, seed_of_rank

_CUDA_CHECK_EVERY = 64  # gradient steps between two checks of the loss on a GPU, because each check waits for the GPU
_COMPARED_EVERY = 32  # gradient steps between two comparisons of the weights of several processes
_DRY_RUNS = threading.RLock()  # a second thread waits for the results, and hooks may ask for them
_MORE_HOOKS = (
    "set_up",
    "learn_on_batch",
    "count_rows",
    "get_weights",
    "set_weights",
    "default_config",
    "reset_config",
    "learned_state",
    "load_learned_state",
    "saved_networks",
    "state_dict",
    "load_state_dict",
)
_PREVIOUS = ("prev_action_batch", "prev_reward_batch")
_OBSERVED = ("info_batch", "episodes")


@foreign_attributes(FOREIGN_ATTRIBUTES)
class Policy(PolicyState):
    """The numeric core of an algorithm: networks, acting and learning. It does not depend on environments or contexts.

    Middleware receive one of its three modes. `learn_mode` changes the model. `collect_mode` and `eval_mode` act with their
    own copies, so they never act with partly updated weights.

    `loss` is the only hook that an algorithm must override. By default, the networks are an actor and a critic, and actions
    are sampled from the actor. The other hooks are `before_init`, `check_spaces`, `make_model`, `take_model`, `make_optimizer`,
    `before_loss_init`, `after_init`, `get_initial_state`, `compute_actions`, `extra_action_out`, `with_values`, `postprocess`,
    `learn_on_batch`, `before_step`, `step_variant`, `compute_gradients`, `gradients`, `after_step`, `stats`, `after_learning`,
    `dummy_batch` and `check_model`; the table in docs/policies.md says when each is called. A policy without networks overrides
    `learn_on_batch`, `get_weights` and `set_weights`. `build_policy` and `with_updates` make policy classes from functions.

    In every hook, `self.model` is the model to use: the one that learns or, in `compute_actions`, the one of the acting copy.
    `self.rng` and `self.generator` are the random generators to use. `self.metrics` logs numbers: under `learn/` in `loss`,
    under `collect/` or `evaluate/` in `compute_actions`, from all workers.

    Before the first iteration of a pipeline, `dry_run` runs the policy on a dummy batch. It raises an error if a hook is wrong,
    and finds the columns that the hooks read (`columns`).

    Args:
        cfg: `cfg.policy` of a run's configuration; or a mapping of settings by short names, such as
            `{"lr": 1e-3, "gamma": 0.99}`; None for the defaults. May also be the last argument, as in RLlib.
        observation_space, action_space: spaces of one environment.
        model: a network of one's own, used as it is instead of the result of `make_model`; see "A network of your own" in
            docs/policies.md. None makes the networks.

    Raises:
        TypeError: an argument has the wrong type; or the model lacks a method that the policy calls.
        SpaceError: the algorithm does not support the spaces; or they have so many elements that there is no memory for the
            networks; or the `action_mask` of observations does not fit the actions.
        ValueError: the device is not available.
    """

    __signature__ = ConstructorSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Policy:
        self = super().__new__(cls)
        self.constructed_with = Construction(cls, args, kwargs)  # here, because a constructor may change its arguments
        return self

    def __init__(
        self,
        cfg: PolicyConfig | Mapping[str, Any] | None = None,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        *,
        model: nn.Module | None = None,
    ) -> None:
        if isinstance(cfg, gymnasium.Space):
            cfg, observation_space, action_space = action_space, cfg, observation_space
        if cfg is not None and not isinstance(cfg, (Mapping, self.config_type)):
            raise TypeError(
                f"{type(self).__name__}(cfg, ...) wants a {self.config_type.__name__}, got a {type(cfg).__name__}: pass "
                f"cfg.policy of the run's configuration{_run_config_of(self.config_type)}."
            )
        if observation_space is None or action_space is None:
            raise TypeError(f"{type(self).__name__}(cfg, observation_space, action_space) wants the spaces of an environment.")
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gymnasium.Space):
                single = f"single_{name}" if hasattr(space, "num_envs") else name
                fix = f": pass its {single}." if hasattr(space, single) else "."
                raise TypeError(
                    f"{type(self).__name__} wants a space as {name}, got {space!r:.60} of type {type(space).__name__}{fix}"
                )
        action_masks(observation_space, action_space)  # raises SpaceError if a mask does not fit the actions
        self.constructed_with.note_cfg(cfg)
        only_reader = None if self.has_hooks_of_users() else type(self).__name__
        self.config = resolve(
            cfg, self.default_config(), self.config_type, only_reader, lambda name: is_read_by_users(type(self), name)
        )
        """The configuration by short names, for example `policy.config["gamma"]`."""
        self.cfg = self.config.cfg
        self.observation_space, self.action_space = observation_space, action_space
        # With learners elsewhere, this process only acts.
        self.device = available_device("cpu" if self.cfg.learners.num_learners else self.cfg.device)
        self.seed = self.cfg.seed or 0
        ranks = current_ranks()
        self.rank_seed = seed_of_rank(self.seed, 0 if ranks is None else ranks.rank)
        """Seed of the random generators. In a data-parallel run, each process has another one; `seed` is the same."""
        self.train_iter = 0
        """Gradient steps taken."""
        self.version = 0
        """Version of the weights; increases with every change."""
        self.hook_metrics = MetricsLogger(owner=f"the hooks of {type(self).__name__} at {id(self):#x}")
        """The logger of the hooks. `self.metrics` is the same object, unless a subclass defines another attribute `metrics`."""
        self.dry_run_results: dict[str, Any] = {}
        """Results of the dry run, shared with acting copies."""
        self.num_steps: dict[str, int] = {}
        """By name, the number of gradient steps that a value of the last `learn` is the mean of, where it is more than 1."""
        self._snapshot: WeightsSnapshot | None = None
        self._is_first_batch = True
        self._attributes_of_acting: AttributesOfActing | None = None
        self._found_finite, self._compared_next = -1, 0
        self._attached: dict[str, Any] = {}
        self.settings_made: dict[str, Any] = {}
        """By dotted name, the values of the configuration with which the policy was made, or as `reset_config` changed them."""
        self._settings_before: dict[str, Any] = {}  # first values of settings that reset_config has changed
        self._group_settings: list[dict[str, Any]] = []  # of each parameter group, as make_optimizer gives them
        self._loaded: dict[str, Any] = {}  # loaded states of objects that are attached later
        on_nonfinite = self.cfg.learn.on_nonfinite
        self._nonfinite_steps = None if on_nonfinite == "raise" else NonfiniteSteps(restores=on_nonfinite == "restore")
        if self._nonfinite_steps is not None:
            self.attach("nonfinite_steps", self._nonfinite_steps)
        compiles = self.cfg.learn.compile
        self.compiled_steps = None if compiles == "off" else CompiledSteps(is_auto=compiles == "auto")
        """What takes compiled gradient steps; None if `cfg.learn.compile` is off."""
        if self.compiled_steps is not None:
            self.attach("compiled_steps", self.compiled_steps)
        kind = type(self).__name__
        self.before_init()
        self.check_spaces()
        if model is not None:
            require_model(f"{kind}(model=...)", model, is_given=True)
            if type(self).get_initial_state is Hooks.get_initial_state:
                require_no_recurrent_state(self, model)
        self.given_model = None if model is None else f"{type(model).__module__}:{type(model).__qualname__}"
        """The class of the argument `model`, as module:name; None if the policy has made its networks."""
        with seeded(self.seed), explained_size(kind, observation_space, action_space):  # also for networks that hooks add
            if model is not None:
                model = self.take_model(model)
            else:
                model = require_model(f"make_model of {kind}", self.make_model()) if self._needs_model else nn.Module()
            self.model = model.to(self.device)
            self.params = list(self.model.parameters())
            hook = f"make_optimizer, or the optimizer_fn, of {kind}"
            if self.params:
                self.optimizer = require_optimizer(hook, self.params, self.make_optimizer(self.params))
                self._group_settings = group_settings(self.optimizer.param_groups)
            self.make_generators("learn")
            self.before_loss_init()
            warn_of_idle_settings(self)
            require_declarations(self, (*vars(Hooks), *_MORE_HOOKS), FOREIGN_HOOKS)
            self.after_init()
            if self.params:
                warn_of_unlearned(hook, self.params, self.optimizer, self.attachments.values())
        self.settings_made = all_values(self.cfg)
        if self.cfg.learners.num_learners:
            self.learners = LearnerGroup(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_reached_hooks(cls, Policy)
        wrappers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
            "set_weights": functools.partial(_counting, is_learning=False),
            "learn_on_batch": functools.partial(_counting, is_learning=True),
            "load_state_dict": all_or_nothing,
        }
        for name, wrap in wrappers.items():
            owner = next(base for base in cls.__mro__ if name in vars(base))
            if owner is cls:
                setattr(cls, name, wrap(vars(cls)[name]))
            elif not issubclass(owner, PolicyWeights):  # a mixin's, whose place among the bases differs between subclasses
                setattr(cls, name, wrap(_inherited(cls, name, vars(owner)[name])))

    @classmethod
    def default_config(cls) -> PolicyConfig | Mapping[str, Any] | None:
        """The configuration over which the argument `cfg` is applied; None for the defaults of `config_type`."""
        return None

    @classmethod
    def with_updates(cls, name: str | None = None, *, mixins: Sequence[type] = (), **hooks: Hook) -> type[Policy]:
        """Make a subclass of this class with other hooks, for example `PPOPolicy.with_updates(loss_fn=...)`.

        Args:
            name: name of the new class; None for the name of this class.
            mixins: classes whose methods override those of this class.
            **hooks: see `build_policy`.
        """
        return derive(cls, name or cls.__name__, mixins, hooks)

    def predict(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        deterministic: bool = True,
        episode_start: Any = None,
        **settings: Any,
    ) -> tuple[Any, Sequence[Any] | None]:
        """Actions for one observation, or for a batch, in the form that `env.step` takes.

        The call changes nothing in training: it acts with its own copy and its own random generator.

        Args:
            obs: an observation as the environment returns it, or a batch: arrays [B, ...], nested like the space.
            state: the recurrent state that the previous call returned; None at the start of an episode.
            deterministic: whether to act greedily. False explores as in training; policies that need `eps` for this want it in
                `settings`.
            episode_start: bool, or bools [B]: whether an episode starts here, so that its recurrent state is the initial one.
            **settings: passed to `compute_actions`, such as `eps`. If its signature names prev_reward_batch or
                prev_action_batch, the last reward or action of the episode, or a batch of them, is needed here, except at the
                start of an episode.

        Returns:
            The action, clipped to its bounds, or a batch of them; and the next recurrent state, None for policies without one.

        Raises:
            ObservationError: a ValueError; the observation does not fit the policy's space, or contains NaN.
            ActionMaskError: a ValueError; the `action_mask` of an observation allows no action.
            ValueError: the last reward or action is missing, or does not fit; or the state is that of another policy or of
                another number of episodes.
            TypeError: deterministic is no bool, or a setting is unknown.

        Example:
            >>> policy = PPOPolicy(None, env.observation_space, env.action_space)  # doctest: +SKIP
            >>> action, state = policy.predict(obs)  # doctest: +SKIP
        """
        return self.predict_mode.predict(obs, state, deterministic, episode_start, **settings)

    # The methods that call the hooks.

    def learn_on_batch(self, batch: Tree) -> dict[str, Any]:
        """Learn from a batch on the device. By default, this is one gradient step. Returns a dict to log.

        If an overriding method does not increase `train_iter`, a call counts as one gradient step; but in a policy with a loss,
        only if the call returns something to log.
        """
        rows = self.loss_batch(batch)
        return {**self.gradient_step(rows), **(self.stats(batch if self.stats_take_rollouts else rows) or {})}

    def settings_changed(self, names: frozenset[str]) -> None:
        """Update the optimizer, when the configuration has changed."""
        super().settings_changed(names)
        if self.learners is not None:
            self.learners.require_divisible()
        if is_of_optimizer(names) and self.params:
            self.optimizer.param_groups[:] = self.make_optimizer(self.params).param_groups  # the moments stay
            self._group_settings = group_settings(self.optimizer.param_groups)
            if self._nonfinite_steps is not None:
                self._nonfinite_steps.drop_copy()

    def require_effect(self, names: frozenset[str]) -> None:
        """Refuse changes of settings that nothing reads."""
        super().require_effect(names)
        kind = type(self).__name__
        if "learn.lr_schedule" in names and not hasattr(self, "lr_schedule"):
            raise FixedSettingError(
                f"learn.lr_schedule has no effect on a {kind}: derive a class with it, "
                f"{kind}.with_updates(mixins=[LearningRateSchedule])."
            )
        parts = [name.rpartition(".")[2] for name in names]
        if idle := idle_for_rollouts(self, parts):
            raise FixedSettingError(
                f"learn.{idle[0]} has no effect: {kind} takes one gradient step per rollout. Use PPOPolicy, which learns in "
                "epochs of minibatches, or override learn_on_batch."
            )
        rates = [name.rpartition(".")[2] for name in names - {"learn.lr_schedule"} if is_of_optimizer(frozenset({name}))]
        if self.params and (unread := idle_for_optimizer(self, rates)):
            raise FixedSettingError(
                f"learn.{unread[0]} has no effect: {kind} makes its own optimizer. Read it in make_optimizer."
            )

    @functools.cached_property
    def metrics(self) -> MetricsLogger:
        """The logger of the hooks. A subclass may use this name for another attribute."""
        return self.hook_metrics

    def dry_run(self) -> HookReads:
        """Run the policy on a dummy batch, the first time that this is called. Afterwards the policy is as it was before.

        Middleware call this when they are created.

        Returns:
            The columns that the hooks read, and the names of the extra outputs of acting.

        Raises:
            ColumnError: a hook reads a column that the batch does not have.
            HookError: a hook raises an error on the dummy batch, or returns something of the wrong shape or type.
            TypeError: an attribute hides a method.
        """
        with _DRY_RUNS:
            if "reads" not in self.dry_run_results and not self.is_copy:
                require_methods(self)
                self.dry_run_results["reads"] = HookReads(None, None)  # for hooks that read `columns` during the dry run
                try:
                    self.dry_run_results["reads"] = try_out(self, CollectMode)
                except BaseException:
                    self.dry_run_results.clear()
                    raise
            return self._known

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the hooks read; None if unknown, because the policy has no loss."""
        return self.dry_run().columns

    @property
    def loss_columns(self) -> tuple[str, ...]:
        """The columns that the loss reads, including those that `postprocess` adds; empty if unknown or before the dry run."""
        return self._known.loss_columns or ()

    def columns_for_loss(self, batch: Tree) -> list[str]:
        """The columns of a batch that the loss reads; if unknown, all columns except `valid` and arrays of objects."""
        if self.loss_columns:
            return [*self.loss_columns]
        return [name for name, column in nested(batch).items() if name != "valid" and not holds_objects(column)]

    @property
    def _known(self) -> HookReads:
        """The result of the dry run; unknown columns before it."""
        return self.dry_run_results.get("reads") or HookReads(None, None)

    def dist_class(self, logit: Tensor, model: nn.Module | None = None) -> ParametrizedDistribution:
        """The distribution over actions with these parameters [B, width]."""
        distribution = getattr(model or self.model, "distribution", None)
        if distribution is None:
            distribution = action_distribution(self.action_space)
        return ParametrizedDistribution(distribution, logit, self.generator)

    def loss_batch(self, batch: Tree) -> Tree:
        """The batch that `loss` takes: a rollout [T, B, ...] as rows [N, ...], without the steps where `valid` is False.

        If `loss_takes` is "rollouts", or the batch is not a rollout, it is returned unchanged.
        """
        if self.loss_takes == "rollouts" or self.learns_from == "transitions" or not self.is_rollout(batch):
            return batch
        only = self.loss_columns if self.stats_take_rollouts else ()  # otherwise `stats` may read more columns
        return tree(rollout_rows(batch, only or [name for name in nested(batch) if name != "valid"]))

    def is_rollout(self, batch: Tree) -> bool:
        """Whether the leading dimensions are [T, B], judged by the shape of obs or, without obs, of reward."""
        if has_leaf(batch, "obs"):
            path, rank = self._first_obs
            leaf: Any = functools.reduce(lambda part, name: part[name], path, batch["obs"])
            return leaf.ndim - rank == 2  # type: ignore[no-any-return]
        return has_leaf(batch, "reward") and batch["reward"].ndim == 2

    @functools.cached_property
    def _obs_spec(self) -> Spec:
        return space_spec(self.observation_space)

    @functools.cached_property
    def _first_obs(self) -> tuple[tuple[str, ...], int]:
        """The path to the first leaf of a nested observation, and its number of dimensions."""
        path, spec = next(flatten(self._obs_spec))
        return path, len(spec.shape)

    def learn(self, batch: Tree) -> dict[str, Any]:
        """Postprocess a batch and learn from it; called by `learn_mode.forward`. Returns a dict to log."""
        skipped, before, self.num_steps = self._skipped, self.train_iter, {}
        self._attributes_of_acting = self._attributes_of_acting or AttributesOfActing(self)
        self._require_equal_weights()
        if self._is_first_batch:
            require_real(type(self).__name__, self.model)
            require_known_shapes(self, batch, self._known.shapes)
        try:
            processed = self.postprocess(tree(nested(batch)))  # a tree of its own, so that it may assign columns
            require_batch(f"postprocess of {type(self).__name__}", processed)
            output = self.learn_on_batch(processed)
            if self._skipped == skipped:  # otherwise the batch may hold numbers that are not finite
                self.after_learning(batch)
        except Exception as error:
            known = (
                *STANDARD,
                *(name.partition(".")[0] for name in self.derived),
                *self._known.outputs,
                *(self._known.columns or ()),
            )
            explain_learning(self, error, batch, known)
            raise
        if self._is_first_batch:
            self._is_first_batch = False
            warn_of_misfit(self, batch)
        self._attributes_of_acting.compare(self)
        output = require_mapping(f"learn_on_batch of {type(self).__name__}", output)
        if not self.num_steps:  # it has not called `gradient_step`
            self.num_steps = dict.fromkeys(output, self.train_iter - before)
        self.num_steps = {name: number for name, number in self.num_steps.items() if number > 1}
        return self._held("stats of learning").kept(output)

    def gradient_step(self, batch: Tree) -> dict[str, Any]:
        """Compute the loss and the gradients, and take one step of the optimizer. Returns a dict to log.

        With "skip" or "restore" as `cfg.learn.on_nonfinite`, the output has `skipped_fraction`: 1.0 if the step was skipped
        because its loss or gradient is not finite, otherwise 0.0.

        Raises:
            NonFiniteError: the loss, or the norm of a clipped gradient, is not finite. No step was taken. On a GPU, only one in
                64 steps is checked, because each check waits for the GPU; saving a state checks the weights. With "skip" and
                "restore", too many steps were not finite.
        """
        guard = self._nonfinite_steps
        if guard is not None and not guard.is_taking:
            return guard.take(self, lambda: self.gradient_step(batch))
        is_checked = guard is not None or self.device.type == "cpu" or self.train_iter % _CUDA_CHECK_EVERY == 0
        self.before_step()
        stats = None if self.compiled_steps is None else self._compiled_step(self.compiled_steps, batch, is_checked)
        if stats is None:
            ranks = current_ranks()
            self.averaging = None if ranks is None else StepAverage(ranks, self.train_iter, self.count_rows(batch))
            try:
                stats = self._optimize(self.loss(batch), is_checked)  # not called deeper, for short tracebacks
            finally:
                self.averaging = None
        self.train_iter += 1
        self.version += 1
        self.after_step()
        for name in stats:
            self.num_steps[name] = self.num_steps.get(name, 0) + 1
        return stats

    def _optimize(self, output: Any, is_checked: bool = True) -> dict[str, Any]:
        """Set the gradients of an output of `loss`, and take a step of the optimizer. Returns the statistics."""
        loss, stats = with_stats(output)
        stats = self._held("stats of loss").kept(stats)
        if self.averaging is not None:
            self.averaging.begin(loss, stats, functools.partial(self._require_finite, "loss") if is_checked else None)
        elif is_checked:
            self._require_finite("loss", loss)
        for param in self.params:
            param.grad = None  # as optimizer.zero_grad() does, without the cost of its profiler
        stats.update(self._held("stats of gradients").kept(self.compute_gradients(loss) or {}))
        if self.averaging is not None:
            self.averaging.require_done(type(self).__name__)
        if is_checked:
            norm = stats.get("grad_norm")
            self._require_finite_gradient(norm, lambda: are_finite([it.grad for it in self.params if it.grad is not None]))
        self.optimizer.step()
        torch.clear_autocast_cache()  # within an autocast block, torch would compute with the weights before the step
        return stats

    def require_finite(self, waiting: bool = True) -> None:
        """Check that the parameters are finite, and that the compiled steps on a GPU that were not checked yet were.

        Args:
            waiting: whether to wait for a GPU; if False, nothing on a GPU is checked.

        Raises:
            NonFiniteError: something is NaN or infinite.
        """
        if waiting:
            self._require_finite_compiled_steps()
        super().require_finite(waiting)

    def _require_finite_compiled_steps(self) -> None:
        """Check the compiled steps on a GPU that were not checked yet."""
        found = None if self.compiled_steps is None else self.compiled_steps.first_nonfinite()
        if found is not None:
            step, what, value = found
            raise loss_error(f"the {what} of {type(self).__name__} is {value} in gradient step {step}")

    def _compiled_step(self, compiled: CompiledSteps, batch: Tree, is_checked: bool) -> dict[str, Any] | None:
        """The loss and `_optimize` as one compiled step; None if it cannot be compiled."""
        if not compiled.refused and current_ranks() is not None:
            compiled.refuse(self, "several processes learn together, which exchange gradients within a step.", False)
        rows = self._without_objects(batch)

        def plain() -> dict[str, Any]:
            return self._optimize(self.loss(batch_copy(self, batch)))

        outputs = compiled.take(self, rows, self._nonfinite_steps is not None, plain)
        if outputs is None:
            return None
        if not is_checked:
            return outputs.stats
        self._require_finite_compiled_steps()
        self._require_finite("loss", outputs.loss)
        self._require_finite_gradient(outputs.stats.get("grad_norm"), lambda: bool(outputs.are_finite))
        return outputs.stats

    def _without_objects(self, batch: Tree) -> Tree:
        """The batch without columns of objects that no hook reads, because compiled steps have tensors only."""
        read, columns = self._known.columns, nested(batch)
        if read is None or not any(map(_has_objects, columns.values())):
            return batch
        return tree({name: it for name, it in columns.items() if name in read or not _has_objects(it)})

    def count_rows(self, batch: Tree) -> int:
        """The number of rows over which the loss of a batch is a mean. Where several processes learn together, it is the weight
        of this one.

        Override it if the loss is a mean over something else, for example over sequences.
        """
        if has_leaf(batch, "valid"):
            return int(batch.valid.sum())
        leaf = first_leaf(nested(batch["obs"] if has_leaf(batch, "obs") else batch))
        return leaf.shape[0] * leaf.shape[1] if self.is_rollout(batch) else len(leaf)

    def rows_per_step(self, rows: Mapping[str, Any], batch_size: int) -> float:
        """The mean number of rows per gradient step, if `rows` are learned in minibatches: `batch_size`, or a number near it.

        Processes that learn together may have different numbers of rows. With this number, they take the same number of steps:
        that of one process with all rows and the sum of the batch sizes.

        Raises:
            RankError: a process has fewer rows than there are steps.
        """
        ranks, count = current_ranks(), len(first_leaf(rows))
        return batch_size if ranks is None else count / ranks.steps_per_epoch(count, batch_size)

    def _require_equal_weights(self) -> None:
        """Check that the processes that learn together have the same weights, at the beginning and every 32 gradient steps."""
        ranks = current_ranks()
        if ranks is None:
            return
        if not ranks.ends_together:
            raise RuntimeError(
                "several processes learn together, and nothing ends them together: put task.use(ddp_termination_checker()) "
                "into the pipeline."
            )
        if not self.params or not self.has_loss:
            raise RuntimeError(
                f"{type(self).__name__} has no loss, so several processes cannot average its gradients: override loss instead "
                "of learn_on_batch, or start the script without torchrun."
            )
        ranks.note_learning(self, lambda: self.weights)
        if self.train_iter >= self._compared_next:
            self._compared_next = self.train_iter + _COMPARED_EVERY
            ranks.require_equal(f"{self.train_iter} gradient steps of {type(self).__name__}", self.weights)

    @property
    def _skipped(self) -> int:
        """Gradient steps that were skipped because they were not finite."""
        return 0 if self._nonfinite_steps is None else self._nonfinite_steps.count

    def _held(self, where: str) -> HeldStats:
        """Which statistics of this place have tensors that something else holds, such as `self.model.log_alpha.detach()`."""
        held: HeldStats | None = self.dry_run_results.get(where)
        if held is None:
            held = self.dry_run_results[where] = HeldStats()
        return held

    def _require_finite_gradient(self, norm: Tensor | float | None, are_finite: Callable[[], bool]) -> None:
        """Check the norm of the gradients; without one, all of them, but only if `learn.on_nonfinite` needs it."""
        if norm is not None:
            self._require_finite("gradient", norm)
        elif self._nonfinite_steps is not None and not are_finite():
            raise loss_error(f"the gradient of {type(self).__name__} is not finite in gradient step {self.train_iter}")

    def _require_finite(self, what: str, tensor: Tensor | float) -> None:
        value = tensor.item() if isinstance(tensor, Tensor) else float(tensor)
        if not math.isfinite(value):
            raise loss_error(f"the {what} of {type(self).__name__} is {value} in gradient step {self.train_iter}")

    @property
    def has_loss(self) -> bool:
        """Whether `loss` is overridden."""
        return type(self).loss is not Policy.loss

    @property
    def has_own_learning(self) -> bool:
        """Whether `learn_on_batch` is overridden."""
        return type(self).learn_on_batch is not Policy.learn_on_batch

    @property
    def needs_rollouts(self) -> bool:
        """Whether an algorithm of the library takes rollouts [T, B, ...] apart, into minibatches or in order of time, so that
        rows [B, ...] are no batch for it, as for PPO and IMPALA."""
        learn: Any = type(self).learn_on_batch
        return self.learns_from == "rollouts" and self.has_own_learning and is_of_ding_lite(learn.__module__)

    def keeps_gradient(self, param: nn.Parameter) -> bool:
        """Whether the gradient of a parameter may count in a later gradient step: the library's steps delete those of the
        model before each step."""
        is_of_model = any(param is one for one in self.params)
        return self.has_own_learning if is_of_model else self.has_hooks_of_users()

    @property
    def _needs_model(self) -> bool:
        own: Any = type(self)
        return self.has_loss or own.make_model is not Policy.make_model or own.compute_actions is Policy.compute_actions

    @functools.cached_property
    def has_extra_outputs(self) -> bool:
        """Whether `extra_action_out` is overridden."""
        return type(self).extra_action_out is not Policy.extra_action_out

    @functools.cached_property
    def previous(self) -> tuple[str, ...]:
        """Those of prev_action_batch and prev_reward_batch that are parameters of `compute_actions`."""
        return tuple(name for name in _PREVIOUS if name in parameters_of(self.compute_actions))

    @functools.cached_property
    def observed(self) -> tuple[str, ...]:
        """Those of info_batch and episodes that are parameters of `compute_actions`."""
        return tuple(name for name in _OBSERVED if name in parameters_of(self.compute_actions))


def _inherited(cls: type[Policy], name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the one that `cls` inherits by this name; `fn` is that method, for its docstring."""

    @functools.wraps(fn)
    def called(self: Policy, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(cls, self), name)(*args, **kwargs)

    return called


def _counting(fn: Callable[..., Any], is_learning: bool) -> Callable[..., Any]:
    """Wrap `set_weights` or `learn_on_batch` of a class: the version of the weights increases if the method does not do this.

    Args:
        fn: the method.
        is_learning: True for `learn_on_batch`, which also counts as a gradient step if it does not count one itself.
    """

    @functools.wraps(fn)
    def called(self: Policy, *args: Any, **kwargs: Any) -> Any:
        version, steps, before, result = self.version, self.train_iter, _progress(self) if is_learning else None, None
        skipped = self._skipped if is_learning else 0
        if not is_learning and self.being_loaded is None:
            self.take_from_learners()
        is_step = False
        try:
            result = fn(self, *args, **kwargs)
        finally:  # some of the weights may have changed before an error
            if self.version == version or self.train_iter == steps:  # it has not counted by itself, as `gradient_step` does
                has_progressed, is_skipped = _has_progressed(self, before), is_learning and self._skipped != skipped
                is_step = not is_learning or not self.has_loss or (not is_skipped and (bool(result) or has_progressed))
                if self.version == version and (is_step or has_progressed):
                    self.bump_version()
        if is_step and is_learning and self.train_iter == steps:
            self.train_iter += 1
        return result

    return called


def _run_config_of(config_type: type[PolicyConfig]) -> str:
    """ ", such as X": the configuration of runs with this one, which stands beside it under the same name without "Policy"."""
    name = config_type.__name__.removesuffix("PolicyConfig") + "Config"
    return f", such as {name}" if hasattr(sys.modules.get(config_type.__module__), name) else ""


def _has_objects(column: Any) -> bool:
    return any(holds_objects(leaf) for _, leaf in flatten(column)) if type(column) is dict else holds_objects(column)


def _progress(policy: Policy) -> tuple[int, list[Any]]:
    """Torch's count of changes in place, and the steps of the optimizer, because fused steps are not in that count."""
    states = policy.optimizer.state.values() if policy.params else ()
    return policy.count_changes(), [_noted(state["step"]) for state in states if "step" in state]


def _noted(step: Any) -> Any:
    """A count as a number or, on a GPU, as a copy, which does not wait for it."""
    tensor = torch.as_tensor(step)
    return tensor.tolist() if tensor.is_cpu else tensor.clone()


def _has_progressed(policy: Policy, before: tuple[int, list[Any]] | None) -> bool:
    if before is None:
        return False
    changes, steps = _progress(policy)
    return changes != before[0] or len(steps) != len(before[1]) or any(map(_are_unequal, steps, before[1]))


def _are_unequal(step: Any, before: Any) -> bool:
    return not torch.equal(step, before) if isinstance(step, Tensor) else step != before
