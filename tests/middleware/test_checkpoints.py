"""CkptSaver where the disk refuses, and where there is no policy and no reinforcement learning."""

import contextlib
import dataclasses
import math
import os
import resource
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from file_faults import Faults
from forked_scripts import run_script
from gymnasium import spaces
from weight_policies import Weight

from ding_lite import Context, Task, contract, task
from ding_lite.basics import RunFiles, row_files
from ding_lite.config import DQNConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.data.column_arrays import to_objects
from ding_lite.engine import PipelineError, UnsavedError, WriteError, contract_of, deferrals, load_checkpoint
from ding_lite.middleware import CkptSaver, checkpoints, online_logger, run_savers


@dataclasses.dataclass
class Fitting(Context):
    """Not of reinforcement learning: it counts batches."""

    batches: int = dataclasses.field(default=0, metadata={"kept": True})
    eval_value: float = -float("inf")
    eval_weights: dict[str, torch.Tensor] | None = None


def fitting(model, optimizer=None):
    """A middleware that learns a little."""

    @contract(reads=("batches",), writes=("batches",), uses=(model,), stage="learn")
    def fit(ctx):
        with torch.no_grad():
            model.weight += 1
        ctx.batches += 4

    return fit


def weight_of(value):
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, value)
    return model


def run(pipeline, steps, ctx=None, **mode):
    task = Task()
    with task.start(ctx=ctx or Fitting(), **mode):
        for one in pipeline:
            task.use(one)
        task.run(max_step=steps)
    return task


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def all_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def in_the_way(folder, begin, end):
    """A middleware: in these iterations a link to nowhere stands where the folder of checkpoints was."""
    away = folder.with_name("away")

    def disturb(ctx):
        if ctx.total_step == begin:
            if folder.exists():
                folder.rename(away)
            folder.symlink_to(folder.with_name("gone"))
        if ctx.total_step == end:
            folder.unlink()
            if away.exists():
                away.rename(folder)

    return disturb


