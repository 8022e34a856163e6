"""A configuration from the command line."""

import dataclasses
import enum
import importlib.util
import json
import math

import pytest
from forked_scripts import run_script

from ding_lite.config import Config, ConfigError, DQNConfig, PBTConfig, PPOConfig, from_command_line, ranged_field
from ding_lite.sinks import json_value


def test_every_option_can_be_set():
    argv = [
        "--seed",
        "3",
        "--exp-name",
        "runs/a",
        "--env.id",
        "Acrobot-v1",
        "--max-step",
        "500",
        "--policy.learn.batch-size",
        "32",
        "--policy.no-double",
    ]
    cfg = from_command_line(DQNConfig, argv)

    assert (cfg.seed, cfg.exp_name, cfg.env.id, cfg.max_step) == (3, "runs/a", "Acrobot-v1", 500)
    assert (cfg.policy.learn.batch_size, cfg.policy.double) == (32, False)
    assert (cfg.policy.seed, cfg.env.stop_value) == (3, -100)


def test_what_is_not_given_stays_as_the_script_has_it():
    mine = PPOConfig(exp_name="mine").override({"policy.collect.n_sample": 99})
    cfg = from_command_line(mine, ["--policy.model.encoder-hidden-size-list", "8", "16"])

    assert (cfg.exp_name, cfg.policy.collect.n_sample) == ("mine", 99)
    assert cfg.policy.model.encoder_hidden_size_list == [8, 16]


@pytest.mark.parametrize("argv", [["--seed", "3", "--env.id", "Acrobot-v1"], []])
def test_the_configuration_of_the_script_is_not_changed(argv):
    mine = DQNConfig(exp_name="mine")
    found = from_command_line(mine, argv)
    found.policy.learn.batch_size = 7

    assert mine == DQNConfig(exp_name="mine")
    assert mine.policy.seed == 0


def test_a_stop_value_given_with_an_environment_wins_in_either_order():
    for argv in (["--env.id", "Acrobot-v1", "--env.stop-value", "-85"], ["--env.stop-value", "-85", "--env.id", "Acrobot-v1"]):
        assert from_command_line(DQNConfig, argv).env.stop_value == -85


@pytest.mark.few
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--policy.learn.batchsize", "3"], "--policy.learn.batch-size"),
        (["--seed", "many"], "--seed"),
        (["--policy.learn.batch-size", "0"], "batch_size = 0 is out of"),
        (["--policy.other.eps.type", "quadratic"], "linear"),
        (["--exp-name", ""], "is not the name of a folder"),
        (
            ["--policy.learn.cql-alpha", "5"],
            "policy.learn.cql-alpha: OffPolicyLearnConfig has no 'cql_alpha': the w",
        ),
        (["--policy.learn.tau=0.1"], "policy.learn.target_update_theta"),
        (["--actor-learning-rate=0.1"], "policy.learn.learning_rate_actor"),
    ],
)
def test_a_wrong_option_is_explained_on_standard_error(argv, words, capsys):
    with pytest.raises((SystemExit, ConfigError)) as caught:
        from_command_line(DQNConfig, argv)

    assert words in capsys.readouterr().err + str(caught.value)


@pytest.mark.few
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--env.id", "CartPoll-v1"], ["--env.id CartPoll-v1: ", "did you mean 'CartPole-v1'?", "Register your own"]),
        (["--env.id", "CartPole-v9"], ["--env.id CartPole-v9: ", "`v9`", "`v1`"]),
        (["--env.id", "nowhere_at_all:A-v0"], ["--env.id nowhere_at_all:A-v0: ", "nowhere_at_all"]),
        (["--exp-name", "afile"], ["--exp-name afile: ", "afile is a file, but a folder is needed there"]),
        (["--resume", "nowhere"], ["--resume nowhere: ", "nowhere/config.json, cannot be read"]),
        (["--resume=."], ["--resume .: ", "config.json, cannot be read"]),
    ],
)
def test_an_environment_or_a_folder_that_cannot_be_used_ends_the_program_with_status_2(
    argv, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SystemExit) as caught:
        from_command_line(DQNConfig, argv)
    error = capsys.readouterr().err

    assert caught.value.code == 2
    assert [word for word in words if word not in error] == []


