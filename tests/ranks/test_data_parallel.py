"""Two processes that learn together: like one with all rows, together to the end, and exactly on resuming."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import rank_policies
import rank_programs
import torch
from rank_programs import ROWS, STEPS, learned, statistics_rows, steps
from states import same

from ding_lite.basics import RunFiles
from ding_lite.config import PPOConfig, data_parallel
from ding_lite.middleware import ddp_termination_checker
from ding_lite.nn import RunningNorm

pytestmark = pytest.mark.timeout(180)
EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "ppo_ddp.py"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of the programs, their results by name, of both ranks, and the exit codes."""
    folder = tmp_path_factory.mktemp("ranks")
    results, codes, outputs = rank_programs.start(folder)
    print(*outputs, sep="\n")
    return folder, results, codes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a2c", "ppo"])
def test_two_processes_with_parts_of_the_rows_equal_one_with_all_of_them(ran, kind):
    whole, stats = steps(kind)

    for weights, found in (result[kind] for result in ran[1]["gradient_steps"]):
        torch.testing.assert_close(weights, whole, rtol=1e-9, atol=1e-12)
        assert found == pytest.approx(stats, rel=1e-4)
    assert stats["grad_norm"] > 0.1  # the limit, so that clipping changes the gradient
    assert STEPS > 1
    assert ROWS[0] != ROWS[1]


@pytest.mark.slow
@pytest.mark.parametrize("case", rank_policies.CASES)
def test_every_policy_learns_in_two_processes_as_in_one(ran, case):
    whole, stats = rank_policies.learned(case)

    for weights, found in (result[case] for result in ran[1]["all_policies"]):
        for name, tensor in whole.items():
            torch.testing.assert_close(weights[name], tensor, rtol=1e-8, atol=1e-11, msg=lambda text, at=name: f"{at}: {text}")
        assert found == pytest.approx(stats, rel=1e-4, abs=1e-6)
    assert stats


@pytest.mark.slow
def test_a_step_that_is_not_finite_in_one_process_is_skipped_in_all(ran):
    for result in ran[1]["gradient_steps"]:
        assert result["skipped_fraction"] == 1.0
        assert result["unchanged"]


@pytest.mark.slow
def test_steps_that_exchange_gradients_are_not_compiled_and_say_so(ran):
    for found in ran[1]["gradient_steps"]:
        assert found["compile"] == [
            "PPOPolicy with learn.compile: several processes learn together, which exchange gradients within a step. Its "
            "gradient steps are not compiled."
        ]
        assert found["as without"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("learner", [0, 0, 0, 0, 0, 2, 4, 6]),  # rank 0 is ready in the first iteration, rank 1 in the sixth
        ("fetcher", [0, 0, 0, 0, 0, 1, 2, 3]),
        ("own fetcher", [0, 0, 0, 0, 0, 1, 2, 3]),
        ("episodes", None),
    ],
)
def test_processes_that_learn_from_their_own_replay_start_together_and_have_the_same_weights(ran, kind, expected):
    (first, steps_taken, one), (second, as_many, other) = (result[kind] for result in ran[1]["replayed"])

    assert steps_taken == as_many == (expected or as_many)
    assert steps_taken[0] == 0 < steps_taken[-1]
    assert same(first["model"], second["model"])
    assert same(first["optimizer"], second["optimizer"])
    assert not same(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bc", "dt"])
def test_two_processes_that_learn_from_a_dataset_equal_one_with_twice_the_batch_size(ran, kind):
    whole, epoch, rows = learned(kind, 10)

    assert epoch == 1
    parts = [result[kind] for result in ran[1]["offline"]]
    for weights, epoch_of_rank, _ in parts:
        torch.testing.assert_close(weights, whole, rtol=1e-9, atol=1e-12)
        assert epoch_of_rank == epoch
    assert [sum(pair) for pair in zip(*(part[2] for part in parts))] == rows
    assert sum(rows[:4]) == {"bc": 41, "dt": 36}[kind]  # windows leave the last episode out, which is unfinished


@pytest.mark.slow
def test_another_dataset_in_one_process_is_an_error_in_both(ran):
    assert ["got another dataset in rank 1 than in rank 0" in result["error"] for result in ran[1]["offline"]] == [True, True]


@pytest.mark.slow
def test_running_statistics_are_those_of_all_processes(ran):
    whole = RunningNorm((2,))
    for rows in (*statistics_rows(), torch.full((1, 2), 7.0)):
        whole.update(rows)

    for state in ran[1]["running_statistics"]:
        torch.testing.assert_close(dict(state), dict(whole.state_dict()), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "iterations", "reason"),
    [
        ("max_step", 6, "max_step=6 was reached"),
        ("limit", 3, "termination_checker found env_step 96, and max_env_step is 96"),
        ("finish", 3, "task.finish was set"),
        ("signal", 3, "SIGTERM was received"),
        ("rows", 6, "max_step=6 was reached"),
        ("stop_value", 1, "stop_value 1 was reached"),
    ],
)
def test_processes_end_together_with_the_same_counters_and_weights(ran, case, iterations, reason):
    first, second = (result[case] for result in ran[1]["whole_runs"])

    assert first["iterations"] == second["iterations"] == iterations
    assert reason in first["reason"]
    assert reason in second["reason"]
    assert first["env_step"] == second["env_step"] == iterations * (40 if case == "rows" else 32)
    assert first["train_iter"] == second["train_iter"] == iterations * 2
    assert first["evaluation"] == second["evaluation"]
    assert first["evaluation"][0] > 0
    for part in ("model", "optimizer"):  # the running statistics of observations are in the model
        assert same(first["policy"][part], second["policy"][part])
    for name in ("mean", "var", "count"):
        assert same(*(one["policy"]["attached"]["reward_normalizer"][name] for one in (first, second)))
    assert not same(first["policy"]["collect"], second["policy"]["collect"])
    assert not same(first["env"], second["env"])


