"""Scripts that call `run` several times: a resumed script does what is left, whatever had ended its calls."""

import contextlib
import dataclasses
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from run_modes import MODES
from states import same, through_a_file

from ding_lite.basics import RunFiles
from ding_lite.engine import Context, RunStateError, Task, contract
from ding_lite.middleware import CkptSaver


@dataclasses.dataclass
class Counts(Context):
    count: int = dataclasses.field(default=0, metadata={"kept": True})
    ends: int = dataclasses.field(default=0, metadata={"kept": True})


class Memory:
    """A middleware with a state: it counts its calls."""

    def __init__(self, stage, act=lambda ctx: None, reads=(), writes=()):
        self.seen, self.act = 0, act
        contract(reads=reads, writes=writes, uses=(self,), stage=stage)(self)

    def __call__(self, ctx):
        self.seen += 1
        self.act(ctx)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Counter(Memory):
    def __init__(self, act):
        super().__init__("learn", act, ("count", "ends"), ("count", "ends"))

    def end_run(self, ctx):
        ctx.ends += 1


def phases(loop, between=lambda: None):
    """The calls of a script, and what each gives: kind of the end, and whether `finish` is set."""

    def noted(between=between):
        found.append((loop.end_reason.kind, str(loop.end_reason).partition(", before this")[0], loop.finish))
        between()

    found = []
    loop.run(5)  # ended by finish
    noted()
    loop.renew()
    loop.run(4, final=False)
    noted()
    with contextlib.suppress(ValueError):
        loop.run()  # ended by an error, or finish
    noted(lambda: None)
    loop.run(2)
    noted()
    loop.run(2, final=False)
    noted()
    loop.run()  # ended by finish
    noted()
    loop.run(3)
    noted()
    return found


def script(mode, saves=None, state=None, between=None):
    """Everything that a run with these calls leaves behind. It saves its state between iterations, to the list `saves`."""
    loop = Task()

    def act(ctx):
        ctx.count += 1
        if saves is not None:
            loop.between_iterations(lambda: saves.append(through_a_file(loop.state_dict())))
        if ctx.count == 10 and not loop.async_mode:  # on threads, time decides how far other lanes are ahead of an error
            raise ValueError("in the third call")
        if ctx.count in (3, 10, 18):
            loop.finish = True

    collector, learner = Memory("collect"), Counter(act)
    with loop.start(ctx=Counts(), **mode):
        loop.use(collector).use(learner)
        if state is not None:
            loop.load_state_dict(state)
        found = phases(loop, lambda: between(loop) if between else None)
        last = loop.state_dict()
        return found, loop.ctx.count, last["context"]["total_step"], loop.ctx.ends, collector.seen, learner.seen, last


def assert_same(one, other):
    words = [[it[:1] + it[2:] if it[0] == "max_step" else it for it in found[0]] for found in (one, other)]
    assert words[0] == words[1]
    assert one[1:-1] == other[1:-1]
    assert same(one[-1]["runs"], other[-1]["runs"])
    assert same(one[-1]["parts"], other[-1]["parts"])


@MODES
def test_a_script_with_several_calls_goes_on_from_each_state_as_if_it_had_never_ended(mode):
    unbroken, saves = script(mode), []
    assert_same(script(mode, saves), unbroken)
    assert unbroken[1:4] == (21, 21, 5 if mode.get("async_mode") else 4)
    assert max(len(state["runs"]) for state in saves) == 4
    for state in saves:
        assert_same(script(mode, state=state), unbroken)


@MODES
def test_so_it_does_from_a_state_between_two_calls(mode):
    saves = []
    unbroken = script(mode, between=lambda loop: saves.append(through_a_file(loop.state_dict())))
    assert len(saves) == 6
    for state in saves:
        assert_same(script(mode, state=state), unbroken)


