"""The configuration of a run: what DI-engine's users know, defaults, seeds, and the task that goes with an environment."""

import copy
import dataclasses
import json
import math
import pickle
import warnings

import pytest

from ding_lite.config import ConfigError, DQNConfig, EnvConfig, PPOConfig
from ding_lite.policy import DQNPolicyConfig
from ding_lite.run_configs.env_configs import OfflineEnvConfig


def fields(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("config", [DQNConfig, PPOConfig])
def test_the_tree_is_the_one_that_users_know(config):
    known = {
        *("exp_name", "seed", "env.collector_env_num", "env.evaluator_env_num", "env.n_evaluator_episode", "env.stop_value"),
        *("policy.collect.n_sample", "policy.learn.batch_size", "policy.learn.learning_rate"),
        "policy.eval.evaluator.eval_freq",
    }
    known |= {
        DQNConfig: {
            "policy.learn.update_per_collect",
            "policy.other.eps.type",
            "policy.other.eps.decay",
            "policy.discount_factor",
        },
        PPOConfig: {"policy.learn.epoch_per_collect", "policy.collect.discount_factor", "policy.collect.gae_lambda"},
    }[config]

    assert known <= set(fields(config().to_dict()))


@pytest.mark.parametrize("config", [DQNConfig, PPOConfig])
def test_every_field_can_be_set_by_name_and_the_whole_survives_json(config):
    cfg = config()
    assert cfg.override(json.loads(json.dumps(cfg.to_dict()))) == config()
    assert config.from_dict(json.loads(json.dumps(cfg.to_dict()))) == config()


def test_setting_the_seed_of_the_run_sets_that_of_the_policy():
    cfg = DQNConfig()
    assert cfg.policy.seed == 0
    cfg.seed = 3
    assert cfg.policy.seed == 3
    assert DQNConfig(seed=4).policy.seed == 4


COPIES = {
    "made": lambda cfg: cfg,
    "from a dict": lambda cfg: DQNConfig.from_dict(cfg.to_dict()),
    "copied": copy.deepcopy,
    "pickled": lambda cfg: pickle.loads(pickle.dumps(cfg)),
}


@pytest.mark.parametrize("of", COPIES.values(), ids=COPIES)
def test_the_seed_of_the_policy_follows_in_a_replaced_configuration(of):
    cfg = of(DQNConfig(seed=2))
    other = dataclasses.replace(cfg, seed=5)
    assert (other.policy.seed, cfg.policy.seed) == (5, 2)
    other.policy.learn.batch_size = 7
    assert cfg.policy.learn.batch_size != 7
    cfg.policy.seed = 11
    assert dataclasses.replace(cfg, seed=5).policy.seed == 11


def test_a_policy_section_may_be_given_to_several_configurations():
    section = DQNPolicyConfig()
    assert [DQNConfig(seed=seed, policy=section).policy.seed for seed in (1, 2)] == [1, 2]
    assert DQNConfig(seed=3, policy=DQNPolicyConfig(seed=8)).policy.seed == 8


@pytest.mark.parametrize(
    "set_seed", [lambda cfg, seed: setattr(cfg, "seed", seed), lambda cfg, seed: cfg.override({"seed": seed})]
)
def test_configurations_share_a_policy_section_until_their_seeds_differ(set_seed):
    base = DQNConfig()
    cfgs = [dataclasses.replace(base, exp_name=f"runs/{number}") for number in range(3)]
    assert all(cfg.policy is base.policy for cfg in cfgs)
    base.policy.learn.batch_size = 7
    for seed, cfg in enumerate(cfgs):
        set_seed(cfg, seed)
    assert [(cfg.seed, cfg.policy.seed) for cfg in (base, *cfgs)] == [(0, 0), (0, 0), (1, 1), (2, 2)]
    assert [cfg.policy.learn.batch_size for cfg in cfgs] == [7, 7, 7]
    set_seed(base, 5)  # which still shares it with the first
    assert (base.policy.seed, cfgs[0].policy.seed) == (5, 0)
    section, cfgs = cfgs[0].policy, None
    only = DQNConfig(policy=section)
    set_seed(only, 9)
    assert only.policy is section


def test_another_environment_brings_its_own_stop_value():
    cfg = DQNConfig()
    assert cfg.env.stop_value == 475
    cfg.env.id = "Acrobot-v1"
    assert cfg.env.stop_value == -100
    cfg.env.id = "Pendulum-v1"
    assert cfg.env.stop_value is None
    cfg.env.id = "NotRegisteredYet-v0"
    assert cfg.env.stop_value is None


def test_a_stop_value_of_ones_own_stays():
    cfg = DQNConfig().override({"env.stop_value": -85, "env.id": "Acrobot-v1"})
    assert cfg.env.stop_value == -85
    assert EnvConfig(id="Acrobot-v1", stop_value=-85).stop_value == -85
    assert EnvConfig(id="Acrobot-v1").stop_value is None


@pytest.mark.parametrize("env", [{"stop_value": 300.0, "id": "Acrobot-v1"}, {"id": "Acrobot-v1", "stop_value": 300.0}])
def test_the_order_of_a_mapping_does_not_matter(env):
    assigned = DQNConfig()
    assigned.env = env
    for cfg in (DQNConfig(env=env), assigned, DQNConfig.from_dict({"env": env})):
        assert (cfg.env.id, cfg.env.stop_value) == ("Acrobot-v1", 300)
    assert DQNConfig.from_dict({"policy": {"seed": 7}, "seed": 3}).policy.seed == 7


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"exp_nam": "x"}, "DQNConfig has no 'exp_nam': did you mean 'exp_name'?"),
        ({"policy.learn.batchsize": 3}, "OffPolicyLearnConfig has no 'batchsize': did you mean 'batch_size'?"),
        ({"env.make_kwargs": {}}, "EnvConfig has no 'make_kwargs': set env_config, a dict with the keyword arguments"),
        ({"policy.lern.batch_size": 3}, "DQNPolicyConfig has no 'lern': did you mean 'learn'?"),
        ({"policy.learning_rate": 1.0}, "DQNPolicyConfig has no 'learning_rate'. It has seed, device, model, "),
        ({"policy.learning_rate": 1.0}, "other, double. Did you mean 'policy.learn.learning_rate'?"),
        ({"batch_size": 3}, "policy. Did you mean 'policy.learn.batch_size'?"),
        ({"policy.learn.batch_size": 0}, "OffPolicyLearnConfig.batch_size = 0 is out of range: it is at least 1."),
        ({"policy.learn.batch_size": "64"}, "OffPolicyLearnConfig.batch_size = '64' is a str, it is declared int."),
        ({"policy.learn.batch_size": 6.4}, "is a float, it is declared int"),
        ({"policy.learn.batch_size": True}, "is a bool, it is declared int"),
        ({"policy.discount_factor": 1.5}, "it is at least 0 and at most 1"),
        ({"policy.discount_factor": float("nan")}, "is not a number"),
        ({"policy.other.eps.type": "quadratic"}, "'quadratic' is a str, it is declared Literal['exp', 'linear']"),
        ({"policy.model.encoder_hidden_size_list": 64}, "is an int, it is declared list[int]"),
        ({"policy.model.encoder_hidden_size_list": ["a"]}, "encoder_hidden_size_list[0] = 'a'"),
        ({"seed": -1}, "it is at least 0"),
    ],
)
def test_a_wrong_key_or_value_is_refused_and_nothing_is_set(values, words):
    cfg = DQNConfig()
    with pytest.raises(ConfigError) as caught:
        cfg.override({"max_step": 7, **values})

    assert words in str(caught.value)
    assert cfg == DQNConfig()


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        DQNConfig().override({"exp_nam": "x", "policy.learn.batch_size": 0, "seed": "a"})

    assert len(str(caught.value).splitlines()) == 3