class TestRefusingDisk:
    def test_a_checkpoint_that_cannot_be_written_is_warned_of_once_and_tried_again(self, tmp_path):
        model, folder = weight_of(0.0), tmp_path / "ckpt"
        with all_warnings() as caught:
            run([in_the_way(folder, 2, 5), fitting(model), CkptSaver(model, tmp_path, train_freq=1, keep_last=9)], 8)
        found = [str(warning.message) for warning in caught]

        assert found == [
            f"cannot write {folder}/iteration_3.pt: {folder} is a link to {tmp_path}/gone, which does not exist. "
            f"Make {tmp_path}/gone, or remove the link. The run goes on, and later iterations try again."
        ]
        # Tried in the iterations that end as 3, 4 and 6, and from there on each time.
        assert names(folder) == ["final.pt", *(f"iteration_{n}.pt" for n in (1, 2, 6, 7, 8))]

    def test_the_next_trouble_after_a_success_is_warned_of_again(self, tmp_path):
        model, folder = weight_of(0.0), tmp_path / "ckpt"
        with all_warnings() as caught:
            disturbed = [in_the_way(folder, 1, 2), in_the_way(folder, 4, 5)]
            run([*disturbed, fitting(model), CkptSaver(model, tmp_path, train_freq=1)], 8)

        assert [str(warning.message).partition(":")[0] for warning in caught] == [
            f"cannot write {folder}/iteration_{n}.pt" for n in (2, 5)
        ]

    def test_the_best_weights_wait_in_memory_until_the_disk_takes_them(self, tmp_path):
        model, folder = weight_of(0.0), tmp_path / "ckpt"

        def evaluate(ctx):
            if ctx.total_step in (1, 2):  # the second one is worse
                ctx.eval_value, ctx.eval_weights = 9.0 - ctx.total_step, {"weight": model.weight.detach().clone()}

        with all_warnings() as caught:
            run([in_the_way(folder, 1, 5), evaluate, fitting(model), CkptSaver(model, tmp_path)], 12)
        best = load_checkpoint(folder / "best.pt")

        assert [str(warning.message).partition(":")[0] for warning in caught] == [f"cannot write {folder}/best.pt"]
        assert best["eval_value"] == 8.0
        assert best["model"]["weight"].item() == 1.0
        assert best["counters"] == {"total_step": 2}
        assert load_checkpoint(folder / "final.pt")["model"]["weight"].item() == 12.0

    def test_a_disk_that_refuses_for_long_is_asked_less_and_less(self, tmp_path):
        class Counted(torch.nn.Linear):
            asked = 0

            def state_dict(self, *args, **kwargs):
                self.asked += 1
                return super().state_dict(*args, **kwargs)

        model, folder = Counted(1, 1), tmp_path / "ckpt"
        with all_warnings() as caught:
            run([in_the_way(folder, 1, 300), fitting(model), CkptSaver(model, tmp_path, train_freq=1, save_finish=False)], 301)

        assert len(caught) == 1
        assert 8 < model.asked < 20

    @pytest.mark.filterwarnings("ignore:asynchronous mode cannot overlap")
    @pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=str)
    def test_a_run_that_cannot_save_its_last_state_ends_well_and_then_fails(self, tmp_path, mode):
        model, ended = weight_of(0.0), []
        folder = tmp_path / "ckpt"

        def last(ctx):
            yield
            ended.append(ctx.total_step)

        with pytest.raises(UnsavedError) as caught:
            run([last, in_the_way(folder, 2, 99), fitting(model), CkptSaver(model, tmp_path, train_freq=2)], 3, **mode)

        assert str(caught.value) == (
            f"the run has ended, but its state at the end is not saved: cannot write {folder}/final.pt: {folder} is a link to "
            f"{tmp_path}/gone, which does not exist. Make {tmp_path}/gone, or remove the link. "
            f"The newest checkpoint of the run is {folder}/iteration_2.pt. "
            "While this process is alive, save_checkpoint(policy.state_dict(), path) can still save it elsewhere."
        )
        assert isinstance(caught.value, WriteError)
        assert caught.value.filename == str(folder / "final.pt")
        assert ended == [0, 1, 2]

    def test_the_last_row_is_logged_before_the_run_fails(self, tmp_path):
        model = weight_of(0.0)

        def learn(ctx):
            ctx.train_iter += 1

        cfg = DQNConfig(exp_name=tmp_path)
        disturb = in_the_way(tmp_path / "ckpt", 1, 99)
        for pipeline in ([CkptSaver(model, tmp_path), online_logger(cfg)], [online_logger(cfg), CkptSaver(model, tmp_path)]):
            with pytest.raises(UnsavedError):
                run([disturb, learn, *pipeline], 2, OnlineRLContext())
            assert (tmp_path / "metrics.jsonl").read_text().count('"train_iter": 2,') == 1
            (tmp_path / "ckpt").unlink()

    def test_best_weights_that_never_got_to_the_disk_are_an_error_too(self, tmp_path):
        model, folder = weight_of(0.0), tmp_path / "ckpt"

        def evaluate(ctx):
            ctx.eval_value, ctx.eval_weights = 1.0, {"weight": torch.zeros(1, 1)}

        saver = CkptSaver(model, tmp_path, save_finish=False)
        expected = rf"the best policy is not saved: cannot write {folder}/best\.pt: .*is a link"
        with all_warnings(), pytest.raises(UnsavedError, match=expected):
            run([in_the_way(folder, 0, 99), evaluate, saver], 3)

    def test_where_a_later_middleware_fails_as_well_its_error_leaves_the_run_with_the_other_as_a_note(self, tmp_path):
        model = weight_of(0.0)

        def broken(ctx):
            yield
            if ctx.total_step == 1:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine") as caught:
            run([broken, in_the_way(tmp_path / "ckpt", 1, 99), CkptSaver(model, tmp_path)], 2)

        assert any("UnsavedError: the run has ended, but" in note for note in caught.value.__notes__)

    def test_a_run_after_one_that_was_not_saved_begins_without_its_error(self, tmp_path):
        model, folder = weight_of(0.0), tmp_path / "ckpt"
        task = Task()
        with task.start(ctx=Fitting()):
            task.use(in_the_way(folder, 1, 2)).use(fitting(model)).use(CkptSaver(model, tmp_path))
            with pytest.raises(UnsavedError):
                task.run(max_step=2)
            task.run(max_step=2)

        assert load_checkpoint(folder / "final.pt")["counters"] == {"total_step": 4}

    @pytest.mark.filterwarnings("ignore:cannot write")
    def test_the_best_that_could_not_be_written_at_once_is_what_was_evaluated(self, tmp_path):
        model = weight_of(0.0)

        def evaluate(ctx):
            if ctx.total_step == 2:
                ctx.eval_value = 10.0

        run([in_the_way(tmp_path / "ckpt", 1, 6), fitting(model), evaluate, CkptSaver({"model": model}, tmp_path)], 12)

        best = load_checkpoint(tmp_path / "ckpt" / "best.pt")
        assert (best["eval_value"], best["model"]["weight"].item(), best["counters"]["total_step"]) == (10.0, 3.0, 3)

    def test_a_file_that_grows_too_large_for_a_limit_is_tried_again_when_there_is_room(self, tmp_path):
        model, limits = torch.nn.Linear(100, 100), resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit(ctx):
            if ctx.total_step in (1, 2):
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000 if ctx.total_step == 1 else limits[0], limits[1]))

        try:
            with all_warnings() as caught:
                run([limit, CkptSaver(model, tmp_path, train_freq=1)], 4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert [str(warning.message) for warning in caught] == [
            f"cannot write {tmp_path}/ckpt/iteration_2.pt: it is larger than a file may be here (File too large). "
            "Raise the limit (ulimit -f), or choose another folder. The run goes on, and later iterations try again."
        ]
        assert names(tmp_path / "ckpt") == ["final.pt", *(f"iteration_{n}.pt" for n in (1, 3, 4))]

    @pytest.mark.slow
    def test_if_any_operation_on_files_fails_the_run_continues_and_all_files_are_whole(self, tmp_path, monkeypatch):
        """Of the checkpoints, the state of the run with its rows, the manifest and run.json."""
        monkeypatch.setattr(run_savers, "_SHARE", math.inf)  # of the time, for saving the run
        monkeypatch.setattr(row_files, "_SMALLEST", 64)
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here, and a busy disk would take long
        failed = {}
        for fail_at in range(1, 500):
            folder = tmp_path / str(fail_at)
            faults = Faults(fail_at)
            model, buffer = weight_of(0.0), ReplayBuffer(50)

            @contract(uses=(buffer,), stage="process")
            def push(ctx, buffer=buffer):
                buffer.push({"x": torch.full((20,), ctx.total_step), "reward": torch.zeros(20)})

            with pytest.MonkeyPatch.context() as patches, all_warnings() as caught:
                warnings.filterwarnings("ignore", ".*remembers something")  # `install`, which counts operations

                def install(ctx, faults=faults, patches=patches):
                    if ctx.total_step == 1:
                        faults.install(patches)

                unsaved = None
                try:
                    run([install, push, fitting(model), CkptSaver(model, folder, train_freq=1, keep_last=1)], 3)
                except UnsavedError as error:
                    unsaved = error
            told = [str(warning.message) for warning in caught if "has no state_dict" not in str(warning.message)]
            failed.setdefault(faults.failed, []).append(bool(told or unsaved))
            assert all(str(folder) in words for words in told)
            assert unsaved is None or (str(folder) in str(unsaved) and not told)
            assert not [*folder.rglob("*.tmp")]

            state = RunFiles(folder).load()[0]
            assert state["done"] >= 2
            found = {path.name: load_checkpoint(path)["model"]["weight"].item() for path in (folder / "ckpt").iterdir()}
            assert all(value == int(name[10:-3]) for name, value in found.items() if name != "final.pt")
            assert found["iteration_3.pt"] == 3.0 if unsaved is None else found
            assert found.get("final.pt", 3.0) == 3.0
            if faults.failed is None:
                break

        assert failed.keys() == {None, "mkdir", "open", "write", "flush", "fsync", "replace", "unlink"}
        assert failed[None] == [False]
        for name in ("open", "write", "flush", "fsync", "replace"):
            assert failed[name].count(True) >= 8, name
        print(f"{fail_at - 1} operations on files, each of which failed in one run: 0 files that cannot be read")

    def test_a_program_on_a_full_disk_runs_to_its_end_and_exits_with_an_error(self, tmp_path):
        script = """
            import resource, sys, torch
            from ding_lite import Context, task
            from ding_lite.middleware import CkptSaver

            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            with task.start(ctx=Context()):
                task.use(lambda ctx: print("iteration", ctx.total_step))
                task.use(CkptSaver(torch.nn.Linear(100, 100), sys.argv[1], train_freq=1))
                task.run(max_step=3)
        """
        lines = "\n".join(line[12:] for line in script.splitlines())
        done = run_script(lines, tmp_path)

        assert done.returncode == 1
        assert done.stdout.split("\n") == ["iteration 0", "iteration 1", "iteration 2", ""]
        assert done.stderr.count("The run goes on, and later iterations try again.") == 1
        assert "UnsavedError: the run has ended, but its state at the end is not saved: cannot write" in done.stderr
        assert names(tmp_path / "ckpt") == []


class TestBeforeTheRun:
    def test_a_folder_in_which_nothing_can_be_written_is_refused_with_the_fix(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to(tmp_path / "gone")
        for name, expected in (
            ("file", "is a file, but a folder is needed there"),
            ("link", "is a link to .*gone, which does"),
        ):
            with pytest.raises(
                WriteError, match=rf"cannot write {tmp_path}/{name}/ckpt/final\.pt: {tmp_path}/{name} {expected}"
            ):
                CkptSaver(weight_of(0.0), tmp_path / name)
            with pytest.raises(WriteError, match=rf"cannot write {tmp_path}/{name}/config\.json: {tmp_path}/{name} {expected}"):
                online_logger(DQNConfig(exp_name=tmp_path / name))

    def test_a_link_to_nowhere_in_the_place_of_ckpt_is_refused(self, tmp_path):
        (tmp_path / "ckpt").symlink_to(tmp_path / "gone")
        with pytest.raises(WriteError, match=rf"{tmp_path}/ckpt is a link to {tmp_path}/gone, which does not exist\. Make"):
            CkptSaver(weight_of(0.0), tmp_path)

    def test_a_refused_or_an_unused_saver_leaves_nothing_behind(self, tmp_path):
        CkptSaver(weight_of(0.0), tmp_path / "run")

        assert list(tmp_path.iterdir()) == []

    def test_what_a_killed_run_left_half_written_is_removed_at_the_next_start(self, tmp_path):
        script = """
            import os, signal, sys, torch
            from ding_lite import Context, task
            from ding_lite.config import DQNConfig
            from ding_lite.basics import write_atomically
            from ding_lite.middleware import CkptSaver
            from pathlib import Path

            folder, fsync = Path(sys.argv[1]), os.fsync
            with task.start(ctx=Context()):
                task.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1))
                task.run(max_step=2)
            os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
            if os.fork() == 0:
                write_atomically(folder / "metrics.csv", b"half")
            os.wait()
            write_atomically(folder / "ckpt" / "iteration_3.pt", b"half")
        """
        lines = "\n".join(line[12:] for line in script.splitlines())
        done = run_script(lines, tmp_path)
        left = list(tmp_path.rglob("*.tmp"))
        cfg = DQNConfig(exp_name=tmp_path)
        run([CkptSaver(weight_of(0.0), tmp_path), online_logger(cfg)], 1, OnlineRLContext())

        assert done.returncode == -signal.SIGKILL, done.stderr
        assert {path.name.partition(".")[0] for path in left} == {"metrics", "iteration_3"}
        assert list(tmp_path.rglob("*.tmp")) == []
        assert names(tmp_path / "ckpt.1") == ["final.pt", "iteration_1.pt", "iteration_2.pt"]

    @pytest.mark.parametrize(
        ("policy", "error", "message"),
        [
            (
                torch.nn.Linear,
                TypeError,
                r"got <class .*Linear'> of type type, the class: make an object of it, Linear\(\.\.\.\)",
            ),
            (
                None,
                TypeError,
                r"wants the policy itself, got None of type NoneType, which has no state_dict\(\): a torch module",
            ),
            ({}, ValueError, r"CkptSaver\(\{\}\) has nothing to save: name what it saves, such as \{'model': model\}"),
            ({"counters": weight_of(0.0)}, ValueError, "cannot save anything as 'counters': take a string other than"),
            ({1: weight_of(0.0)}, ValueError, "cannot save anything as 1: take a string"),
            (
                weight_of(0.0).state_dict(),
                TypeError,
                r"as 'weight', got .*no state_dict\(\): pass the model, not its state",
            ),
            (torch.nn.LazyLinear(1), TypeError, r"LazyLinear\.state_dict\(\)\['weight'\] has no shape yet: run the module"),
        ],
    )
    def test_what_cannot_be_saved_is_refused_by_name(self, policy, error, message, tmp_path):
        with pytest.raises(error, match=message):
            CkptSaver(policy, tmp_path)

    def test_a_state_that_no_checkpoint_holds_is_refused_by_name(self, tmp_path):
        class Mine:
            def state_dict(self):
                return {"seen": {1, 2}}

        with pytest.raises(TypeError, match=r"what CkptSaver gets from Mine\.state_dict\(\)\['seen'\] is a set, which a"):
            CkptSaver({"mine": Mine()}, tmp_path)

    def test_a_counter_that_the_context_lacks_is_refused_before_the_run(self, tmp_path):
        with pytest.raises(PipelineError, match="CkptSaver reads ctx.batchs, but Fitting declares no such field: did you mean"):
            run([CkptSaver(weight_of(0.0), tmp_path, counters=("batchs",))], 1)
        with pytest.raises(TypeError, match=r"CkptSaver\(counters='batches'\) wants several names of fields: write"):
            CkptSaver(weight_of(0.0), tmp_path, counters="batches")


class TestOutsideOfReinforcementLearning:
    def test_a_module_is_saved_now_and_then_and_at_the_end_by_iterations(self, tmp_path):
        model, other = weight_of(0.0), weight_of(5.0)
        run([fitting(model), CkptSaver(model, tmp_path, train_freq=2, counters=("batches",))], 5)
        other.load_state_dict(load_checkpoint(tmp_path / "ckpt/final.pt")["model"])

        assert other.weight.item() == 5.0
        assert names(tmp_path / "ckpt") == ["final.pt", "iteration_2.pt", "iteration_4.pt"]
        assert load_checkpoint(tmp_path / "ckpt/iteration_4.pt")["counters"] == {"total_step": 4, "batches": 16}
        assert load_checkpoint(tmp_path / "ckpt/iteration_4.pt")["model"]["weight"].item() == 4.0

    def test_a_dict_of_a_module_its_optimizer_and_an_object_of_ones_own_is_saved_by_name(self, tmp_path):
        class Mine:
            seen = 7

            def state_dict(self):
                return {"seen": self.seen}

        model = weight_of(1.0)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1)).backward()
        optimizer.step()
        run([CkptSaver({"model": model, "optimizer": optimizer, "mine": Mine()}, tmp_path)], 1, Context())
        saved = load_checkpoint(tmp_path / "ckpt/final.pt")
        again = torch.optim.Adam(weight_of(0.0).parameters())
        again.load_state_dict(saved["optimizer"])

        assert saved.keys() == {"model", "optimizer", "mine", "counters"}
        assert again.state_dict()["state"][0]["step"] == 1
        assert saved["mine"] == {"seen": 7}

    @pytest.mark.parametrize("several", [False, True])
    def test_the_best_of_a_module_are_the_weights_that_the_context_says_were_evaluated(self, tmp_path, several):
        model = weight_of(0.0)

        def evaluate(ctx):
            ctx.eval_value, ctx.eval_weights = -abs(ctx.total_step - 3), {"weight": model.weight.detach().clone()}

        saved = {"model": model, "optimizer": torch.optim.SGD(model.parameters())} if several else model
        run([evaluate, fitting(model), CkptSaver(saved, tmp_path)], 6)
        best = load_checkpoint(tmp_path / "ckpt/best.pt")

        assert (best["eval_value"], best["evaluated_at"]) == (0.0, 4)
        assert best["model"]["weight"].item() == 3.0

    @pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=str)
    def test_every_counter_is_saved_in_every_mode(self, tmp_path, mode):
        @contract(reads=("env_step", "env_episode"), writes=("env_step", "env_episode"), stage="collect")
        def collect(ctx):
            ctx.env_step += 10
            ctx.env_episode += 2

        @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
        def learn(ctx):
            ctx.train_iter += 3

        run([collect, learn, CkptSaver(weight_of(0.0), tmp_path)], 4, OnlineRLContext(), **mode)

        assert load_checkpoint(tmp_path / "ckpt/final.pt")["counters"] == {
            "total_step": 4, "env_step": 40, "env_episode": 8, "train_iter": 12,
        }  # fmt: skip

    def test_the_contract_names_every_field_that_it_reads(self, tmp_path):
        class Watched(OfflineRLContext):
            seen = set()

            def __getattribute__(self, name):
                if not name.startswith("_") and name in OfflineRLContext.__dataclass_fields__:
                    Watched.seen.add(name)
                return super().__getattribute__(name)

        saver = CkptSaver(weight_of(0.0), tmp_path, train_freq=1)
        ctx = Watched(eval_value=1.0, eval_weights={"weight": torch.zeros(1, 1)}, train_iter=1)
        Watched.seen.clear()
        list(saver(ctx))
        terms = contract_of(saver)

        assert Watched.seen - {"total_step"} <= {*terms.reads, *terms.may_read, *terms.reads_after}
        assert {"total_step", "train_epoch", "train_iter", "eval_value", "eval_weights", "last_eval_iter"} == Watched.seen