@MODES
def test_a_state_saved_after_an_error_or_a_signal_continues_the_call(mode):
    def run(state=None, breaks=None, steps=8):
        loop, broken = Task(), []

        def act(ctx):
            ctx.count += 1
            if ctx.count == 4 and breaks is not None and not broken:
                broken.append(1)
                breaks()

        with loop.start(ctx=Counts(), **mode):
            loop.use(Counter(act))
            if state is not None:
                loop.load_state_dict(state)
            try:
                loop.run(steps)
            except (ValueError, SystemExit):
                return loop.state_dict()
            return loop.ctx.count, loop.ctx.total_step

    def fails():
        raise ValueError("once")

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        states = [run(breaks=breaks) for breaks in (fails, lambda: os.kill(os.getpid(), signal.SIGTERM))]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [run(state) for state in states] == [(8, 7)] * 2


class Failing(Memory):
    """Its `begin_run` fails if it is set to."""

    fails = False

    def begin_run(self):
        if self.fails:
            raise ValueError("not yet")


def failing_script(mode, steps, fails, state=None, save_at=None):
    """A script whose n-th call cannot begin, and goes on. It saves its state in this iteration, or after the error."""
    loop, failing, seen, saves, found = Task(), Failing("learn"), [], [], []

    def act(ctx):
        ctx.count += 1
        seen.append(ctx.total_step)
        if ctx.count == save_at:
            loop.between_iterations(lambda: saves.append(through_a_file(loop.state_dict())))

    with loop.start(ctx=Counts(), **mode):
        loop.use(Counter(act)).use(failing)
        if state is not None:
            loop.load_state_dict(state)
        for number, step in enumerate(steps, start=1):
            failing.fails = number == fails
            with contextlib.suppress(ValueError):
                loop.run(step)
            found.append(loop.end_reason.kind)
            if found[-1] == "error" and save_at is None:
                saves.append(through_a_file(loop.state_dict()))
        return (loop.ctx.count, loop.ctx.total_step, found), seen, saves


@MODES
def test_a_call_whose_begin_run_fails_takes_no_iteration(mode):
    found, seen, saves = failing_script(mode, [3, 3], fails=1)
    assert seen == [0, 1, 2]
    assert found == (3, 2, ["error", "max_step"])
    assert (saves[0]["runs"], saves[0]["context"]["total_step"]) == ([[0, None, None]], 0)
    assert failing_script(mode, [5], 0, saves[0])[0] == (5, 4, ["max_step"])


@pytest.mark.parametrize(("steps", "fails"), [([3, 2, 4, 1], 2), ([3, 1, 2, 4], 3), ([2, 2, 9], 1)])
@MODES
def test_a_script_goes_on_after_a_call_that_could_not_begin(mode, steps, fails):
    unbroken = failing_script(mode, steps, fails)[0]
    assert unbroken[0] == sum(steps) - steps[fails - 1]
    for save_at in range(1, unbroken[0] + 1):
        saves = failing_script(mode, steps, fails, save_at=save_at)[2]
        assert failing_script(mode, steps, fails, saves[0])[0] == unbroken


@MODES
def test_a_run_whose_end_is_left_can_fail_to_begin(mode):
    loop, saves = Task(), []
    with loop.start(ctx=Counts(), **mode):
        loop.use(Counter(lambda ctx: loop.between_iterations(lambda: saves.append(loop.state_dict())))).use(Failing("learn"))
        loop.run(3)
    with Task().start(ctx=Counts(), **mode) as loop:
        failing = Failing("learn")
        loop.use(Counter(lambda ctx: None)).use(failing)
        loop.load_state_dict(saves[-1])
        failing.fails = True
        with pytest.raises(ValueError, match="not yet"):
            loop.run(3)
        failing.fails = False
        assert loop.state_dict()["context"]["total_step"] == 3
        loop.run(2)
        assert (loop.ctx.total_step, loop.ctx.ends) == (4, 1)


@MODES
def test_a_complete_call_is_left_out_with_its_end_and_a_larger_one_goes_on(mode):
    def run(steps, state=None):
        loop = Task()

        def act(ctx):
            ctx.count += 1

        with loop.start(ctx=Counts(), **mode):
            loop.use(Memory("evaluate", lambda ctx: None, reads=("ends",))).use(Counter(act))
            if state is not None:
                loop.load_state_dict(state)
            loop.run(steps)
            return loop.ctx.count, loop.ctx.ends, str(loop.end_reason), through_a_file(loop.state_dict())

    state = run(4)[-1]
    assert state["runs"] == [[4, "max_step", "max_step=4 was reached"]]
    words = "max_step={} was reached before this state was saved"
    assert run(4, state)[:3] == (4, 1, words.format(4))
    assert run(3, state)[:3] == (4, 1, words.format(3))
    assert run(6, state)[:3] == (6, 2, "max_step=6 was reached")


