"""Every algorithm's example in asynchronous mode: the same run as on one thread with that lag."""

import pytest
from example_runs import ASYNC_NAMES as NAMES
from example_runs import CHANGING, OFFLINE, REPLAYING
from finished_runs import run
from slow_cases import mostly_slow
from states import same

pytestmark = pytest.mark.timeout(240)


@pytest.mark.few
@pytest.mark.parametrize("name", mostly_slow(NAMES, "bc", "dqn", "ppo", "sac"))
def test_an_asynchronous_run_equals_the_one_on_one_thread(name, tmp_path):
    oracle = run(name, tmp_path / "oracle", async_mode=False, max_lag=1)
    found = run(name, tmp_path / "async", async_mode=True, max_lag=1)

    assert oracle.counters[3] > 0  # it learned
    assert len(oracle.files) >= 2
    assert len(oracle.left) >= (2 if name in OFFLINE else 3)
    assert found.counters == oracle.counters
    assert same(found, oracle)


@pytest.mark.parametrize("name", mostly_slow(["dqn", "sac"], "dqn"))
def test_statistics_of_observations_and_a_schedule_are_those_on_one_thread(name, tmp_path):
    oracle = run(name, tmp_path / "oracle", async_mode=False, max_lag=1, **CHANGING)
    found = run(name, tmp_path / "async", async_mode=True, max_lag=1, **CHANGING)

    assert oracle.files[0]["model"]["normalizer.count"] > 0
    assert same(found, oracle)


@pytest.mark.slow
def test_recurrent_states_and_kept_rollouts_are_those_on_one_thread(tmp_path):
    oracle = run("impala", tmp_path / "oracle", async_mode=False, max_lag=2, **REPLAYING)
    found = run("impala", tmp_path / "async", async_mode=True, max_lag=2, **REPLAYING)

    assert len(oracle.files[-1]["attached"]["rollout_replay"]["rollouts"]) == 2
    assert same(found, oracle)


STOPPED = ["bc", "dqn", "gail", "her", "impala", "ppo", "r2d2", "rnd", "sac"]


@pytest.mark.few
@pytest.mark.parametrize("name", mostly_slow(STOPPED, "bc", "dqn", "ppo", "sac"))
def test_an_asynchronous_run_that_reaches_its_stop_value_leaves_all_as_on_one_thread(name, tmp_path):
    ends = {"env.stop_value": -1e6, "max_step": 20, "max_lag": 2}
    oracle = run(name, tmp_path / "oracle", async_mode=False, **ends)
    found = run(name, tmp_path / "async", async_mode=True, **ends)

    assert oracle.counters[0] < 19  # it ended early
    assert found.counters == oracle.counters
    assert same(found, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_lstm", "rainbow"])
def test_without_lag_asynchronous_equals_synchronous(name, tmp_path):
    plain = run(name, tmp_path / "plain")
    found = run(name, tmp_path / "async", async_mode=True, max_lag=0)

    for mode in ("collect", "evaluate"):  # saved only where no other iteration can be under way; `left` has them
        plain.files[-1].pop(mode)
    assert found.counters == plain.counters
    assert same(found, plain)
