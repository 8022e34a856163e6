"""Lanes: what overlaps and what does not, on which thread, how late values arrive, and what a running middleware may ask."""

import dataclasses
import sys
import threading
import time
import warnings

import pytest
import torch

from ding_lite.basics.torch_threads import torch_threads
from ding_lite.engine import Context, Task, contract
from ding_lite.engine.cpu_cores import short_switch_interval

pytestmark = pytest.mark.timeout(60)

LANES = {"evaluate": "evaluate", "collect": "collect", "learn": "learn"}
MODES = pytest.mark.parametrize("overlap", [True, False], ids=["threads", "one thread"])


@dataclasses.dataclass
class Loop(Context):
    env_step: int = 0
    train_iter: int = 0
    batch: int | None = None
    seen: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep("env_step", "train_iter")


class Weights:
    """What a learner changes."""

    version = 0

    def snapshot(self):
        return self.version


class Copy:
    """What acts on the weights."""

    def __init__(self, leader):
        self.leader, self.adopted = leader, None

    def load_snapshot(self, snapshot):
        self.adopted = snapshot

    @property
    def version(self):
        return self.leader.version if self.adopted is None else self.adopted


@dataclasses.dataclass
class Listing(Context):
    kept: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.keep("kept")


def run(*middleware, steps=6, ctx=None, **mode):
    """The context that a run of these middleware ends with."""
    with Task().start(ctx=ctx or Loop(), **{"async_mode": True, **mode}) as loop:
        for fn in middleware:
            loop.use(fn)
        loop.run(steps)
        return loop.ctx


class TestLag:
    @MODES
    @pytest.mark.parametrize("lag", range(4))
    def test_what_only_an_earlier_lane_reads_comes_exactly_so_many_iterations_late(self, overlap, lag):
        seen = {"evaluate": [], "collect": [], "learn": []}

        @contract(reads=("train_iter", "env_step"), stage="evaluate")
        def evaluate(ctx):
            seen["evaluate"].append((ctx.train_iter, ctx.env_step))

        @contract(reads=("train_iter", "env_step"), writes=("env_step",), stage="collect")
        def collect(ctx):
            seen["collect"].append((ctx.train_iter, ctx.env_step))
            ctx.env_step += 10

        @contract(reads=("train_iter", "env_step"), writes=("train_iter",), stage="learn")
        def learn(ctx):
            seen["learn"].append((ctx.train_iter, ctx.env_step))
            ctx.train_iter += 1

        ctx = run(evaluate, collect, learn, steps=8, async_mode=overlap, max_lag=lag)

        late = [max(0, k - lag) for k in range(8)]
        assert seen["evaluate"] == [(n, 10 * n) for n in late]
        assert seen["collect"] == [(n, 10 * k) for k, n in enumerate(late)]
        assert seen["learn"] == [(k, 10 * k + 10) for k in range(8)]
        assert (ctx.total_step, ctx.env_step, ctx.train_iter) == (7, 80, 8)

    @MODES
    def test_what_a_later_lane_writes_behind_it_is_exact_on_the_learn_lane(self, overlap):
        seen = []
        log = contract(reads=("env_step",), stage="record")(lambda ctx: seen.append(ctx.env_step))

        @contract(reads=("env_step",), writes=("env_step",), stage="collect")
        def collect(ctx):
            ctx.env_step += 1

        run(log, collect, steps=5, async_mode=overlap, max_lag=1)
        assert seen == [0, 1, 2, 3, 4]

    @MODES
    @pytest.mark.filterwarnings("ignore:Listing keeps")
    def test_a_kept_list_that_is_filled_in_place_is_not_shared_between_lanes(self, overlap):
        lent = []
        evaluate = contract(reads=("kept",), stage="evaluate")(lambda ctx: lent.append(ctx.kept))

        def appends(stage):
            return contract(("kept",), ("kept",), stage=stage)(lambda ctx: ctx.kept.append((ctx.total_step, stage)))

        both = appends("collect"), appends("learn")
        ctx = run(evaluate, *both, ctx=Listing(["start"]), async_mode=overlap, max_lag=1)

        full = ["start", *((k, stage) for k in range(6) for stage in ("collect", "learn"))]
        assert lent == [full[: 1 + 2 * max(0, k - 1)] for k in range(6)]
        assert ctx.kept == full

    @MODES
    @pytest.mark.parametrize("lag", range(4))
    def test_a_follower_acts_on_the_state_that_its_leader_had_so_many_iterations_ago(self, overlap, lag):
        weights, acted, saved = Weights(), [], []
        copy, exact = Copy(weights), Copy(weights)
        collect = contract(uses=(copy,), stage="collect")(lambda ctx: acted.append(copy.version))

        @contract(uses=(weights,), stage="learn")
        def learn(ctx):
            weights.version += 1

        saves = contract(uses=(exact,), stage="record")(lambda ctx: saved.append(exact.version))
        run(collect, learn, saves, steps=8, async_mode=overlap, max_lag=lag)

        assert acted == [max(0, k - lag) for k in range(8)]
        assert saved == [k + 1 for k in range(8)]
        assert (copy.adopted, exact.adopted) == (None, None)  # after the run they follow the leader itself again

    @MODES
    @pytest.mark.parametrize("leader", [0, "agent_0", Copy(None)], ids=["number", "name", "object"])
    @pytest.mark.parametrize("loads", [False, True])
    def test_an_attribute_named_leader_may_be_anything(self, overlap, leader, loads):
        class Flock:
            def load_snapshot(self, snapshot):
                raise AssertionError("nothing leads it")

        flock, visited = Flock() if loads else Listing(), []
        object.__setattr__(flock, "leader", leader)
        moves = contract(uses=(flock,), stage="collect")(lambda ctx: visited.append(ctx.total_step))
        leads = contract(uses=(leader,) if isinstance(leader, Copy) else (), stage="learn")(lambda ctx: None)
        run(moves, leads, steps=3, async_mode=overlap, max_lag=1)

        assert visited == [0, 1, 2]

    @pytest.mark.filterwarnings("ignore:asynchronous mode knows")
    @pytest.mark.parametrize("lag", [0, 1])
    def test_a_state_is_taken_before_anybody_is_let_through_who_may_change_it(self, lag):
        class Slow(Weights):
            changed = threading.Event()

            def snapshot(self):
                self.changed.wait(0.02)
                return self.version

        weights, acted = Slow(), []
        copy = Copy(weights)

        def plain(ctx):
            weights.changed.clear()

        @contract(reads=("train_iter",), uses=(weights,), stage="collect")
        def changes(ctx):
            weights.version += 1
            weights.changed.set()

        acts = contract(uses=(copy,), stage="record")(lambda ctx: acted.append(copy.version))
        run(plain, acts, changes, steps=5, max_lag=lag)
        assert acted == [0, 1, 2, 3, 4]


