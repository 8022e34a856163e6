"""A configuration by short names."""

import dataclasses
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from ding_lite import config as config_package
from ding_lite import policy as policy_package
from ding_lite.engine import ConfigError
from ding_lite.policy import (
    A2CPolicy,
    BCPolicy,
    CQLPolicyConfig,
    DQNConfig,
    DQNPolicy,
    DQNPolicyConfig,
    IMPALAConfig,
    IQLPolicyConfig,
    LearningRateSchedule,
    PPOConfig,
    PPOPolicy,
    PPOPolicyConfig,
    R2D2PolicyConfig,
    RainbowConfig,
    SACPolicyConfig,
    TD3BCPolicy,
    TD3BCPolicyConfig,
    TD3Policy,
    TD3PolicyConfig,
    build_policy,
)
from ding_lite.policy_base import OnPolicyConfig, Policy, PolicyConfig
from ding_lite.policy_base.rllib_names import MORE_PLACES, PLACES
from ding_lite.policy_base.short_names import resolve

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


@dataclasses.dataclass
class WideModel(type(DQNPolicyConfig().model)):
    width: int = 3


def test_a_section_of_a_derived_class_in_the_defaults_stays():
    default = DQNPolicyConfig(model=WideModel(width=4))
    cfg = resolve({"lr": 0.5}, default, DQNPolicyConfig).cfg

    assert (cfg.model, cfg.learn.learning_rate) == (WideModel(width=4), 0.5)
    assert default.learn.learning_rate != 0.5


def test_short_and_dotted_names_lead_to_the_typed_configuration():
    config = resolve({"lr": 0.5, "gamma": 0.25, "learn.batch_size": 7, "seed": 3, "own": [1]}, None, PolicyConfig)

    assert config.cfg.learn.learning_rate == config["lr"] == config["learn.learning_rate"] == 0.5
    assert config.cfg.collect.discount_factor == config["gamma"] == 0.25
    assert (config["learn.batch_size"], config["seed"], config["own"]) == (7, 3, [1])
    assert config.get("grad_clip") == 0.5
    assert dict(config)["lr"] == 0.5
    assert len(config) == len(list(config))


def test_gamma_is_found_where_each_algorithm_has_it():
    assert DQNPolicy(DQNPolicyConfig(discount_factor=0.5), BOX, DISCRETE).config["gamma"] == 0.5
    ppo = PPOPolicyConfig().override({"collect.discount_factor": 0.25})
    assert PPOPolicy(ppo, BOX, DISCRETE).config["gamma"] == 0.25
    assert PPOPolicy({"gamma": 0.75, "clip_param": 0.1}, BOX, DISCRETE).cfg.learn.clip_ratio == 0.1


@pytest.mark.parametrize(
    ("kind", "name", "value", "place"),
    [
        (PPOPolicy, "num_sgd_iter", 5, "learn.epoch_per_collect"),
        (PPOPolicy, "num_epochs", 5, "learn.epoch_per_collect"),
        (PPOPolicy, "sgd_minibatch_size", 16, "learn.batch_size"),
        (PPOPolicy, "minibatch_size", 16, "learn.batch_size"),
        (PPOPolicy, "lambda_", 0.5, "collect.gae_lambda"),
        (PPOPolicy, "fcnet_hiddens", [8], "model.encoder_hidden_size_list"),
        (DQNPolicy, "minibatch_size", 16, "learn.batch_size"),
        (DQNPolicy, "n_step", 3, "nstep"),
        (DQNPolicy, "double_q", False, "double"),
        (DQNPolicy, "dueling", False, "model.dueling"),
        (DQNPolicy, "tau", 0.25, "learn.target_update_theta"),
    ],
)
def test_names_of_rllib_with_an_equivalent_set_it(kind, name, value, place, recwarn):
    policy = kind({name: value}, BOX, DISCRETE)

    assert policy.config[place] == policy.config[name] == value
    assert name not in policy.config.extra
    assert not recwarn.list