def test_a_run_goes_on_at_the_step_after_the_last_one(tmp_path):
    cfg, model, seen = DQNConfig(exp_name=tmp_path), weight_of(0.0), []

    def learn(ctx):
        ctx.train_iter += 2
        seen.append(ctx.total_step)

    run([learn, CkptSaver(model, tmp_path), online_logger(cfg, train_show_freq=1)], 3, OnlineRLContext())
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()
    counters = load_checkpoint(tmp_path / "ckpt/final.pt")["counters"]
    run([learn, CkptSaver(model, tmp_path), online_logger(cfg, train_show_freq=1)], 3, OnlineRLContext(**counters))
    rows = [*first, *(tmp_path / "metrics.jsonl").read_text().splitlines()]

    assert seen == [0, 1, 2, 3, 4, 5]
    assert [row.startswith(f'{{"total_step": {step}, ') for step, row in enumerate(rows)] == [True] * 6
    assert load_checkpoint(tmp_path / "ckpt/final.pt")["counters"]["total_step"] == 6


@pytest.mark.parametrize("how", ["async", "finish", "plain"])
def test_called_by_hand_it_saves_what_is_due_whatever_run_was_before(how, tmp_path):
    with task.start(async_mode=how == "async", max_lag=int(how == "async"), ctx=OnlineRLContext()):
        task.use(contract(stage="learn")(lambda ctx: task.finish_because("seen enough") if how == "finish" else None))
        task.run(max_step=2)
    saver = CkptSaver(torch.nn.Linear(2, 1), tmp_path, train_freq=5)
    for train_iter in (0, 5, 7):
        ctx = OnlineRLContext(train_iter=train_iter)
        for _ in saver(ctx):
            pass

    assert names(tmp_path / "ckpt") == ["iteration_5.pt"]
    for _ in saver.end_run(ctx):
        pass
    assert names(tmp_path / "ckpt") == ["final.pt", "iteration_5.pt"]


