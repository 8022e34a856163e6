"""Runs whose folder is copied to a storage: killed, ended by a signal or an error, and continued from the copy alone."""

import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
import warnings

import pytest

pytest.importorskip("pyarrow", reason="the extra storage")
pytest.importorskip("fsspec", reason="the extra storage")

import torch
from fake_stores import FakeStore

from ding_lite import Task, contract
from ding_lite.basics import CheckpointError, RunFiles, Storage, StorageError, UnsavedError, run_copies
from ding_lite.commands import main
from ding_lite.config import DQNConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, StepCollector, online_logger, run_savers
from ding_lite.policy import DQNPolicy, load_policy
from ding_lite.rollout import evaluate_run

ITERATIONS = 60


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Runs in a folder of the test, that save as often as they can, and try again without waits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_savers, "_SHARE", float("inf"))
    monkeypatch.setattr(run_copies, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def train(cfg, begun=lambda ctx: None, iterations=ITERATIONS, saver=True, **start):
    torch.manual_seed(0)
    model, loop = torch.nn.Linear(5, 5), Task()
    optimizer = torch.optim.Adam(model.parameters())

    @contract(reads=("env_step",), writes=("env_step",), stage="collect")
    def collect(ctx):
        begun(ctx)
        ctx.env_step += 1

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(model, optimizer), stage="learn")
    def learn(ctx):
        optimizer.zero_grad()
        model(torch.randn(3, 5)).sum().backward()
        optimizer.step()
        ctx.train_iter += 1

    with loop.start(ctx=OnlineRLContext(), resume=cfg.resume, **start):
        loop.use(collect).use(learn)
        if saver:
            loop.use(CkptSaver({"model": model, "optimizer": optimizer}, cfg.exp_name, train_freq=1))
        loop.use(online_logger(cfg, show_every_s=1e9, train_show_freq=1))
        loop.run(max_step=iterations)
    return loop


def outcome(folder):
    final = load_checkpoint(f"{folder}/ckpt/final.pt")
    return final["model"]["weight"].tolist(), [row["env_step"] for row in rows(folder)]


def rows(folder):
    with open(f"{folder}/metrics.jsonl") as file:
        return [json.loads(line) for line in file.read().splitlines()]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_process(work):
    """The process that does this work, and ends with the status of a script."""

    def run():
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        try:
            work()
        except SystemExit as ended:
            os._exit(ended.code)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


@pytest.mark.slow
def test_a_run_that_is_killed_and_loses_its_folder_continues_from_the_copy_bit_for_bit(tmp_path):
    train(DQNConfig(exp_name="unbroken"))
    uri, draw, done, resumed = f"file://{tmp_path}/store", random.Random(3), [0], 0
    manifest = tmp_path / "store/run/run/manifest.json"
    for _ in range(6):
        resume = f"{uri}/run" if manifest.exists() else None
        resumed += resume is not None
        cfg = DQNConfig(exp_name="run", storage_path=uri, resume=resume)
        source, pipe = os.pipe()

        def begun(ctx, pipe=pipe):
            os.write(pipe, b"x")
            time.sleep(0.002)

        process = in_process(lambda cfg=cfg, begun=begun: train(cfg, begun))
        os.close(pipe)
        for _ in range(draw.randint(2, 9)):
            os.read(source, 1)
        time.sleep(0.005 * draw.random())
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        os.close(source)
        shutil.rmtree("run")
        if manifest.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                done.append(RunFiles(tmp_path / "store/run").load()[0]["done"])
    assert resumed
    assert done == sorted(done)
    assert done[-1] < ITERATIONS
    train(DQNConfig(exp_name="run", storage_path=uri, resume=f"{uri}/run"))
    assert outcome("run") == outcome("unbroken") == outcome(tmp_path / "store/run")
    assert not [*(tmp_path / "store").rglob("*.uploading")]