def test_a_misspelled_environment_has_one_hint(capsys):
    with pytest.raises(SystemExit):
        from_command_line(DQNConfig, ["--env.id", "cartpole"])
    error = capsys.readouterr().err

    assert "exist: did you mean 'CartPole-v1'? Register" in error
    assert error.lower().count("did you mean") == 1


@pytest.mark.parametrize("name", ["max-step", "seed", "exp-name", "resume", "storage-path", "log.every-s"])
def test_an_option_of_a_population_that_has_no_effect_is_refused(name, capsys):
    with pytest.raises(SystemExit, match="2"):
        from_command_line(PBTConfig, [f"--population.{name}", "3"])
    whole = name.partition(".")[0]

    assert f"--population.{name} has no effect: set {whole.replace('-', '_')} of the whole" in capsys.readouterr().err


def test_an_atari_game_needs_no_registration_by_hand(tmp_path):
    pytest.importorskip("ale_py")
    script = (
        "import gymnasium, sys\n"
        "from ding_lite.config import DQNConfig, from_command_line\n"
        "for name in [name for name in gymnasium.registry if name.startswith('ALE/')]: del gymnasium.registry[name]\n"
        "del sys.modules['ale_py']  # registers the games where it is imported\n"
        "print(from_command_line(DQNConfig, ['--env.id', 'ALE/Pong-v5']).env.id)"
    )
    ended = run_script(script, cwd=tmp_path, check=True)

    assert ended.stdout.split()[-1:] == ["ALE/Pong-v5"]


def test_an_atari_game_without_the_extra_ends_the_program_with_its_name(capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "ale_py" else find_spec(name, *more))
    with pytest.raises(SystemExit):
        from_command_line(DQNConfig, ["--env.id", "ALE/Nothing-v5"])

    assert capsys.readouterr().err.rstrip().endswith("pip install 'ding_lite[atari]'.")


def test_help_explains_each_option(capsys):
    with pytest.raises(SystemExit) as caught:
        from_command_line(DQNConfig, ["--help"], description="What this script does.")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())

    assert caught.value.code == 0
    assert "What this script does." in text
    for option, words in (
        ("--policy.learn.learning-rate", "Learning rate"),
        ("--env.id", "gymnasium.make"),
        ("--seed", "Random seed"),
        ("--env.env-config NAME=VALUE ...", "is_slippery=False map_name=8x8"),
    ):
        assert option in text
        assert words in text


def test_an_option_that_is_given_counts_as_set_though_it_is_the_default():
    for argv in (["--env.stop-value", "475"], ["--env.stop-value=475"]):
        env = from_command_line(DQNConfig, argv).env
        env.settle("Corridor", None)
        assert env.stop_value == 475
    env = from_command_line(DQNConfig, ["--seed", "3"]).env
    env.settle("Corridor", None)
    assert env.stop_value is None


@pytest.mark.few
@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["is_slippery=False", "map_name=8x8"], {"is_slippery": False, "map_name": "8x8"}),
        (
            ["a=3", "b=-2.5", "c=.5", "d=1e-3", "e=None", "f=true"],
            {"a": 3, "b": -2.5, "c": 0.5, "d": 0.001, "e": None, "f": True},
        ),
        (["size=[3, 4]", 'name="8"', "text=a=b", "empty=", "not_a_number=NaN"], {"size": [3, 4], "name": "8", "text": "a=b"}),
        (['{"is_slippery": false, "rewards": [1, 0, 0.5]}'], {"is_slippery": False, "rewards": [1, 0, 0.5]}),
        ([], {}),
    ],
)
def test_keyword_arguments_of_environments_are_options(words, values):
    cfg = from_command_line(DQNConfig, ["--env.env-config", *words, "--seed", "3"])
    found = cfg.env.env_config

    assert {name: value for name, value in found.items() if name not in ("empty", "not_a_number")} == values
    assert [type(value) for name, value in found.items() if name in values] == [type(value) for value in values.values()]
    assert (found.get("empty", ""), found.get("not_a_number", "NaN"), cfg.seed) == ("", "NaN", 3)