@pytest.mark.parametrize("folder", ["", "  "])
def test_a_folder_without_a_name_is_refused(folder):
    with pytest.raises(ValueError, match=rf"CkptSaver got '{folder}' as the run's folder, which names none: pass one, such"):
        CkptSaver(torch.nn.Linear(1, 1), folder)


def test_a_uri_as_its_folder_is_refused():
    with pytest.raises(ValueError, match=r"save_dir of CkptSaver = 's3://bucket/x' is a URI, .* this machine: set one"):
        CkptSaver(torch.nn.Linear(1, 1), "s3://bucket/x")


@pytest.mark.parametrize("mode", [{}, {"async_mode": True, "max_lag": 1}], ids=["plain", "threads"])
def test_two_savers_with_the_same_folder_are_refused_before_anything_is_saved(tmp_path, mode):
    one, other = weight_of(1.0), weight_of(2.0)
    savers = [CkptSaver(one, tmp_path, train_freq=5), CkptSaver(other, tmp_path / "." / "x" / "..", train_freq=5)]
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=r"two CkptSavers of one pipeline write to .*another save_dir, or save both .* by one"):
        run([fitting(one), *savers], 3, **mode)
    assert names(tmp_path) == ["x"]
    run([fitting(one), CkptSaver(one, tmp_path), CkptSaver(other, tmp_path / "x")], 3)
    assert names(tmp_path / "ckpt") == names(tmp_path / "x" / "ckpt") == ["final.pt"]
    run([fitting(one), CkptSaver(one, tmp_path)], 3)  # a later run has the folder for itself
    assert names(tmp_path) == ["ckpt", "ckpt.1", "run.1.json", "run.json", "x"]