def test_every_place_of_a_name_is_a_field_of_some_policy():
    kinds = [kind for name, kind in vars(policy_package).items() if name.endswith("PolicyConfig")]
    fields = [resolve(None, None, kind) for kind in kinds]
    for name, places in {**PLACES, **MORE_PLACES}.items():
        for place in places:
            assert any(place in config for config in fields), (name, place)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (PPOPolicy, "train_batch_size", "the collector reads cfg.policy.collect.n_sample of the run"),
        (DQNPolicy, "train_batch_size", "the transitions per gradient step are policy.learn.batch_size"),
        (PPOPolicy, "rollout_fragment_length", "the collector reads cfg.policy.collect.n_sample of the run"),
        (PPOPolicy, "num_workers", "cfg.env.workers"),
        (PPOPolicy, "vf_clip_param", "policy.learn.value_clip"),
        (Policy, "num_sgd_iter", "PPO and IMPALA have policy.learn.epoch_per_collect; other policies take one gradient step"),
    ],
)
def test_names_of_rllib_without_an_equivalent_in_a_policy_name_the_place_to_set_it(kind, name, words):
    with pytest.warns(UserWarning, match=f"has no setting '{name}': .*{words}"):
        assert kind({name: 5}, BOX, DISCRETE).config[name] == 5


def test_a_typed_configuration_is_taken_as_it_is():
    cfg = PPOPolicyConfig(seed=4)
    policy = PPOPolicy(cfg, BOX, DISCRETE)

    assert policy.cfg is cfg
    assert policy.learn_mode.cfg is policy.collect_mode.cfg is cfg


def test_what_is_given_does_not_change_the_defaults():
    default = OnPolicyConfig()
    resolve({"lr": 0.5}, default, PolicyConfig)

    assert default.learn.learning_rate == 1e-3


def test_an_unknown_name_is_named_with_the_nearest():
    with pytest.raises(KeyError, match="OnPolicyConfig has no 'gama': did you mean 'gamma'"):
        Policy(None, BOX, DISCRETE).config["gama"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gama", "gamma"),
        ("learning_rate", "learn.learning_rate"),
        ("entropy_coef", "entropy_coeff"),
        ("lrr", "lr"),
        ("LR", "lr"),
        ("Gamma", "gamma"),
        ("num_sgd_iters", "num_sgd_iter"),
        ("activatoin", "model.activation"),
    ],
)
def test_a_setting_that_is_nearly_one_of_the_policys_is_kept_with_a_warning(name, meant):
    with pytest.warns(UserWarning, match=f"PPOPolicyConfig has no setting '{name}': did you mean '{meant}'"):
        policy = PPOPolicy({name: 0.5}, BOX, DISCRETE)

    assert policy.config[name] == 0.5


class Mine(PPOPolicy):
    """A class of a user, whose hooks may read settings of their own."""


def test_a_setting_of_a_users_own_is_kept_in_silence(recwarn):
    own = {"beta": 0.5, "my_coeff": 2, "gamma2": 1, "lr_2": 1, "starts": 3, "model2": 0, "tau": 1, "normalize": True}
    assert Mine(own, BOX, DISCRETE).config["my_coeff"] == 2
    assert PPOPolicy.with_updates("Hooked", stats_fn=lambda policy, batch: {})(own, BOX, DISCRETE).config["my_coeff"] == 2
    kind = PPOPolicy.with_updates(
        "Own", get_default_config=lambda: {"gama": 1}, stats_fn=lambda policy, batch: {"mine": policy.config["gama"]}
    )
    assert kind({"gama": 2}, BOX, DISCRETE).config["gama"] == 2

    assert not recwarn.list


