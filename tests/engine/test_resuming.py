"""Resuming: the content of a saved state, when it is saved, and errors that name what cannot be resumed."""

import dataclasses
import json
import threading
import warnings

import pytest
import torch
from run_modes import MODES
from states import same

from ding_lite.basics import CheckpointError, RunFiles
from ding_lite.basics.global_random import global_random_states
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import Context, RunStateError, Task, contract
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver


@dataclasses.dataclass
class Counts(Context):
    count: int = dataclasses.field(default=0, metadata={"kept": True})


@dataclasses.dataclass
class Late(Counts):
    """A middleware may keep its number during the run."""

    number: int = 0


@dataclasses.dataclass
class Listing(Context):
    """Keeps a list that is changed in place."""

    seen: list[int] = dataclasses.field(default_factory=list, metadata={"kept": True})


class Adder:
    """Adds what it has seen so far."""

    def __init__(self, stage="learn"):
        self.seen = 0
        contract(reads=("count",), writes=("count",), stage=stage)(self)

    def __call__(self, ctx):
        self.seen += 1
        ctx.count += self.seen

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class TestBetweenIterations:
    @MODES
    def test_the_function_runs_on_the_thread_of_the_run_after_a_fixed_iteration(self, mode):
        seen, loop = [], Task()

        @contract(stage="evaluate")
        def asks(ctx):
            if ctx.total_step == 2:
                loop.between_iterations(lambda: seen.append((loop.state_dict()["done"], threading.current_thread())))

        with loop.start(ctx=Counts(), **mode):
            loop.use(asks).use(Adder()).run(20)
            lag = loop.max_lag

        assert seen == [(3 if not mode else 4 + lag, threading.current_thread())]

    def test_it_is_called_at_once_if_no_run_is_in_progress(self):
        with Task().start() as loop:
            loop.use(lambda ctx: None)
            seen = []
            loop.between_iterations(lambda: seen.append(1))
            assert seen == [1]

    @pytest.mark.parametrize("where", ["begin_run", "end_run"])
    @MODES
    def test_in_begin_run_it_is_called_after_the_first_iteration_and_in_end_run_after_all(self, mode, where):
        seen, loop = [], Task()

        class Asking(Adder):
            def ask(self, at):
                if at == where:
                    loop.between_iterations(lambda: seen.append((loop.state_dict()["runs"][-1][:2], loop.ctx.total_step)))

            def begin_run(self):
                self.ask("begin_run")

            def end_run(self, ctx):
                self.ask("end_run")

        with loop.start(ctx=Counts(), **mode):
            loop.use(Asking())
            loop.run(4)
            loop.run(1)
            loop.run(3)
        at_end = [([4, "max_step"], 3), ([5, "max_step"], 4), ([8, "max_step"], 7)]
        assert seen == ([([1, None], 0), ([5, None], 4), ([6, None], 5)] if where == "begin_run" else at_end)

    @MODES
    def test_in_begin_run_it_changes_nothing_and_ends_before_its_time_with_the_run(self, mode):
        def run(asks, finish=99):
            seen, loop, ran = [], Task(), []

            class Asking(Adder):
                def begin_run(self):
                    if asks:
                        loop.between_iterations(lambda: seen.append(loop.ctx.total_step))

            @contract(reads=("count",), stage="evaluate")
            def evaluate(ctx):
                ran.append((ctx.total_step, ctx.count))

            @contract(stage="record")
            def end(ctx):
                if ctx.total_step == finish:
                    loop.finish = True

            with loop.start(ctx=Counts(), **mode):
                loop.use(evaluate).use(Asking()).use(end).run(5)
            return seen, ran

        assert run(True) == ([0], run(False)[1])
        assert run(True, finish=0) == ([], run(False, finish=0)[1])

    @MODES
    def test_it_is_not_called_if_the_run_ends_earlier(self, mode):
        seen, loop = [], Task()

        @contract(stage="learn")
        def asks(ctx):
            if ctx.total_step == 1:
                loop.between_iterations(lambda: seen.append(1))
                loop.finish = True

        with loop.start(ctx=Counts(), **mode):
            loop.use(asks).use(Adder()).run(9)
        assert seen == []

    @MODES
    def test_its_error_ends_the_run(self, mode):
        loop = Task()

        def breaks():
            raise OSError("the disk is gone")

        with loop.start(ctx=Counts(), **mode):
            loop.use(contract(stage="learn")(lambda ctx: loop.between_iterations(breaks))).use(Adder())
            with pytest.raises(OSError, match="the disk is gone"):
                loop.run(9)
            assert loop.end_reason.kind == "error"


