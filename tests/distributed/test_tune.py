"""Trainables of Ray Tune: trials that are members, with checkpoints, changes of settings and restores."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from member_pipelines import learned, ppo, ppo_config, same

from ding_lite.basics import ConfigError
from ding_lite.config import PPOConfig
from ding_lite.distributed import as_trainable
from ding_lite.distributed.tune import Trial
from ding_lite.engine import contract

RATE, SIZE = "policy.learn.learning_rate", "policy.learn.batch_size"


@pytest.fixture
def trial(tmp_path):
    """Makes trials without Ray, which are closed at the end."""
    made = []

    def make(values=None, folder="trial", pipeline=ppo):
        made.append(Trial(pipeline, ppo_config(), values or {}, str(tmp_path / folder)))
        return made[-1]

    yield make
    for one in made:
        one.member.close()


def rate_of(trial):
    return trial.member.policy.optimizer.param_groups[0]["lr"]


class TestTrials:
    def test_values_of_the_search_space_are_settings(self, trial, tmp_path):
        flat, nested = trial({RATE: 0.5, "seed": 3}), trial({"policy": {"learn": {"learning_rate": 0.5}}, "seed": 3})
        assert flat.member.cfg.to_dict() == nested.member.cfg.to_dict()
        assert (rate_of(flat), flat.member.cfg.exp_name) == (0.5, str(tmp_path / "trial/run"))
        with pytest.raises(ConfigError, match="the search space has 'polcy.learn', and PPOConfig has no such setting"):
            trial({"polcy.learn": 3})
        with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
            trial({"policy.learn.bach_size": 3})
        with pytest.raises(ConfigError, match="the search space has 3, and PPOConfig has no such setting"):
            trial({3: 8})
        with pytest.raises(ConfigError, match="policy.learn.3 names no setting of PPOLearnConfig: a name is a string, not"):
            trial({"policy": {"learn": {3: 8}}})

    def test_a_checkpoint_continues_bit_for_bit_and_leaves_the_settings(self, trial, tmp_path):
        first, again, other = trial({RATE: 0.01}), trial({RATE: 0.01}), trial({RATE: 0.003})
        first.member.advance(2)
        first.save(tmp_path)
        assert not list(tmp_path.rglob("*.pkl"))
        for one in (again, other):
            one.load(tmp_path)
            assert one.member.task.ctx.env_step in (0, 32)
        first.member.advance(2), again.member.advance(2), other.member.advance(1)
        assert same(learned(first.member), learned(again.member))
        assert (rate_of(again), rate_of(other)) == (0.01, 0.003)
        assert other.member.task.ctx.env_step == 48

    def test_dicts_are_settings_too(self, trial, tmp_path):
        reused, name = trial({RATE: 0.01}), "policy.learners.learner_resources"
        for values in ({name: {"sim": 1.0}}, {name: {"gpu": 1.0}, RATE: 0.5}, {}):
            reused.reset(values, str(tmp_path))
            assert reused.member.cfg.policy.learners.learner_resources == values.get(name, {})

    @pytest.mark.slow
    def test_a_reused_trial_is_as_a_new_one(self, trial, tmp_path):
        reused, new = trial({RATE: 0.01}), trial({RATE: 0.002, SIZE: 4})
        reused.member.advance(3)
        kept = reused.member
        reused.reset({RATE: 0.002, SIZE: 4}, str(tmp_path))
        assert reused.member is kept
        assert same(learned(reused.member), learned(new.member))
        found, wanted = reused.member.advance(3), new.member.advance(3)
        assert found["learn/cur_lr"] == wanted["learn/cur_lr"] == pytest.approx(0.002)
        assert found["collect/episode_return_mean"] == wanted["collect/episode_return_mean"]
        assert same(learned(reused.member), learned(new.member))
        reused.reset({}, str(tmp_path))
        assert rate_of(reused) == ppo_config().policy.learn.learning_rate

    @pytest.mark.slow
    def test_changes_that_are_not_live_and_files_of_another_trial_make_the_pipeline_anew(self, trial, tmp_path):
        for values in ({"seed": 5}, {"policy.model.layer_norm": True, RATE: 0.5}, {RATE: 0.5, "env.collector_env_num": 4}):
            one, new = trial({RATE: 0.01}), trial(values)
            one.member.advance(1)
            one.reset(values, str(tmp_path))
            for each in (one, new):
                each.member.advance(2)
            assert same(learned(one.member), learned(new.member))

        def with_files(cfg, task):
            policy = ppo(cfg)

            @contract(stage="record")
            def saver(ctx):
                return None

            saver.note_error = lambda error: None
            task.use(saver)
            return policy

        one = trial(pipeline=with_files)
        one.reset({RATE: 0.5}, str(tmp_path / "other"))
        assert (rate_of(one), one.member.cfg.exp_name) == (0.5, str(tmp_path / "other/run"))

    @pytest.mark.slow
    def test_what_is_no_configuration_is_said_at_once(self):
        with pytest.raises(TypeError, match="as_trainable wants a RunConfig or a class of one, got <function ppo"):
            as_trainable(ppo, ppo)


def test_a_trainable_needs_ray_and_a_slice(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"as_trainable needs ray, which is not installed: pip install"):
            as_trainable(ppo, PPOConfig)


DRIVER = """
import json, sys
sys.path[:0] = {path!r}
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from member_pipelines import ppo, ppo_config
from ding_lite.distributed import as_trainable

