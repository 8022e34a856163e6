"""The folder of a run: one process at a time writes to it; it has error.txt, run.log and run.json."""

import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings

import psutil
import pytest
import torch
from forked_scripts import Script, run_script
from states import Armed

from ding_lite import Context, Task, contract
from ding_lite.basics import FolderInUseError
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, StepCollector, offline_logger, online_logger
from ding_lite.policy import PPOPolicy
from ding_lite.reports import find_runs

WITH_WORKERS = """
import sys
from ding_lite import task
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, StepCollector, online_logger
from ding_lite.policy import PPOPolicy

cfg = PPOConfig(exp_name=sys.argv[1])
cfg.override({"policy.collect.n_sample": 4, "seed": 7})
envs = make_envs("CartPole-v1", 2, workers=2, backend="process")
policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

def report(ctx):
    if ctx.total_step == 1:
        print("workers", *(host.pid for host in envs.hosts), flush=True)
        sys.stdin.read()

with task.start(ctx=OnlineRLContext()):
    task.use(StepCollector(cfg, policy.collect_mode, envs))
    task.use(CkptSaver(policy, cfg.exp_name))
    task.use(online_logger(cfg))
    task.use(report)
    task.run(max_step=3)
"""


def cfg_of(folder, level="INFO"):
    return DQNConfig(exp_name=str(folder)).override({"log.level": level})


def run(folder, steps=2, *others, cfg=None, resume=None, **mode):
    """A run of these middleware, a saver and a logger."""
    loop = Task()
    with loop.start(ctx=Context(), resume=resume, **mode):
        for one in others:
            loop.use(one)
        loop.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1))
        loop.use(online_logger(cfg or cfg_of(folder), show_every_s=1e9))
        loop.run(max_step=steps)


def failing_in(iteration, error=ValueError):
    @contract(stage="learn")
    def learn(ctx):
        if ctx.total_step == iteration:
            raise error("the cause")

    return learn


def record(folder):
    return json.loads((folder / "run.json").read_text())


def log(folder):
    """The lines of run.log, without their times."""
    return [re.sub(r"^[-\d]+ [:,\d]+ ", "", line) for line in (folder / "run.log").read_text().splitlines()]


MODES = {"plain": {}, "lag": {"max_lag": 1}, "threads": {"async_mode": True, "max_lag": 1}}

SIGNALLED = """
import os, signal, sys, warnings, torch
from ding_lite import Context, task
from ding_lite.config import DQNConfig
from ding_lite.middleware import CkptSaver, online_logger

def interrupted(ctx):
    if ctx.total_step == 1:
        {output}
        warnings.warn("the output is gone")
        signal.raise_signal(int(sys.argv[2]))

with task.start(ctx=Context(), {mode}):
    task.use(interrupted)
    task.use(CkptSaver(torch.nn.Linear(1, 1), sys.argv[1]))
    task.use(online_logger(DQNConfig(exp_name=sys.argv[1]), show_every_s=0.0))
    task.run(max_step=9)
"""

# What may have happened to the output of a run when it gets a signal: the disk is full, Ctrl-C has ended the `tee` that read
# it, the terminal is closed, or the program has closed it.
GONE = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "tee": "r, w = os.pipe(); os.dup2(w, 1); os.dup2(w, 2); os.close(w); os.close(r)",
    "terminal": "r, w = os.openpty(); os.dup2(w, 1); os.dup2(w, 2); os.close(w); os.close(r)",
    "closed": "sys.stdout.close(); sys.stderr.close()",
    "none": "sys.stdout = sys.stderr = None",
}


@pytest.mark.slow
def test_a_run_with_workers_keeps_its_folder_until_it_is_killed(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", WITH_WORKERS, str(folder)]
    first, workers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), []
    try:
        line = next(line for line in first.stdout if line.startswith("workers"))
        workers += [psutil.Process(int(pid)) for pid in line.split()[1:]]
        for worker in workers:
            worker.suspend()  # it cannot end with its parent
        config, begun = (folder / "config.json").read_bytes(), time.monotonic()
        for make in (lambda: online_logger(DQNConfig(exp_name=folder)), lambda: CkptSaver(torch.nn.Linear(1, 1), folder)):
            with pytest.raises(FolderInUseError, match=rf"folder {folder}: process {first.pid} on .*\(exp_name\), or end"):
                make()
        assert time.monotonic() - begun < 1
        assert (folder / "config.json").read_bytes() == config
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert all(worker.is_running() for worker in workers)
        run(folder)
        assert (folder / "config.json").read_bytes() != config
    finally:
        for process in (first, *workers):
            process.kill()
        first.communicate()