@MODES
def test_what_is_changed_after_a_call_is_in_the_state_of_every_lane(mode):
    def run(state=None, saves=None):
        loop, seen = Task(), []
        evaluate = Memory("evaluate", lambda ctx: seen.append((ctx.total_step, ctx.ends)), reads=("ends",))

        def act(ctx):
            ctx.count += 1

        with loop.start(ctx=Counts(), **mode):
            loop.use(evaluate).use(Counter(act))
            if state is not None:
                loop.load_state_dict(state)
            loop.run(3)
            loop.ctx.count += 10
            if state is None:
                loop.renew()
                loop.ctx.ends += 5
                saves.append(through_a_file(loop.state_dict()))
            loop.run(3)
            return seen[-3:], loop.ctx.ends, loop.ctx.total_step

    saves = []
    unbroken = run(saves=saves)
    assert unbroken[1:] == (7, 5)
    assert run(saves[0]) == unbroken


class Weights:
    """A number that a learner changes, and a copy of it, on which a collector acts."""

    shares_state_with = ()

    def __init__(self):
        self.value, self.acting = 0, Acting(self)

    def snapshot(self):
        return (self.value,)  # another object each time, as of a policy that has loaded its state

    def snapshot_state(self, snapshot):
        return list(snapshot)

    def snapshot_from(self, state):
        return tuple(state)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Acting:
    def __init__(self, leader):
        self.leader, self.loaded = leader, None

    def load_snapshot(self, snapshot):
        self.loaded = snapshot

    @property
    def value(self):
        return (self.loaded or self.leader.snapshot())[0]


@pytest.mark.parametrize("where", ["nowhere", "between", "end_run"])
@MODES
def test_weights_that_are_set_between_two_calls_are_those_of_every_lane_also_in_a_resumed_run(mode, where):
    class Learner(Memory):
        def end_run(self, ctx):
            if where == "end_run" and weights.value == 4:
                weights.value = 100

    def script(state=None):
        nonlocal weights
        loop, seen, weights, states = Task(), [], Weights(), []

        @contract(uses=(weights.acting,), stage="collect")
        def collect(ctx):
            seen.append((ctx.total_step, weights.acting.value))

        @contract(uses=(weights,), stage="learn")
        def learn(ctx):
            weights.value += 1
            if ctx.total_step == 2 and state is None:
                loop.between_iterations(lambda: states.append(through_a_file(loop.state_dict())))

        with loop.start(ctx=Counts(), **mode):
            loop.use(collect).use(learn).use(Learner("learn"))
            if state is not None:
                loop.load_state_dict(state)
            loop.run(4)
            if state is None:
                states.append(through_a_file(loop.state_dict()))
            if where == "between":
                weights.value = 100
            loop.run(4)
            return seen[-4:], weights.value, states

    weights = None
    *unbroken, states = script()
    lag = mode.get("max_lag", int(mode.get("async_mode", False)))
    value, oldest = (4, 0) if where == "nowhere" else (100, 100)
    assert unbroken == [[(4 + k, max(oldest, value + k - lag)) for k in range(4)], value + 4]
    for state in states:
        assert list(script(state)[:2]) == unbroken


@dataclasses.dataclass
class Kept(Context):
    rate: float = dataclasses.field(default=0.0, metadata={"kept": True})
    table: object = None
    rows: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep("rate", "table", "rows")


