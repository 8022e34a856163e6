"""The numbers of every configuration: what none of them can mean is refused where it is set."""

import dataclasses
import math
import numbers

import pytest

import ding_lite.config
from ding_lite.config import Config, ConfigError, DQNConfig, IMPALAConfig, PPOConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import OffPolicyLearner, offpolicy_data_fetcher
from ding_lite.policy import DQNPolicy
from ding_lite.rewards import RNDRewardConfig

ENDLESS = {"rho_clip", "c_clip", "grad_clip_norm", "every_s", "show_every_s", "stop_value"}
"""Where an infinite number says something: no clipping, no rows but those of evaluations, no end before the last step."""


def numeric_fields():
    """Every field that holds numbers, of every section of every configuration."""
    found = {}

    def walk(cls):
        for field in dataclasses.fields(cls):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if isinstance(default, Config):
                walk(type(default))
            elif ("int" in field.type or "float" in field.type) and "str" not in field.type:
                found[cls, field.name] = "float" in field.type, "list" in field.type

    for one in vars(ding_lite.config).values():
        if isinstance(one, type) and issubclass(one, Config):
            walk(one)
    walk(RNDRewardConfig)
    return found


FIELDS = numeric_fields()


def put(cls, name, value):
    """The value alone, or where the field's lists hold it."""
    if not FIELDS[cls, name][1]:
        return cls(**{name: value})
    tuples = {"conv_layers": (1, 1, value), "lr_schedule": (0, value), "entropy_schedule": (0, value)}
    return cls(**{name: [tuples.get(name, value)]})


def test_there_are_many_numbers():
    assert len(FIELDS) > 200


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda it: getattr(it, "__name__", it))
def test_no_field_takes_what_is_no_number_of_its_kind(cls, name):
    is_float, _ = FIELDS[cls, name]
    wrong = [math.nan, "1", True, 1j]
    wrong += ([] if name in ENDLESS else [math.inf, -math.inf]) if is_float else [1.5, math.inf]
    if name not in ("seed", "stop_value", "v_min", "v_max", "target_entropy", "target_return", "lagrange_thresh"):
        wrong += [-1, *([] if is_float else [2**63])]
    for value in wrong:
        with pytest.raises(ConfigError, match=name):
            put(cls, name, value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("learn.learning_rate", math.inf, "learning_rate = inf is out of range: it is at least 0 and finite."),
        ("learn.learning_rate", -1e-3, "learning_rate = -0.001 is out of range: it is at least 0."),
        ("learn.batch_size", 10**9, "batch_size = 1000000000 is out of range: it is at most 10,000,000."),
        ("learn.update_per_collect", 10**9, "update_per_collect = 1000000000 is out of range: it is at most 1,000,000."),
        ("learn.lr_schedule", [(0, 1e-3), (10, math.inf)], "lr_schedule[1][1] = inf is out of range"),
        ("collect.n_sample", 10**9, "n_sample = 1000000000 is out of range: it is at most 10,000,000."),
        (
            "other.replay_buffer_size",
            10**12,
            "replay_buffer_size = 1000000000000 is out of range: it is at most 1,000,000,000.",
        ),
        ("model.encoder_hidden_size_list", [64, 0], "encoder_hidden_size_list[1] = 0 is out of range: it is at least 1."),
        (
            "model.encoder_hidden_size_list",
            [10**9],
            "encoder_hidden_size_list[0] = 1000000000 is out of range: it is at most 16,384.",
        ),
        ("model.conv_layers", [(32, 0, 1)], "conv_layers[0][1] = 0 is out of range: it is at least 1."),
    ],
)
def test_a_number_that_no_machine_can_carry_out_is_refused_with_its_limit(key, value, words):
    with pytest.raises(ConfigError) as caught:
        DQNConfig().override({f"policy.{key}": value})
    assert words in str(caught.value)


def test_an_endless_number_may_say_that_nothing_is_clipped():
    assert IMPALAConfig().override({"policy.learn.c_clip": math.inf, "policy.learn.rho_clip": math.inf})
    assert PPOConfig().override({"policy.learn.grad_clip_norm": math.inf, "log.every_s": math.inf})


@pytest.mark.parametrize(
    "buffers", [lambda: ReplayBuffer(2000), lambda: {"own": ReplayBuffer(1500), "demos": ReplayBuffer(500)}]
)
def test_a_batch_larger_than_the_replay_buffer_is_refused_before_it_is_made(buffers):
    cfg = DQNConfig().override({"policy.learn.batch_size": 2001})
    envs = make_envs("CartPole-v1", 1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    words = "policy.learn.batch_size = 2,001, and the replay buffers? holds? 2,000 transitions: .* Lower batch_size, or use a"
    for make in (lambda: OffPolicyLearner(cfg, policy.learn_mode, buffers()), lambda: offpolicy_data_fetcher(cfg, buffers())):
        with pytest.raises(ValueError, match=words):
            make()
    cfg.policy.learn.batch_size = 2000
    offpolicy_data_fetcher(cfg, buffers())


def test_the_default_of_each_number_is_within_its_range():
    for cls, name in FIELDS:
        value = getattr(cls(), name)
        assert value is None or isinstance(value, (numbers.Real, list))


def test_a_watchdog_of_no_seconds_is_refused_as_task_start_refuses_it():
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match=rf"DQNConfig.watchdog_s = {wrong:.1f} is out of range: it is at least 0.001"):
            DQNConfig(watchdog_s=wrong)