def test_a_run_that_sigterm_ends_has_a_complete_copy(tmp_path):
    ready = tmp_path / "ready"
    cfg = DQNConfig(exp_name="run", storage_path="store")
    process = in_process(lambda: train(cfg, lambda ctx: time.sleep(0.005) if ctx.total_step != 5 else ready.touch()))
    while not ready.exists():
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 143
    assert contents(tmp_path / "store/run") == contents(tmp_path / "run")


def test_the_storage_of_a_task_needs_no_configuration(tmp_path):
    store = FakeStore(has_objects=True)
    train(DQNConfig(exp_name="run"), iterations=20, storage_path="bucket", storage_filesystem=store.filesystem)
    expected = outcome("run")
    shutil.rmtree("run")
    resumed = DQNConfig(exp_name="run", resume="run")
    train(resumed, iterations=20, storage_path="bucket", storage_filesystem=store.filesystem)
    assert outcome("run") == expected


def test_an_error_of_the_run_is_copied(tmp_path):
    def fail(ctx):
        if ctx.total_step == 3:
            raise RuntimeError("the simulator has crashed")

    with pytest.raises(RuntimeError, match="the simulator has crashed"):
        train(DQNConfig(exp_name="run", storage_path="store"), fail, iterations=10)
    assert "the simulator has crashed" in (tmp_path / "store/run/error.txt").read_text()
    train(DQNConfig(exp_name="run", storage_path="store", resume="run"), iterations=10)
    assert "the simulator has crashed" in (tmp_path / "store/run/error.1.txt").read_text()
    assert not (tmp_path / "store/run/error.txt").exists()


def test_a_storage_that_fails_is_in_the_metrics_and_the_run_ends_with_an_error_that_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("ding_lite.middleware.run_copies.LAST_UPLOAD_S", 0.05)
    store = FakeStore(fails=lambda number, name, path: "/run/run/" in path)
    cfg = DQNConfig(exp_name="run")
    with (
        pytest.warns(
            UserWarning, match="the run is not copied after 5 attempts: cannot write bucket/run/run/state_.* The run goes"
        ),
        pytest.raises(
            UnsavedError, match="the run has ended, but the copy in bucket/run lacks the latest .*the network is down"
        ),
    ):
        train(cfg, iterations=20, storage_path="bucket", storage_filesystem=store.filesystem)
    assert outcome("run")
    last = rows("run")[-1]
    assert last["storage/failed_uploads"] >= 5
    assert last["storage/saves_behind"] > 1
    store.fails = lambda number, name, path: False
    cfg.resume = "run"  # as the error says
    train(cfg, iterations=20, storage_path="bucket", storage_filesystem=store.filesystem)
    shutil.rmtree("run")
    train(cfg, iterations=20, storage_path="bucket", storage_filesystem=store.filesystem)
    assert outcome("run")


class TestMistakes:
    def test_a_storage_without_a_saver_is_an_error(self):
        with pytest.raises(ValueError, match=r"cfg.storage_path is .*store', and no CkptSaver in the pipeline saves the run"):
            train(DQNConfig(exp_name="run", storage_path="store"), saver=False)

    def test_a_storage_that_cannot_be_written_to_is_an_error_before_the_run(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="cannot write .*file/run/.trial"):
            train(DQNConfig(exp_name="run", storage_path="file"), lambda ctx: pytest.fail("it has begun"))

    def test_a_new_run_does_not_replace_the_copy_of_another(self, tmp_path):
        train(DQNConfig(exp_name="run", storage_path="store"), iterations=2)
        with pytest.raises(StorageError, match="there is another run in .*store/run, with the id"):
            train(DQNConfig(exp_name="run", storage_path="store"), lambda ctx: pytest.fail("it has begun"))
        assert not (tmp_path / "run/error.txt").exists()