WRONG = {
    "exp_nam": "did you mean 'exp_name'?",
    "exp_name": 3,
    "seed": -1,
    "sed": "did you mean 'seed'?",
    "max_step": 0,
    "max_lag": 1.5,
    "async_mode": "yes",
    "watchdog_s": -1,
    "env.id": 3,
    "env.collector_env_num": 0,
    "env.evaluator_env_num": 2.0,
    "env.worker": "did you mean 'workers'?",
    "env.backend": "processes",
    "env.restart": "no",
    "env.stop_value": "high",
    "log.level": "LOUD",
    "log.every_s": -1,
    "log.tensorbord": "did you mean 'tensorboard'?",
    "policy.lern.batch_size": "did you mean 'learn'?",
    "policy.learn.batch_size": 0,
    "policy.learn.learning_rate": float("nan"),
    "policy.learn.on_nonfinite": "ignore",
    "policy.learn.update_per_colect": "did you mean 'update_per_collect'?",
    "policy.learn.target_update_theta": 2.0,
    "policy.discount_factor": 1.5,
    "policy.nstep": 0,
    "policy.double": 1,
    "policy.model.encoder_hidden_size_list": 64,
    "policy.other.eps.type": "quadratic",
    "policy.other.replay_buffer_size": True,
}
"""Misspelled keys with the hint of the message, and values that do not fit."""