@pytest.mark.filterwarnings("ignore:.*calls neither its begin_run")
def test_a_saver_in_a_function_with_the_folder_of_another_one_is_refused(tmp_path):
    one, hidden = weight_of(1.0), CkptSaver(weight_of(2.0), tmp_path)

    def save(ctx):
        yield from hidden(ctx)

    with pytest.raises(ValueError, match="two CkptSavers of one pipeline write to"):
        run([fitting(one), CkptSaver(one, tmp_path), save], 3)


@pytest.mark.few
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True, "max_lag": 2}], ids=["plain", "lag", "threads"])
def test_a_save_of_the_run_writes_only_new_transitions_of_replay_buffers(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(row_files, "_SMALLEST", 300)
    buffers = [ReplayBuffer(100), PrioritizedReplayBuffer(150, seed=1)]
    saves, save = [], RunFiles.save
    monkeypatch.setattr(RunFiles, "save", lambda *args: saves.append(save(*args)) or saves[-1])

    @contract(uses=buffers, stage="learn")
    def push(ctx):
        rows = {"x": np.arange(20), "obs": {"text": to_objects([f"{ctx.total_step}"] * 20)}}
        for buffer in buffers:
            buffer.push(rows)
        if ctx.total_step == 5:
            buffers[0].clear()

    monkeypatch.setattr(run_savers, "_SHARE", math.inf)  # save the run each time
    done = run([push, CkptSaver(weight_of(0.0), tmp_path, train_freq=1)], 24, Context(), **mode)
    state, path = RunFiles(tmp_path).load()
    assert (len(saves) > 5, path, state["done"], done.ctx.total_step) == (True, saves[-1], 24, 23)
    kept = [name for name in names(tmp_path / "run") if name.startswith("rows_")]
    assert kept
    for buffer, name in zip(buffers, ("ReplayBuffer", "PrioritizedReplayBuffer")):
        saved, whole = state["parts"][name], buffer.state_dict()
        assert saved.keys() == whole.keys()
        assert torch.equal(saved["columns"]["x"], whole["columns"]["x"])
        assert saved["columns"]["obs"] == whole["columns"]["obs"]


@pytest.mark.few
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True, "max_lag": 2}], ids=["plain", "lag", "threads"])
def test_many_new_transitions_are_written_over_several_iterations(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(row_files, "_SMALLEST", 300)
    monkeypatch.setattr(row_files, "_LARGEST", 600)
    buffers = [ReplayBuffer(1000), ReplayBuffer(1000)]
    for buffer in buffers:
        buffer.push({"x": np.arange(500)})  # 4,000 bytes
    calls, written = [], []  # per save: the row files that it wrote, and whether it saved the state
    save_run, write, save = run_savers.RunSaver.save, row_files.RowFiles._write, RunFiles.save

    def one_save(saver):
        written.clear()
        save_run(saver)
        calls.append(tuple(written))

    monkeypatch.setattr(run_savers.RunSaver, "save", one_save)
    monkeypatch.setattr(row_files.RowFiles, "_write", lambda *args: written.append("rows") or write(*args))
    monkeypatch.setattr(RunFiles, "save", lambda *args: written.append("state") or save(*args))

    @contract(uses=buffers, stage="learn")
    def push(ctx):
        for buffer in buffers:
            buffer.push({"x": np.arange(3)})

    run([push, CkptSaver(weight_of(0.0), tmp_path, train_freq=1)], 120, Context(), **mode)
    first = next(place for place, call in enumerate(calls) if "state" in call)
    assert calls[:first] == [("rows",)] * first
    assert first >= 10  # 2 * 4,000 / 600, and the last ones together with the state
    assert len(calls[first]) <= 4
    state, _ = RunFiles(tmp_path).load()
    for saved, buffer in zip((state["parts"]["ReplayBuffer"], state["parts"]["ReplayBuffer 2"]), buffers):
        assert saved["columns"]["x"].shape == (860,)
        assert torch.equal(saved["columns"]["x"], buffer.state_dict()["columns"]["x"])


def test_a_run_that_adds_more_transitions_per_iteration_than_a_file_holds_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "_SMALLEST", 300)
    monkeypatch.setattr(row_files, "_LARGEST", 600)
    monkeypatch.setattr(run_savers, "_SHARE", math.inf)
    buffer, saves, save = ReplayBuffer(100_000), [], RunFiles.save
    monkeypatch.setattr(RunFiles, "save", lambda *args: saves.append(save(*args)) or saves[-1])

    @contract(uses=(buffer,), stage="learn")
    def push(ctx):
        buffer.push({"x": np.arange(200)})  # 1,600 bytes

    run([push, CkptSaver(weight_of(0.0), tmp_path, train_freq=1)], 20, Context())
    assert len(saves) > 8