class TestState:
    def test_there_is_no_state_during_an_iteration(self):
        with Task().start() as loop:
            loop.use(lambda ctx: loop.state_dict())
            with pytest.raises(RuntimeError, match=r"pass the function that calls it to task\.between_iterations"):
                loop.run(1)

    @MODES
    def test_the_following_calls_of_run_leave_out_what_is_done(self, mode):
        def made(loop):
            return loop.use(Adder()).use(Adder("collect") if not mode else Adder())

        with Task().start(ctx=Counts(), **mode) as loop:
            made(loop)
            loop.run(4, final=False)
            loop.run(3, final=False)
            state = loop.state_dict()
            loop.run(5)
            wanted = loop.ctx.count, loop.ctx.total_step
        with Task().start(ctx=Counts(), **mode) as loop:
            made(loop)
            loop.load_state_dict(state)
            loop.run(4, final=False)
            assert str(loop.end_reason) == "max_step=4 was reached before this state was saved"
            loop.run(3, final=False)
            loop.run(5)
            assert (loop.ctx.count, loop.ctx.total_step) == wanted

    @MODES
    def test_a_run_that_was_killed_after_its_last_iteration_performs_its_end(self, mode):
        class Ends(Adder):
            def end_run(self, ctx):
                log.append((ctx.total_step, ctx.count, self.seen))

        log, states = [], []
        with Task().start(ctx=Counts(), **mode) as loop:
            ends = Ends()
            ends.save_run = lambda: states.append(loop.state_dict())
            loop.use(ends).run(4)
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(Ends())
            loop.load_state_dict(states[0])
            loop.run(4)
            assert (loop.ctx.total_step, loop.end_reason.kind) == (3, "max_step")

        assert log == [(3, 10, 4)] * 2

    @MODES
    @pytest.mark.filterwarnings("ignore:.*keeps")
    def test_neither_the_run_that_goes_on_nor_a_resumed_one_changes_it(self, mode):
        @contract(reads=("seen",), writes=("seen",), stage="collect")
        def collect(ctx):
            ctx.seen.append(ctx.total_step)

        def run(states, state=None):
            @contract(reads=("seen",), stage="learn")
            def learn(ctx):
                if ctx.total_step == 2:
                    loop.between_iterations(lambda: states.append(loop.state_dict()))

            loop = Task()
            with loop.start(ctx=Listing(), **mode):
                loop.use(collect).use(learn)
                if state is not None:
                    loop.load_state_dict(state)
                loop.run(12)
                return loop.ctx.seen

        states = []
        seen = run(states)
        assert [run([], states[0]) for _ in range(2)] == [seen] * 2 == [list(range(12))] * 2

    def test_a_field_that_a_middleware_keeps_during_the_run_goes_on(self):
        def run(steps, state=None):
            def late(ctx):
                if ctx.total_step == 2:
                    ctx.keep("number")
                ctx.number += 1
                ctx.count += ctx.number

            loop = Task()
            with loop.start(ctx=Late()):
                loop.use(late)
                if state is not None:
                    loop.load_state_dict(state)
                loop.run(steps, final=False)
                return loop.ctx.count, loop.state_dict()

        whole, _ = run(12)
        early, later = run(2)[1], run(5)[1]
        assert "kept_later" not in early["context"]
        assert later["context"]["kept_later"] == ["number"]
        again = run(8, later)[1]
        assert [run(12, state)[0] for state in (early, later, again)] == [whole] * 3

    def test_a_state_from_before_a_field_was_kept_is_loaded_without_it(self):
        with Task().start(ctx=Late()) as loop:
            loop.use(Adder()).run(2, final=False)
            early = loop.state_dict()
            loop.ctx.keep("number")
            loop.ctx.number = 5
            loop.load_state_dict(early)
            assert loop.ctx.number == 0
            loop.run(3, final=False)
            loop.ctx.keep("number")
            loop.ctx.number = 5
            loop.run(2)
            assert loop.ctx.number == 5

    def test_a_field_that_the_class_does_not_keep_any_more_is_refused(self):
        with Task().start(ctx=Counts()) as loop:
            loop.use(Adder()).run(2)
            state = loop.state_dict()
            state["context"]["kept"]["number"] = 1
        with Task().start(ctx=Late()) as loop, pytest.raises(RunStateError, match=r"ctx\.number, which Late does not keep"):
            loop.use(Adder()).load_state_dict(state)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: s.pop("parts"), r"the state has no 'parts'"),
            (lambda s: s.update(format=99), r"format 99, and this version reads format 2"),
            (lambda s: s.update(max_lag=2), r"saved with max_lag=2, and this task has max_lag=0"),
            (lambda s: s.update(pipeline=["a", "b"]), r"belongs to the pipeline a, b; this one is"),
            (lambda s: s["parts"].update(other={}), r"with other objects: other is only in one of the two"),
            (lambda s: s["context"]["kept"].update(more=1), r"ctx\.more, which Counts does not keep"),
        ],
    )
    def test_a_state_of_another_pipeline_is_refused(self, change, message):
        with Task().start(ctx=Counts()) as loop:
            loop.use(Adder()).run(2)
            state = loop.state_dict()
            change(state)
            with pytest.raises(RunStateError, match=message):
                loop.load_state_dict(state)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda s: s.update(done=10**9),
                r"\['done'\] is 1000000000, expected a number .* from 0 to total_step, 2",
            ),
            (lambda s: s.update(done=-7), r"\['done'\] is -7, expected"),
            (lambda s: s.update(done=1.0), r"\['done'\] is 1\.0, expected"),
            (lambda s: s.update(done=True), r"\['done'\] is True, expected"),
            (lambda s: s.update(runs=[[1, None, None]]), r"\['runs'\] is .*, expected a list of the calls .* of 2 iterations"),
            (lambda s: s.update(runs=[[2, "finish", None]]), r"\['runs'\] is"),
            (lambda s: s.update(runs=[[1, None, None], [1, None, None]]), r"\['runs'\] is"),
            (lambda s: s.update(runs=[[2.0, None, None]]), r"\['runs'\] is"),
            (lambda s: s.update(runs=2), r"\['runs'\] is 2, expected"),
            (
                lambda s: s["context"].update(total_step=-1),
                r"\['context'\]\['total_step'\] is -1, expected an integer",
            ),
            (lambda s: s["context"].pop("total_step"), r"\['context'\] is .*, expected a dict with 'total_step'"),
            (lambda s: s.update(context=None), r"\['context'\] is None, expected"),
            (lambda s: s["context"].update(kept_later=["other"]), r"\['kept_later'\] is \['other'\], expected a list of names"),
            (lambda s: s["context"].update(kept=[1]), r"\['context'\]\['kept'\] is \[1\], expected a dict"),
            (lambda s: s.update(parts=[]), r"\['parts'\] is \[\], expected a dict"),
            (lambda s: s.update(parts={5: {}}), r"\['parts'\] is \{5: \{\}\}, expected a dict .* by name"),
            (lambda s: s.update(settings={5: {}}), r"\['settings'\]\[5\] is \{\}, but 5 has no configuration here"),
            (lambda s: s.update(networks={5: {}}), r"\['networks'\]\[5\] is \{\}, expected a dict"),
            (lambda s: s.update(pipeline=None), r"\['pipeline'\] is None, expected a list of names"),
            (lambda s: s.update(pipeline=[1]), r"\['pipeline'\] is \[1\], expected a list of names"),
            (lambda s: s.update(without_state="env"), r"\['without_state'\] is 'env', expected a list"),
            (
                lambda s: s.update(lanes={"edges": [{}], "snapshots": [], "lanes": []}),
                r"\['lanes'\]\['edges'\]\[0\] is \{\}, expected a dict with \['edge', 'tokens'\]",
            ),
            (
                lambda s: s.update(lanes={"edges": [{"edge": 7, "tokens": []}], "snapshots": [], "lanes": []}),
                r"\['lanes'\]\['edges'\]\[0\] is .*, expected a dict with a name as 'edge' and a list as 'tokens'",
            ),
            (
                lambda s: s.update(lanes={"edges": [{"edge": "a", "tokens": 7}], "snapshots": [], "lanes": []}),
                r"\['lanes'\]\['edges'\]\[0\] is .*, expected a dict with a name as 'edge' and a list as 'tokens'",
            ),
            (
                lambda s: s.update(lanes={"edges": [], "snapshots": [], "lanes": []}),
                r"\['lanes'\]\['lanes'\] is \[\], expected a list of 4 dicts",
            ),
            (
                lambda s: s.update(lanes={"edges": [], "snapshots": [], "lanes": [{}] * 4, "leaders": [0]}),
                r"\['lanes'\]\['leaders'\] is \[0\], expected a list of places in 'snapshots'",
            ),
            (lambda s: s.update(lanes=3), r"\['lanes'\] is 3, expected None, or"),
            (lambda s: s.update(global_random=None), r"\['global_random'\] is None, expected a dict"),
            (lambda s: s["global_random"].pop("torch"), r"\['global_random'\] has no 'torch'"),
            (
                lambda s: s["global_random"].update(numpy=None),
                r"\['global_random'\]\['numpy'\] is not a state of numpy",
            ),
        ],
    )
    def test_a_damaged_state_is_refused_by_the_name_of_its_entry_and_changes_nothing(self, change, message):
        with Task().start(ctx=Counts()) as loop:
            adder = Adder()
            loop.use(adder).run(2)
            state = loop.state_dict()
            change(state)
            loop.run(1)
            before, randoms = loop.state_dict(), global_random_states()
            with pytest.raises(RunStateError, match=message):
                loop.load_state_dict(state)
            assert global_random_states() == randoms
            assert same(loop.state_dict(), before)

    def test_counters_of_the_librarys_contexts_are_numbers(self):
        @dataclasses.dataclass
        class Own(OnlineRLContext):
            mine: int = dataclasses.field(default=0, metadata={"kept": True})

        with Task().start(ctx=Own()) as loop:
            loop.use(lambda ctx: None).run(2)
            state = loop.state_dict()
            state["context"]["kept"]["mine"] = None  # a user's own field may have other values
            loop.load_state_dict(state)
            for name, wrong in (("train_iter", None), ("last_eval_value", "x"), ("env_step", True)):
                state = loop.state_dict()
                state["context"]["kept"][name] = wrong
                with pytest.raises(RunStateError, match=rf"\['kept'\]\['{name}'\] is {wrong!r}, expected a number"):
                    loop.load_state_dict(state)

    @pytest.mark.parametrize("state", [None, [], "state", 3])
    def test_something_other_than_a_state_is_refused(self, state):
        with Task().start(ctx=Counts()) as loop:
            loop.use(Adder())
            with pytest.raises(RunStateError, match=r"the state is .* of type .*, expected a dict: pass what task\.state_dict"):
                loop.load_state_dict(state)

    @pytest.mark.parametrize("error", [KeyError("seen"), AttributeError("no shape"), TypeError("no number")])
    def test_an_object_whose_state_cannot_be_loaded_is_named(self, error):
        class Broken(Adder):
            def load_state_dict(self, state):
                raise error

        with Task().start(ctx=Counts()) as loop:
            loop.use(Broken()).run(1)
            with pytest.raises(type(error)) as caught:
                loop.load_state_dict(loop.state_dict())
        assert "when the state of Broken was loaded" in caught.value.__notes__

    @pytest.mark.parametrize(
        "damage",
        [
            lambda it: it.update(rows=torch.ones(3)),
            lambda it: it.clear(),
            lambda it: it.update(size=None),
            lambda it: it.update(size=True, columns=3),
        ],
    )
    def test_a_damaged_state_of_an_object_of_the_library_gives_one_clear_error(self, damage):
        class Table:
            """An object of the library: its errors are those of Python and torch."""

            __module__ = "ding_lite.tables"

            def state_dict(self):
                return {"size": 2, "columns": [1], "rows": torch.ones(1)}

            def load_state_dict(self, state):
                if state["rows"] == 1 and state["size"] + 1:
                    list(state["columns"])

        def use(loop):
            return loop.use(contract(uses=(Table(),), stage="learn")(lambda ctx: None))

        with use(Task().start()) as loop:
            loop.run(1)
            state = loop.state_dict()
        damage(state["parts"]["Table"])
        words = r"the state of Table cannot be loaded \(\w+Error: .*\): it is damaged, .* remove the file of this one"
        with use(Task().start()) as loop, pytest.raises(RunStateError, match=words):
            loop.load_state_dict(state)

    def test_an_environment_that_cannot_be_saved_is_named_with_the_setting_that_begins_new_episodes(self):
        class Env:
            pass

        def made(loop):
            return loop.use(contract(exclusive=(Env(),), stage="collect")(lambda ctx: None))

        with made(Task().start()) as loop:
            loop.run(2)
            state = loop.state_dict()
        with made(Task().start()) as loop, pytest.raises(RunStateError, match=r"Env could not be saved, .*new_episodes=True"):
            loop.load_state_dict(state)
        with made(Task().start(resume=None, new_episodes=True)) as loop:
            loop.load_state_dict(state)
            loop.run(3)
            assert loop.ctx.total_step == 2