class TestOrder:
    @MODES
    def test_users_of_one_object_take_turns_in_pipeline_order(self, overlap):
        turns = []
        uses = [
            contract(uses=(turns,), stage=stage)(lambda ctx, stage=stage: turns.append((ctx.total_step, stage)))
            for stage in ("learn", "evaluate", "collect")
        ]
        run(*uses, steps=30, async_mode=overlap, max_lag=3)
        assert turns == [(k, stage) for k in range(30) for stage in ("learn", "evaluate", "collect")]

    def test_a_plain_function_overlaps_nothing(self):
        inside, wrong = set(), []

        def step(name):
            def work(ctx):
                inside.add(name)
                if "plain" in inside and len(inside) > 1:
                    wrong.append(set(inside))
                for _ in range(50):  # every chance for others
                    time.sleep(0)
                inside.discard(name)

            work.__qualname__ = work.__name__ = name
            return work

        uses = [contract(stage=stage)(step(stage)) for stage in LANES]
        with pytest.warns(UserWarning, match="plain"):
            run(uses[0], uses[1], step("plain"), contract(stage="collect")(step("after")), uses[2], steps=10, max_lag=3)
        assert wrong == []

    def test_one_warning_names_the_plain_functions_and_nothing_else(self):
        def first_plain(ctx): ...

        def second_plain(ctx):
            yield

        @contract(stage="learn")
        def declared(ctx): ...

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(first_plain, declared, second_plain)
        (warning,) = caught
        text = str(warning.message)
        assert "first_plain (" in text
        assert "second_plain (" in text
        assert "declared" not in text
        assert warning.filename == __file__


class TestOverlap:
    @pytest.mark.parametrize("pair", [("collect", "learn"), ("evaluate", "learn"), ("evaluate", "collect")])
    def test_lanes_are_in_progress_at_the_same_time(self, pair):
        meet = threading.Barrier(2, timeout=30)
        run(*(contract(stage=stage)(lambda ctx: meet.wait()) for stage in pair))

    def test_a_lane_is_an_iteration_ahead_while_another_still_works(self):
        ahead = threading.Event()

        @contract(writes=("batch",), stage="collect")
        def collect(ctx):
            if ctx.total_step == 2:
                ahead.set()
            ctx.batch = ctx.total_step

        @contract(reads=("batch",), stage="learn")
        def learn(ctx):
            assert ctx.total_step != 0 or ahead.wait(30)
            assert ctx.batch == ctx.total_step

        run(collect, learn, max_lag=2)

    @pytest.mark.parametrize("lag", range(4))
    def test_never_more_than_one_and_max_lag_iterations_are_under_way(self, lag):
        lock, open_, most = threading.Lock(), set(), []

        @contract(writes=("batch",), stage="collect")
        def begins(ctx):
            with lock:
                open_.add(ctx.total_step)
                most.append(len(open_))

        @contract(reads=("batch",), stage="record")
        def ends(ctx):
            with lock:
                open_.remove(ctx.total_step)

        run(begins, ends, steps=200, max_lag=lag)
        assert max(most) <= 1 + lag


