"""Random pipelines: lanes on threads, the same schedule on one thread, and what DESIGN section 5 says, all see the same values.

The specification is simulated naively, from whole histories; it shares no code with what schedules.
"""

import copy
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_pipelines import (
    FIRST,
    KEPT,
    LATE,
    OBJECTS,
    SECOND,
    Mixed,
    Outcome,
    Step,
    Thing,
    assert_same,
    engine,
    leaves_pending_work,
    pipelines,
    work,
)
from random_runs import cases, pacing

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:Mixed keeps", "ignore:asynchronous mode knows")]


class Asked:
    """`task.finish` as the specification has it, for one iteration."""

    def __init__(self, is_last: bool) -> None:
        self._is_last, self._asked = is_last, False

    @property
    def finish(self) -> bool:
        return self._is_last or self._asked

    @finish.setter
    def finish(self, value: bool) -> None:
        self._asked = value


def specification(steps: list[Step], iterations: int, lag: int) -> Outcome:
    """DESIGN section 5 word by word: run in sequence, and look up late values in what earlier iterations ended with."""
    halves = [(step, half) for step in steps for half in ((FIRST, LATE) if step.has_late else (FIRST,))]
    halves += [(step, SECOND) for step in reversed(steps) if step.yields]
    things, log = [Thing() for _ in OBJECTS], {}
    ends = [(vars(Mixed()), [0 for _ in OBJECTS])]  # what iterations ended with; before the first one, the beginning
    for iteration in range(iterations):
        now = {**vars(Mixed()), **{name: copy.copy(ends[-1][0][name]) for name in KEPT}, "total_step": iteration}
        asked = Asked(iteration + 1 == iterations)
        late = ends[max(0, len(ends) - 1 - lag)]
        for place, (step, half) in enumerate(halves):
            lane = step.lane_of(half)

            def is_late(changers: list[int], lane: int = lane, place: int = place) -> bool:
                """Whether only halves behind this one, the last of them on a later lane, change it."""
                if not changers or changers[0] < place:
                    return False
                last, part = halves[changers[-1]]
                return lane < last.lane_of(part)

            if half == LATE and not leaves_pending_work(iteration, step):
                continue

            view = dict(now)
            for name in (step.reads_of(half) & set(KEPT)) - step.writes_of(half):
                if is_late([i for i, (other, part) in enumerate(halves) if name in other.writes_of(part)]):
                    view[name] = copy.copy(late[0][name])
            followed = []
            for number in () if half == LATE else step.follows:
                users = [i for i, (other, part) in enumerate(halves) if other.is_opaque or number in other.uses_in(part)]
                followed.append(late[1][number] if is_late(users) else things[number].value)
            ctx = SimpleNamespace(**view)
            work(step, half, ctx, things, followed, asked, log, lambda delay: None)
            now.update({name: getattr(ctx, name) for name in step.writes_of(half)})
        ends.append((copy.deepcopy({name: now[name] for name in KEPT}), [thing.value for thing in things]))
        if asked.finish:
            break
    return Outcome(log, things, SimpleNamespace(**now))


CASES = cases(100)


@CASES
@given(steps=pipelines(), lag=st.integers(0, 3), iterations=st.integers(1, 6))
def test_one_thread_sees_what_the_specification_says(steps, lag, iterations):
    assert_same(engine(steps, iterations, async_mode=False, max_lag=lag), specification(steps, iterations, lag))


@CASES
@given(steps=pipelines(), lag=st.integers(0, 3), iterations=st.integers(1, 6), seed=st.integers(0, 1000))
def test_threads_see_what_one_thread_sees(steps, lag, iterations, seed):
    wanted = engine(steps, iterations, async_mode=False, max_lag=lag)
    assert_same(engine(steps, iterations, pacing(seed), async_mode=True, max_lag=lag), wanted)
    assert_same(engine(steps, iterations, async_mode=True, max_lag=lag), wanted)


@settings(CASES, max_examples=max(25, CASES.max_examples // 4))
@given(steps=pipelines(), iterations=st.integers(1, 6))
def test_without_lag_threads_see_what_a_plain_run_sees(steps, iterations):
    assert_same(engine(steps, iterations, async_mode=True, max_lag=0), engine(steps, iterations))


@pytest.mark.slow
@settings(CASES, max_examples=max(25, CASES.max_examples // 4))
@given(steps=pipelines(), lag=st.integers(0, 3))
def test_it_holds_where_threads_switch_at_every_chance(steps, lag):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        got = engine(steps, 8, async_mode=True, max_lag=lag)
    finally:
        sys.setswitchinterval(before)
    assert_same(got, engine(steps, 8, async_mode=False, max_lag=lag))
