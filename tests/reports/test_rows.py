"""Rows as columns, and a file of them that grows, is cut, or is replaced."""

import json
import math
import random

import numpy as np
import pytest

from ding_lite.reports.rows import GrowingFile, MetricColumns


def columns_of(*rows):
    columns = MetricColumns()
    for row in rows:
        columns.take([row])
    return columns


def naive_series(rows, name, x):
    """Row by row from the end, keeping what lies before everything later."""
    kept, lowest = [], float("inf")
    for row in reversed(rows):
        if isinstance(row.get(x), (int, float)) and isinstance(row.get(name), (int, float)) and row[x] < lowest:
            kept.append((row[x], row[name]))
            lowest = row[x]
    return kept[::-1]


@pytest.mark.parametrize("seed", range(20))
def test_a_series_is_that_of_a_naive_loop_whatever_is_missing_and_wherever_a_counter_goes_back(seed):
    rng = random.Random(seed)
    rows = [{name: rng.choice([None, rng.randrange(8)]) for name in ("x", "y", "z") if rng.random() < 0.8} for _ in range(30)]
    x, y = columns_of(*rows).series("y", "x")

    assert list(zip(x.tolist(), y.tolist())) == naive_series(rows, "y", "x")


def test_what_is_no_finite_number_counts_as_absent():
    nothing = [None, float("nan"), float("inf"), "3", True, [1], {"a": 1}, 10**400]
    columns = columns_of(*({"x": step, "y": value} for step, value in enumerate([*nothing, 7])))

    assert columns.series("y", "x") == (np.array([len(nothing)]), np.array([7.0]))
    assert columns.last("y") == columns.newest["y"] == 7
    assert columns.not_finite == {"y": 2}
    assert columns.last("never") is None
    assert "y" in columns
    assert "never" not in columns


def test_nan_before_the_first_number_is_not_told():
    rows = [
        {"rate": math.nan, "a": math.nan, "b": math.inf},
        {"rate": 1.0, "a": math.nan, "b": 2.0},
        {"rate": 2.0, "b": math.nan},
    ]

    assert columns_of(*rows).not_finite == {"a": 2, "b": 2}


@pytest.mark.parametrize("between", [{}, {"y": None}, {"x": 5, "y": math.nan}, {"y": "text", "z": 1}])
def test_rows_of_finite_numbers_are_columns_in_the_order_of_their_rows(between):
    first = [{"x": step, "y": step / 4} for step in range(3)]
    then = [{"y": -step, "x": 10.0 + step, "z": 2**60} for step in range(4)]
    columns = MetricColumns()
    columns.take([{"y": math.nan}, *first, between, *then])
    values = {name: [row[name] for row in (*first, between, *then) if _is_finite(row.get(name))] for name in "xyz"}

    assert {name: columns.values(name).tolist() for name in "xyz"} == values
    assert columns.names == list(dict.fromkeys(name for row in (*first, between, *then) for name in row if name in values))
    assert columns.newest == {"x": 13.0, "y": -3.0, "z": 2.0**60}
    assert columns.count == 9
    assert list(zip(*(part.tolist() for part in columns.series("y", "x")))) == naive_series([*first, *then], "y", "x")
    assert columns.not_finite == ({"y": 1} if "x" in between else {})


def _is_finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


@pytest.mark.parametrize("seed", range(20))
def test_rows_taken_together_are_those_taken_one_by_one(seed):
    rng = random.Random(seed)
    values = [None, 1, 2.5, 10**400, 2**60, math.nan, math.inf, "text", True]
    some = [values if rng.random() < 0.5 else [1, 2.5, math.nan] for _ in range(4)]
    rows = [{name: rng.choice(some[place]) for place, name in enumerate("xyzw") if rng.random() < 0.9} for _ in range(40)]
    one, together = columns_of(*rows), MetricColumns()
    while rows:
        size = rng.randrange(1, 12)
        together.take(rows[:size])
        rows = rows[size:]

    assert (one.count, one.names, one.not_finite) == (together.count, together.names, together.not_finite)
    assert {name: repr(it) for name, it in one.newest.items()} == {name: repr(it) for name, it in together.newest.items()}
    for name in one.names:
        assert one.values(name).tolist() == together.values(name).tolist()
        assert [it.tolist() for it in one.series(name, "x")] == [it.tolist() for it in together.series(name, "x")]


def lines(*numbers):
    return "".join(json.dumps({"n": number}) + "\n" for number in numbers)


def numbers(tail):
    rows, is_other = tail.read()
    return [row["n"] for row in rows], is_other


def test_only_what_was_added_is_read_and_half_a_line_is_left_for_later(tmp_path):
    path = tmp_path / "rows.jsonl"
    tail = GrowingFile(path)
    assert numbers(tail) == ([], False)
    assert tail.modified is None

    path.write_text(lines(1, 2) + '{"n": ')
    assert numbers(tail) == ([1, 2], False)
    assert numbers(tail) == ([], False)
    with open(path, "a") as file:
        file.write("3}\n" + lines(4))
    assert numbers(tail) == ([3, 4], False)
    assert tail.modified == path.stat().st_mtime


def test_a_file_that_was_cut_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2, 3))
    tail = GrowingFile(path)
    numbers(tail)
    path.write_text(lines(1))

    assert numbers(tail) == ([1], True)


def test_another_file_in_the_same_place_is_noticed_even_if_it_is_longer(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(*range(50)))
    tail = GrowingFile(path)
    numbers(tail)
    path.rename(tmp_path / "rows.1.jsonl")
    assert numbers(tail) == ([], False)
    assert tail.modified is None
    path.write_text(lines(*range(100, 200)))

    assert numbers(tail) == (list(range(100, 200)), True)


def test_lines_that_are_no_rows_are_counted_and_do_no_harm(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xff\xfe\n" + lines(1).encode() + b"[1, 2]\nnot json\n" + b"[" * 100_000 + b"\n\n" + lines(2).encode())
    tail = GrowingFile(path)

    assert numbers(tail) == ([1, 2], False)
    assert tail.unreadable == 5


@pytest.mark.slow
def test_a_megabyte_of_rubbish_does_not_hide_what_follows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("rubbish\n" * 150_000 + lines(1))

    assert numbers(GrowingFile(path)) == ([1], False)


def test_a_large_file_comes_in_pieces_and_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(*range(200_000)))
    tail, found, pieces = GrowingFile(path), [], 0
    while piece := numbers(tail)[0]:
        found += piece
        pieces += 1

    assert pieces > 1
    assert found == list(range(200_000))


def test_a_folder_in_place_of_the_file_is_an_error_with_the_fix(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"it is a folder, and not the file .* move it away: '.*'"):
        GrowingFile(tmp_path).read()
