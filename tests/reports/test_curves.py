"""Curves against a naive loop, and laws that they keep for any seeds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.reports import aggregate_seeds, bootstrap_band, iqm
from ding_lite.reports.curves import moving_mean, thin


def iqm_by_copies(values):
    """Each value four times, the lowest and the highest quarter left out: no fractional weight anywhere."""
    copies = sorted(value for value in values if not np.isnan(value) for _ in range(4))
    quarter = len(copies) // 4
    return sum(copies[quarter : len(copies) - quarter]) / (len(copies) / 2) if copies else float("nan")


def seeds_of(seed, count=4):
    """Seeds of different length, measured at different places."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        x = np.unique(rng.integers(0, 60, rng.integers(1, 25))).astype(float)
        found.append((x, rng.normal(size=len(x))))
    return found


def interpolated(x, y, at):
    if at < x[0] or at > x[-1]:
        return float("nan")
    for (x0, y0), (x1, y1) in zip(zip(x, y), zip(x[1:], y[1:])):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return y[0]


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_is_that_of_a_naive_loop(seed):
    seeds = seeds_of(seed)
    held = [bool(seed >> place & 1) for place in range(len(seeds))]
    curve = aggregate_seeds(seeds, held=held)

    assert curve.x.tolist() == sorted({place for x, _ in seeds for place in x})
    for place, at in enumerate(curve.x):
        values = [interpolated(x, y, at) for x, y in seeds]
        assert curve.is_whole[place] == (not any(np.isnan(values)))
        values = [y[-1] if hold and at > x[-1] else value for value, hold, (x, y) in zip(values, held, seeds)]
        np.testing.assert_allclose(curve.mean[place], iqm_by_copies(values), rtol=1e-12)


@pytest.mark.parametrize("count", range(1, 14))
def test_the_interquartile_mean_is_that_of_a_naive_count(count):
    values = np.random.default_rng(count).normal(size=(count, 5))
    values[0, 0] = values[-1, 1] = np.nan

    np.testing.assert_allclose(iqm(values), [iqm_by_copies(column) for column in values.T], rtol=1e-12)


@pytest.mark.parametrize(("values", "mean"), [([5], 5), ([1, 3], 2), ([0, 6, 90], 19), ([-100, 1, 3, 100], 2)])
def test_the_interquartile_mean_of_few_seeds_is_what_its_page_says(values, mean):
    np.testing.assert_allclose(iqm(np.array(values, float)), mean, rtol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_band_is_near_that_of_all_possible_draws(count):
    values = np.random.default_rng(count).normal(size=count)
    drawn = sorted(iqm_by_copies(chosen) for chosen in itertools.product(values, repeat=count))
    low, high = bootstrap_band(values)

    # A quantile of 1000 draws lies between the quantiles of all draws a bit before and a bit behind it.
    ends = np.quantile(drawn, [0.01, 0.045, 0.955, 0.99], method="inverted_cdf")
    assert ends[0] - 1e-9 <= low <= ends[1] + 1e-9
    assert ends[2] - 1e-9 <= high <= ends[3] + 1e-9


@pytest.mark.few
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_seeds_does_not_matter(seed):
    seeds = seeds_of(seed)
    curve = aggregate_seeds(seeds)
    for order in itertools.islice(itertools.permutations(range(len(seeds))), 1, 24, 5):
        other = aggregate_seeds([seeds[place] for place in order])
        for name in ("x", "mean", "low", "high"):
            np.testing.assert_allclose(getattr(other, name), getattr(curve, name), rtol=1e-12, atol=1e-14)


def test_the_same_seeds_give_the_same_band_each_time():
    value = np.random.default_rng(0).normal(size=(6, 50))

    np.testing.assert_array_equal(bootstrap_band(value), bootstrap_band(value.copy()))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), min_size=1, max_size=6))
def test_mean_and_band_lie_among_the_values_and_the_mean_in_the_band(values):
    curve = aggregate_seeds([(np.arange(len(row), dtype=float), np.array(row)) for row in values])
    for place in range(len(curve.x)):
        there = [row[place] for row in values if place < len(row)]
        slack = 1e-9 * max(1.0, *map(abs, there))
        assert min(there) - slack <= curve.low[place] <= curve.high[place] + slack <= max(there) + 2 * slack
        assert min(there) - slack <= curve.mean[place] <= max(there) + slack


