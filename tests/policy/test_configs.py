"""The configuration of policies: defaults that every section has, and values that are refused."""

import pytest

from ding_lite.policy import DQNPolicyConfig, LearnConfig, ModelConfig, PolicyConfig, PPOPolicyConfig

every = pytest.mark.parametrize("config", [PolicyConfig, DQNPolicyConfig, PPOPolicyConfig])


@every
@pytest.mark.parametrize(("key", "value"), [
    ("learn.batch_size", 0),
    ("learn.learning_rate", -1e-3),
    ("learn.learning_rate", float("nan")),
    ("learn.grad_clip_norm", -0.1),
    ("collect.n_sample", 0),
    ("eval.evaluator.eval_freq", 0),
    ("eval.evaluator.eval_freq_env_step", 0),
])  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(config, key, value):
    with pytest.raises(ValueError, match=rf"{key.rsplit('.', 1)[1]} = {value}"):
        config().override({key: value})


@pytest.mark.parametrize(("key", "value"), [
    ("discount_factor", 1.1),
    ("learn.update_per_collect", 0),
    ("learn.learning_starts", -1),
    ("learn.target_update_freq", 0),
    ("learn.target_update_theta", 1.1),
    ("other.eps.start", -0.1),
    ("other.eps.end", 1.1),
    ("other.eps.decay", 0),
    ("other.eps.type", "cosine"),
    ("other.replay_buffer_size", 0),
])  # fmt: skip
def test_a_value_that_dqn_cannot_use_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=rf"{key.rsplit('.', 1)[-1]} = {value!r}"):
        DQNPolicyConfig().override({key: value})


@pytest.mark.parametrize(("key", "value"), [
    ("learn.epoch_per_collect", 0),
    ("learn.clip_ratio", 1.1),
    ("learn.value_clip", -0.1),
    ("learn.value_weight", -0.1),
    ("learn.entropy_weight", -0.1),
    ("learn.target_kl", -0.1),
    ("collect.discount_factor", 1.1),
    ("collect.gae_lambda", -0.1),
])  # fmt: skip
def test_a_value_that_ppo_cannot_use_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=rf"{key.rsplit('.', 1)[1]} = {value!r}"):
        PPOPolicyConfig().override({key: value})


@every
def test_an_unknown_activation_is_refused_with_those_that_exist(config):
    with pytest.raises(ValueError, match=r"activation = 'rleu'.*'relu'"):
        config().override({"model.activation": "rleu"})


@every
def test_a_misspelt_key_is_refused_with_the_right_one(config):
    with pytest.raises(ValueError, match=r"no 'lerning_rate': did you mean 'learning_rate'"):
        config().override({"learn.lerning_rate": 1e-3})


@every
def test_a_configuration_survives_being_plain_data(config):
    changed = config().override(
        {"seed": 3, "learn.batch_size": 7, "model.conv_layers": [(8, 4, 2)], "model.encoder_hidden_size_list": []}
    )

    assert config.from_dict(changed.to_dict()) == changed
    assert changed.model.conv_layers == [(8, 4, 2)]


@every
def test_two_configurations_share_nothing(config):
    one, other = config(), config()
    one.model.encoder_hidden_size_list.append(7)
    one.learn.batch_size = 3

    assert other == config()


def test_sections_may_be_made_alone():
    assert LearnConfig(batch_size=3).batch_size == 3
    assert ModelConfig(activation="elu").activation == "elu"