def seen_late(mode, change, state=None, saves=None):
    """The last values that an evaluator sees of fields that a learner may change. Between two calls the script changes them."""
    loop, seen = Task(), []

    @contract(reads=("rate", "table", "rows"), stage="evaluate")
    def evaluate(ctx):
        seen.append((ctx.total_step, ctx.rate, float(ctx.table[123_457]), ctx.rows[25_000]))

    @contract(reads=("rate", "table", "rows"), writes=("rate", "table", "rows"), stage="learn")
    def learn(ctx):
        ctx.rate = (ctx.total_step + 1) * 0.5

    with loop.start(ctx=Kept(table=np.zeros(200_000), rows=[0] * 30_000), **mode):
        loop.use(evaluate).use(learn)
        if state is not None:
            loop.load_state_dict(state)
        loop.run(4)
        if saves is not None:
            saves.append(through_a_file(loop.state_dict()))
        change(loop.ctx)
        loop.run(3)
        return seen[-3:]


@pytest.mark.filterwarnings("ignore:.* keeps .*")
@MODES
def test_a_change_in_place_of_large_data_between_two_calls_is_seen_on_every_lane(mode):
    def change(ctx):
        ctx.table[123_457] = ctx.rows[25_000] = 1

    saves = []
    unbroken = seen_late(mode, change, saves=saves)
    assert [it[2:] for it in unbroken] == [(1, 1)] * 3
    assert seen_late(mode, change, saves[0]) == unbroken


@pytest.mark.filterwarnings("ignore:.* keeps .*")
@MODES
def test_a_kept_field_that_is_set_to_the_value_that_it_has_is_not_changed(mode):
    def change(ctx):
        ctx.rate = float("2.0")  # an equal number, another object

    saves = []
    unbroken = seen_late(mode, change, saves=saves)
    assert unbroken == seen_late(mode, lambda ctx: None)
    assert seen_late(mode, change, saves[0]) == unbroken


@MODES
def test_after_a_call_that_was_left_out_the_context_is_that_of_the_last_iteration(mode):
    def run(state=None):
        loop, seen = Task(), []
        with loop.start(ctx=Counts(), **mode):
            loop.use(Counter(lambda ctx: setattr(ctx, "count", ctx.count + 1)))
            if state is not None:
                loop.load_state_dict(state)
            loop.run(4, final=False)
            seen.append((loop.ctx.total_step, loop.state_dict()["context"]["total_step"]))
            if state is None:
                states.append(through_a_file(loop.state_dict()))
            loop.renew()
            seen.append((loop.ctx.total_step, loop.state_dict()["context"]["total_step"]))
            if state is None:
                states.append(through_a_file(loop.state_dict()))
            loop.run(4)
            return [*seen, loop.ctx.total_step, loop.ctx.count]

    states = []
    unbroken = run()
    assert unbroken == [(3, 4), (4, 4), 7, 8]
    assert [run(state) for state in states] == [unbroken] * 2


@MODES
@pytest.mark.parametrize("way", ["while", "retry"])
def test_a_resumed_script_that_makes_fewer_calls_is_told(mode, way, tmp_path):
    files = RunFiles(tmp_path)

    def script(resume=None):
        loop = Task()

        def act(ctx):
            ctx.count += 1
            if ctx.count == 12:  # as a kill leaves it
                loop.between_iterations(lambda: files.save(state := loop.state_dict(), state["done"]))
            if way == "retry" and ctx.count == 4:
                raise ValueError("once")

        with loop.start(ctx=Counts(), resume=resume, **mode):
            loop.use(Counter(act))
            while way == "while" and loop.ctx.total_step < 10:
                loop.run(5, final=False)
            for _ in range(3 if way == "retry" else 0):
                with contextlib.suppress(ValueError):
                    loop.run(15)
                    break
            return loop.ctx.count

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert script() == (15 if way == "while" else 19)
    done, calls = files.load()[0]["done"], 5 if way == "while" else 4
    with pytest.warns(UserWarning, match=f"has called run for {calls} iterations, the saved run had done {done}") as caught:
        assert script(resume=tmp_path) == done
    assert [one.filename for one in caught if "has called run" in str(one.message)] == [__file__]


