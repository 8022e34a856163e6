"""decayed_value() and piecewise_linear() against their equations, and laws of every schedule."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.functional import decayed_value, piecewise_linear

kinds = pytest.mark.parametrize("kind", ["exp", "linear"])
level = st.floats(-100, 100)
anything = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize("step", [0, 1, 50, 99.5, 1000])
def test_the_exponential_schedule_matches_its_equation(step):
    assert decayed_value(1.0, 0.1, 100, step) == pytest.approx(0.1 + 0.9 * math.exp(-step / 100), rel=1e-12)
    assert decayed_value(1.0, 0.1, 100, step, "exp") == decayed_value(1.0, 0.1, 100, step)


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (25, 0.775), (50, 0.55), (100, 0.1), (101, 0.1), (10**9, 0.1)])
def test_the_linear_schedule_falls_evenly_and_then_stays(step, expected):
    assert decayed_value(1.0, 0.1, 100, step, "linear") == pytest.approx(expected, rel=1e-12)


@kinds
@anything
@given(level, level, st.floats(1e-3, 1e6), st.floats(0, 1e7), st.floats(0, 1e7))
def test_never_turns_back_and_stays_between_its_ends(kind, start, end, decay, step, later):
    first, then = (decayed_value(start, end, decay, at, kind) for at in sorted((step, later)))

    assert min(start, end) - 1e-9 <= first <= max(start, end) + 1e-9
    assert abs(end - then) <= abs(end - first) + 1e-9


@kinds
@anything
@given(level, level, st.floats(1e-3, 1e6))
def test_begins_at_its_start(kind, start, end, decay):
    assert decayed_value(start, end, decay, 0, kind) == pytest.approx(start, abs=1e-9)


curves = st.lists(st.tuples(st.integers(-1000, 1000), level), min_size=1, max_size=6, unique_by=lambda point: point[0]).map(
    sorted
)


@anything
@given(curves, st.floats(-1200, 1200))
def test_a_piecewise_schedule_is_numpys_interpolation(points, step):
    steps, values = zip(*points, strict=True)

    assert piecewise_linear(points, step) == pytest.approx(np.interp(step, steps, values), rel=1e-12, abs=1e-10)


@anything
@given(curves)
def test_a_piecewise_schedule_goes_through_its_points_and_stays_beyond_them(points):
    assert [piecewise_linear(points, step) for step, _ in points] == [value for _, value in points]
    assert piecewise_linear(points, points[0][0] - 1e9) == points[0][1]
    assert piecewise_linear(points, points[-1][0] + 1e9) == points[-1][1]


def test_a_piecewise_schedule_of_two_points_is_the_linear_one():
    for step in (-5, 0, 25, 99.5, 100, 300):
        assert piecewise_linear([(0, 1.0), (100, 0.1)], step) == pytest.approx(
            decayed_value(1.0, 0.1, 100, max(step, 0), "linear")
        )


def test_a_piecewise_schedule_jumps_where_two_points_share_a_step():
    points = [(0, 1.0), (10, 1.0), (10, 0.1), (20, 0.1), (20, 7.0)]

    assert [piecewise_linear(points, step) for step in (9, 10, 19, 20, 21)] == [1.0, 0.1, 0.1, 7.0, 7.0]


@pytest.mark.parametrize("points", [[], [(10, 1.0), (0, 0.0)], [(0, 1.0), (10, 0.5), (9, 0.0)], [(0, 1.0), (math.nan, 0.0)]])
def test_points_that_are_not_sorted_are_refused_by_name(points):
    with pytest.raises(ValueError, match="one point .* or more, sorted by step") as error:
        piecewise_linear(points, 5)
    assert str(points) in str(error.value)
