"""Runs of the examples that are saved in the middle and go on from there, to compare all states."""

from example_runs import small, spied
from states import same, through_a_file

from ding_lite import Task, contract, task
from ding_lite.basics import RunFiles, row_files

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
    """The first place where two states differ, or None. Times, ids of runs and rows in their folders are not compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("path", [""])[0] == "time":
            return None
        if one.keys() != other.keys():
            return f"{where}: {sorted(map(str, one.keys() ^ other.keys()))}"
        kept = one.keys() - {"time_s", "tally", "run_id", "file_rows"}
        found = (difference(one[key], other[key], f"{where}[{key!r}]") for key in one if key in kept)
        return next((it for it in found if it), None)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)} items"
        return next((it for i, pair in enumerate(zip(one, other)) if (it := difference(*pair, f"{where}[{i}]"))), None)
    return None if same(one, other) else f"{where}: {one!r:.80} and {other!r:.80}"