@pytest.mark.parametrize("calls", [[3, 9], [12], [3], [5], [3, 5], [20]])
@MODES
def test_a_complete_run_that_is_resumed_with_the_same_or_other_numbers_is_not_said_to_lack_calls(mode, calls):
    def run(calls, state=None):
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(Counter(lambda ctx: None))
            if state is not None:
                loop.load_state_dict(state)
            for steps in calls:
                loop.run(steps)
            return loop.state_dict()

    state = run([3, 9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(calls, state)
        run([], state)


@MODES
def test_a_script_that_ends_by_an_error_is_not_told_that_calls_are_missing(mode):
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(Counter(lambda ctx: None)).run(5, final=False)
        state = loop.state_dict()

    def fail():
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(Counter(lambda ctx: None))
            loop.load_state_dict(state)
            loop.run(3)
            raise KeyError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError):
            fail()


@MODES
def test_code_between_two_calls_can_ask_whether_the_state_is_that_of_a_later_one(mode, tmp_path):
    def run(state=None, saves=None):
        loop, found, rows = Task(), [], Memory("learn")

        def act(ctx):
            ctx.count += 1
            if saves is not None:
                loop.between_iterations(lambda: saves.append(through_a_file(loop.state_dict())))
            if ctx.count == 5:
                loop.finish = True

        def between():
            found.append(loop.is_catching_up)
            if not loop.is_catching_up:
                rows.seen = 0
            if saves is not None:
                saves.append(through_a_file(loop.state_dict()))

        with loop.start(ctx=Counts(), **mode):
            loop.use(Counter(act)).use(rows)
            if state is not None:
                loop.load_state_dict(state)
            assert not loop.is_catching_up
            loop.run(3, final=False)
            between()
            loop.run(9)  # ended by finish
            between()
            loop.run(0)
            between()
            loop.run(2)
            between()
            loop.run(4)
            return rows.seen, loop.ctx.count, loop.ctx.ends, found

    saves = []
    *unbroken, found = run(saves=saves)
    assert unbroken == [4, 11, 3]
    assert found == [False] * 4
    results = [run(state) for state in saves]
    assert [result[:3] for result in results] == [tuple(unbroken)] * len(saves)
    assert [True, True, True, False] in [result[3] for result in results]


@MODES
def test_a_call_without_iterations_loads_the_state_as_well(mode):
    def run(state=None):
        with Task().start(ctx=Counts(), **mode) as loop:
            loop.use(Counter(lambda ctx: setattr(ctx, "count", ctx.count + 1)))
            loop.run(3)
            return loop.state_dict()

    state = run()
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(Counter(lambda ctx: None))
        loop.load_state_dict(state)
        loop.run(0)
        assert loop.is_catching_up
        loop.run(3)
        assert not loop.is_catching_up


def test_a_resumed_run_is_loaded_by_a_call_without_iterations(tmp_path):
    def run(steps, resume=None):
        with Task().start(ctx=Counts(), resume=resume) as loop:
            loop.use(Counter(lambda ctx: setattr(ctx, "count", ctx.count + 1)))
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1))
            loop.run(steps)
            return loop.ctx.count

    assert run(3) == run(0, resume=tmp_path) == 3


@MODES
def test_a_run_whose_context_was_replaced_between_two_calls_is_not_saved(mode, tmp_path):
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(Counter(lambda ctx: None)).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1))
        loop.ctx = Counts()  # before the first call
        loop.run(2)
        loop.ctx.count = 5
        loop.renew()
        loop.state_dict()
        loop.ctx = Counts()
        with pytest.raises(
            RunStateError,
            match=r"task\.ctx was replaced during the run, or between two calls to run, .* set its fields instead",
        ):
            loop.state_dict()
        with pytest.warns(UserWarning, match=r"this run cannot be resumed later.* task\.ctx was replaced") as caught:
            loop.run(3)
        assert len([one for one in caught if "cannot be resumed" in str(one.message)]) == 1
    assert RunFiles(tmp_path).load()[0]["done"] == 2


@pytest.mark.parametrize("words", [5, np.str_("the loss is small"), ValueError("the loss is small"), Path("small"), "small"])
@MODES
def test_whatever_a_script_gives_as_reason_is_text_so_that_the_run_can_be_resumed(mode, words, tmp_path):
    def run(resume=None):
        loop = Task()

        def act(ctx):
            ctx.count += 1
            if ctx.count == 3:
                loop.finish_because(words)

        with loop.start(ctx=Counts(), resume=resume, **mode):
            loop.use(Counter(act)).use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1))
            loop.run(9)
            assert type(loop.end_reason.words) is str
            assert loop.end_reason.words.removesuffix(", before this state was saved") == str(words)
            loop.run(2)
            return loop.ctx.count

    assert run() == run(resume=tmp_path) == 5


