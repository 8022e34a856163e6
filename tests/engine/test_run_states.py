"""Saved runs: a run that continues from a saved state gives the result of an uninterrupted run, in every mode."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_pipelines import OBJECTS, STAGES, Mixed, Outcome, Thing, assert_same, middleware, pipelines
from random_runs import Copycat, cases, pacing
from states import through_a_file

from ding_lite.engine import Task, contract

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Mixed keeps", "ignore:asynchronous mode knows", "ignore:.*has no state_dict"),
]


def saved_and_continued(steps, iterations, save_in, stage, pace=lambda delay: None, **mode):
    """The outcome of a run that is saved where a middleware asks for it, and of runs that continue from each saved state."""

    named = {number for step in steps if not step.is_opaque for number in (*step.uses, *step.follows)}

    def run(saved, log, save_in, states):
        things = [Thing() for _ in OBJECTS]
        copycats = [Copycat(thing) for thing in things]
        with Task().start(ctx=Mixed(), **mode) as loop:

            @contract(stage=stage)
            def saver(ctx):
                if ctx.total_step in save_in:
                    loop.between_iterations(save)

            def save():
                state = through_a_file(loop.state_dict())
                states.append((state, [thing.state_dict() for thing in things], copy.deepcopy(log)))

            loop.use(saver)
            for step in steps:
                loop.use(middleware(step, loop, things, copycats, log, pace))
            if saved is not None:
                for number in set(OBJECTS) - named:  # no contract names them, so that they are not in the state
                    things[number].load_state_dict(saved[1][number])
                loop.load_state_dict(saved[0])
            loop.run(iterations)
            return Outcome(log, things, loop.ctx)

    states = []
    unbroken = run(None, {}, save_in, states)
    continued = [run(saved, saved[2], (), []) for saved in states if saved[0]["done"] < iterations]
    return unbroken, run(None, {}, (), []), continued


CASES = cases(60)
SAVES = st.sets(st.integers(0, 5), min_size=1, max_size=2)


@CASES
@given(steps=pipelines(), lag=st.integers(0, 3), iterations=st.integers(2, 6), save_in=SAVES, stage=st.sampled_from(STAGES))
def test_on_one_thread(steps, lag, iterations, save_in, stage):
    saved, unsaved, continued = saved_and_continued(steps, iterations, save_in, stage, max_lag=lag)
    for outcome in (saved, *continued):
        assert_same(outcome, unsaved)


@pytest.mark.slow
@CASES
@given(
    steps=pipelines(),
    lag=st.integers(0, 3),
    iterations=st.integers(2, 6),
    save_in=SAVES,
    stage=st.sampled_from(STAGES),
    seed=st.integers(0, 1000),
)
def test_on_several_threads(steps, lag, iterations, save_in, stage, seed):
    found = saved_and_continued(steps, iterations, save_in, stage, pacing(seed), async_mode=True, max_lag=lag)
    saved, unsaved, continued = found
    for outcome in (saved, *continued):
        assert_same(outcome, unsaved)
