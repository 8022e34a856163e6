"""What a run does to the folder of an earlier one when it begins there, or is refused."""

import dataclasses
import json
import re
import warnings

import gymnasium
import pytest
import torch

from ding_lite import Context, PipelineError, Task, contract
from ding_lite.basics import CheckpointError, FolderInUseError, RunFiles, StorageError
from ding_lite.config import DQNConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs, reproduce_env_error
from ding_lite.middleware import CkptSaver, StepCollector, online_logger
from ding_lite.policy import DQNPolicy

LANES = {"async_mode": True, "max_lag": 1}


@dataclasses.dataclass
class Counted(Context):
    steps: int = 0
    run: int = 0

    def __post_init__(self):
        self.keep("steps")


def counting(run=0, fails_in=None):
    @contract(reads=("steps",), writes=("steps", "run"), stage="learn")
    def count(ctx):
        ctx.steps, ctx.run = ctx.steps + 1, run
        if ctx.total_step == fails_in:
            raise ValueError("the cause")

    return count


def cfg_of(folder, **settings):
    return DQNConfig(exp_name=str(folder)).override({"log.every_s": 0, **settings})


def logger_of(cfg):
    return online_logger(cfg, show_every_s=1e9, counters=("steps", "run"))


def saver_of(folder):
    return CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1)


def go(*pipeline, steps=3, **start):
    with Task().start(ctx=Counted(), **start) as loop, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in pipeline:
            loop.use(one)
        loop.run(max_step=steps)


def run(folder, run=0, steps=3, fails_in=None, settings=(), **start):
    go(counting(run, fails_in), logger_of(cfg_of(folder, **dict(settings))), saver_of(folder), steps=steps, **start)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def runs_in(path):
    return [json.loads(line)["run"] for line in path.read_text().splitlines()]


def id_in(folder):
    return json.loads((folder / "run.json").read_text())["id"]


class Refusing:
    def begin_run(self):
        raise ValueError("not with these settings")

    def __call__(self, ctx):
        pass


REFUSED = {
    "pipeline": (PipelineError, lambda folder: [contract(reads=("train_data",))(lambda ctx: None), saver_of(folder)]),
    "other middleware": (ValueError, lambda folder: [Refusing(), saver_of(folder)]),
    "two savers": (ValueError, lambda folder: [saver_of(folder), saver_of(folder / "." / "ckpt" / "..")]),
    "two loggers": (ValueError, lambda folder: [saver_of(folder), logger_of(cfg_of(folder / "."))]),
    "no saver": (ValueError, lambda folder: [logger_of(cfg_of(f"{folder}_2", storage_path=f"{folder}_copy"))]),
}
"""Errors of pipelines, and what they have in them."""


class TestRefusals:
    @pytest.mark.parametrize(("error", "pipeline"), REFUSED.values(), ids=REFUSED)
    def test_a_run_that_is_refused_changes_no_file_of_an_earlier_one(self, tmp_path, error, pipeline):
        folder = tmp_path / "run"
        run(folder, settings={"seed": 1, "policy.learn.learning_rate": 0.25})
        before, cfg = contents(folder), cfg_of(folder, seed=2)
        with pytest.raises(error):
            go(*pipeline(folder), counting(), logger_of(cfg))
        assert contents(folder) == before

        found = from_command_line(DQNConfig, ["--resume", str(folder)])
        assert (found.seed, found.policy.learn.learning_rate) == (1, 0.25)
        run(folder, steps=5, resume=folder)

    @pytest.mark.parametrize("is_logger_first", [True, False])
    def test_neither_does_one_whose_copy_is_refused(self, tmp_path, is_logger_first):
        run(tmp_path / "run", storage_path=tmp_path / "store")
        before = contents(tmp_path)
        folder = tmp_path / "run"
        files = [logger_of(cfg_of(folder)), saver_of(folder)]
        with pytest.raises(StorageError, match="there is another run in"):
            go(counting(), *(files if is_logger_first else files[::-1]), storage_path=tmp_path / "store")
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("is_logger_first", [True, False])
    def test_neither_does_one_that_resumes_the_run_of_another_folder(self, tmp_path, is_logger_first):
        def pipeline(folder):
            files = [logger_of(cfg_of(folder)), saver_of(folder)]
            return [counting(), *(files if is_logger_first else files[::-1])]

        for name in "ab":
            go(*pipeline(tmp_path / name))
        before = contents(tmp_path / "b")
        with pytest.raises(ValueError, match="is resumed, and .* writes to .*b"):
            go(*pipeline(tmp_path / "b"), steps=5, resume=tmp_path / "a")
        assert contents(tmp_path / "b") == before

    def test_a_logger_alone_writes_nothing(self, tmp_path):
        logger = online_logger(cfg_of(tmp_path / "run"))
        assert contents(tmp_path) == {}
        logger.release()