@pytest.mark.parametrize("change", ["use", "keep", "renew"])
@MODES
def test_where_a_script_starts_lanes_anew_a_resumed_one_does_so_too(mode, change):
    """After a change between two calls, which is executed again when the state is that of the end of the first one."""

    def run(state=None):
        loop, seen = Task(), []

        def act(ctx):
            ctx.count += 1

        with loop.start(ctx=Later(), **mode):
            loop.use(Memory("evaluate", lambda ctx: seen.append((ctx.total_step, ctx.count)), reads=("count",)))
            loop.use(Counter(act))
            if state is not None:
                loop.load_state_dict(state)
            loop.run(4)
            if state is None:
                states.append(through_a_file(loop.state_dict()))
            if change == "use":
                loop.use(Memory("collect", lambda ctx: setattr(ctx, "more", ctx.more + 1), ("more",), ("more",)))
            elif change == "keep":
                loop.ctx.keep("more")
            else:
                loop.renew().renew()
            if state is None:
                states.append(through_a_file(loop.state_dict()))
            loop.run(4)
            return seen[-4:], loop.ctx.count, loop.ctx.more, loop.ctx.total_step

    states = []
    unbroken = run()
    assert run(states[0]) == unbroken
    if mode:
        assert states[0]["lanes"] is not None
        assert states[1]["lanes"] is None


@dataclasses.dataclass
class Later(Counts):
    more: int = 0


@MODES
def test_middleware_that_is_added_between_two_calls_is_named_with_the_fix(mode):
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(Counter(lambda ctx: None)).run(2)
        loop.use(Memory("learn")).run(2)
        state = loop.state_dict()
    with Task().start(ctx=Counts(), **mode) as loop:
        loop.use(Counter(lambda ctx: None))
        with pytest.raises(RunStateError, match=r"this one is Counter: call task\.use for all middleware before the first"):
            loop.load_state_dict(state)


def test_a_state_of_an_earlier_version_has_only_the_sum_of_iterations():
    def run(calls, state=None):
        with Task().start(ctx=Counts()) as loop:
            loop.use(Counter(lambda ctx: setattr(ctx, "count", ctx.count + 1)))
            if state is not None:
                loop.load_state_dict(state)
            for steps in calls:
                loop.run(steps, final=False)
            return loop.ctx.count, loop.state_dict()

    state = run([3, 2])[1]
    assert state.pop("runs") == [[5, None, None]]
    assert [run(calls, state)[0] for calls in ([3, 4], [4, 3], [7], [5, 1, 1], [2, 2], [1] * 7)] == [7, 7, 7, 7, 5, 7]


@pytest.mark.parametrize("train_freq", [None, 1])
@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}], ids=["plain", "lag"])
def test_a_signal_during_the_end_of_a_run_leaves_a_state_from_which_the_next_call_begins(tmp_path, train_freq, finishes, mode):
    def run(resume=None, kills=False):
        loop, seen = Task(), []

        class Killed(Memory):
            def end_run(self, ctx):
                ctx.ends += 1
                if kills:
                    os.kill(os.getpid(), signal.SIGTERM)

        def act(ctx):
            ctx.count += 1
            seen.append(ctx.total_step)
            if ctx.count == 3 and finishes:
                loop.finish = True

        with loop.start(ctx=Counts(), resume=resume, **mode):
            loop.use(Killed("learn", act, ("count", "ends"), ("count", "ends")))
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=train_freq))
            loop.run(9 if finishes else 3)
            loop.run(2)
            return seen, loop.ctx.ends

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught:
            run(kills=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 143
    assert RunFiles(tmp_path).load()[0]["runs"][0][:2] == [3, "finish" if finishes else "max_step"]
    assert run(resume=tmp_path) == ([3, 4], 2)