def test_a_setting_that_a_hook_reads_by_name_is_a_users_own(recwarn):
    @dataclasses.dataclass
    class OwnConfig(PPOPolicyConfig):
        pass

    class Reads(PPOPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * self.config["use_critic"] * self.config.get("gammas", 1.0), stats

    own = {"use_critic": 1, "gammas": 0.5}
    assert Reads(own, BOX, DISCRETE).config["gammas"] == 0.5
    hook = PPOPolicy.with_updates("Hooked", stats_fn=lambda policy, batch: {"mine": policy.config["use_critic"]})
    assert hook({"use_critic": 1}, BOX, DISCRETE).config["use_critic"] == 1
    typed = type("Typed", (Reads,), {"config_type": OwnConfig})
    assert typed(own, BOX, DISCRETE).config["gammas"] == 0.5
    assert not recwarn.list
    with pytest.warns(UserWarning, match="use_critic"):
        Mine({"use_critic": 1}, BOX, DISCRETE)


def warned_of(kind, settings, action_space=BOX):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = kind(settings, BOX, action_space)
    assert all(policy.config[name] == value for name, value in settings.items())
    return [str(one.message) for one in caught]


def test_settings_that_no_hook_of_the_librarys_policies_reads_are_named_in_one_warning():
    (found,) = warned_of(TD3BCPolicy, {"critic_learning_rate": 0.1, "alpha": 0.0, "noise_cap": 0.0, "size": 1})
    assert found.startswith(
        "TD3BCPolicyConfig has no settings 'critic_learning_rate', 'alpha', 'noise_cap', 'size'. They are kept in "
        "policy.config, but TD3BCPolicy reads none of them. 'critic_learning_rate': the learning rate of the critics is "
        "policy.learn.learning_rate. 'alpha': did you mean 'learn.bc_alpha'? 'noise_cap': did you mean"
    )
    assert found.endswith("TD3BCPolicyConfig().to_dict() has all settings.")
    (found,) = warned_of(TD3BCPolicy, {**{letter * 9: 1 for letter in "abcdefghij"}, "gamma2": 1})
    assert "'aaaaaaaaa', 'bbbbbbbbb', 'ccccccccc', 'ddddddddd', 'eeeeeeeee', 'fffffffff', 'ggggggggg'" in found
    assert "'jjjjjjjjj', 'gamma2'. They are kept in" in found
    (found,) = warned_of(PPOPolicy.with_updates(mixins=[LearningRateSchedule]), {"fuzz": 1}, DISCRETE)
    assert found.startswith("PPOPolicyConfig has no setting 'fuzz'. It is kept as policy.config['fuzz'], but PPOPolicy")


def test_the_warning_of_unread_settings_is_at_the_line_that_makes_the_policy():
    with pytest.warns(UserWarning, match="TD3BCPolicy does not read it") as caught:
        TD3BCPolicy({"my_coeff": 1}, BOX, BOX)
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(
    ("kind", "space", "name", "value", "words"),
    [
        (DQNPolicy, DISCRETE, "num_atoms", 51, "C51Policy and RainbowPolicy have it, as model.n_atom."),
        (DQNPolicy, DISCRETE, "entropy_coeff", 0.1, "A2CPolicy, IMPALAPolicy, PPOPolicy and others have it, as learn."),
        (A2CPolicy, DISCRETE, "clip_param", 0.1, "PPOPolicy has it, as learn.clip_ratio."),
        (PPOPolicy, DISCRETE, "tau", 0.1, "and others have it, as learn.target_update_theta."),
        (PPOPolicy, DISCRETE, "dueling", True, "and others have it, as model.dueling."),
        (TD3BCPolicy, BOX, "lambda", 0.9, "have it, as collect.gae_lambda."),
    ],
)
def test_a_setting_that_only_other_algorithms_have_causes_a_warning_that_names_them(kind, space, name, value, words):
    (found,) = warned_of(kind, {name: value}, space)
    assert found.startswith(f"{kind.config_type.__name__} has no setting {name!r}: ")
    assert words in found
    assert f"It is kept as policy.config[{name!r}], but {kind.__name__} does not read it." in found


def test_names_of_rllib_that_other_algorithms_have_share_one_warning_with_the_rest():
    policy = TD3BCPolicy(None, BOX, BOX)
    names = {name: 0.25 for name in (*PLACES, *MORE_PLACES) if name not in policy.config}
    assert {"kl_coeff", "num_sgd_iter", "clip_param"} <= set(names)
    (found,) = warned_of(TD3BCPolicy, {**names, "fuzz": 1})
    assert "They are kept in policy.config, but TD3BCPolicy reads none of them." in found
    assert [name for name in (*names, "fuzz") if repr(name) not in found.partition(" They are kept")[0]] == []
    assert "'num_sgd_iter', 'num_epochs': PPO and IMPALA have policy.learn.epoch_per_collect" in found


def test_names_of_rllib_for_what_is_off_cause_no_warning():
    off = {"kl_coeff": 0, "entropy_coeff": 0.0, "vf_loss_coeff": 0, "num_atoms": 1, "n_step": 1, "v_min": -10.0, "v_max": 10.0}
    off |= {"policy_delay": 1, "dueling": False, "double_q": False, "entropy_coeff_schedule": None, "vf_share_layers": False}
    for kind, space in ((BCPolicy, DISCRETE), (PPOPolicy, DISCRETE), (DQNPolicy, DISCRETE), (TD3BCPolicy, BOX)):
        has = kind(None, BOX, space).config
        assert warned_of(kind, {name: value for name, value in off.items() if name not in has}, space) == []


NESTED = {"learn": {"learning_rate": 0.5}, "model": {"activation": "elu"}, "collect": {"gae_lambda": 0.5}}


@pytest.mark.parametrize("given", [NESTED, {"policy": NESTED}, {"policy": NESTED, "exp_name": "runs/mine", "env": {"id": "X"}}])
@pytest.mark.parametrize("as_default", [False, True])
def test_sections_set_fields_of_the_typed_configuration(given, as_default, recwarn):
    kind = PPOPolicy.with_updates(get_default_config=lambda: given) if as_default else PPOPolicy
    cfg = kind(None if as_default else given, BOX, DISCRETE).cfg

    assert (cfg.learn.learning_rate, cfg.model.activation, cfg.collect.gae_lambda) == (0.5, "elu", 0.5)
    assert not recwarn.list


def test_the_whole_configuration_of_a_run_may_be_the_settings_or_the_defaults(recwarn):
    run = PPOConfig(seed=7).override({"policy.learn.learning_rate": 0.5})
    for policy in (
        PPOPolicy(run.to_dict(), BOX, DISCRETE),
        PPOPolicy.with_updates(get_default_config=run.to_dict)(None, BOX, DISCRETE),
        PPOPolicy.with_updates(get_default_config=run.to_dict)({"policy": {"lr": 0.5}}, BOX, DISCRETE),
    ):
        assert policy.cfg == run.policy
    assert not recwarn.list


@pytest.mark.parametrize("given", [{}, {"policy": {}}])
def test_names_of_rllib_stand_for_fields_in_the_sections_too(given, recwarn):
    model = {"fcnet_hiddens": [8], "fcnet_activation": "elu", "vf_share_layers": True}
    sections = {"model": model, "learn": {"lr": 0.5}, "collect": {"gamma": 0.5, "lambda": 0.25}}
    cfg = PPOPolicy({"policy": sections} if "policy" in given else sections, BOX, DISCRETE).cfg

    assert (cfg.model.encoder_hidden_size_list, cfg.model.activation, cfg.model.share_encoder) == ([8], "elu", True)
    assert (cfg.learn.learning_rate, cfg.collect.discount_factor, cfg.collect.gae_lambda) == (0.5, 0.5, 0.25)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (DQNPolicy, "vf_share_layers", "PPO, A2C and IMPALA have policy.model.share_encoder"),
        (DQNPolicy, "use_lstm", "PPO, IMPALA and R2D2 have policy.model.lstm_size"),
        (PPOPolicy, "use_lstm", "set policy.model.lstm_size"),
        (PPOPolicy, "custom_model", "is made by make_model of a subclass, or given to the policy as model=network"),
        (PPOPolicy, "conv_filters", "it is policy.model.conv_layers"),
    ],
)
def test_names_of_rllibs_model_without_an_equivalent_are_errors_that_say_what_to_set(kind, name, words):
    with pytest.raises(ConfigError, match=f"has no '{name}': .*{words}"):
        kind({"model": {name: True}}, BOX, DISCRETE)