class TestThreads:
    def test_the_learn_lane_runs_on_the_thread_that_called_run_and_each_other_lane_on_one_of_its_own(self):
        threads = {stage: set() for stage in LANES}
        run(*(contract(stage=it)(lambda ctx, it=it: threads[it].add(threading.current_thread().name)) for it in LANES))

        assert threads["learn"] == {threading.current_thread().name}
        assert threads["collect"] == {"task.lane.collect"}
        assert threads["evaluate"] == {"task.lane.evaluate"}

    @pytest.mark.parametrize(("lag", "cores", "expected"), [(0, 8, (3, 3, 3)), (2, 8, (1, 3, 1)), (1, 4, (1, 2, 1))])
    def test_how_many_threads_torch_takes_depends_on_the_lane_alone(self, lag, cores, expected, monkeypatch):
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)

        def taken(async_mode):
            seen = {}
            with Task().start(async_mode=async_mode, max_lag=lag, ctx=Loop()) as task:

                @contract(stage="collect")
                def collect(ctx):
                    work = task.defer(torch.get_num_threads)
                    seen["collect"] = torch.get_num_threads()
                    seen["deferred"] = work.result()

                parts = [
                    contract(stage="process")(lambda ctx, i=i: seen.setdefault(i, torch.get_num_threads())) for i in (0, 1)
                ]
                task.use(collect)
                task.use(contract(stage="collect")(task.parallel(*parts)))
                task.use(contract(stage="learn")(lambda ctx: seen.update(learn=torch.get_num_threads())))
                task.run(max_step=2)
            assert seen[0] == seen[1] == seen["collect"]  # parts take as many as the middleware that they are parts of
            return seen["collect"], seen["learn"], seen["deferred"]

        with torch_threads(3):
            assert taken(async_mode=True) == taken(async_mode=False) == expected
            assert torch.get_num_threads() == 3

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_interpreter_and_torch_have_their_settings_back_after_a_run(self, fails):
        @contract(stage="collect")
        def collect(ctx):
            assert torch.get_num_threads() == 1
            if fails and ctx.total_step == 3:
                raise ValueError("as asked")

        before, threads = sys.getswitchinterval(), torch.get_num_threads()
        if fails:
            with pytest.raises(ValueError, match="as asked"):
                run(collect, contract(stage="learn")(lambda ctx: None))
        else:
            run(collect, contract(stage="learn")(lambda ctx: None))
        assert (sys.getswitchinterval(), torch.get_num_threads()) == (before, threads)

    def test_the_interpreter_has_its_setting_back_after_runs_that_overlap(self):
        before = sys.getswitchinterval()
        first, second = short_switch_interval(), short_switch_interval()
        with first:
            second.__enter__()
        assert sys.getswitchinterval() < before
        second.__exit__(None, None, None)
        assert sys.getswitchinterval() == before


class TestAsking:
    @MODES
    def test_the_tasks_context_is_that_of_the_lane_and_iteration_that_asks(self, overlap):
        with Task().start(async_mode=overlap, ctx=Loop(), max_lag=2) as loop:

            def same(ctx):
                assert loop.ctx is ctx
                assert loop.steps_left == 19 - ctx.total_step
                yield
                assert loop.ctx is ctx

            def copy_of(stage):
                def step(ctx):
                    yield from same(ctx)

                return contract(stage=stage)(step)

            for stage in LANES:
                loop.use(copy_of(stage))
            loop.run(20)
            assert loop.ctx.total_step == 19

    @MODES
    @pytest.mark.parametrize("stage", LANES)
    def test_what_was_worked_out_before_the_run_is_not_changed_in_it(self, overlap, stage):
        messages = []

        @contract(stage=stage)
        def asks(ctx):
            for call in (lambda: loop.use(print), loop.renew):
                with pytest.raises(RuntimeError) as caught:
                    call()
                messages.append(str(caught.value))
            ctx.keep("batch")

        with Task().start(async_mode=overlap, ctx=Loop(), max_lag=1) as loop:
            loop.use(asks)
            with pytest.raises(RuntimeError, match=r"ctx.keep\('batch'\) inside a middleware.*Call keep\(\) in the context's"):
                loop.run(1)
        assert "task.use('print') while iterations overlap" in messages[0]
        assert "task.renew() inside a middleware" in messages[1]