def test_constant_curves_have_no_width():
    curve = aggregate_seeds([(np.arange(5.0), np.full(5, 0.1)) for _ in range(3)])

    for line in (curve.mean, curve.low, curve.high):
        np.testing.assert_allclose(line, 0.1, rtol=1e-15)


def test_a_single_seed_is_itself():
    x, y = np.array([0.0, 3.0, 4.0]), np.array([1.0, -2.0, 7.0])
    curve = aggregate_seeds([(x, y)])

    for line in (curve.mean, curve.low, curve.high):
        np.testing.assert_allclose(line, y, rtol=1e-15)
    assert curve.is_whole.all()


def test_where_fewer_seeds_are_measured_the_curve_says_so_and_seeds_without_values_do_not_count():
    nothing = (np.empty(0), np.empty(0))
    curve = aggregate_seeds(
        [nothing, (np.array([0.0, 2.0]), np.array([1.0, 1.0])), (np.array([1.0, 3.0]), np.array([3.0, 3.0]))]
    )

    assert curve.x.tolist() == [0, 1, 2, 3]
    assert curve.is_whole.tolist() == [False, True, True, False]
    np.testing.assert_allclose(curve.mean, [1, 2, 2, 3], rtol=1e-15)
    assert len(curve.seeds) == 2
    assert aggregate_seeds([nothing, nothing]) is None
    assert aggregate_seeds([]) is None


def test_gaps_between_the_seeds_are_gaps_in_the_curve():
    curve = aggregate_seeds(
        [(np.array([0.0, 1.0]), np.array([5.0, 5.0])), (np.array([4.0, 5.0]), np.array([1.0, 1.0]))], points=3
    )

    assert curve.x.tolist() == [0, 2.5, 5]
    np.testing.assert_array_equal(curve.mean, [5, np.nan, 1])
    np.testing.assert_array_equal(curve.low, [5, np.nan, 1])


def test_many_points_become_as_many_as_were_asked_for_from_the_first_to_the_last():
    x = np.sort(np.random.default_rng(0).choice(10**6, 5000, replace=False)).astype(float)
    curve = aggregate_seeds([(x, np.sin(x / 1e5)), (x, np.sin(x / 1e5))], points=100)

    assert len(curve.x) == 100
    assert (curve.x[0], curve.x[-1]) == (x[0], x[-1])
    np.testing.assert_allclose(curve.mean, np.sin(curve.x / 1e5), atol=1e-4)


def test_many_seeds_and_points_are_drawn_in_pieces_that_change_nothing():
    value = np.random.default_rng(0).normal(size=(50, 120))

    low, high = bootstrap_band(value)
    for place in (39, 40, 119):
        two = bootstrap_band(value[:, [0, place]])
        np.testing.assert_array_equal((low[place], high[place]), (two[0][1], two[1][1]))
    assert (low < iqm(value)).all()
    assert (iqm(value) < high).all()


@pytest.mark.parametrize("window", [1, 2, 7, 100])
def test_smoothing_is_the_mean_of_a_row_and_those_before_it(window):
    y = np.random.default_rng(0).normal(size=20)
    expected = [y[max(end - window, 0) : end].mean() for end in range(1, 21)]

    np.testing.assert_allclose(moving_mean(y, window), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_spike_leaves_no_trace_behind_its_window(window):
    y = np.array([1.0] * 4 + [1e17] + [1.0] * 20)

    assert moving_mean(y, window)[4 + window :].tolist() == [1.0] * (21 - window)


def test_thinning_loses_neither_end_nor_peak():
    y = np.zeros(10_000)
    y[3333], y[7777] = 50, -50
    x, thinned = thin(np.arange(10_000.0), y, 100)

    assert len(x) <= 104
    assert (x[0], x[-1]) == (0, 9999)
    assert (thinned.max(), thinned.min()) == (50, -50)
    assert (np.diff(x) > 0).all()


def test_the_largest_numbers_give_a_mean_and_a_band_that_are_finite():
    most = np.finfo(float).max
    value = np.array([[most, -most], [most, most], [most, -most], [most, 5.0]])
    low, high = bootstrap_band(value)
    x = np.arange(3.0)
    curve = aggregate_seeds([(x, np.array([most, -most, most])), (x + 0.5, np.array([-most, most, 1.0]))], smooth=2)

    assert iqm(value).tolist() == [most, (-most + 5.0) / 2]
    assert np.isfinite([low, high]).all()
    assert all(np.isfinite(numbers).all() for numbers in (curve.mean, curve.low, curve.high))
