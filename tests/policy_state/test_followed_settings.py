"""The optimizer of a loaded state follows the configuration of the policy that loads it."""

import copy
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import CQLPolicy, DQNPolicy, PPOPolicy, SACPolicy
from ding_lite.policy_base import build_policy
from ding_lite.policy_parts import KLCoeffMixin, LearningRateSchedule
from ding_lite.policy_state import StateDictError

BOX, DISCRETE, CONTINUOUS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)


def made(kind=DQNPolicy, **settings):
    return kind({"seed": 0, **settings}, BOX, CONTINUOUS if issubclass(kind, SACPolicy) else DISCRETE)


def rows(policy, n=6):
    zeros = torch.zeros(n)
    action = torch.zeros(n, 2) if isinstance(policy, SACPolicy) else torch.arange(n) % 3
    columns = {"obs": torch.ones(n, 4), "next_obs": torch.ones(n, 4), "action": action, "reward": zeros + 1}
    return tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()})


def learned(*args, steps=2, **settings):
    policy = made(*args, **settings)
    for _ in range(steps):
        policy.learn_mode.forward(rows(policy))
    return policy


def loaded(policy, state):
    """The warnings of loading."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        policy.load_state_dict(state)
    return [str(one.message) for one in shown]


def groups(policy):
    return [{name: value for name, value in group.items() if name != "params"} for group in policy.optimizer.param_groups]


CHANGES = {
    "learn.learning_rate": (0.25, "lr"),
    "learn.optimizer_eps": (0.5, "eps"),
    "learn.rmsprop_decay": (0.75, "alpha"),
}


@pytest.mark.few
@pytest.mark.parametrize("kind", [DQNPolicy, SACPolicy])
@pytest.mark.parametrize("name", CHANGES)
def test_the_configuration_wins_and_one_warning_names_both_values(kind, name):
    fixed = {"learn.optimizer": "rmsprop"} if "rmsprop" in name else {}
    value, key = CHANGES[name]
    saved, other = learned(kind, **fixed), made(kind, **fixed, **{name: value})
    (text,) = loaded(other, saved.state_dict())
    was = getattr(saved.cfg.learn, name.partition(".")[2])
    assert f"cfg.policy.{name} is {value!r}, and was {was!r}" in text
    assert other.optimizer.param_groups[0][key] == value
    assert groups(other) == groups(made(kind, **fixed, **{name: value}))
    moments = [policy.optimizer.state[policy.params[0]] for policy in (saved, other)]
    assert all(torch.equal(moments[0][part], moments[1][part]) for part in moments[0])


def test_one_warning_names_all_settings_that_differ():
    other = made(**{"discount_factor": 0.5, "learn.batch_size": 7, "learn.target_update_freq": 9, "device": "cpu:0", "seed": 4})
    saved = made()
    (text,) = loaded(other, saved.state_dict())
    found = [
        "discount_factor is 0.5, and was 0.99",
        "learn.batch_size is 7, and was 64",
        "learn.target_update_freq is 9, and was",
    ]
    assert all(f"cfg.policy.{one}" in text for one in found)
    assert "device" not in text
    assert not loaded(made(**{"learn.batch_size": 7}), {"model": saved.state_dict()["model"]})


def test_the_warning_points_to_the_line_that_loads():
    with pytest.warns(UserWarning, match="own configuration") as shown:
        made(**{"learn.learning_rate": 0.25}).load_state_dict(learned().state_dict())
    assert [one.filename for one in shown] == [__file__]


@pytest.mark.parametrize("kind", [DQNPolicy, SACPolicy, PPOPolicy])
def test_with_the_same_configuration_all_is_as_saved(kind):
    saved = made(kind) if kind is PPOPolicy else learned(kind)
    saved.optimizer.param_groups[0]["lr"] = 0.125  # as a schedule of torch does
    saved.optimizer.param_groups[-1]["eps"] = 0.25
    again = made(kind)

    assert not loaded(again, saved.state_dict())
    assert groups(again) == groups(saved)


def test_with_warnings_as_errors_nothing_is_changed():
    saved, other = learned(), made(**{"learn.learning_rate": 0.25})
    before = groups(other), other.params[0].clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="own configuration"):
            other.load_state_dict(saved.state_dict())
    assert groups(other) == before[0]
    assert torch.equal(other.params[0], before[1])


def test_the_current_rate_of_a_schedule_is_no_difference():
    points = [(0, 1e-3), (4, 0.0)]
    saved, again = learned(**{"learn.lr_schedule": points}, steps=3), made(**{"learn.lr_schedule": points})

    assert not loaded(again, saved.state_dict())
    assert again.cur_lr == saved.cur_lr == pytest.approx(5e-4)
    for policy in (saved, again):
        policy.learn_mode.forward(rows(policy))
    assert all(map(torch.equal, saved.params, again.params))


def test_a_schedule_that_is_gone_leaves_the_configured_rate():
    saved, other = learned(**{"learn.lr_schedule": [(0, 1e-3), (4, 0.0)]}, steps=3), made()
    (text,) = loaded(other, saved.state_dict())

    assert "cfg.policy.learn.lr_schedule is None, and was [[0.0, 0.001], [4.0, 0.0]]" in text
    assert other.optimizer.param_groups[0]["lr"] == other.cur_lr == other.cfg.learn.learning_rate


def test_another_schedule_gives_the_rate_of_the_next_step():
    saved, other = learned(), made(**{"learn.lr_schedule": [(0, 1.0), (8, 0.0)]})
    (text,) = loaded(other, saved.state_dict())
    other.learn_mode.forward(rows(other))

    assert "cfg.policy.learn.lr_schedule is" in text
    assert other.cur_lr == pytest.approx(0.75)


def test_beside_a_schedule_the_rate_has_no_effect_and_is_no_difference():
    points = {"learn.lr_schedule": [(0, 1e-3), (4, 0.0)]}
    assert not loaded(made(**points, **{"learn.learning_rate": 0.5}), learned(**points).state_dict())


def test_values_that_reset_config_has_set_survive():
    saved, again = learned(), made()
    saved.reset_config({"learn.learning_rate": 0.25, "learn.optimizer_eps": 0.5})

    assert not loaded(again, saved.state_dict())
    assert again.cfg.learn.learning_rate == again.optimizer.param_groups[0]["lr"] == 0.25
    assert again.optimizer.param_groups[0]["eps"] == 0.5

    assert not loaded(again, learned().state_dict())
    assert again.optimizer.param_groups[0]["lr"] == again.cfg.learn.learning_rate == 1e-3


def test_so_do_they_where_other_settings_differ():
    saved, other = learned(), made(**{"learn.optimizer_eps": 0.5})
    saved.reset_config({"learn.learning_rate": 0.25})
    (text,) = loaded(other, saved.state_dict())

    assert "optimizer_eps is 0.5, and was None" in text
    assert "learning_rate" not in text
    assert (other.optimizer.param_groups[0]["lr"], other.optimizer.param_groups[0]["eps"]) == (0.25, 0.5)


def test_an_optimizer_of_ones_own_follows_too():
    def optimizer_fn(policy, config):
        return torch.optim.AdamW(policy.params, lr=config["lr"], weight_decay=config["decay"], betas=(0.9, config["beta"]))

    kind = DQNPolicy.with_updates("Decayed", optimizer_fn=optimizer_fn)
    saved, other = learned(kind, decay=0.1, beta=0.99), made(kind, decay=0.2, beta=0.9)
    (text,) = loaded(other, saved.state_dict())

    assert "betas is [0.9, 0.9], and was [0.9, 0.99]; weight_decay is 0.2, and was 0.1" in text
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.2
    assert other.optimizer.param_groups[0]["betas"] == (0.9, 0.9)


def test_a_rate_that_makes_other_parameter_groups_wins_too():
    saved, rates = learned(SACPolicy), {"learn.learning_rate_actor": 0.25}
    for settings, values in ((rates, "0.25, and was None"), ({}, "None, and was 0.25")):
        other = made(SACPolicy, **settings)
        (text,) = loaded(other, saved.state_dict())

        assert f"cfg.policy.learn.learning_rate_actor is {values}" in text
        assert groups(other) == groups(made(SACPolicy, **settings))
        for mine, theirs in zip(saved.params, other.params):
            moments = saved.optimizer.state[mine], other.optimizer.state[theirs]
            assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
        assert not loaded(made(SACPolicy, **settings), other.state_dict())
        saved = other


def test_a_mixin_that_hooks_have_set_up_is_as_saved():
    kind = DQNPolicy.with_updates(
        "Hooked",
        mixins=[LearningRateSchedule],
        before_loss_init=lambda policy, o, a, config: LearningRateSchedule.__init__(policy, 0.125),
    )
    saved, again = learned(kind), made(kind)

    assert not loaded(again, saved.state_dict())
    assert again.optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("settings", [{}, {"learn.learning_rate": 0.25}])
def test_a_state_of_an_earlier_version_follows_the_configuration_that_it_names(settings):
    state = copy.deepcopy(learned().state_dict())
    del state["optimizer"]["made"]
    state["optimizer"]["param_groups"][0]["lr"] = 0.5  # by a schedule of torch
    policy = made(**settings)

    assert len(loaded(policy, state)) == len(settings)
    assert policy.optimizer.param_groups[0]["lr"] == (0.25 if settings else 0.5)


@pytest.mark.parametrize("wrong", [3, [], [3], [{}, {}]])
def test_damaged_settings_are_refused(wrong):
    state = copy.deepcopy(learned().state_dict())
    state["optimizer"]["made"] = wrong
    policy = made()
    before = groups(policy)
    with pytest.raises(StateDictError, match=r'"optimizer"\]\["made"\] is .*expected a dict of settings for each of 1 '):
        policy.load_state_dict(state)
    assert groups(policy) == before


POINTS, LATER = [[0.0, 0.25], [4.0, 0.0]], [[0.0, 0.5], [4.0, 0.25]]
WEIGHTS = {
    "an entropy weight": ("entropy_coeff", "learn.entropy_weight", 0.0, 0.5),
    "an entropy schedule": ("entropy_coeff", "learn.entropy_schedule", POINTS, LATER),
    "a schedule where there was none": ("entropy_coeff", "learn.entropy_schedule", None, LATER),
    "no schedule where there was one": ("entropy_coeff", "learn.entropy_schedule", POINTS, None),
    "a KL weight": ("kl_coeff", "learn.kl_coeff", 0.25, 0.5),
    "no KL penalty": ("kl_coeff", "learn.kl_coeff", 0.25, 0.0),
}


@pytest.mark.parametrize(("entry", "name", "was", "own"), WEIGHTS.values(), ids=WEIGHTS)
def test_a_weight_of_the_loss_stays_that_of_the_configuration_and_a_warning_names_both(entry, name, was, own):
    saved, other = (made(PPOPolicy, **{name: value}) for value in (was, own))
    before = getattr(other, entry)
    (text,) = loaded(other, {**saved.state_dict(), entry: 0.125})

    assert f"cfg.policy.{name} is {own!r}, and was {was!r}" in text
    assert getattr(other, entry) == before


CONSTANT = {"learn.auto_alpha": False, "learn.alpha": 0.0625}


@pytest.mark.parametrize("kind", [SACPolicy, CQLPolicy])
@pytest.mark.parametrize("whole", [True, False])
def test_a_constant_temperature_stays_that_of_the_configuration_and_a_warning_names_both(kind, whole):
    saved, other = made(kind, **{**CONSTANT, "learn.alpha": 0.25}), made(kind, **CONSTANT)
    state = saved.state_dict()
    (text,) = loaded(other, state if whole else {name: state[name] for name in ("model", "made_with")})
    learned, others = ({name: it for name, it in one.get_weights().items() if name != "log_alpha"} for one in (saved, other))

    assert "cfg.policy.learn.alpha is 0.0625, and was 0.25" in text
    assert other.model.log_alpha.exp().item() == pytest.approx(0.0625)
    torch.testing.assert_close(others, learned, rtol=0, atol=0)
    other.set_weights(saved.get_weights())
    other.load_learned_state(saved.learned_state())
    other.load_state_dict({"model": saved.get_weights()})
    assert other.model.log_alpha.exp().item() == pytest.approx(0.0625)


def test_a_constant_temperature_is_looked_for_in_weights_by_name_alone():
    class Listed(SACPolicy):
        def get_weights(self):
            return [*super().get_weights().values()]

        def set_weights(self, weights):
            super().set_weights(dict(zip(super().get_weights(), weights, strict=True)))

    saved, other = made(Listed, **{**CONSTANT, "learn.alpha": 0.25}), made(Listed, **CONSTANT)
    loaded(other, saved.state_dict())
    torch.testing.assert_close(other.get_weights(), saved.get_weights(), rtol=0, atol=0)


def test_a_constant_temperature_is_not_one_that_was_learned_and_the_other_way_round_it_is_learned_on():
    saved, other = learned(SACPolicy, **{"learn.alpha": 0.25}), made(SACPolicy, **CONSTANT)
    (text,) = loaded(other, saved.state_dict())
    assert "cfg.policy.learn.auto_alpha is False, and was True; cfg.policy.learn.alpha is 0.0625, and was 0.25" in text
    assert other.model.log_alpha.exp().item() == pytest.approx(0.0625)
    again = made(SACPolicy, **{"learn.alpha": 0.5})
    again.load_state_dict(saved.state_dict())
    assert again.model.log_alpha.item() == saved.model.log_alpha.item()


def test_a_temperature_that_a_hook_has_changed_is_as_saved():
    saved, again = made(SACPolicy, **CONSTANT), made(SACPolicy, **CONSTANT)
    saved.model.log_alpha.data.fill_(-1.0)

    assert not loaded(again, saved.state_dict())
    assert again.model.log_alpha.item() == -1


def test_one_warning_names_weights_and_learning_rates():
    other = made(PPOPolicy, **{"learn.entropy_weight": 0.5, "learn.learning_rate": 0.25})
    (text,) = loaded(other, made(PPOPolicy).state_dict())

    assert "learn.learning_rate is 0.25, and was 0.001; cfg.policy.learn.entropy_weight is 0.5, and was 0.01. To go on" in text


@pytest.mark.parametrize("settings", [{}, {"learn.kl_coeff": 0.25}, {"learn.entropy_schedule": POINTS}])
def test_with_the_same_configuration_the_weights_are_as_saved(settings):
    again = made(PPOPolicy, **settings)
    assert not loaded(again, {**made(PPOPolicy, **settings).state_dict(), "kl_coeff": 0.125, "entropy_coeff": -0.125})
    assert (again.kl_coeff, again.entropy_coeff) == (0.125, -0.125)


def test_beside_the_same_schedule_another_weight_is_no_difference():
    saved = made(PPOPolicy, **{"learn.entropy_schedule": POINTS})
    again = made(PPOPolicy, **{"learn.entropy_schedule": POINTS, "learn.entropy_weight": 0.5})

    assert not loaded(again, saved.state_dict())


def test_weights_that_reset_config_has_set_survive():
    saved, again = made(PPOPolicy), made(PPOPolicy, **{"learn.kl_coeff": 0.5, "learn.entropy_weight": 0.5})
    saved.reset_config({"learn.kl_coeff": 0.25, "learn.entropy_weight": 0.125})
    saved.update_kl(1.0)

    assert not loaded(again, saved.state_dict())
    assert (again.kl_coeff, again.entropy_coeff) == (0.375, 0.125)


def test_a_state_without_its_configuration_gives_the_weights():
    saved, other = made(PPOPolicy), made(PPOPolicy, **{"learn.entropy_weight": 0.5})
    state = {name: part for name, part in saved.state_dict().items() if name != "made_with"}
    loaded(other, state)

    assert other.entropy_coeff == 0.01


def test_a_weight_among_the_settings_of_a_class_made_of_functions_stays_too():
    kind = build_policy(
        "WithKL", loss_fn=lambda policy, model, dist_class, batch: model.values(batch.obs).sum(), mixins=[KLCoeffMixin]
    )
    other = made(kind, kl_coeff=0.5)
    (text,) = loaded(other, made(kind, kl_coeff=0.25).state_dict())

    assert "kl_coeff is 0.5, and was 0.25" in text
    assert other.kl_coeff == 0.5


@pytest.mark.parametrize(("own", "expected"), [(0.25, 0.375), (0.5, 0.5)])
def test_what_another_policy_has_learned_has_its_weight_only_with_the_same_setting(own, expected):
    source, target = made(PPOPolicy, **{"learn.kl_coeff": 0.25}), made(PPOPolicy, **{"learn.kl_coeff": own})
    source.update_kl(1.0)
    target.load_learned_state(source.learned_state())

    assert target.kl_coeff == expected