def test_a_process_may_run_in_a_folder_again_and_leaves_it_free(tmp_path):
    logger = online_logger(DQNConfig(exp_name=str(tmp_path)), show_every_s=1e9)
    for _ in range(2):
        run(tmp_path)

    assert (tmp_path / ".lock").exists()  # of `logger`
    logger.release()
    assert not (tmp_path / ".lock").exists()


def test_objects_that_are_used_in_a_second_run_lock_the_folder_again(tmp_path):
    loop, found = Task(), []
    saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path)
    logger = online_logger(DQNConfig(exp_name=str(tmp_path)), show_every_s=1e9)
    for one in (saver, logger):
        with loop.start(ctx=Context()):
            loop.use(one).use(lambda ctx: found.append((tmp_path / ".lock").exists()))
            loop.run(max_step=1)
        found.append((tmp_path / ".lock").exists())
        saver.release()
        logger.release()

    assert found == [True, True, True, False]


def test_a_saver_in_a_new_folder_locks_it_in_the_first_iteration(tmp_path):
    loop, found = Task(), []
    saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path / "run", save_finish=False)
    assert not (tmp_path / "run").exists()
    with loop.start(ctx=Context()):
        loop.use(saver).use(lambda ctx: found.append((tmp_path / "run/.lock").exists()))
        loop.run(max_step=1)

    assert found == [True]
    assert not (tmp_path / "run/.lock").exists()


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_run_stays_in_its_folder_if_the_working_directory_changes(tmp_path, monkeypatch, capsys, mode):
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    first = os.getcwd()

    def move(ctx):
        os.chdir(tmp_path / "b")

    run("runs/x", 2, move, failing_in(5), **mode)
    os.chdir(first)
    run("runs/x", 4, move, failing_in(5), resume="runs/x", **mode)
    os.chdir(first)
    with pytest.raises(ValueError, match="the cause"):
        run("runs/x", 9, move, failing_in(5), resume="runs/x", **mode)

    assert list((tmp_path / "b").iterdir()) == []
    assert [one["iterations"] for one in record(tmp_path / "a/runs/x")["sessions"]][:2] == [2, 2]
    assert {"error.txt", "metrics.jsonl", "ckpt", "run"} <= {path.name for path in (tmp_path / "a/runs/x").iterdir()}
    assert "Curve: runs/x/metrics.jsonl, checkpoints: runs/x/ckpt" in capsys.readouterr().out


