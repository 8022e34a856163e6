"""Numbers that JSON does not have: all files spell them alike, and those of earlier versions mean what they meant."""

import gymnasium
import numpy as np
import pytest

from ding_lite.basics import json_ready
from ding_lite.basics.json_numbers import spelt_as_now
from ding_lite.envs.space_records import recorded_space, space_from
from ding_lite.sinks import json_value, read_row

DATA = {"a": [1.0, float("nan"), float("inf")], "b": {"c": -float("inf"), "d": "inf"}}


def test_records_and_rows_of_metrics_spell_them_alike():
    assert json_ready(DATA) == json_value(DATA) == {"a": [1.0, "NaN", "Infinity"], "b": {"c": "-Infinity", "d": "inf"}}


def test_a_row_with_the_text_of_an_earlier_record_keeps_it():
    assert read_row('{"a": "inf", "b": "nan", "c": "Infinity"}') == {"a": "inf", "b": "nan", "c": float("inf")}


@pytest.mark.parametrize("shape", [(1,), (2,), (2, 3)])
def test_a_space_with_infinite_bounds_can_be_made_from_records_of_all_versions(shape):
    low, high = np.zeros(shape, np.float32), np.full(shape, np.inf, np.float32)
    low[..., 0] = -np.inf
    space = gymnasium.spaces.Box(low, high)
    record = json_ready(recorded_space(space))
    earlier = with_earlier_text(record)
    assert record != earlier
    assert space_from(record) == space_from(earlier) == space
    assert spelt_as_now(earlier) == record


def with_earlier_text(value):
    """The record as earlier versions have written it."""
    if isinstance(value, dict):
        return {name: with_earlier_text(part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_earlier_text(part) for part in value]
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(value, value)