def test_the_seed_of_the_saved_run_holds_and_a_warning_says_so():
    def made(seed):
        envs = make_envs("CartPole-v1", 1, seed=seed)
        return (
            Task()
            .start()
            .use(contract(uses=(envs,), stage="collect")(lambda ctx: envs.reset() if ctx.total_step == 0 else None))
        )

    with made(3) as loop:
        loop.run(2)
        state = loop.state_dict()
    with made(3) as loop, warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.load_state_dict(state)
    with (
        made(5) as loop,
        pytest.warns(UserWarning, match="was made with seed 5, and the saved run had seed 3, with which it goes"),
    ):
        loop.load_state_dict(state)


def test_a_folder_without_a_saved_run_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such folder"):
        Task().start(resume=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"there is no saved run in .*CkptSaver\(policy, .*, train_freq=\.\.\.\)"):
        Task().start(resume=tmp_path)


class TestFiles:
    def test_a_state_with_a_right_checksum_that_is_damaged_is_passed_over(self, tmp_path):
        def resumed():
            with Task().start(ctx=Counts(), resume=tmp_path) as loop:
                loop.use(Adder()).run(4)
                return loop.ctx.count

        with Task().start(ctx=Counts()) as loop:
            loop.use(Adder()).run(2)
            state = loop.state_dict()
        files = RunFiles(tmp_path)
        files.save(state, 2)
        files.save({**state, "global_random": {**state["global_random"], "torch": torch.zeros(3, dtype=torch.uint8)}}, 3)
        words = r"state_3\.pt is damaged: .*\['global_random'\]\['torch'\] is not .*continues from the state before, .*state_2"
        with pytest.warns(UserWarning, match=words):
            assert resumed() == 10

        files.save({**state, "done": -7}, 4)
        files.save({**state, "done": 10**9}, 5)
        with pytest.raises(CheckpointError, match=r"state_5\.pt is damaged: .*state_4\.pt is damaged: .*\['done'\] is -7"):
            resumed()

    def test_a_state_of_another_format_is_not_passed_over(self, tmp_path):
        with Task().start(ctx=Counts()) as loop:
            loop.use(Adder()).run(2)
            RunFiles(tmp_path).save({**loop.state_dict(), "format": 99}, 2)
        with Task().start(ctx=Counts(), resume=tmp_path) as loop, pytest.raises(RunStateError, match="format 99, and this"):
            loop.use(Adder()).run(4)

    def test_a_missing_manifest_is_named_with_the_states_beside_it(self, tmp_path):
        files = RunFiles(tmp_path)
        files.save({"x": 1}, 1)
        files.save({"x": 2}, 2)
        (files.folder / "manifest.json").unlink()

        with pytest.raises(CheckpointError, match=r"manifest\.json is missing beside state_2\.pt, state_1\.pt\. .* an empty"):
            files.require()
        (files.folder / "manifest.json").touch()  # what the message says
        with pytest.warns(UserWarning, match="The files are used without it"):
            assert files.load()[0] == {"x": 2}

    def test_the_latest_two_states_are_kept(self, tmp_path):
        files = RunFiles(tmp_path)
        for done in (1, 2, 3):
            files.save({"x": done}, done)

        assert sorted(path.name for path in files.folder.iterdir()) == ["manifest.json", "state_2.pt", "state_3.pt"]
        assert files.load()[0] == {"x": 3}

    @pytest.mark.parametrize(
        "damage", [lambda it: it[:-10], lambda it: it[:200] + bytes([it[200] ^ 1]) + it[201:], lambda it: b""]
    )
    def test_if_the_latest_state_is_damaged_the_one_before_is_used_with_a_warning(self, tmp_path, damage):
        files = RunFiles(tmp_path)
        files.save({"x": 1}, 1)
        newest = files.save({"x": 2}, 2)
        newest.write_bytes(damage(newest.read_bytes()))

        with pytest.warns(UserWarning, match=r"state_2\.pt .*continues from the state before, .*state_1\.pt"):
            assert files.load()[0] == {"x": 1}
        again = RunFiles(tmp_path)
        again.save({"x": 3}, 3)
        assert sorted(path.name for path in again.folder.glob("*.pt")) == ["state_1.pt", "state_3.pt"]  # the good ones

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            '{"format": 99, "states": []}',
            '{"format": 1, "states": [{"file": "../x.pt"}]}',
            '{"format": 1, "states": [{"file": "../../x.pt"}]}',
            '{"format": 1, "states": [{"file": "/etc/passwd"}]}',
            '{"format": 1, "states": [{"file": "state_1.pt", "rows": ["../x.pt"]}]}',
        ],
    )
    def test_a_damaged_manifest_is_not_used(self, tmp_path, text):
        files = RunFiles(tmp_path)
        files.save({"x": 1}, 1)
        (files.folder / "manifest.json").write_text(text)

        with pytest.warns(UserWarning, match="The files are used without it"):
            assert files.load()[0] == {"x": 1}

    @pytest.mark.parametrize("name", ["state_9\0.pt", "state_\ud800.pt", "s" * 999, "run"], ids="0123")
    def test_a_state_in_the_manifest_whose_name_can_be_that_of_no_file_is_damaged(self, tmp_path, name):
        files = RunFiles(tmp_path)
        files.save({"x": 1}, 1)
        manifest = files.folder / "manifest.json"
        content = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**content, "states": [{"file": name, "sha256": "0"}, *content["states"]]}))
        assert files.saved() == [1]
        with pytest.warns(UserWarning, match=r"The run continues from the state before"):
            assert files.load()[0] == {"x": 1}
        files.save({"x": 2}, 2)
        assert RunFiles(tmp_path).load()[0] == {"x": 2}

    def test_a_damaged_manifest_is_told_once(self, tmp_path):
        def run(steps, resume=None):
            with Task().start(ctx=Counts(), resume=resume) as loop:
                loop.use(Adder()).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1)).run(steps)
                return loop.ctx.count

        assert run(3) == 1 + 2 + 3
        (RunFiles(tmp_path).folder / "manifest.json").write_text("{")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert run(4, tmp_path) == 1 + 2 + 3 + 4
        assert len([one for one in caught if "used without it" in str(one.message)]) == 1