def test_keyword_arguments_of_environments_replace_those_of_the_script():
    mine = DQNConfig().override({"env.env_config": {"map_name": "4x4"}})

    assert from_command_line(mine, ["--seed", "3"]).env.env_config == {"map_name": "4x4"}
    assert from_command_line(mine, ["--env.env-config", "is_slippery=False"]).env.env_config == {"is_slippery": False}


@pytest.mark.parametrize("word", ["is_slippery", "=3", "{broken"])
def test_keyword_arguments_of_another_form_are_explained(word, capsys):
    with pytest.raises(SystemExit):
        from_command_line(DQNConfig, ["--env.env-config", word])
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())

    assert ("is not valid JSON" if word == "{broken" else "write NAME=VALUE ...") in error


def test_a_resumed_run_has_the_keyword_arguments_of_its_environments(tmp_path):
    cfg = DQNConfig(exp_name=str(tmp_path)).override(
        {"env.env_config": {"map_name": "8x8", "is_slippery": False, "size": (1, 2)}}
    )
    (tmp_path / "config.json").write_text(json.dumps(cfg.to_dict()))

    assert from_command_line(DQNConfig, ["--resume", str(tmp_path)]).env.env_config == cfg.env.env_config


def write_config(cfg, folder):
    (folder / "config.json").write_text(json.dumps(json_value(cfg.to_dict()), allow_nan=False))


@dataclasses.dataclass
class Rates(Config):
    limit: float | None = ranged_field(None, finite=False)
    limits: list[float] = dataclasses.field(default_factory=list)
    named: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    text: str = ""
    either: int | str = 0


@dataclasses.dataclass
class RatesConfig(DQNConfig):
    rates: Rates = dataclasses.field(default_factory=Rates)


def test_a_resumed_run_has_its_infinite_settings(tmp_path):
    rates = Rates(limit=math.inf, limits=[-math.inf], named={"a": (0, math.inf)}, text="Infinity", either="NaN")
    cfg = RatesConfig(exp_name=str(tmp_path), rates=rates).override({"log.every_s": math.inf})
    write_config(cfg, tmp_path)
    found = from_command_line(RatesConfig, ["--resume", str(tmp_path)])

    assert (found.log.every_s, found.rates) == (math.inf, rates)
    assert RatesConfig.from_dict(json.loads((tmp_path / "config.json").read_text())).rates == rates


def test_a_text_that_reads_like_a_number_stays_a_text_when_a_run_is_resumed(tmp_path):
    """So settings of no declared type cannot be infinite, because config.json has the same text for both."""
    texts = {"mode": "Infinity", "inner": ["-Infinity", {"x": "NaN"}]}
    cfg = DQNConfig(exp_name=str(tmp_path)).override({"env.env_config": texts})
    write_config(cfg, tmp_path)

    assert from_command_line(DQNConfig, ["--resume", str(tmp_path)]).env.env_config == texts
    for number in (math.inf, -math.inf, math.nan):
        with pytest.raises(
            ConfigError, match=r"env_config\['inner'\]\[0\] = .* is a float that is not finite, which config.json"
        ):
            cfg.override({"env.env_config": {"inner": [number]}})