def test_the_best_weights_that_could_not_be_written_are_written_by_a_resumed_run(tmp_path, monkeypatch):
    def refuse(state, path):
        raise WriteError(28, "no space is left", str(path))

    first, second = (CkptSaver(weight_of(value), tmp_path) for value in (3.0, 5.0))
    with monkeypatch.context() as full:
        full.setattr(checkpoints, "save_checkpoint", refuse)
        with pytest.warns(UserWarning, match="no space is left"):
            list(first(Fitting(eval_value=7.0)))
    second.load_state_dict(first.state_dict())
    list(second(Fitting()))

    best = load_checkpoint(tmp_path / "ckpt/best.pt")
    assert (best["eval_value"], best["model"]["weight"].item()) == (7.0, 3.0)


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}], ids=["plain", "lag"])
def test_a_run_after_one_that_ended_by_an_error_is_saved_at_intervals_again(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(run_savers, "_SHARE", math.inf)  # save the run each time

    @contract(stage="record")
    def fail_once(ctx):
        yield
        if ctx.total_step == 2:  # after the saver has asked for a save
            raise ConnectionError("the service is gone")

    loop = Task()
    with loop.start(**mode):
        loop.use(fail_once).use(CkptSaver(weight_of(0.0), tmp_path, train_freq=1))
        with pytest.raises(ConnectionError):
            loop.run(20)
        loop.run(6, final=False)

    state, _ = RunFiles(tmp_path).load()
    assert state["done"] > 5


@pytest.mark.parametrize(("mode", "best_weight"), [({}, 4.0), ({"max_lag": 1}, 3.0), ({"async_mode": True}, 3.0)], ids=str)
def test_the_best_weights_are_those_with_which_the_mode_has_acted(tmp_path, mode, best_weight):
    box = spaces.Box(0, 100, (1,), np.float32)
    policy = Weight(None, box, box)
    policy.set_weights({"weight": torch.zeros(1, 1)})
    acting = policy.eval_mode

    @contract(writes=("eval_value", "eval_weights"), uses=(acting,), stage="evaluate")
    def evaluate(ctx):
        ctx.eval_value = acting.forward(np.zeros((1, 1), np.float32))[0].item()
        ctx.eval_weights = acting.get_weights()

    @contract(uses=(policy.learn_mode,), stage="learn")
    def learn(ctx):
        policy.learn_mode.forward({})

    run([evaluate, learn, CkptSaver(policy, tmp_path)], 5, OnlineRLContext(), **mode)
    best = load_checkpoint(tmp_path / "ckpt/best.pt")

    assert (best["eval_value"], best["model"]["weight"].item()) == (best_weight, best_weight)
    assert (best["evaluated_at"], best["is_untrained"]) == (None, False)  # the evaluator does not say when


def circle():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [circle(), np.ones(2, np.dtype("f4").newbyteorder())], ids=["circle", "byte-order"])
def test_a_state_that_no_file_can_hold_is_a_warning(tmp_path, value):
    class Holder:
        def __call__(self, ctx):
            pass

        def state_dict(self):
            return {"value": value}

        def load_state_dict(self, state):
            pass

    with pytest.warns(UserWarning, match="this run cannot be resumed later, because its state cannot be saved: "):
        run([Holder(), CkptSaver(weight_of(0.0), tmp_path, train_freq=1)], 3)
    assert "final.pt" in names(tmp_path / "ckpt")