def without_random(state):
    return {name: part for name, part in state.items() if name != "global_random"}


class TestInTheMiddleOfARun:
    """A program that drives a task in slices may load a state between them."""

    @MODES
    def test_a_loaded_state_is_saved_as_it_is_and_runs_on_from_a_new_context(self, mode):
        @dataclasses.dataclass
        class Noted(Counts):
            notes: list[int] = dataclasses.field(default_factory=list)

        @contract(reads=("notes",), writes=("notes",), stage="record")
        def note(ctx):
            ctx.notes = [*ctx.notes, ctx.total_step]

        def opened(loop):
            loop.start(ctx=Noted(), **mode)
            return loop.use(Adder()).use(note)

        one, other = opened(Task()), opened(Task())
        one.run(3, final=False)
        other.run(5, final=False)
        state = one.state_dict()
        other.load_state_dict(state)
        assert same(without_random(other.state_dict()), without_random(state))
        for loop, iterations in ((one, 2), (other, 3 + 2)):
            loop.run(iterations, final=False)
        assert other.ctx.notes == one.ctx.notes == [4]
        assert (other.ctx.count, other.ctx.total_step) == (one.ctx.count, one.ctx.total_step)
        assert same(without_random(other.state_dict()), without_random(one.state_dict()))
        one.stop(), other.stop()


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [(5, TypeError, "resume=5 wants the folder of a run"), (__file__, CheckpointError, "it is a file. Give the folder")],
)
def test_what_is_no_folder_of_a_run_is_named(run, error, words):
    with pytest.raises(error, match=words), Task().start(resume=run):
        pass


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ((), r"rank_2: .* has the states of 1 process, .* Start as many, without torchrun; or restore rank_2"),
        (("rank_1",), r"rank_2: .* of 2 processes, its own and 1 in .* Start as many, torchrun --nproc-per-node 2;"),
    ],
)
def test_a_process_without_a_state_of_its_own_names_how_many_have_one(saved, words, tmp_path):
    for folder in (".", *saved):
        RunFiles(tmp_path / folder).save({"x": 1}, 1)

    with pytest.raises(CheckpointError, match=words), Task().start(resume=tmp_path / "rank_2"):
        pass