def test_thirty_problems_are_in_one_error_and_nothing_is_set():
    cfg = DQNConfig()
    with pytest.raises(ConfigError) as caught:
        cfg.override({"policy.eval.evaluator.eval_freq": 7, **WRONG})
    told = dict(line.split(": ", 1) for line in str(caught.value).splitlines())

    assert len(WRONG) == 30
    assert told.keys() == WRONG.keys()
    for key, value in WRONG.items():
        is_misspelled = isinstance(value, str) and value.startswith("did you mean")
        assert (value if is_misspelled else f"{key.rsplit('.', 1)[-1]} = ") in told[key], told[key]
    assert cfg == DQNConfig()


def test_a_typo_in_an_assignment_is_refused():
    cfg = DQNConfig()
    with pytest.raises(AttributeError, match="did you mean 'policy'"):
        cfg.polcy = 3
    with pytest.raises(TypeError, match="declared int"):
        cfg.policy.learn.batch_size = "many"
    with pytest.raises(ValueError, match="out of range"):
        cfg.policy.learn.batch_size = -1


def test_the_verdict_says_what_was_reached_and_fails_only_where_something_was_to_be(capsys):
    cfg = DQNConfig()
    assert cfg.report_and_exit_code(480.0) == 0
    assert cfg.report_and_exit_code(470.0) == 1
    cfg.env.stop_value = None
    assert cfg.report_and_exit_code(3.0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "480.0" in lines[0]
    assert "stop_value 475 reached" in lines[0]
    assert "not reached" in lines[1]
    assert "stop_value" not in lines[2]


def test_the_verdict_names_only_a_folder_that_exists_and_says_that_there_was_no_evaluation(tmp_path, capsys):
    cfg = DQNConfig(exp_name=str(tmp_path / "none"))
    cfg.report_and_exit_code(-float("inf"))
    cfg.exp_name = str(tmp_path)
    cfg.report_and_exit_code(480.0)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("CartPole-v1: no evaluation, stop_value 475 not reached.")
    assert "Everything is in" not in first
    assert second.endswith(f"Everything is in {tmp_path}/")
    cfg.report_and_exit_code(math.nan)
    assert "mean return nan at the last evaluation, stop_value 475 not reached" in capsys.readouterr().out


def test_a_configuration_and_its_copy_know_apart_what_was_set():
    cfg = DQNConfig()
    other = copy.copy(cfg.env)
    other.stop_value = 3.0
    for env in (cfg.env, other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        env.settle("Corridor", None)
        assert (env.id, env.stop_value) == ("Corridor", None if env is cfg.env else 3.0)


def test_a_configuration_and_its_dict_know_apart_what_was_set():
    for made, found in (({}, ("Corridor", None)), ({"env.stop_value": 3.0}, ("Corridor", 3.0))):
        env = DQNConfig.from_dict(DQNConfig().override(made).to_dict()).env
        env.settle("Corridor", None)
        assert (env.id, env.stop_value) == found
    env = DQNConfig.from_dict({"env": {"stop_value": 475.0}}).env  # a dict of one's own
    env.settle("Corridor", None)
    assert env.stop_value == 475


def test_a_replaced_field_sets_no_other_one():
    env = dataclasses.replace(DQNConfig().env, workers=2)
    with pytest.warns(UserWarning, match="env.workers = 2: the 2 pieces are stepped one after another in this process"):
        env.worker_options()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.settle("Acrobot-v1", -100.0)
    assert (env.id, env.stop_value) == ("Acrobot-v1", -100.0)

    env = dataclasses.replace(dataclasses.replace(DQNConfig().env, stop_value=300.0), workers=2)
    env.settle("Corridor", None)
    assert env.stop_value == 300

    assert dataclasses.replace(DQNConfig().env, id="Acrobot-v1").stop_value == 475  # as the docstring says
    assert copy.deepcopy(DQNConfig().env).override({"id": "Acrobot-v1"}).stop_value == -100


def test_a_section_of_a_derived_class_is_restored_and_what_it_had_does_not_count_as_set():
    cfg = DQNConfig(env=OfflineEnvConfig.default(), seed=3)
    saved = copy.deepcopy(cfg).override({"env.id": "Acrobot-v1", "policy.seed": 8, "env.log_info": ["a"]}).to_dict()
    cfg.restore(json.loads(json.dumps(saved)))

    assert type(cfg.env) is OfflineEnvConfig
    assert cfg.to_dict() == saved
    other = DQNConfig()
    other.restore(other.to_dict())
    other.env.settle("Corridor", None)
    assert (other.env.id, other.env.stop_value) == ("Corridor", None)
    with pytest.raises(ConfigError, match="DQNConfig has no 'sed': did you mean 'seed'"):
        other.restore({"sed": 3})


def test_what_one_environment_settled_does_not_hold_for_the_next():
    env = DQNConfig().env
    env.settle("Corridor", None)
    env.settle("Acrobot-v1", -100.0)
    assert (env.id, env.stop_value) == ("Acrobot-v1", -100.0)


@pytest.mark.parametrize("name", ["", "   ", "\t\n", "runs/a\0b"])
def test_a_name_of_no_folder_is_refused_where_it_is_given(name):
    cfg = DQNConfig(exp_name="mine")
    words = r"DQNConfig.exp_name = '.*' is not the name of a folder: set a folder .*, such as 'runs/dqn'"
    for give in (
        lambda: DQNConfig(exp_name=name),
        lambda: setattr(cfg, "exp_name", name),
        lambda: cfg.override({"exp_name": name}),
        lambda: DQNConfig.from_dict({"exp_name": name}),
    ):
        with pytest.raises(ConfigError, match=words):
            give()

    assert cfg.exp_name == "mine"


@pytest.mark.parametrize("uri", ["s3://bucket/x", "file:///tmp/x", "s3:/bucket/x", "simplecache::s3://bucket/x"])
def test_a_uri_is_no_folder_of_a_run_and_the_setting_for_it_is_named(uri):
    cfg = DQNConfig(exp_name="mine")
    words = rf"DQNConfig.exp_name = '{uri}' is a URI, and a run writes to a folder of this machine: set one, .* storage_path to"
    for give in (lambda: DQNConfig(exp_name=uri), lambda: setattr(cfg, "exp_name", uri)):
        with pytest.raises(ConfigError, match=words):
            give()
    with pytest.raises(ConfigError, match=r"'s3://\*\*\*@bucket/x'") as caught:
        cfg.exp_name = "s3://KEY:SECRET@bucket/x"
    assert "SECRET" not in str(caught.value)

    cfg.exp_name = "./s3:/bucket"
    assert cfg.exp_name == "./s3:/bucket"


def test_the_home_folder_may_be_written_as_in_a_shell(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = DQNConfig(exp_name="~/runs/x")

    assert cfg.exp_name == f"{tmp_path}/runs/x"
    assert cfg.override({"exp_name": "~"}).exp_name == str(tmp_path)
    assert cfg.override({"exp_name": "runs/~x"}).exp_name == "runs/~x"


def test_settings_of_a_cluster_are_left_out_elsewhere_with_a_warning():
    env = DQNConfig().override({"env.ray_address": "auto", "env.num_cpus_per_worker": 0.5}).env
    with pytest.warns(UserWarning, match=r"env.ray_address has no effect with env.backend = 'local'"):
        assert env.worker_options() == {"backend": "local", "restart": False}
    env.backend = "ray"
    assert env.worker_options()["ray_address"] == "auto"
    assert env.options()["num_cpus_per_worker"] == 0.5


def test_several_workers_without_a_backend_are_stepped_here_and_a_warning_says_so():
    env = DQNConfig().override({"env.workers": 4}).env
    with pytest.warns(
        UserWarning, match="env.workers = 4: the 4 pieces are stepped one after another in this process. Set env.b"
    ):
        env.worker_options()
    for backend in ("local", "process"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            DQNConfig().override({"env.workers": 4, "env.backend": backend}).env.worker_options()