@contract(stage="collect")
def collect(ctx):
    """Gives the run a second lane, so that it has threads."""


class TestDeferredWork:
    def test_a_regular_save_waits_for_an_iteration_without_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_savers, "_SHARE", math.inf)
        go_on, loop, busy, save = threading.Event(), Task(), [], RunFiles.save
        monkeypatch.setattr(RunFiles, "save", lambda *args: busy.append(loop.has_deferred_work) or save(*args))

        @contract(stage="learn")
        def defer(ctx):
            if ctx.total_step == 2:
                loop.defer(go_on.wait, 20)
            if ctx.total_step == 20:
                go_on.set()

        with loop.start(async_mode=True):
            loop.use(collect).use(defer).use(CkptSaver(weight_of(0.0), tmp_path, train_freq=1)).run(60)
        assert len(busy) > 2
        assert not any(busy)

    def test_work_that_does_not_end_is_named_instead_of_a_hang(self, tmp_path, monkeypatch):
        monkeypatch.setattr(deferrals, "_SETTLE_S", 0.2)
        monkeypatch.setattr(run_savers, "_LONGEST_WAIT_S", 0.05)
        loop = Task()

        def until_the_end():
            while not loop.stopping:
                time.sleep(0.01)

        @contract(stage="learn")
        def defer(ctx):
            if ctx.total_step == 0:
                loop.defer(until_the_end)
            time.sleep(0.01)
            if ctx.total_step == 20:
                signal.raise_signal(signal.SIGINT)

        with (
            pytest.warns(UserWarning, match="cannot be resumed later.*deferred work does not end.*until_the_end") as caught,
            pytest.raises(KeyboardInterrupt),
            loop.start(async_mode=True),
        ):
            loop.use(collect).use(defer).use(CkptSaver(weight_of(0.0), tmp_path, train_freq=1)).run(50)
        assert "final.pt" in names(tmp_path / "ckpt")
        assert sum("has not been saved for" in str(it.message) for it in caught) == 1


