"""decayed() against its equations, and laws of every schedule."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.functional import decayed

kinds = pytest.mark.parametrize("kind", ["exp", "linear"])
level = st.floats(-100, 100)
anything = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize("step", [0, 1, 50, 99.5, 1000])
def test_the_exponential_schedule_matches_its_equation(step):
    assert decayed(1.0, 0.1, 100, step) == pytest.approx(0.1 + 0.9 * math.exp(-step / 100), rel=1e-12)
    assert decayed(1.0, 0.1, 100, step, "exp") == decayed(1.0, 0.1, 100, step)


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (25, 0.775), (50, 0.55), (100, 0.1), (101, 0.1), (10**9, 0.1)])
def test_the_linear_schedule_falls_evenly_and_then_stays(step, expected):
    assert decayed(1.0, 0.1, 100, step, "linear") == pytest.approx(expected, rel=1e-12)


@kinds
@anything
@given(level, level, st.floats(1e-3, 1e6), st.floats(0, 1e7), st.floats(0, 1e7))
def test_never_turns_back_and_stays_between_its_ends(kind, start, end, decay, step, later):
    first, then = (decayed(start, end, decay, at, kind) for at in sorted((step, later)))

    assert min(start, end) - 1e-9 <= first <= max(start, end) + 1e-9
    assert abs(end - then) <= abs(end - first) + 1e-9


@kinds
@anything
@given(level, level, st.floats(1e-3, 1e6))
def test_begins_at_its_start(kind, start, end, decay):
    assert decayed(start, end, decay, 0, kind) == pytest.approx(start, abs=1e-9)
