"""Middleware of the library that a function of the script calls: it is named if the task would have to begin and end it."""

import functools
import warnings

import pytest

from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import Task, contract
from ding_lite.middleware import data_pusher, offline_data_saver, termination_checker

NEVER = 10**6  # iterations: what is hidden is not called in these tests


def told(*middleware, runs=1, around=None, **mode):
    """The warnings about hidden middleware of runs of one iteration."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext(), **mode) as task:
            task.use(lambda ctx: setattr(ctx, "trajectories", ()))
            for one in middleware:
                task.use(one if around is None else getattr(task, around)(lambda ctx: None, one))
            for _ in range(runs):
                task.run(max_step=1)
    return [str(one.message) for one in caught if "so the task does not know of it" in str(one.message)]


def function(saver):
    def record_later(ctx):
        if ctx.total_step > NEVER:
            saver(ctx)

    return record_later


def anonymous(saver):
    return lambda ctx: saver(ctx) if ctx.total_step > NEVER else None


def default(saver):
    def record(ctx, saver=saver):
        return saver(ctx) if ctx.total_step > NEVER else None

    return record


def partial(saver):
    def record(saver, ctx):
        return saver(ctx) if ctx.total_step > NEVER else None

    return functools.partial(record, saver)


def helper(saver):
    def call(ctx):
        if ctx.total_step > NEVER:
            saver(ctx)

    return lambda ctx: call(ctx)


def listed(saver):
    steps = [lambda ctx: None, saver]

    def every(ctx):
        for one in steps if ctx.total_step > NEVER else ():
            one(ctx)

    return every


def by_name(saver):
    return lambda ctx: saver.__call__(ctx) if ctx.total_step > NEVER else None


class Holding:
    def __init__(self, saver):
        self.saver = saver

    def __call__(self, ctx):
        if ctx.total_step > NEVER:
            self.saver(ctx)


class EndingSomethingElse(Holding):
    def end_run(self, ctx):
        self.ended = True


def in_its_class(saver):
    class Recording:
        def __call__(self, ctx):
            if ctx.total_step > NEVER:
                saver(ctx)

    return Recording()


def method(saver):
    return Holding(saver).__call__


def with_a_contract(saver):
    return contract(reads=("total_step",), uses=(saver,), stage="process")(function(saver))


HIDING = [
    *(function, anonymous, default, partial, helper, listed, by_name),
    *(Holding, EndingSomethingElse, in_its_class, method, with_a_contract),
]


@pytest.mark.parametrize("hide", HIDING)
def test_a_saver_that_the_task_cannot_begin_and_end_is_named_before_the_run_with_the_fix(hide, tmp_path):
    (words,) = told(hide(offline_data_saver(PPOConfig(), tmp_path / "data")), runs=2)
    assert "calls offline_data_saver, a middleware of the library" in words
    assert "test_hidden_middleware.py" in words
    assert "neither its begin_run nor its end_run" in words
    assert "Pass the middleware to task.use itself" in words
    assert "functools.wraps" in words


@pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}], ids=str)
@pytest.mark.parametrize("around", ["serial", "parallel"])
def test_it_is_named_inside_of_others_and_where_iterations_overlap(mode, around, tmp_path):
    hidden = function(offline_data_saver(PPOConfig(), tmp_path / "data"))
    assert len(told(hidden, around=around, **mode)) == 1


def test_what_has_nothing_to_begin_and_end_is_not_named():
    pusher, checker = data_pusher(DQNConfig(), ReplayBuffer(8)), termination_checker(max_env_step=8)
    assert told(function(pusher), function(checker)) == []


class EndingIt(Holding):
    def begin_run(self):
        self.saver.begin_run()

    def end_run(self, ctx):
        self.saver.end_run(ctx)


class Reading(Holding):
    def __call__(self, ctx):
        self.name = self.saver.__name__


def wrapping(saver):
    @functools.wraps(saver)
    def record(ctx):
        if ctx.total_step > NEVER:
            saver(ctx)

    return record


def reading(saver):
    return lambda ctx: saver.state_dict()


def building(saver):
    def search(ctx):
        if ctx.total_step > NEVER:
            with Task().start() as inner:
                inner.use(saver).run(1)

    return search


class Forwarding(Holding):
    """Has all attributes of the middleware inside."""

    def __getattr__(self, name):
        return getattr(self.__dict__["saver"], name)


class Taking(Holding):
    """Takes the methods that the task calls."""

    def __init__(self, saver):
        super().__init__(saver)
        self.begin_run, self.end_run = saver.begin_run, saver.end_run


def looking(saver):
    """Does nothing but ask whether there is one, and print it."""
    return lambda ctx: None if saver is None or not saver else repr(saver) and None


@pytest.mark.parametrize("hide", [EndingIt, Reading, Forwarding, Taking, wrapping, reading, building, looking])
def test_what_the_script_ends_itself_or_only_reads_or_another_task_runs_is_not_named(hide, tmp_path):
    assert told(hide(offline_data_saver(PPOConfig(), tmp_path / "data"))) == []


def test_what_is_in_the_pipeline_too_is_not_named(tmp_path):
    saver = offline_data_saver(PPOConfig(), tmp_path / "data")
    assert told(function(saver), wrapping(saver)) == []