def test_a_saver_that_is_used_in_a_second_run_saves_it_too(tmp_path):
    model = torch.nn.Linear(1, 1)
    saver = CkptSaver(model, tmp_path, train_freq=2)
    with torch.no_grad():
        model.weight.fill_(0)
    for weight in (5.0, 10.0):
        with Task().start(ctx=Fitting()) as loop:
            loop.use(fitting(model)).use(saver)
            loop.run(5)
        assert load_checkpoint(tmp_path / "ckpt/final.pt")["model"]["weight"].item() == weight
        assert load_checkpoint(tmp_path / "ckpt/iteration_4.pt")["model"]["weight"].item() == weight - 1


@pytest.mark.parametrize("resumed", ["one", "other"])
def test_a_pipeline_with_two_savers_goes_on_from_the_folder_of_each(resumed, tmp_path):
    def run(steps, resume=None, folders=("one", "other")):
        models = [torch.nn.Linear(1, 1) for _ in range(2)]
        with Task().start(ctx=Fitting(), resume=resume) as loop:
            for model, name in zip(models, folders):
                with torch.no_grad():
                    model.weight.fill_(0)
                loop.use(fitting(model)).use(CkptSaver(model, tmp_path / name, train_freq=2))
            loop.run(steps)
        return [model.weight.item() for model in models]

    assert run(4) == [4.0, 4.0]
    assert run(7, tmp_path / resumed) == [7.0, 7.0]
    for name in ("one", "other"):
        assert load_checkpoint(tmp_path / name / "ckpt/final.pt")["model"]["weight"].item() == 7.0
    with pytest.raises(ValueError, match=rf"the run in .*{resumed} is resumed, and CkptSaver writes to .*third"):
        run(8, tmp_path / resumed, folders=("third", "fourth"))


@dataclasses.dataclass
class Forgetful(Context):
    """Its count of gradient steps begins anew in each `run`."""

    train_iter: int = 0


def test_the_schedule_goes_on_in_slices_of_a_context_that_does_not_keep_its_count(tmp_path):
    model, steps = torch.nn.Linear(1, 1), iter(range(1, 100))

    @contract(writes=("train_iter",), uses=(model,), stage="learn")
    def learn(ctx):
        ctx.train_iter = next(steps)

    with Task().start(ctx=Forgetful()) as loop, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.use(learn).use(CkptSaver(model, tmp_path, train_freq=10))
        for _ in range(6):
            loop.run(4, final=False)
    assert {path.name for path in (tmp_path / "ckpt").glob("iteration_*.pt")} == {"iteration_10.pt", "iteration_20.pt"}


def test_the_schedule_goes_on_where_a_state_was_loaded_into_the_same_saver(tmp_path):
    model = torch.nn.Linear(1, 1)
    with Task().start(ctx=Fitting()) as loop:
        loop.use(fitting(model)).use(CkptSaver(model, tmp_path, train_freq=4, keep_last=9))
        loop.run(5, final=False)
        state = loop.state_dict()
        loop.run(1, final=False)
        loop.load_state_dict(state)
        loop.run(11, final=False)
    assert {path.name for path in (tmp_path / "ckpt").glob("iteration_*.pt")} == {"iteration_4.pt", "iteration_8.pt"}