class TestCommandLine:
    @pytest.fixture
    def stored(self, tmp_path):
        """The URI of a copy, whose folder is gone."""
        train(DQNConfig(exp_name="runs/run", storage_path="store", seed=7), iterations=3)
        shutil.rmtree("runs")
        return f"file://{tmp_path}/store/runs/run"

    def test_resume_takes_the_uri_of_a_copy(self, stored):
        cfg = from_command_line(DQNConfig, ["--resume", stored, "--max-step", "5"])
        storage_path = stored.removesuffix("/runs/run")
        assert (cfg.resume, cfg.exp_name, cfg.storage_path, cfg.seed) == ("runs/run", "runs/run", storage_path, 7)
        assert train(cfg, iterations=5).end_reason.kind == "max_step"
        assert rows("runs/run")[-1]["env_step"] == 5

    def test_resume_takes_a_folder_that_is_only_in_the_storage(self, stored):
        cfg = from_command_line(DQNConfig, ["--resume=runs/run", "--storage-path=store"])
        assert (cfg.resume, cfg.exp_name, cfg.storage_path, cfg.seed) == ("runs/run", "runs/run", "store", 7)
        assert RunFiles("runs/run").load()[0]["done"] == 3

    def test_a_copy_is_downloaded_to_another_folder(self, stored):
        cfg = from_command_line(DQNConfig, ["--resume", stored, "--exp-name", "other"])
        assert (cfg.resume, cfg.exp_name) == ("other", "other")
        assert RunFiles("other").load()[0]["done"] == 3

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--resume", "file:///nowhere/run"], "--resume file:///nowhere/run: there is no saved run in file:///nowhere/run"),
            (["--resume", "s33://bucket/run"], "--resume s33://bucket/run: storage_path='s33://bucket/run': neither pyarrow"),
            (["--storage-path", "s33://bucket"], "--storage-path s33://bucket: storage_path='s33://bucket': neither pyarrow"),
            (["--storage-path", "file:x"], "--storage-path file:x: storage_path='file:x': after the scheme 'file', a URI has"),
            (["--storage-path", ""], "--storage-path : storage_path='' is empty"),
            (["--storage-path", "/proc/x"], "--storage-path /proc/x: cannot write /proc/x/runs/dqn/.trial: "),
        ],
    )
    def test_mistakes_are_named(self, arguments, words, capsys):
        with pytest.raises(SystemExit, match="2"):
            from_command_line(DQNConfig, arguments)
        assert words in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--storage-path", "--resume", "--storage_path"])
    @pytest.mark.parametrize("uri", ["s3://KEY:ab/SECRET@bucket/run", "abfs://c@account/run?sig=SECRET"])
    def test_secrets_are_refused_before_they_are_written(self, tmp_path, option, uri, capsys):
        for arguments in ([option, uri], [f"{option}={uri}", "--exp-name", "run", "--unknown", "3"]):
            with pytest.raises(SystemExit, match="2"):
                from_command_line(DQNConfig, arguments)
            printed = capsys.readouterr().err
            assert "which would be written to config.json. Leave it out" in printed
            assert "SECRET" not in printed
        assert not [*tmp_path.iterdir()]

    def test_a_name_is_quoted_in_the_uri(self, tmp_path):
        train(DQNConfig(exp_name="runs/my run", storage_path=f"file://{tmp_path}/store"), iterations=3)
        shutil.rmtree("runs")
        cfg = from_command_line(DQNConfig, ["--resume", f"file://{tmp_path}/store/runs/my%20run"])
        assert (cfg.resume, cfg.exp_name, cfg.storage_path) == ("runs/my run", "runs/my run", f"file://{tmp_path}/store")


@pytest.mark.parametrize("field", ["storage_path", "resume"])
def test_secrets_in_a_configuration_are_refused_before_they_are_written(tmp_path, field):
    with pytest.raises(StorageError, match="user and a password"):
        online_logger(DQNConfig(exp_name="run", **{field: "s3://KEY:SECRET@bucket/run"}))
    assert not [*tmp_path.iterdir()]


