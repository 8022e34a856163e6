"""Every example, saved in the middle and continued by new objects: all states are those of an uninterrupted run."""

import pytest
from example_runs import CHANGING, NAMES, REPLAYING, small
from saved_runs import MODES, SAVED_IN, difference, run
from slow_cases import mostly_slow

from ding_lite.basics import load_checkpoint

pytestmark = pytest.mark.timeout(240)

CASES = [*((name, "async") for name in NAMES), ("dqn", "sync"), ("r2d2", "sync"), ("rainbow", "lag"), ("dqn_atari", "async")]


FAST = [("dqn", "async"), ("ppo", "async"), ("bc", "async"), ("rainbow", "lag")]


@pytest.mark.few
@pytest.mark.parametrize(("name", "mode"), mostly_slow(CASES, *FAST))
def test_a_resumed_run_equals_the_run_that_was_saved(name, mode, tmp_path, monkeypatch):
    if name.endswith("_atari"):
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    saved = []
    saving = run(name, tmp_path / "saving", monkeypatch, saved=saved, **MODES[mode])
    continued = run(name, tmp_path / "continued", monkeypatch, state=saved[0], **MODES[mode])

    assert saved[0]["done"] == SAVED_IN + 1 + (MODES[mode]["max_lag"] + 1 if mode != "sync" else 0)
    assert difference(continued, saving) is None


@pytest.mark.parametrize(("name", "mode"), mostly_slow([("dqn", "sync"), ("sac", "async")], ("dqn", "sync")))
def test_statistics_of_observations_and_a_schedule_go_on(name, mode, tmp_path, monkeypatch):
    saved, settings = [], {**MODES[mode], **CHANGING}
    saving = run(name, tmp_path / "saving", monkeypatch, saved=saved, **settings)
    continued = run(name, tmp_path / "continued", monkeypatch, state=saved[0], **settings)

    assert difference(continued, saving) is None


@pytest.mark.slow
def test_recurrent_states_and_kept_rollouts_go_on(tmp_path, monkeypatch):
    saved, settings = [], {**MODES["async"], **REPLAYING}
    saving = run("impala", tmp_path / "saving", monkeypatch, saved=saved, **settings)
    continued = run("impala", tmp_path / "continued", monkeypatch, state=saved[0], **settings)

    assert difference(continued, saving) is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), [("ppo_lstm", "async"), ("rainbow", "sync")])
def test_saving_does_not_change_a_run(name, mode, tmp_path, monkeypatch):
    saving = run(name, tmp_path / "saving", monkeypatch, saved=[], **MODES[mode])
    unsaved = run(name, tmp_path / "unsaved", monkeypatch, **MODES[mode])

    assert difference(saving, unsaved) is None


@pytest.mark.parametrize(
    ("name", "mode"), mostly_slow([("dqn", "sync"), ("rainbow", "lag"), ("ppo", "async")], ("dqn", "sync"))
)
def test_a_finished_run_that_is_extended_gets_the_weights_of_one_longer_run(name, mode, tmp_path):
    """Evaluations and rows of metrics may differ, because the last iteration of the first part was evaluated as the end."""

    def final(folder, max_step, resume=None):
        module, cfg = small(name, folder, **MODES[mode])
        cfg.override({"max_step": max_step, "exp_name": str(folder), "resume": resume})
        module.main(cfg)
        return load_checkpoint(folder / "ckpt/final.pt")

    final(tmp_path / "run", 2)
    extended = final(tmp_path / "run", 5, str(tmp_path / "run"))
    assert difference(extended, final(tmp_path / "whole", 5)) is None


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("process", "local"), ("local", "process")])
def test_a_run_goes_on_where_environments_are_stepped_elsewhere(first, second, tmp_path, monkeypatch):
    """Also an evaluator with one worker, whose environments are in one piece."""
    saved, workers = [], {"env.workers": 2}
    saving = run("ppo_lstm", tmp_path / "saving", monkeypatch, saved=saved, **workers, **{"env.backend": first})
    continued = run("ppo_lstm", tmp_path / "on", monkeypatch, state=saved[0], **workers, **{"env.backend": second})

    def models(found):
        return [part["model"] for part in found[0]["parts"].values() if isinstance(part, dict) and "model" in part]

    assert len(models(saving)) == 1
    assert difference(models(continued), models(saving)) is None