def test_in_the_configuration_of_a_run_names_of_rllibs_model_lead_to_the_fields():
    with pytest.raises(ConfigError) as caught:
        PPOConfig().override({"policy.model": {"fcnet_hiddens": [8], "vf_share_layers": True}})
    assert "it is policy.model.encoder_hidden_size_list." in str(caught.value)
    assert "it is policy.model.share_encoder." in str(caught.value)
    assert "did you mean" not in str(caught.value)
    with pytest.raises(ConfigError, match="Leave it out for other algorithms, which have no quantile loss"):
        CQLPolicyConfig().override({"learn.kappa": 1.0})


def test_an_unknown_name_in_a_section_is_an_error():
    for given in (
        {"learn": {"learnig_rate": 1}},
        {"policy": {"learn": {"learnig_rate": 1}}},
        {"policy": {"lr": 1, "lerning": 1}},
        {"collect": {"lerning": 1}},
    ):
        with pytest.raises(ConfigError, match="has no 'le"):
            PPOPolicy(given, BOX, DISCRETE)
        with pytest.raises(ConfigError, match="has no 'le"):
            PPOPolicy.with_updates(get_default_config=lambda given=given: given)(None, BOX, DISCRETE)


def test_a_setting_policy_of_a_users_own_is_kept(recwarn):
    for own in ({"kind": "mine"}, {"model": "resnet", "kind": "a"}, {"model": "big"}):
        assert Mine({"policy": own}, BOX, DISCRETE).config["policy"] == own

    class Reads(PPOPolicy):
        def stats(self, batch):
            return {**super().stats(batch), "mine": self.config["policy"]["lr"]}

    assert Reads({"policy": {"lr": 0.5}}, BOX, DISCRETE).cfg == PPOPolicyConfig()
    assert not recwarn.list


