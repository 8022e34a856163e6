"""Every example, saved in the middle and continued by new objects: all states are those of an uninterrupted run."""

import pytest
from example_runs import CHANGING, NAMES, REPLAYING, small, spied
from states import same, through_a_file

from ding_lite import Task, contract, task
from ding_lite.basics import RunFiles, load_checkpoint, row_files

pytestmark = pytest.mark.timeout(240)
MODES = {"sync": {}, "lag": {"max_lag": 1}, "async": {"async_mode": True, "max_lag": 2}}
SAVED_IN = 1


def run(name, folder, monkeypatch, state=None, saved=None, **settings):
    """The states of everything in the pipeline after the run. It also saves its state in the middle, to the list `saved`."""
    module, cfg = small(name, folder, **settings)
    made, whole = spied(module), []
    files = RunFiles(folder / "in_pieces")

    @contract(stage="record")
    def saver(ctx):
        if saved is not None and ctx.total_step == SAVED_IN:
            task.between_iterations(lambda: saved.append(whole_state()))

    def whole_state():
        """The state. Saving it to files, which writes only new rows, gives the same state."""
        state = through_a_file(task.state_dict())
        if saved is not None:
            files.save(task.state_dict(in_pieces=True), state["done"])
            assert difference(files.load()[0], state) is None
        return state

    before = Task.run

    def run_and_save(self, max_step):
        self.use(saver)
        if state is not None:
            self.load_state_dict(state)
        before(self, max_step, final=False)
        whole.append(whole_state())

    with monkeypatch.context() as patch:
        patch.setattr(Task, "run", run_and_save)
        patch.setattr(row_files, "_SMALLEST", 100)  # bytes, so that these short runs have files of rows
        module.main(cfg)
    return whole[0], [through_a_file(thing.state_dict()) for thing in made]


def difference(one, other, where="state"):
    """The first place where two states differ, or None. Times are not compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("path", [""])[0] == "time":
            return None
        if one.keys() != other.keys():
            return f"{where}: {sorted(map(str, one.keys() ^ other.keys()))}"
        found = (difference(one[key], other[key], f"{where}[{key!r}]") for key in one if key not in ("time_s", "tally"))
        return next((it for it in found if it), None)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)} items"
        return next((it for i, pair in enumerate(zip(one, other)) if (it := difference(*pair, f"{where}[{i}]"))), None)
    return None if same(one, other) else f"{where}: {one!r:.80} and {other!r:.80}"


CASES = [*((name, "async") for name in NAMES), ("dqn", "sync"), ("r2d2", "sync"), ("rainbow", "lag"), ("dqn_atari", "async")]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_resumed_run_equals_the_run_that_was_saved(name, mode, tmp_path, monkeypatch):
    if name.endswith("_atari"):
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    saved = []
    saving = run(name, tmp_path / "saving", monkeypatch, saved=saved, **MODES[mode])
    continued = run(name, tmp_path / "continued", monkeypatch, state=saved[0], **MODES[mode])

    assert saved[0]["done"] == SAVED_IN + 1 + (MODES[mode]["max_lag"] + 1 if mode != "sync" else 0)
    assert difference(continued, saving) is None


@pytest.mark.parametrize(("name", "mode"), [("dqn", "sync"), ("sac", "async")])
def test_statistics_of_observations_and_a_schedule_go_on(name, mode, tmp_path, monkeypatch):
    saved, settings = [], {**MODES[mode], **CHANGING}
    saving = run(name, tmp_path / "saving", monkeypatch, saved=saved, **settings)
    continued = run(name, tmp_path / "continued", monkeypatch, state=saved[0], **settings)

    assert difference(continued, saving) is None


def test_recurrent_states_and_kept_rollouts_go_on(tmp_path, monkeypatch):
    saved, settings = [], {**MODES["async"], **REPLAYING}
    saving = run("impala", tmp_path / "saving", monkeypatch, saved=saved, **settings)
    continued = run("impala", tmp_path / "continued", monkeypatch, state=saved[0], **settings)

    assert difference(continued, saving) is None


@pytest.mark.parametrize(("name", "mode"), [("ppo_lstm", "async"), ("rainbow", "sync")])
def test_saving_does_not_change_a_run(name, mode, tmp_path, monkeypatch):
    saving = run(name, tmp_path / "saving", monkeypatch, saved=[], **MODES[mode])
    unsaved = run(name, tmp_path / "unsaved", monkeypatch, **MODES[mode])

    assert difference(saving, unsaved) is None


@pytest.mark.parametrize(("name", "mode"), [("dqn", "sync"), ("rainbow", "lag"), ("ppo", "async")])
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