@pytest.mark.parametrize("content", ["[]", "3", "{", "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(content, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        from_command_line(DQNConfig, ["--resume", str(tmp_path)])
    assert "cannot be read" in capsys.readouterr().err


class Loss(enum.Enum):
    MARGIN = "margin"
    CROSS = "cross"


@dataclasses.dataclass
class Teacher(Config):
    margin: float = ranged_field(0.8, low=0)
    loss: Loss = Loss.MARGIN


@dataclasses.dataclass
class OtherTeacher(Config):
    rate: float = 0.1


@dataclasses.dataclass
class TaughtConfig(DQNConfig):
    teacher: Teacher | OtherTeacher | None = None
    schedule: dict[int, float] = dataclasses.field(default_factory=lambda: {1: 0.5})
    losses: dict[str, Loss] = dataclasses.field(default_factory=lambda: {"a": Loss.CROSS})


@pytest.mark.parametrize(
    ("words", "teacher"),
    [
        ([], None),
        (["teacher:teacher"], Teacher()),
        (["teacher:teacher", "--teacher.margin", "0.5"], Teacher(0.5)),
        (["teacher:teacher", "--teacher.margin", "0.8", "--teacher.loss", "CROSS"], Teacher(loss=Loss.CROSS)),
        (["teacher:other-teacher", "--teacher.rate", "3"], OtherTeacher(3)),
        (["teacher:none"], None),
    ],
)
@pytest.mark.parametrize("before", [None, Teacher(2.0), OtherTeacher(2.0)], ids=repr)
def test_a_section_may_be_optional_and_of_several_classes(words, teacher, before):
    mine = TaughtConfig(teacher=before)
    found = from_command_line(mine, ["--seed", "3", *words])
    if not words or type(teacher) is type(before):  # as in the script, except for the options
        named = {word.split(".")[-1] for word in words if word.startswith("--")}
        expected = before if before is None else dataclasses.replace(before, **{name: getattr(teacher, name) for name in named})
    else:
        expected = teacher

    assert (found.teacher, found.seed, mine.teacher) == (expected, 3, before)


def test_a_resumed_run_has_its_optional_section(tmp_path):
    cfg = TaughtConfig(exp_name=str(tmp_path), teacher=Teacher(2.0, Loss.CROSS))
    write_config(cfg, tmp_path)

    assert from_command_line(TaughtConfig, ["--resume", str(tmp_path)]).teacher == cfg.teacher


def test_an_option_may_be_a_dict_of_other_keys_and_values_than_text(capsys):
    found = from_command_line(TaughtConfig, ["--schedule", "3=4", "10=0.5", "--losses", "b=margin"])
    assert (found.schedule, found.losses) == ({3: 4.0, 10: 0.5}, {"b": Loss.MARGIN})

    with pytest.raises(SystemExit, match="2"):
        from_command_line(TaughtConfig, ["--schedule", "x=4"])
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "TaughtConfig.schedule has the key 'x' of type str, its keys are declared int" in error


def test_resume_none_begins_a_new_run():
    for argv in (["--resume", "None"], ["--resume=None"]):
        assert from_command_line(DQNConfig, argv).resume is None
    assert from_command_line(DQNConfig(resume="runs/a"), ["--resume", "None"]).resume is None


def test_the_last_of_several_folders_counts(tmp_path):
    for name, batch_size in (("a", 3), ("b", 4)):
        cfg = DQNConfig(exp_name=name).override({"policy.learn.batch_size": batch_size})
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(cfg.to_dict()))
    found = from_command_line(DQNConfig, ["--resume", str(tmp_path / "a"), f"--resume={tmp_path / 'b'}"])

    assert (found.resume, found.exp_name, found.policy.learn.batch_size) == (str(tmp_path / "b"), str(tmp_path / "b"), 4)


def test_resume_without_a_folder_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        from_command_line(DQNConfig, ["--resume", "--seed", "1"])
    assert "--resume is followed by the option --seed: it wants the folder of a run" in capsys.readouterr().err


def test_keyword_arguments_that_config_json_cannot_hold_are_refused():
    with pytest.raises(ConfigError, match=r"EnvConfig.env_config\['a'\]\[1\] = .*which config.json cannot hold"):
        DQNConfig().override({"env.env_config": {"a": [1, object()]}})