@pytest.mark.parametrize("inside", ["run", "ckpt/final.pt", "run/latest.pt"])
def test_a_path_inside_the_folder_of_a_run_is_named_with_the_folder(inside, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RunFiles(tmp_path)._manifest.name).write_text("")
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/final.pt").write_text("")
    with (
        pytest.raises(CheckpointError, match=rf"Give the folder of the run, {tmp_path}\."),
        Task().start(resume=tmp_path / inside),
    ):
        pass


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])
def test_a_state_from_before_a_middleware_was_renamed_is_loaded(mode):
    def run(count, state=None):
        loop, collect, learn = Task(), Adder("collect"), Adder()
        collect.__name__, learn.__name__ = "MultiAgentCollector", "population_trainer"
        with loop.start(ctx=Counts(), **mode):
            loop.use(collect).use(learn)
            if state is not None:
                loop.load_state_dict(state)
            loop.run(count)
            return loop.ctx.count, loop.state_dict()

    def old(part):
        if isinstance(part, str):
            return part.replace("MultiAgentCollector", "AgentsCollector").replace("population_trainer", "population_stepper")
        if isinstance(part, dict):
            return {old(name): old(inside) for name, inside in part.items()}
        return [old(inside) for inside in part] if isinstance(part, list) else part

    state = run(3)[1]
    assert old(state)["pipeline"] == ["AgentsCollector", "population_stepper"]
    assert run(5, old(state))[0] == run(5, state)[0] == run(5)[0]


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])
@pytest.mark.parametrize("name", ["agents_evaluator", "my population_stepper"])
def test_a_middleware_of_the_script_may_have_the_old_name_of_another(mode, name):
    def run(count, state=None):
        loop, learn = Task(), Adder()
        learn.__name__ = name
        with loop.start(ctx=Counts(), **mode):
            loop.use(Adder("collect")).use(learn)
            if state is not None:
                loop.load_state_dict(state)
            loop.run(count)
            return loop.ctx.count, loop.state_dict()

    assert run(5, run(3)[1])[0] == run(5)[0]


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])
def test_middleware_and_objects_of_a_script_may_have_a_former_name_of_others(mode):
    class AgentsCollector(Adder):
        """An object that the second middleware uses."""

    def run(count, state=None):
        loop, collect, used = Task(), Adder("collect"), AgentsCollector()
        collect.__name__ = "population_stepper"

        @contract(reads=("count",), uses=(used,), stage="learn")
        def learn(ctx):
            used.seen += 1

        with loop.start(ctx=Counts(), **mode):
            loop.use(collect).use(learn)
            if state is not None:
                loop.load_state_dict(state)
            loop.run(count)
            return loop.ctx.count, loop.state_dict()["parts"]["AgentsCollector"], loop.state_dict()

    state = run(3)[2]
    assert run(5, state)[:2] == run(5)[:2]