def test_beside_the_section_of_the_policy_a_misspelt_name_is_still_named():
    with pytest.warns(UserWarning, match="has no setting 'lrr': did you mean 'lr'"):
        PPOPolicy({"policy": NESTED, "lrr": 0.5}, BOX, DISCRETE)


def test_beside_the_section_of_the_policy_settings_of_other_algorithms_are_still_named():
    with pytest.warns(UserWarning, match="has no settings 'num_atoms', 'num_workers'.*PPOPolicy reads none of them"):
        PPOPolicy({"policy": NESTED, "num_atoms": 51, "num_workers": 2, "env": {"id": "X"}}, BOX, DISCRETE)


RUNS = [kind() for name, kind in vars(config_package).items() if name.endswith("Config")]


@pytest.mark.parametrize("run", [run for run in RUNS if hasattr(run, "policy") and type(run.policy) is not PolicyConfig])
def test_no_setting_of_any_run_causes_a_warning_beside_its_policy(run, recwarn):
    assert resolve(run.to_dict(), None, type(run.policy), "Mine").cfg == run.policy
    assert not recwarn.list


def test_unknown_names_of_the_defaults_are_named_too():
    with pytest.warns(UserWarning, match="has no setting 'gama': did you mean 'gamma'") as caught:
        PPOPolicy.with_updates("Own", get_default_config=lambda: {"gama": 1})({"gama": 2}, BOX, DISCRETE)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="'num_atoms'.*'fuzz'.*Own reads none of them"):
        PPOPolicy.with_updates("Own", get_default_config=lambda: {"num_atoms": 51, "fuzz": 1})(None, BOX, DISCRETE)
    hooks = {"stats_fn": lambda policy, batch: {}, "get_default_config": lambda: {"num_workers": 2}}
    with pytest.warns(UserWarning, match="has no setting 'num_workers': .*cfg.env.workers"):
        PPOPolicy.with_updates("Own", **hooks)(None, BOX, DISCRETE)