def test_a_leading_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run("~/x", 2)
    run("~/x", 3, resume="~/x")

    assert record(tmp_path / "home/x")["sessions"][1]["iterations"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


class TestErrors:
    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    @pytest.mark.parametrize("iteration", [0, 2])
    def test_an_error_is_written_to_the_folder(self, tmp_path, iteration, mode):
        with pytest.raises(ValueError, match="the cause"):
            run(tmp_path, 5, failing_in(iteration), **mode)
        text = (tmp_path / "error.txt").read_text()

        assert text.startswith("ValueError: the cause\n")
        assert re.search(rf"in middleware failing_in \(.*test_run_folders\.py:\d+\), iteration {iteration} of the task", text)
        assert f"{record(tmp_path)['id']}, after {iteration} iterations" in text
        assert f"{os.getpid()} on " in text
        assert f"torch {torch.__version__}" in text
        assert ("total_step" in text) == (iteration > 0)  # a row of metrics
        assert log(tmp_path)[-1] == "ERROR the run ended by ValueError: the cause"

    def test_the_next_run_in_the_folder_keeps_it_under_another_name(self, tmp_path):
        with pytest.raises(ValueError, match="the cause"):
            run(tmp_path, 5, failing_in(2))
        run_id, error = record(tmp_path)["id"], (tmp_path / "error.txt").read_bytes()
        run(tmp_path, 5, failing_in(9), resume=tmp_path)

        assert not (tmp_path / "error.txt").exists()
        assert (tmp_path / "error.1.txt").read_bytes() == error
        assert record(tmp_path)["id"] == run_id
        run(tmp_path)
        assert record(tmp_path)["id"] != run_id
        assert not (tmp_path / "error.txt").exists()

    @pytest.mark.parametrize("writers", ["saver", "logger", "both"])
    def test_the_next_run_of_the_same_task_does_so_too(self, tmp_path, writers):
        saver = [CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1)] if writers != "logger" else []
        logger = [online_logger(cfg_of(tmp_path), show_every_s=1e9)] if writers != "saver" else []
        with Task().start(ctx=OnlineRLContext()) as loop:
            for middleware in (failing_in(2), *logger, *saver):
                loop.use(middleware)
            with pytest.raises(ValueError, match="the cause"):
                loop.run(5)
            error = (tmp_path / "error.txt").read_bytes()
            loop.run(5)
        assert not (tmp_path / "error.txt").exists()
        assert (tmp_path / "error.1.txt").read_bytes() == error
        assert len(record(tmp_path)["sessions"]) == 1

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_a_signal_or_sys_exit_leaves_no_error_txt(self, tmp_path, error):
        with pytest.raises(error):
            run(tmp_path, 5, failing_in(1, error))

        assert not (tmp_path / "error.txt").exists()
        assert log(tmp_path)[-1] == "INFO the task is stopped"

    @pytest.mark.few
    @pytest.mark.parametrize("output", GONE.values(), ids=GONE)
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    @pytest.mark.parametrize("mode", ["", "max_lag=1"])
    def test_a_signal_where_the_output_is_gone_is_still_no_error(self, tmp_path, output, number, status, mode, monkeypatch):
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        done = run_script(SIGNALLED.format(output=output, mode=mode), tmp_path, int(number))

        assert done.returncode == status, done.stderr
        assert not (tmp_path / "error.txt").exists()
        assert (tmp_path / "ckpt" / "final.pt").exists()
        assert f"{number.name} was received" in "".join(log(tmp_path))

    @pytest.mark.parametrize("filter_", ["default", "error"])
    def test_a_report_that_cannot_be_written_does_not_hide_the_error(self, tmp_path, filter_):
        def fail(ctx):
            (tmp_path / "error.txt").mkdir()
            raise ValueError("the cause")

        with warnings.catch_warnings(record=filter_ == "default") as caught:
            warnings.simplefilter(filter_)
            with pytest.raises(ValueError, match="the cause") as ended:
                run(tmp_path, 5, fail)

        words = r"the error that ends the run is not written to .*error\.txt is a folder"
        said = ended.value.__notes__ if caught is None else [str(one.message) for one in caught]
        assert any(re.search(words, text) for text in said)

    def test_a_saver_without_a_logger_writes_the_error_too(self, tmp_path):
        loop = Task()
        with loop.start(ctx=Context()):
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path)).use(failing_in(1))
            with pytest.raises(ValueError, match="the cause"):
                loop.run(max_step=3)

        assert "iteration 1 of the task" in (tmp_path / "error.txt").read_text()

    def test_a_run_that_is_refused_its_folder_leaves_nothing_in_it(self, tmp_path):
        saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path / "run")
        (tmp_path / "run").mkdir()
        program = "import sys, ding_lite.basics as b; lock = b.RunLock(sys.argv[1]); lock.take(); print(flush=True); input()"
        other = Script(program, tmp_path / "run", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        other.stdout.readline()
        loop = Task()
        try:
            with loop.start(ctx=Context()):
                loop.use(saver)
                with pytest.raises(FolderInUseError, match=f"process {other.pid} on"):
                    loop.run(max_step=3)
            assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
        finally:
            other.communicate("\n")


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_code_in_any_file_of_a_run_does_not_run(tmp_path, form, monkeypatch):
    """The run is resumed, reported and loaded with each of its files replaced by a pickle that would leave a marker."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here, and a busy disk would take long
    folder, marker = tmp_path / "run", tmp_path / "marker"
    run(folder)
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    expected = {"config.json", "metrics.jsonl", "metrics.csv", "run.json", "run.log", "final.pt", "manifest.json", "state_2.pt"}
    assert expected <= {path.name for path in content}
    refused = []
    for path in content:
        armed = {"model": Armed(marker)}
        torch.save(armed, path) if form == "torch" else path.write_bytes(pickle.dumps(armed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for read in (load_checkpoint, lambda _: find_runs([folder]), lambda _: run(folder, 3, resume=folder)):
                try:
                    read(path)
                except ValueError as error:
                    refused.append(str(error))
        assert not marker.exists()
        shutil.rmtree(folder)
        for other, kept in content.items():
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(kept)

    assert len(refused) >= len(content)
    assert all(str(folder) in message for message in refused)
    print(f"{len(content)} files, of which none executes code: {', '.join(sorted(path.name for path in content))}")


class TestRecords:
    def test_a_resumed_run_keeps_its_id_and_lists_its_sessions(self, tmp_path):
        run(tmp_path, 3)
        first = record(tmp_path)
        run(tmp_path, 5, resume=tmp_path)
        second = record(tmp_path)

        assert re.fullmatch("[0-9a-f]{12}", first["id"])
        assert second["id"] == first["id"]
        assert second["sessions"][0] == first["sessions"][0]
        assert [(one["from_iteration"], one["iterations"]) for one in second["sessions"]] == [(0, 3), (3, 2)]
        assert {one["pid"] for one in second["sessions"]} == {os.getpid()}

    def test_the_iterations_of_a_killed_process_are_those_of_its_last_save(self, tmp_path):
        program = f"""
import os, signal, sys, torch
from ding_lite import Context, task
from ding_lite.middleware import CkptSaver

def die(ctx):
    if ctx.total_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)