@pytest.mark.slow
def test_the_process_with_the_signal_exits_with_its_status(ran):
    assert [result["signal"]["exit"] for result in ran[1]["whole_runs"]] == [None, 143]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["max_step", "signal"])
def test_all_processes_save_the_run_after_the_same_iteration_and_rank_0_the_policy(ran, case):
    folder, results, _ = ran
    run = folder / case

    states = [RunFiles(one).saved() for one in (run, run / "rank_1")]
    assert states[0] == states[1]
    assert states[0][0] == results["whole_runs"][0][case]["iterations"]
    assert (run / "ckpt" / "final.pt").is_file()
    assert not (run / "rank_1" / "ckpt").is_dir() or not any((run / "rank_1" / "ckpt").iterdir())
    assert (run / "metrics.jsonl").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cut", "lost"])
def test_a_resumed_run_equals_the_unbroken_one_in_each_process(ran, case):
    for result in ran[1]["resumed"]:
        resumed, whole = result[case], result["whole"]
        for part in ("iterations", "env_step", "train_iter", "evaluation", "env"):
            assert same(resumed[part], whole[part]), part
        for part in set(whole["policy"]) - {"metrics"}:
            assert same(resumed["policy"][part], whole["policy"][part]), part


@pytest.mark.slow
def test_a_run_continues_from_the_newest_state_that_all_processes_have(ran):
    assert len(ran[1]["resumed"][1]["saved"]) == 2  # of which the newer one was damaged in rank 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "error",
            ("rank 1 has ended by an error, so rank 0 ends too: ValueError: the simulator is gone", "the simulator is gone"),
        ),
        ("interrupt", ("rank 1 has ended by an error, so rank 0 ends too: KeyboardInterrupt", "KeyboardInterrupt: ")),
        ("exit", ("SystemExit: 3", "rank 0 has ended by an error, so rank 1 ends too: SystemExit: 3")),
        ("weights", 2 * ("the weights of rank 0 and rank 1 differ at 0 gradient steps",)),
        ("before a checkpoint", 2 * ("the weights of rank 0 and rank 1 differ at saving in PPOPolicy",)),
        ("before the end", 2 * ("the weights of rank 0 and rank 1 differ at the end of the run in PPOPolicy",)),
        ("NaN before the end", 2 * ("the weights of rank 0 are NaN at the end of the run in PPOPolicy: 1 of",)),
        ("steps", 2 * ("rank 0 is at the rows of a rollout, in iteration 0, after 2 gradient steps; rank 1 is at running",)),
        ("gradients", 2 * ("compute_gradients of PPOPolicy has not averaged the gradients over the processes",)),
        ("backward", 2 * ("gradients_fn of PPOPolicy computes the gradients itself, so they cannot be averaged",)),
        ("reward_model", 2 * ("reward_estimator got a Learning, which learns, and only policies learn together",)),
        ("checker", 2 * ("put task.use(ddp_termination_checker()) into the pipeline",)),
        ("lag", 2 * ("leave async_mode and max_lag of task.start() out",)),
        ("async", 2 * ("set async_mode to False and max_lag to None",)),
        (
            "limits",
            2 * ("rank 0 is at the end of the run, in iteration 2, after 4 gradient steps; rank 1 is at the environment",),
        ),
    ],
)
def test_mistakes_are_named_in_all_processes_within_seconds(ran, case, words):
    for result, expected in zip(ran[1]["mistakes"], words, strict=True):
        message, seconds = result[case]
        assert expected in message
        assert seconds < 10