@pytest.mark.parametrize("as_default", [False, True])
def test_a_policy_of_functions_keeps_settings_of_an_algorithm_for_its_hooks(as_default):
    """RLlib builds PPO with `get_default_config=lambda: PPOConfig().to_dict()`."""
    changes = {"learning_rate": 0.5, "clip_ratio": 0.25, "kl_coeff": 0.5}
    run = PPOConfig().override({f"policy.learn.{name}": value for name, value in changes.items()})
    defaults = {"get_default_config": run.to_dict} if as_default else {}
    hooks = {"loss_fn": lambda policy, model, dist_class, batch: policy.config["kl_coeff"] * batch.reward.sum()}
    kind = build_policy("Own", **hooks, **defaults)
    # The loss reads kl_coeff, and other settings have their defaults.
    with pytest.warns(UserWarning, match=r"no settings 'learn.clip_ratio', which other .* policy.config, as 'clip_param', and"):
        policy = kind(None if as_default else run.to_dict(), BOX, DISCRETE)

    assert policy.cfg.learn.learning_rate == 0.5
    assert policy.config["clip_param"] == 0.25
    assert policy.config["num_sgd_iter"] == run.policy.learn.epoch_per_collect


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_policy_of_functions_takes_the_configuration_of_any_run():
    kind = build_policy("Own", loss_fn=lambda policy, model, dist_class, batch: batch.reward.sum())
    for run in RUNS:
        if hasattr(run, "policy"):
            assert kind(run.to_dict(), BOX, DISCRETE).cfg.learn.learning_rate == run.policy.learn.learning_rate


def test_a_policy_of_functions_takes_the_discount_factor_of_any_algorithm():
    kind = build_policy("Own", loss_fn=lambda policy, model, dist_class, batch: batch.reward.sum())
    other = {"eps": np.array([1.0, 0.1])}
    policy = kind({"policy": {"learn": {"batch_size": 32}, "discount_factor": 0.9, "other": {}, "model": {}}}, BOX, DISCRETE)
    with pytest.warns(UserWarning, match=r"no settings 'other.eps', which other algorithms have"):
        kind({"policy": {"learn": {"batch_size": 32}, "other": other}}, BOX, DISCRETE)

    assert policy.config["gamma"] == policy.cfg.collect.discount_factor == 0.9


def test_a_misspelt_setting_in_the_section_of_a_policy_of_functions_is_an_error():
    kind = build_policy("Own", loss_fn=lambda policy, model, dist_class, batch: batch.reward.sum())
    with pytest.raises(ConfigError, match="has no 'learnig_rate'"):
        kind({"policy": {"learn": {"learnig_rate": 1}, "model": {}}}, BOX, DISCRETE)


def test_the_configuration_of_a_run_as_defaults_is_refused():
    with pytest.raises(
        TypeError, match=r"get_default_config returned a PPOConfig, .*: return its policy, PPOConfig\(\).policy"
    ):
        PPOPolicy.with_updates(get_default_config=PPOConfig)


