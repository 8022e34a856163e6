"""Which runs are seeds of one experiment, and what it is called."""

import json

import pytest

from ding_lite.reports import find_runs, group_runs
from ding_lite.reports.experiments import differences


def named(folder):
    return {experiment.name: experiment.seeds for experiment in group_runs(find_runs([folder]))}


def test_runs_that_differ_in_seed_and_name_alone_are_one_experiment(six_runs):
    assert named(six_runs) == {"dqn": ["0", "1", "2"], "ppo": ["0", "1", "2"]}


def test_seeds_come_in_their_order_whatever_their_folders_are_called(tmp_path, write_run):
    for letter, seed in zip("abc", (10, 9, 2)):
        write_run(tmp_path / letter, seed=seed, iterations=1)

    (experiment,) = group_runs(find_runs([tmp_path]))
    assert experiment.seeds == ["2", "9", "10"]


def test_what_changes_no_result_makes_no_other_experiment(tmp_path, write_run):
    for seed, changes in enumerate(({}, {"log.video_every": 4}, {"env.backend": "process"}, {"env.workers": 2})):
        write_run(tmp_path / str(seed), seed=seed, iterations=1, changes=changes)

    assert sorted(len(experiment.runs) for experiment in group_runs(find_runs([tmp_path]))) == [1, 3]


def test_a_setting_of_ones_own_makes_an_experiment_though_its_name_begins_like_another(tmp_path, write_run):
    for place, option in enumerate(("restart_period", "backend_depth", "timeout_s_of_mine", "watchdog_s_too", "restart")):
        folder = write_run(tmp_path / str(place), seed=place, iterations=1)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, option: 3}))
    write_run(tmp_path / "plain", seed=9, iterations=1, changes={"env.worker_resources": {"gpu": 1.0}})

    assert sorted(named(tmp_path).values()) == [["0"], ["1"], ["2"], ["3"], ["4", "9"]]


def test_a_seed_that_was_resumed_or_watched_is_still_one_of_its_experiment(tmp_path, write_run):
    changes = ({}, {"resume": "runs/1"}, {"watchdog_s": 60.0}, {"policy.learners.backend": "ray"})
    for seed, change in enumerate((*changes, {"policy.learners.num_learners": 2})):
        write_run(tmp_path / str(seed), seed=seed, iterations=1, changes=change)

    assert sorted(named(tmp_path).values()) == [["0", "1", "2", "3"], ["4"]]


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (("runs/dqn_0", "runs/dqn_1"), "dqn"),
        (("runs/dqn/seed0", "runs/dqn/seed1"), "dqn"),
        (("runs/dqn/seed_0", "runs/dqn/seed_1"), "dqn"),
        (("runs/0/lr-0.001", "runs/1/lr-0.001"), "lr-0.001"),
        (("/data/x/big net 0", "/data/x/big net 1"), "big net"),
        (("runs/dqn", "runs/dqn"), "dqn"),
        (("0", "1"), "0"),
        (("runs/dqn_seed0",), "dqn"),
        (("runs/only",), "only"),
        (("0",), "0"),
    ],
)
def test_an_experiment_is_called_what_its_runs_share(tmp_path, write_run, names, shared):
    for seed, name in enumerate(names):
        write_run(tmp_path / str(seed), seed=seed, exp_name=name, iterations=1)

    assert list(named(tmp_path)) == [shared]


def test_folders_that_all_names_begin_with_are_left_out_and_others_stay(tmp_path, write_run):
    for place, (name, size) in enumerate([("runs/big/dqn", 128), ("runs/small/dqn", 32), ("runs/ppo", 64)]):
        write_run(tmp_path / str(place), exp_name=name, iterations=1, changes={"policy.learn.batch_size": size})

    assert list(named(tmp_path)) == ["big/dqn", "small/dqn", "ppo"]


def test_where_names_would_be_the_same_the_options_that_differ_tell_them_apart(tmp_path, write_run):
    for place, (size, rate) in enumerate([(32, 0.001), (64, 0.001), (64, 0.01)]):
        changes = {"policy.learn.batch_size": size, "policy.learn.learning_rate": rate}
        write_run(tmp_path / str(place), exp_name="runs/dqn", iterations=1, changes=changes)

    assert list(named(tmp_path)) == [
        "dqn batch_size=32 learning_rate=0.001",
        "dqn batch_size=64 learning_rate=0.001",
        "dqn batch_size=64 learning_rate=0.01",
    ]


def test_runs_without_a_configuration_stand_alone(tmp_path, write_run):
    for name in ("a", "b"):
        (write_run(tmp_path / name, iterations=1) / "config.json").unlink()

    assert sorted(name.rpartition("/")[2] for name in named(tmp_path)) == ["a", "b"]


def test_differences_name_the_options_and_the_value_of_each_experiment(tmp_path, write_run):
    write_run(tmp_path / "a", iterations=1)
    write_run(tmp_path / "b", iterations=1, changes={"policy.learn.batch_size": 32})
    folder = write_run(tmp_path / "c", iterations=1)
    config = json.loads((folder / "config.json").read_text())
    config["policy"]["extra"] = {}
    (folder / "config.json").write_text(json.dumps(config))

    assert differences(group_runs(find_runs([tmp_path]))) == {
        "policy.learn.batch_size": [64, 32, 64],
        "policy.extra": [None, None, {}],
    }


def rows(folder, *returns):
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"env_step": 10 * k, "evaluate/episode_return_mean": value}) + "\n" for k, value in enumerate(returns)
        )
    )


def test_a_return_stays_where_its_run_ended_at_the_stop_value_and_nowhere_else(tmp_path, write_run):
    for seed, returns in enumerate([(0, 480), (0, 100, 200, 300)]):
        rows(write_run(tmp_path / f"dqn_{seed}", seed=seed), *returns)
    (experiment,) = group_runs(find_runs([tmp_path]))
    curve = experiment.curve("evaluate/episode_return_mean", "env_step")

    assert curve.x.tolist() == [0, 10, 20, 30]
    assert curve.mean.tolist() == [0, 290, 340, 390]
    assert curve.is_whole.tolist() == [True, True, False, False]

    rows(tmp_path / "dqn_0", 0, 470)
    (experiment,) = group_runs(find_runs([tmp_path]))
    assert experiment.curve("evaluate/episode_return_mean", "env_step").mean.tolist() == [0, 285, 200, 300]


def test_an_evaluation_stands_where_its_weights_were(tmp_path):
    """The row of an asynchronous run that tells it comes later."""
    rows = [{"env_step": 500}, {"env_step": 1000, "evaluate/env_step": 0, "evaluate/episode_return_mean": 9.0}]
    rows.append({"env_step": 2000, "evaluate/env_step": 1000, "evaluate/episode_return_mean": 80.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (experiment,) = group_runs(find_runs([tmp_path]))

    curve = experiment.curve("evaluate/episode_return_mean", "env_step")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([0, 1000], [9, 80])
