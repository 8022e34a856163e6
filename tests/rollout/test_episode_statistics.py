"""Summaries of episodes: against the notes' rule written out in the test, and what counts as a number in an info."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import EpisodeResult
from ding_lite.rollout import EpisodeHistory, summarize_episodes

ENDS = ("mean", "min", "max")


def episode(return_, length=1, **info):
    return EpisodeResult(env=0, number=0, return_=return_, length=length, info=info)


@given(st.lists(st.lists(st.floats(-100, 100), max_size=7), max_size=12), st.integers(1, 10))
def test_each_cycle_is_filled_up_with_the_newest_episodes_before_it(cycles, min_history):
    history, earlier = EpisodeHistory(min_history), []
    for returns in cycles:
        history.add(episode(it) for it in returns)
        looked, summary = history.summarize(end=False), history.summarize()
        # The notes' collect_metrics(), to the letter: extend by the newest of the history, as many as are missing.
        smoothed = list(returns)
        missing = min_history - len(smoothed)
        if missing > 0:
            smoothed = earlier[-missing:] + smoothed
        earlier = (earlier + list(returns))[-min_history:]

        assert looked == summary
        if not smoothed:
            assert summary == {}
            continue
        assert summary["episodes_this_iter"] == len(returns)
        assert summary["episode_return_mean"] == pytest.approx(statistics.fmean(smoothed))
        assert (summary["episode_return_min"], summary["episode_return_max"]) == (min(smoothed), max(smoothed))


def test_numbers_in_infos_arrive_by_name_and_nothing_else_does():
    told = episode(
        1.0,
        laps=3,
        won=True,
        speed=np.float32(2.5),
        fuel=np.array(0.5),
        camera=np.zeros((4, 4)),
        name="red",
        cost={"wall": 2.0, "inner": {"deep": 1}},
        episode={"r": 1.0, "l": 1, "t": 0.1},
        nothing=None,
    )
    custom = summarize_episodes([told])["custom_metrics"]

    names = {"laps": 3, "won": 1, "speed": 2.5, "fuel": 0.5, "cost/wall": 2.0, "cost/inner/deep": 1}
    assert custom == {f"{name}_{end}": value for name, value in names.items() for end in ENDS}


def test_episodes_without_a_number_are_left_out_of_its_mean():
    summary = summarize_episodes([episode(1.0, laps=1), episode(2.0), episode(3.0, laps=4), episode(4.0, laps=math.nan)])

    assert [summary["custom_metrics"][f"laps_{end}"] for end in ENDS] == [2.5, 1, 4]
    assert "custom_metrics" not in summarize_episodes([episode(1.0)])
    assert all(math.isnan(summarize_episodes([])[f"episode_return_{end}"]) for end in ENDS)


def test_large_things_in_infos_are_not_held(tmp_path):
    history = EpisodeHistory()
    history.add([episode(1.0, laps=2, frames=np.zeros(10**6))])
    history.summarize()
    history.add([episode(2.0, laps=4)])
    save_checkpoint(history.state_dict(), tmp_path / "history.pt")
    assert (tmp_path / "history.pt").stat().st_size < 10_000

    other = EpisodeHistory()
    other.load_state_dict(load_checkpoint(tmp_path / "history.pt"))
    assert other.summarize() == history.summarize()


@pytest.mark.parametrize("values", [[math.inf, -math.inf], [1e308, 1e308], [10**400, 1]])
def test_numbers_beyond_all_measure_stop_nothing(values):
    summary = summarize_episodes([episode(1.0, x=value) for value in values])

    found = summary["custom_metrics"]["x_mean"]
    assert found == 1e308 if values[0] == 1e308 else not math.isfinite(found) or values[0] == 10**400


def test_of_a_cycle_without_end_the_newest_episodes_are_kept():
    history = EpisodeHistory()
    history.add(episode(float(it)) for it in range(12_000))
    summary = history.summarize()

    assert summary["episodes_this_iter"] == 12_000
    assert (summary["episode_return_min"], summary["episode_return_max"]) == (2_000, 11_999)


def test_a_history_of_nothing_is_refused():
    with pytest.raises(ValueError, match="min_history=0"):
        EpisodeHistory(0)


def test_every_single_number_in_an_info_arrives():
    told = episode(1.0, huge=10**30, endless=-(10**400), row=np.ones(1), tensor=torch.full((1, 1), 4.0), flag=np.array([True]))
    custom = summarize_episodes([told])["custom_metrics"]

    names = {"huge": 1e30, "endless": -math.inf, "row": 1, "tensor": 4, "flag": 1}
    assert custom == {f"{name}_{end}": value for name, value in names.items() for end in ENDS}


def test_of_two_numbers_in_an_info_that_are_named_alike_one_is_told_to_be_lost():
    told = EpisodeResult(0, 0, 1.0, 1, info={"a/b": 1.0, "a": {"b": 5.0}})
    with pytest.warns(UserWarning, match=r"\('a', 'b'\) has the same joined name 'a/b'"):
        custom = summarize_episodes([told])["custom_metrics"]

    assert custom["a/b_mean"] == 1.0