with task.start(ctx=Context()):
    task.use(CkptSaver(torch.nn.Linear(1, 1), {str(tmp_path)!r}, train_freq=1)).use(die)
    task.run(max_step=5)
"""
        first = run_script(program)
        saved = json.loads((tmp_path / "run/manifest.json").read_text())["states"][0]["done"]

        assert first.returncode == -signal.SIGKILL
        assert record(tmp_path)["sessions"][0]["iterations"] == saved >= 1

    def test_a_run_in_slices_is_one_session(self, tmp_path):
        loop = Task()
        with loop.start(ctx=Context()):
            loop.use(online_logger(cfg_of(tmp_path), show_every_s=1e9))
            loop.run(max_step=3, final=False)
            loop.run(max_step=2)

        assert [one["iterations"] for one in record(tmp_path)["sessions"]] == [5]
        assert len([line for line in log(tmp_path) if " begins " in line]) == 1


class TestLogs:
    def test_the_log_has_the_events_of_a_run(self, tmp_path):
        def evaluate(ctx):
            ctx.eval_value = 1.5

        def beware(ctx):
            warnings.warn("beware", stacklevel=1)

        loop = Task()
        with warnings.catch_warnings(), loop.start(ctx=OnlineRLContext()):
            warnings.simplefilter("always")
            loop.use(evaluate).use(beware)
            saver = CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1)
            loop.use(saver).use(online_logger(cfg_of(tmp_path), show_every_s=1e9))
            loop.run(max_step=1)

        begin, *events, end = log(tmp_path)
        assert re.match(rf"INFO run {record(tmp_path)['id']} begins after 0 iterations, in {tmp_path}: .*py", begin)
        assert "INFO evaluation: 1.5" in events
        assert any(re.match(r"WARNING UserWarning: beware \(.*test_run_folders\.py:\d+\)", line) for line in events)
        assert f"INFO the run is saved after 1 iterations: {tmp_path}/run/state_1.pt" in events
        assert re.match(r"INFO ended after 0 environment steps in .*, because max_step=1 was reached\.", end)

    def test_a_resumed_run_continues_its_log_and_a_new_one_renames_it(self, tmp_path):
        for resume in (None, tmp_path, None):
            run(tmp_path, 2 if resume is None else 4, resume=resume)
        first, second = [
            [line for line in lines if re.match("INFO run|INFO ended", line)]
            for lines in (
                [re.sub(r"^[-\d]+ [:,\d]+ ", "", line) for line in (tmp_path / "run.1.log").read_text().splitlines()],
                log(tmp_path),
            )
        ]

        assert [line.split()[3] for line in first if "INFO run" in line] == ["begins", "goes"]
        assert "on after 2 iterations" in first[2]
        assert len(first) == 4
        assert len(second) == 2

    def test_no_line_is_written_per_iteration(self, tmp_path):
        run(tmp_path / "short", 3)
        run(tmp_path / "long", 300)

        assert len(log(tmp_path / "short")) == len(log(tmp_path / "long"))

    @pytest.mark.parametrize(("level", "count"), [("DEBUG", 4), ("INFO", 0)])
    def test_each_checkpoint_is_a_line_for_debugging(self, tmp_path, level, count):
        run(tmp_path, 3, cfg=cfg_of(tmp_path, level))

        assert len([line for line in log(tmp_path) if line.endswith("ckpt/final.pt is saved") or "iteration_" in line]) == count

    def test_a_level_without_lines_leaves_an_empty_file(self, tmp_path):
        run(tmp_path, 3, cfg=cfg_of(tmp_path, "WARNING"))

        assert log(tmp_path) == []

    def test_a_run_inside_another_writes_its_own_log(self, tmp_path):
        def inner(ctx):
            run(tmp_path / "inner", 1)

        run(tmp_path / "outer", 2, inner)

        assert not any("outer" in line for line in log(tmp_path / "inner"))
        assert not any("inner" in line for line in log(tmp_path / "outer"))

    def test_logging_is_as_before_after_a_run(self, tmp_path):
        logger = logging.getLogger("ding_lite")
        before = logger.level, list(logger.handlers), warnings.showwarning
        run(tmp_path)
        with pytest.raises(ValueError, match="the cause"):
            run(tmp_path, 2, failing_in(1))

        assert (logger.level, logger.handlers, warnings.showwarning) == before

    def test_the_restart_of_a_worker_is_a_line(self, tmp_path):
        envs = make_envs("CartPole-v1", 2, workers=2, backend="process", restart=True)
        policy = PPOPolicy(PPOConfig().policy, envs.single_observation_space, envs.single_action_space)
        cfg = PPOConfig(exp_name=str(tmp_path)).override({"policy.collect.n_sample": 4})

        def kill(ctx):
            if ctx.total_step == 0:
                os.kill(envs.hosts[0].pid, signal.SIGKILL)

        loop = Task()
        with loop.start(ctx=OnlineRLContext()):
            loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(kill).use(online_logger(cfg, show_every_s=1e9))
            loop.run(max_step=2)

        (line,) = [line for line in log(tmp_path) if "started again" in line]
        assert re.match(r"INFO worker '.*' is started again, because it failed: WorkerDied: ", line)


class Last:
    """A sink."""

    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(row)

    def close(self):
        pass


@pytest.mark.parametrize("inside", ["task.use", "task.serial", "itself"])
@pytest.mark.parametrize("make", [online_logger, offline_logger])
def test_two_loggers_of_one_pipeline_that_write_to_one_folder_are_refused_before_the_run(make, inside, tmp_path):
    first, ran, task = online_logger(cfg_of(tmp_path), sinks=[Last()]), [], Task()
    (tmp_path / "link").symlink_to(tmp_path)
    second = first if inside == "itself" else make(cfg_of(tmp_path / "link"))
    with task.start(ctx=Context()):
        task.use(ran.append).use(first).use(task.serial(second, lambda ctx: None) if inside == "task.serial" else second)
        with pytest.raises(
            ValueError, match=r"online_logger and .*_logger of one pipeline .* every row to .*metrics.jsonl: keep"
        ):
            task.run(max_step=2)
    assert not ran
    assert not (tmp_path / "metrics.jsonl").exists()


def test_loggers_with_folders_of_their_own_or_none_are_no_trouble(tmp_path):
    sinks, task = [Last(), Last(), Last()], Task()
    with task.start(ctx=Context()):
        for name, sink in zip("ab", sinks, strict=False):
            task.use(online_logger(cfg_of(tmp_path / name), sinks=[sink]))
        task.use(online_logger(sinks=(it for it in sinks[2:]))).use(online_logger()).run(max_step=2)
    assert [len(sink.rows) for sink in sinks] == [1, 1, 1]
    assert [len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) for name in "ab"] == [1, 1]


def test_a_contract_that_names_the_logger_is_no_second_logger(tmp_path):
    sink, task = Last(), Task()
    with task.start(ctx=Context()):
        logger = online_logger(cfg_of(tmp_path / "run"), sinks=[sink])

        @contract(uses=(logger,), stage="record")
        def mine(ctx):
            pass

        task.use(mine).use(logger).run(max_step=2)
    assert len(sink.rows) == 1


@pytest.mark.parametrize("make", [online_logger, offline_logger])
def test_what_is_not_several_sinks_is_refused_by_the_name_of_the_argument(make, tmp_path):
    for one in (Last(), 5):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(sinks=.* wants several sinks, got one .*: write sinks=\[it\]"):
            make(cfg_of(tmp_path / "run"), sinks=one)
    for one in (print, Last, "metrics.csv"):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(sinks=\[...\]\) got .* no sink: .* write\(row\) and close"):
            make(cfg_of(tmp_path / "run"), sinks=[one])
    with pytest.raises(TypeError, match=r"counters='level'\) wants several names, got one string: write \('level',\)"):
        make(cfg_of(tmp_path / "run"), counters="level")
    assert not (tmp_path / "run").exists()