class TestNewRuns:
    @pytest.mark.parametrize("order", [1, -1])
    def test_all_files_of_the_earlier_run_get_the_same_number(self, tmp_path, order):
        pytest.importorskip("tensorboard")
        folder = tmp_path / "run"
        run(folder, settings={"log.tensorboard": True}, **LANES)
        (folder / "notes.txt").write_text("mine")
        with pytest.raises(ValueError, match="the cause"):
            run(folder, 1, 5, fails_in=3, resume=folder, settings={"log.tensorboard": True}, **LANES)
        before = contents(folder)
        assert {name.split("/")[0] for name in before} == {
            *("ckpt", "run", "tensorboard", "config.json", "error.txt", "lanes.txt", "metrics.csv", "metrics.jsonl"),
            *("notes.txt", "pipeline.svg", "run.json", "run.log", "timeline.svg"),
        }
        (folder / "error.1.txt").write_text("of a session before")
        with pytest.raises(ValueError, match="the cause"):
            go(*[counting(2, fails_in=0), logger_of(cfg_of(folder)), saver_of(folder)][::order])
        moved = {re.sub(r"^([^./]+)", r"\1.2", name): content for name, content in before.items() if name != "notes.txt"}
        after = contents(folder)
        assert moved.items() <= after.items()
        new = {name.split("/")[0] for name in after.keys() - moved.keys()}
        assert new <= {"notes.txt", "config.json", "error.txt", "error.1.txt", "pipeline.svg", "run.json", "run.log"}
        assert json.loads(after["config.json"])["run"]["id"] == id_in(folder) != json.loads(after["run.2.json"])["id"]

    def test_after_an_error_in_its_first_iteration_nothing_of_the_earlier_run_would_be_resumed(self, tmp_path):
        run(tmp_path)
        assert RunFiles(tmp_path).saved()
        with pytest.raises(ValueError, match="the cause"):
            run(tmp_path, 1, fails_in=0)
        assert RunFiles(tmp_path).saved() == []
        with pytest.raises(CheckpointError, match=r"no saved run in .* An earlier run is there, renamed to run.1, as are its"):
            run(tmp_path, resume=tmp_path)

        for path in [*tmp_path.iterdir()]:  # it can be put back
            if ".1" in path.name:
                path.replace(path.with_name(path.name.replace(".1", "")))
        run(tmp_path, 2, 4, resume=tmp_path)
        assert runs_in(tmp_path / "metrics.jsonl") == [0, 0, 2]

    def test_a_file_that_cannot_be_renamed_costs_no_other(self, tmp_path, monkeypatch):
        run(tmp_path)
        rename = type(tmp_path).rename

        def refuse(path, target):
            if path.name == "ckpt" and not (tmp_path / "metrics.1.jsonl").exists():
                raise PermissionError(13, "Permission denied")
            return rename(path, target)

        before = contents(tmp_path)
        monkeypatch.setattr(type(tmp_path), "rename", refuse)
        run(tmp_path, 1)
        after = contents(tmp_path)
        assert {re.sub(r"^([^./]+)", r"\1.1", name): content for name, content in before.items()}.items() <= after.items()
        assert runs_in(tmp_path / "metrics.jsonl") == [1, 1, 1]

    def test_a_saver_leaves_files_of_the_user_alone_where_there_was_no_run(self, tmp_path):
        for name in ("config.json", "decisions.jsonl"):
            (tmp_path / name).write_text("mine")
        go(counting(), saver_of(tmp_path))
        assert {name: (tmp_path / name).read_text() for name in ("config.json", "decisions.jsonl")} == {
            "config.json": "mine",
            "decisions.jsonl": "mine",
        }

    def test_an_error_of_an_environment_can_be_replayed_after_the_next_one(self, tmp_path):
        class Failing(gymnasium.Wrapper):
            seeds = []

            def reset(self, *, seed=None, options=None):
                Failing.seeds.append(seed)
                return self.env.reset(seed=seed)

            def step(self, action):
                raise OSError(f"seed {Failing.seeds[-1]}")

        def fail(seed):
            env = make_envs("CartPole-v1", 1, seed=seed, wrappers=[Failing])
            policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
            with Task().start(ctx=OnlineRLContext()) as loop:
                loop.use(StepCollector(cfg, policy.collect_mode, env, collect_kwargs={"eps": 1.0}))
                loop.use(online_logger(cfg)).run(max_step=1)

        cfg = cfg_of(tmp_path)
        for seed in (3, 4):
            with pytest.raises(OSError, match="seed"):
                fail(seed)
        assert len(set(Failing.seeds)) == 2
        for number, seed in ((".1", Failing.seeds[0]), ("", Failing.seeds[-1])):
            text = (tmp_path / f"error{number}.txt").read_text()
            assert text.startswith(f"OSError: seed {seed}\n")
            assert set(re.findall(r"\benv_error\S*?\.pt", text)) == {f"env_error{number}.pt"}
            with pytest.raises(OSError, match=f"seed {seed}"):
                reproduce_env_error(tmp_path / f"env_error{number}.pt", lambda: Failing(gymnasium.make("CartPole-v1")))


