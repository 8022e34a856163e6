"""What a policy class defines: misspelt hooks, and values that do not exist."""

import functools
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.policy_base import Policy
from ding_lite.policy_base.foreign_hooks import FOREIGN_HOOKS
from ding_lite.policy_check import foreign_methods

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def made(*bases, **attributes):
    return type("Mine", bases or (PPOPolicy,), attributes)({"seed": 0}, BOX, DISCRETE)


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("post_process", "postprocess"),
        ("stat", "stats"),
        ("gradient", "gradients"),
        ("afterstep", "after_step"),
        ("computeActions", "compute_actions"),
        ("learn_on_batches", "learn_on_batch"),
        ("setup", "set_up"),
        ("loss_fn", "loss"),
        ("stats_fn", "stats"),
        ("postprocess_fn", "postprocess"),
        ("extra_action_out_fn", "extra_action_out"),
        ("gradients_fn", "gradients"),
        ("post_process_fn", "postprocess"),
        ("optimizer_fn", "make_optimizer"),
        ("extra_grad_process_fn", "gradients"),
        ("apply_gradients", "gradients"),
        ("compute_loss", "loss"),
        ("postprocess_trajectory", "postprocess"),
        ("_forward_learn", "loss"),
        ("_forward_collect", "compute_actions"),
        ("_forward_eval", "compute_actions"),
        ("_init_learn", "before_loss_init"),
        ("_process_transition", "extra_action_out"),
        ("compute_loss_for_module", "loss"),
        ("compute_losses", "loss"),
        ("_forward_train", "loss"),
        ("forward_train", "loss"),
        ("custom_loss", "loss"),
        ("_state_dict_learn", "state_dict"),
        ("_load_state_dict_learn", "load_state_dict"),
        ("value_function", "with_values"),
        ("_get_train_sample", "postprocess"),
        ("default_model", "make_model"),
        ("_monitor_vars_learn", "stats"),
    ],
)
def test_a_misspelt_hook_or_one_of_another_library_is_a_warning_once_per_class(name, meant, recwarn):
    kind = type("Mine", (PPOPolicy,), {name: lambda self, *_: None, "__module__": "elsewhere"})
    for _ in range(2):
        kind({"seed": 0}, BOX, DISCRETE)
    type("Derived", (kind,), {})({"seed": 0}, BOX, DISCRETE)
    assert [str(it.message) for it in recwarn] == [
        f"Mine defines {name!r}, which ding_lite does not call: did you mean {meant!r}?"
    ]


@pytest.mark.few
@pytest.mark.parametrize("name", [*foreign_methods.ADVICE, "action_distribution_fn", "validate_spaces", "_after_loss_init"])
def test_a_method_of_another_library_without_a_counterpart_is_a_warning_with_advice(name, recwarn):
    kind = type("Mine", (PPOPolicy,), {name: lambda self, *_: None, "__module__": "elsewhere"})
    for _ in range(2):
        kind({"seed": 0}, BOX, DISCRETE)
    advice = foreign_methods.ADVICE.get(name) or FOREIGN_HOOKS[name]
    assert [str(it.message) for it in recwarn] == [f"Mine defines {name!r}, which ding_lite does not call: {advice}"]


def test_a_method_of_another_library_that_the_users_own_code_calls_is_no_warning(recwarn):
    class Calls(PPOPolicy):
        framework = "torch"

        def metrics(self):
            return {}

        def training_step(self):
            return self.value_function()

        def value_function(self):
            return {"mine": 1.0}

        def stats(self, batch):
            return {**super().stats(batch), **self.training_step(), **self.metrics()}

    class Property(PPOPolicy):
        @property
        def metrics(self):
            return None

    Calls({"seed": 0}, BOX, DISCRETE)
    Property({"seed": 0}, BOX, DISCRETE)
    assert not recwarn.list


def of_module(policy, batch):
    """The loss of a policy, in the same file."""
    return policy.compute_losses(batch)


def test_a_method_that_the_users_own_file_calls_is_no_warning(recwarn):
    class CalledByAFunction(PPOPolicy):
        custom_loss = None

        def compute_losses(self, batch):
            return super().loss(batch)

        def loss(self, batch):
            return of_module(self, batch)

    class CalledByName(PPOPolicy):
        def on_episode_end(self):
            return 1

    policy = CalledByName({"seed": 0}, BOX, DISCRETE)
    assert getattr(policy, "on_episode_end")() == 1  # noqa: B009  as a script may
    CalledByAFunction({"seed": 0}, BOX, DISCRETE)
    assert not recwarn.list


def test_a_misspelt_class_attribute_is_a_warning():
    with pytest.warns(UserWarning, match="Mine defines 'learn_from', which .* does not read: did you mean 'learns_from'"):
        made(learn_from="transitions")


def test_helpers_with_other_names_or_callers_are_no_warning():
    class WithHelpers(DQNPolicy):
        scale, losses = 2, ()

        def stat(self):
            return {"mine": 1.0}

        def stats(self, batch):
            return {**super().stats(batch), **self.stat()}

        def _gradient(self):
            return None

        def compute_loss(self, batch):
            return super().loss(batch)

        def loss(self, batch):
            return self.compute_loss(batch)

        def activation_fn(self):
            return None

    class Overriding(WithHelpers):
        def stat(self):
            return {"mine": 2.0}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Overriding({"seed": 0}, BOX, DISCRETE)


@pytest.mark.parametrize(
    ("name", "method", "replaced"),
    [
        ("learn", lambda self: None, "method learn of KLCoeffMixin"),
        ("learn", lambda self, total_timesteps, callback=None: None, "method learn of KLCoeffMixin"),
        ("attach", lambda self, one: None, "method attach of PolicyState"),
        ("is_recurrent", lambda self: False, "property is_recurrent of RecurrentActorCriticMixin"),
        ("columns", lambda self: (), "property columns of Policy"),
    ],
)
def test_a_method_that_replaces_an_internal_one_is_refused(name, method, replaced):
    with pytest.raises(
        TypeError, match=f"Mine.{name} replaces the {replaced}, used internally in another way: give it another name"
    ):
        made(**{name: method})


def test_a_method_with_a_compatible_signature_is_accepted():
    class Longer(PPOPolicy):
        is_recurrent = False

        def learn(self, samples):
            return super().learn(samples)

        def gradient_step(self, rows):
            return super().gradient_step(rows)

        def metrics(self):
            return {}

    Longer({"seed": 0}, BOX, DISCRETE).dry_run()


def test_a_decorated_method_is_called_as_it_is_written():
    def with_scale(self, rows, scale):
        return PPOPolicy.gradient_step(self, rows)

    @functools.wraps(with_scale)
    def gradient_step(self, rows):
        return with_scale(self, rows, 1.0)

    made(gradient_step=gradient_step)


@pytest.mark.parametrize("name", ["learns_from", "loss_takes"])
@pytest.mark.parametrize("value", ["rollout", None])
def test_a_value_that_does_not_exist_is_refused(name, value):
    with pytest.raises(ValueError, match=rf'Mine.{name} is {value!r}: set it to "rollouts" or "transitions"'):
        made(Policy, **{name: value})