@pytest.mark.parametrize(
    ("policy", "name", "words"),
    [
        (CQLPolicyConfig, "cql_alpha", "policy.learn.min_q_weight"),
        (CQLPolicyConfig, "conservative_weight", "policy.learn.min_q_weight"),
        (CQLPolicyConfig, "temp_learning_rate", "policy.learn.learning_rate_alpha"),
        (IQLPolicyConfig, "weight_temp", "policy.learn.beta"),
        (IQLPolicyConfig, "iql_tau", "policy.learn.expectile"),
        (TD3BCPolicyConfig, "actor_learning_rate", "policy.learn.learning_rate_actor"),
        (TD3BCPolicyConfig, "tau", "policy.learn.target_update_theta"),
        (TD3BCPolicyConfig, "gamma", "policy.discount_factor"),
        (TD3BCPolicyConfig, "n_critics", "is not a setting"),
        (TD3BCPolicyConfig, "normalize", "policy.model.normalize_obs"),
        (TD3BCPolicyConfig, "noise_clip", "policy.learn.target_noise_clip"),
    ],
)
@pytest.mark.parametrize("section", ["", "learn."])
def test_names_of_other_libraries_for_datasets_lead_to_the_setting(policy, name, words, section):
    with pytest.raises(ConfigError, match=f"has no '{name}': .*{words}"):
        policy().override({section + name: 1})


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        *((PPOConfig, name, f"policy.{place[0]}") for name, place in PLACES.items()),
        (PPOConfig, "num_sgd_iter", "it is policy.learn.epoch_per_collect."),
        (PPOConfig, "sgd_minibatch_size", "it is policy.learn.batch_size."),
        (PPOConfig, "train_batch_size", "the collector reads cfg.policy.collect.n_sample of the run"),
        (PPOConfig, "ent_coef", "the weight of the entropy bonus is policy.learn.entropy_weight."),
        (PPOConfig, "vf_coef", "the weight of the critic's loss is policy.learn.value_weight."),
        (PPOConfig, "n_epochs", "PPO and IMPALA have policy.learn.epoch_per_collect"),
        (PPOConfig, "max_grad_norm", "policy.learn.grad_clip_norm."),
        (PPOConfig, "n_steps", "the collector reads cfg.policy.collect.n_sample of the run"),
        (IMPALAConfig, "epsilon", "the optimizer is policy.learn.optimizer"),
        (DQNConfig, "lr", "it is policy.learn.learning_rate."),
        (DQNConfig, "gamma", "policy.discount_factor"),
        (DQNConfig, "epsilon", "epsilon is policy.other.eps, with start, end and decay"),
        (DQNConfig, "exploration_fraction", "epsilon is policy.other.eps, with start, end and decay"),
        (DQNConfig, "target_update_interval", "policy.learn.target_update_freq gradient steps."),
        (DQNConfig, "gradient_steps", "policy.learn.update_per_collect."),
        (RainbowConfig, "epsilon", "noisy networks explore"),
    ],
)
@pytest.mark.parametrize("section", ["", "policy."])
def test_in_a_typed_configuration_names_of_other_libraries_lead_to_the_setting(config, name, words, section):
    with pytest.raises(ConfigError) as caught:
        config().override({section + name: 1})
    assert f" has no {name!r}: " in str(caught.value)
    assert words in str(caught.value)
    with pytest.raises(ConfigError, match=f"has no '{name}': "):
        setattr(config().policy if section else config(), name, 1)


@pytest.mark.parametrize(
    ("section", "name", "place"),
    [
        ("learn", "lr", "learn.learning_rate"),
        ("learn", "clip_param", "learn.clip_ratio"),
        ("collect", "lambda", "collect.gae_lambda"),
        ("model", "fcnet_hiddens", "model.encoder_hidden_size_list"),
    ],
)
def test_a_section_knows_the_names_of_rllib_for_its_own_settings(section, name, place):
    with pytest.raises(ConfigError, match=f"has no '{name}': it is policy.{place}\\.$"):
        setattr(getattr(PPOConfig().policy, section), name, 1)


SCHEDULE = [(0, 1e-3), (100, 1e-4)]


@pytest.mark.parametrize(
    "given",
    [
        {"lr_schedule": SCHEDULE},
        {"entropy_coeff_schedule": SCHEDULE},
        {"lr_schedule": SCHEDULE, "entropy_coeff_schedule": SCHEDULE},
        {"policy": {"lr_schedule": SCHEDULE}},
    ],
)
def test_a_schedule_by_its_name_in_rllib_causes_one_warning_about_its_unit(given):
    with pytest.warns(UserWarning, match="count gradient steps here, and environment steps in RLlib. Give 'learn") as caught:
        PPOPolicy(given, BOX, DISCRETE)
    assert len(caught) == 1
    with pytest.raises(ConfigError, match="count gradient steps here, and environment steps in RLlib"):
        PPOConfig().override({"policy": dict.fromkeys(given.get("policy", given), SCHEDULE)})