@pytest.mark.slow
def test_weights_that_differ_are_never_saved(ran):
    saved = ran[1]["mistakes"][0]["saved"]

    assert saved["before a checkpoint"] == (["best.pt", "iteration_4.pt"], [2])
    assert saved["before the end"] == (["best.pt", "iteration_4.pt", "iteration_8.pt"], [2])
    assert saved["NaN before the end"] == saved["before the end"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("equal", ""),
        ("rounded", ""),
        ("counts", ""),
        ("nothing", ""),
        ("a mask", ""),
        ("another mask", "differ at the start: 1 of 2 tensors, first number 1, of the shape [3, 3]"),
        ("rows in another order", "differ at the start: 1 of 2 tensors, first number 1, of the shape [64, 64]"),
        ("two numbers in another order", "differ"),
        ("one number", "differ"),
        ("zeros", "differ"),
        ("NaN in one", "the weights of rank 1 are NaN at the start: 1 of 2 tensors, first number 1, of the shape [3]"),
        ("NaN in both", "the weights of rank 0 are NaN"),
    ],
)
def test_weights_are_compared_number_by_number(ran, case, words):
    first, second = (result[case] for result in ran[1]["compared"])

    assert first == second
    assert words in first
    assert bool(words) == bool(first)


@pytest.mark.slow
def test_a_killed_process_ends_the_other_one_within_seconds(ran):
    message, seconds = ran[1]["killed"][0]

    assert "another process has ended" in message
    assert seconds < 10


@pytest.mark.slow
def test_processes_end_and_leave_no_locks(ran):
    folder, _, codes = ran

    assert codes == [0, -signal.SIGKILL]
    assert [path for path in folder.rglob(".lock") if path.parent.name != "rank_1" or "killed" not in path.parts] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("by one", "rank 1 cannot resume: .*has the states of 1 process, its own and 0 in .* Start as many, without torchrun;"),
        ("absent", "rank 0 cannot resume: there is no run to resume in .*absent: there is no such folder"),
    ],
)
def test_a_run_that_not_all_processes_can_resume_is_the_same_error_in_all(ran, case, words):
    first, second = (result[case] for result in ran[1]["not_resumed"])

    assert first == second
    assert re.search(words, first)


def test_one_process_learns_alone_with_the_configuration_as_it_is():
    cfg = PPOConfig()

    with data_parallel(cfg) as own:
        assert own is cfg


def test_another_rank_than_that_of_the_process_is_refused():
    with pytest.raises(ValueError, match=r"rank=1\) is called in the process with rank 0"):
        ddp_termination_checker(rank=1)


def test_a_run_of_two_processes_does_not_continue_in_one():
    with pytest.raises(ValueError, match="was saved by 2 processes, and continues with 1: start it with torchrun"):
        ddp_termination_checker().load_state_dict({"ranks": 2})


@pytest.mark.slow
def test_torchrun_starts_the_example_and_ends_it_by_a_signal(tmp_path):
    small = {"env.collector-env-num": 2, "policy.collect.n-sample": 16, "policy.learn.batch-size": 8, "log.every-s": 0}
    options = [word for key, value in small.items() for word in (f"--{key}", str(value))]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*torchrun, "--exp-name", "run", *options], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as run:
        children = _wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").is_file(), run)
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=60)

    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    states = [RunFiles(tmp_path / one).saved() for one in ("run", "run/rank_1")]
    assert states[0][0] == states[1][0] > 0
    assert not (tmp_path / "run" / "error.txt").exists()
    assert not list(tmp_path.rglob(".lock"))


def _wait_for(condition, process):
    """Wait until this is true. Returns the child processes at that time."""
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    assert condition()
    return psutil.Process(process.pid).children(recursive=True)