def test_a_logger_that_is_made_before_the_download_does_not_hold_it_up(tmp_path):
    train(DQNConfig(exp_name="run", storage_path="store"), iterations=2)
    shutil.rmtree("run")
    cfg = DQNConfig(exp_name="run")
    logger = online_logger(cfg)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    with Task().start(ctx=OnlineRLContext(), resume=f"file://{tmp_path}/store/run"):
        assert RunFiles("run").saved()
    logger.release()


def test_what_cannot_be_copied_is_a_warning_of_the_run(tmp_path):
    os.mkdir("run")
    os.mkfifo("run/pipe")
    with pytest.warns(UserWarning, match=r"not copied from .*run to .*store/run: pipe \(it is no regular file\)"):
        train(DQNConfig(exp_name="run", storage_path="store"), iterations=2)
    assert outcome(tmp_path / "store/run") == outcome("run")


def test_a_run_whose_copy_another_program_takes_ends_with_an_error(tmp_path):
    def begun(ctx):
        if ctx.total_step == 1:  # at once, because the copier may read it
            (tmp_path / "another.json").write_text('{"id": "another"}')
            (tmp_path / "another.json").replace(tmp_path / "store/run/run.json")

    words = "another program has begun to copy the run another to .*: this run is not copied any more"
    with pytest.warns(UserWarning, match=words), pytest.raises(UnsavedError, match=f"the run has ended, but {words}"):
        train(DQNConfig(exp_name="run", storage_path="store"), begun)
    assert outcome("run")


def test_files_that_are_not_of_the_run_are_not_copied(tmp_path):
    train(DQNConfig(exp_name="run"), iterations=2)
    train(DQNConfig(exp_name="run/rank_1"), iterations=2)
    train(DQNConfig(exp_name="run", storage_path="store"), iterations=2)  # moves the first run aside
    names = {path.relative_to(tmp_path / "store/run").parts[0] for path in (tmp_path / "store/run").rglob("*")}
    assert (tmp_path / "run/run.1").is_dir()
    assert {"run", "ckpt", "run.json"} <= names
    assert not names & {"rank_1", "run.1", "ckpt.1", ".lock"}


def test_storages_are_listed_by_their_paths_in_the_folder():
    store = FakeStore()
    storage = Storage(store.filesystem, "/bucket/", "memory://bucket").at("runs")
    storage.put("a/b.txt", b"content")
    assert storage.names() == {"a/b.txt": 7}
    assert storage.read("a/b.txt") == b"content"


def test_the_policy_of_a_copy_is_loaded_and_evaluated(tmp_path, capsys):
    cfg = DQNConfig(exp_name="run", storage_path="store")
    env = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    with Task().start(ctx=OnlineRLContext()) as loop:
        loop.use(StepCollector(cfg, policy.collect_mode, env, collect_kwargs={"eps": 0.5}))
        loop.use(CkptSaver(policy, cfg.exp_name, train_freq=1))
        loop.use(online_logger(cfg, show_every_s=1e9))
        loop.run(max_step=2)
    expected = evaluate_run("run", 3, "latest")
    shutil.rmtree("run")
    uri = f"file://{tmp_path}/store/run"
    assert all(map(torch.equal, load_policy(uri, "final").weights, policy.weights))
    assert evaluate_run(uri, 3, "latest") == dataclasses.replace(expected, run=uri)
    assert main(["eval", uri, "--episodes", "3", "--which", "final"]) == 0
    assert f"{uri}: DQNPolicy on CartPole-v1, final" in capsys.readouterr().out
    assert main(["play", f"file://{tmp_path}/nowhere", "--video", "out.mp4"]) == 2
    assert "there are no checkpoints of a run in file://" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="there are no checkpoints of a run in"):
        load_policy(f"file://{tmp_path}/nowhere")