@pytest.mark.parametrize(
    "given",
    [{"learn.lr_schedule": SCHEDULE}, {"learn": {"lr_schedule": SCHEDULE}}, {"lr_schedule": None}],
)
def test_a_schedule_by_its_name_here_causes_no_warning(given, recwarn):
    PPOPolicy(given, BOX, DISCRETE)
    assert not recwarn.list


def test_a_dotted_name_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="learn.learnig_rate.*did you mean 'learning_rate'"):
        PPOPolicy({"learn.learnig_rate": 0.5}, BOX, DISCRETE)


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="discount_factor"):
        Policy({"gamma": 2.0}, BOX, DISCRETE)


def test_the_configuration_may_stand_behind_the_spaces():
    policy = PPOPolicy(BOX, DISCRETE, {"lr": 0.5})

    assert (policy.observation_space, policy.action_space, policy.config["lr"]) == (BOX, DISCRETE, 0.5)


def test_a_policy_without_spaces_is_refused():
    with pytest.raises(TypeError, match="PPOPolicy.* wants the spaces of an environment"):
        PPOPolicy(PPOPolicyConfig())


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        (
            DQNPolicyConfig,
            "burnin_step",
            r"has no 'burnin_step': the number of burn-in steps is policy.learn.burn_in of R2D2Config\.$",
        ),
        (R2D2PolicyConfig, "learn.burnin_step", r"has no 'burnin_step': .* is policy.learn.burn_in of R2D2Config\.$"),
        (DQNPolicyConfig, "learn.actor_update_freq", r"only TD3Config and TD3BCConfig have policy.learn.actor_update_freq\.$"),
        (PPOPolicyConfig, "learn.value_norm", r"values are not normalised; reward_normalizer\(cfg, policy.learn_mode\) scales"),
        (
            SACPolicyConfig,
            "model.actor_head_hidden_size",
            "hidden layers of policy.model.encoder_hidden_size_list",
        ),
        (PPOPolicyConfig, "learn.entropy_coeff", r"has no 'entropy_coeff': it is policy.learn.entropy_weight\.$"),
        (DQNPolicyConfig, "collect.action_shape", r"has no 'action_shape'\. It has n_sample"),
        (TD3PolicyConfig, "model.noise", r"has no 'noise'\. It has "),
    ],
)
def test_names_of_other_libraries_lead_to_what_is_meant_and_to_nothing_else(config, name, words):
    with pytest.raises(ConfigError, match=words) as raised:
        config().override({name: 1})

    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (DQNPolicy, "burnin_step", "is policy.learn.burn_in of R2D2Config. It is kept as policy.config"),
        (
            DQNPolicy,
            "actor_update_freq",
            "only TD3Config and TD3BCConfig have policy.learn.actor_update_freq. It is kept as policy.config",
        ),
        (PPOPolicy, "value_norm", "values are not normalised; reward_normalizer.*It is kept as policy.config"),
        (PPOPolicy, "actor_head_hidden_size", "policy.model.encoder_hidden_size_list. It is kept as policy.co"),
    ],
)
def test_a_setting_of_another_librarys_name_is_kept_and_what_is_meant_is_told(kind, name, words):
    with pytest.warns(UserWarning, match=f"{kind.config_type.__name__} has no setting '{name}': .*{words}"):
        assert kind({name: 1}, BOX, DISCRETE).config[name] == 1


def test_a_setting_that_another_section_has_is_named_there():
    with pytest.warns(UserWarning, match="did you mean 'learn.actor_update_freq'"):
        TD3Policy({"actor_update_freq": 1}, BOX, spaces.Box(-1, 1, (2,), np.float32))