RATE = "policy.learn.learning_rate"
folder, what = sys.argv[1:]


def summary(results):
    return [
        dict(iterations=one.metrics["training_iteration"], steps=one.metrics["env_step"], score=one.metrics["learn/entropy"],
             rate=one.metrics["learn/cur_lr"], config=one.config[RATE], error=str(one.error))
        for one in results
    ]


def tuner(name, scheduler, trainable, rates, **space):
    checkpoints = tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2)
    return tune.Tuner(
        trainable,
        param_space={{RATE: tune.grid_search(rates), **space}},
        tune_config=tune.TuneConfig(scheduler=scheduler, metric="learn/entropy", mode="max", reuse_actors=True,
                                    max_concurrent_trials=2),
        run_config=tune.RunConfig(name=name, storage_path=folder, stop={{"training_iteration": 3}}, verbose=0,
                                  checkpoint_config=checkpoints),
    )


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={{"env_vars": {{"PYTHONPATH": {env!r}}}}})
    trainable = as_trainable(ppo, ppo_config(), iterations=2)
    found = {{}}
    if what == "kill":
        tuner("killed", None, as_trainable(ppo, ppo_config(), iterations=30), [1e-3, 1e-2]).fit()
    restored = tune.Tuner.restore(folder + "/killed", as_trainable(ppo, ppo_config(), iterations=1), resume_unfinished=True)
    found["restored"] = summary(restored.fit())
    asha, seeds = ASHAScheduler(max_t=3, grace_period=1), tune.grid_search([1, 2])
    found["asha"] = summary(tuner("asha", asha, trainable, [1e-4, 1e-1], seed=seeds).fit())
    pbt = PopulationBasedTraining(
        "training_iteration", perturbation_interval=1, hyperparam_mutations={{RATE: tune.loguniform(1e-4, 1e-1)}},
        quantile_fraction=0.5, synch=True,
    )
    found["pbt"] = summary(tuner("pbt", pbt, trainable, [1e-4, 1e-1]).fit())
    with open(folder + "/found.json", "w") as file:
        json.dump(found, file)
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_asha_pbt_and_a_restore_after_the_driver_was_killed(tmp_path):
    pytest.importorskip("ray")
    root = Path(__file__).resolve().parents[2]
    path = [str(root), str(root / "tests/helpers")]
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(path=path, env=":".join(path)))

    def started(what):
        return subprocess.Popen([sys.executable, str(script), str(tmp_path), what], start_new_session=True)

    driver = started("kill")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/*/checkpoint_*/member.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
        assert driver.poll() is None, "the driver ended before a checkpoint was there"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert started("restore").wait() == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [len(found[name]) for name in ("restored", "asha", "pbt")] == [2, 4, 2]
    for one in (*found["restored"], *found["asha"], *found["pbt"]):
        assert one["error"] == "None"
        assert one["rate"] == pytest.approx(one["config"], rel=1e-5)  # the trial learns at the rate that Tune says
    assert all(one["iterations"] == 3 for one in (*found["restored"], *found["pbt"]))
    assert any(one["iterations"] < 3 for one in found["asha"])
    assert all(one["steps"] == 2 * 16 * one["iterations"] for one in found["asha"])
    assert {one["config"] for one in found["pbt"]} != {1e-4, 1e-1}
    os.sync()