class TestOpenTasks:
    def test_of_two_the_second_one_is_refused_the_folder_of_the_first(self, tmp_path):
        refused = []

        def nest(ctx):
            if ctx.total_step == 1:
                try:
                    run(tmp_path, 2)
                except FolderInUseError as error:
                    refused.append(str(error))

        go(nest, counting(1), logger_of(cfg_of(tmp_path)), saver_of(tmp_path), steps=4)
        assert runs_in(tmp_path / "metrics.jsonl") == [1, 1, 1, 1]
        assert not [path for path in tmp_path.iterdir() if ".1" in path.name]
        assert len(refused) == 1
        assert re.search(
            rf"that is still open writes to the folder {tmp_path}. Choose .*\(exp_name\), or leave the `with`", refused[0]
        )

    def test_one_that_has_run_but_is_open_keeps_its_folder(self, tmp_path):
        with Task().start(ctx=Counted()) as first:
            first.use(counting(1)).use(logger_of(cfg_of(tmp_path))).run(max_step=1, final=False)
            with pytest.raises(FolderInUseError):
                go(saver_of(tmp_path))
            first.run(max_step=1)
        assert runs_in(tmp_path / "metrics.jsonl") == [1, 1]
        run(tmp_path, 2)
        assert runs_in(tmp_path / "metrics.jsonl") == [2, 2, 2]

    def test_a_session_that_a_closed_task_has_left_open_is_over(self, tmp_path):
        hidden = saver_of(tmp_path)
        with pytest.warns(UserWarning, match="calls neither its begin_run"), Task().start(ctx=Counted()) as loop:
            loop.use(lambda ctx: (yield from hidden(ctx))).run(max_step=1)
        first = id_in(tmp_path)
        run(tmp_path, 2)
        assert id_in(tmp_path) != first
        assert (tmp_path / "ckpt.1").is_dir()

    def test_so_is_one_that_an_earlier_run_of_the_same_task_has_left_open(self, tmp_path):
        loop, ids, savers = Task(), [], [saver_of(tmp_path), saver_of(tmp_path)]
        for hidden in savers:
            with pytest.warns(UserWarning, match="calls neither its begin_run"), loop.start(ctx=Counted()):
                loop.use(lambda ctx, hidden=hidden: (yield from hidden(ctx))).run(max_step=1)
            ids.append(id_in(tmp_path))
        assert ids[0] != ids[1]
        assert json.loads((tmp_path / "run.1.json").read_text())["id"] == ids[0]
        assert (tmp_path / "ckpt.1").is_dir()

    def test_a_saver_that_was_called_by_hand_joins_the_run_of_a_task(self, tmp_path):
        saver = saver_of(tmp_path)
        list(saver(Counted()))
        by_hand = id_in(tmp_path)
        go(counting(), logger_of(cfg_of(tmp_path)), saver)
        assert id_in(tmp_path) == by_hand  # it goes on
        assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 2
        assert not (tmp_path / "ckpt.1").exists()


class TestOtherRuns:
    def pipeline(self, tmp_path, name, log):
        return counting(int(log == "b")), logger_of(cfg_of(tmp_path / "logs" / log)), saver_of(tmp_path / "ckpts" / name)

    def test_a_logger_does_not_cut_the_rows_of_another_run_than_the_resumed_one(self, tmp_path):
        for name in "ab":
            go(*self.pipeline(tmp_path, name, name), steps=3 + 3 * (name == "b"))
        before = contents(tmp_path)
        words = r"the run in .*ckpts/a is resumed, and online_logger writes to .*logs/b, which has another run .*: pass"
        with pytest.raises(ValueError, match=words):
            go(*self.pipeline(tmp_path, "a", "b"), steps=5, resume=tmp_path / "ckpts/a")
        changed = {name for name, content in contents(tmp_path).items() if before.get(name) != content}
        assert not [name for name in changed if name.startswith("logs")]

        go(*self.pipeline(tmp_path, "a", "a"), steps=5, resume=tmp_path / "ckpts/a")
        assert len(runs_in(tmp_path / "logs/a/metrics.jsonl")) == 4

    def test_a_state_of_an_earlier_version_does_not_tell_its_run(self, tmp_path):
        logger, other = logger_of(cfg_of(tmp_path)), logger_of(cfg_of(tmp_path))
        go(counting(1), logger)
        state = logger.state_dict()
        del state["run_id"]
        other.load_state_dict(state)
        go(counting(2), other)
        assert runs_in(tmp_path / "metrics.jsonl") == [1, 1, 1, 2, 2, 2]

    def test_a_loaded_state_of_another_run_leaves_the_files_in_the_folder_whole(self, tmp_path):
        logger, other = logger_of(cfg_of(tmp_path / "a")), logger_of(cfg_of(tmp_path / "b"))
        go(counting(1), logger)
        run(tmp_path / "b", 2, 5)
        before = contents(tmp_path / "b")
        other.load_state_dict(logger.state_dict())
        go(counting(3), other)
        assert runs_in(tmp_path / "b/metrics.1.jsonl") == [2] * 5
        assert runs_in(tmp_path / "b/metrics.jsonl") == [3] * 3
        after = contents(tmp_path / "b")
        assert {re.sub(r"^([^./]+)", r"\1.1", name): content for name, content in before.items()}.items() <= after.items()
