"""Runs that save in every iteration and end at random moments, by SIGKILL or a signal: each is resumed, and nothing is lost.

`KILLS=250 make test ARGS="tests/middleware/test_kills_and_signals.py"` kills each run 250 times, instead of 25.
"""

import json
import math
import multiprocessing
import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
import torch

from ding_lite import Task, contract
from ding_lite.basics import RunFiles
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import load_checkpoint
from ding_lite.middleware import CkptSaver, online_logger, run_savers

pytestmark = pytest.mark.timeout(600)

KILLS = int(os.environ.get("KILLS", "25"))
"""For each mode. The number of signals is smaller."""
ITERATIONS = 7 * KILLS  # at most five before each kill, and some after the last
MODES = {"plain": {}, "threads": {"async_mode": True, "max_lag": 1}}


class RandomWalk:
    """A random generator that is saved, and used in each iteration."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


def train(folder, resume=None, begun=lambda: None, train_freq=1, **mode):
    """A run of all iterations that saves as often as it can."""
    torch.manual_seed(0)
    model, walk, loop = torch.nn.Linear(30, 30), RandomWalk(), Task()
    cfg = DQNConfig(exp_name=str(folder))

    @contract(reads=("env_step",), writes=("env_step",), stage="collect")
    def collect(ctx):
        begun()
        ctx.env_step += 1

    @contract(reads=("train_iter",), writes=("train_iter",), uses=(model, walk), stage="learn")
    def learn(ctx):
        with torch.no_grad():
            model.weight += walk.rng.normal()
        ctx.train_iter += 1

    with loop.start(ctx=OnlineRLContext(), resume=resume, **mode):
        loop.use(collect).use(learn)
        loop.use(CkptSaver(model, folder, train_freq=train_freq))
        loop.use(online_logger(cfg, show_every_s=1e9, train_show_freq=1))
        loop.run(max_step=ITERATIONS)


def live(folder, mode, pipe):
    """The process of a run: it writes a byte when an iteration begins, and ends with the status of a script."""
    run_savers._SHARE = math.inf  # of the time, for saving the run
    os.fsync = lambda descriptor: None  # no power is cut here, and a busy disk would take long
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    try:
        train(folder, folder if (folder / "run/manifest.json").exists() else None, lambda: os.write(pipe, b"x"), **mode)
        status = 0
    except SystemExit as ended:
        status = ended.code
    os._exit(status)


def strike(folder, mode, number, draw):
    """Start the run or continue it, and send this signal at a random moment of its first five iterations.

    Returns:
        The exit status, and how long the process took to end.
    """
    source, pipe = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=live, args=(folder, mode, pipe))
    process.start()
    os.close(pipe)
    begun, count = time.monotonic(), draw.randint(1, 5)
    for iteration in range(count):
        os.read(source, 1)
        if iteration == 0:
            begun = time.monotonic()
    time.sleep(draw.random() * (time.monotonic() - begun) / count)
    os.kill(process.pid, number)
    sent = time.monotonic()
    process.join()
    os.close(source)
    return process.exitcode, time.monotonic() - sent


def rows(folder, is_killed=False):
    """The steps in the file of metrics; after a kill, its last line may be unfinished."""
    lines = (folder / "metrics.jsonl").read_text().split("\n")
    last = lines.pop()
    assert last == "" or is_killed
    return [json.loads(line)["env_step"] for line in lines]


def require_whole(folder, is_killed=False):
    """Everything that the run has saved can be loaded.

    Returns:
        The iterations that the latest state has done.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = RunFiles(folder).load()[0]["done"]
    for path in (folder / "ckpt").glob("*.pt"):
        load_checkpoint(path)
    assert is_killed or not [*folder.rglob("*.tmp")]
    rows(folder, is_killed)
    return done


def outcome(folder):
    final = load_checkpoint(folder / "ckpt/final.pt")
    return final["model"]["weight"].tolist(), final["counters"], rows(folder)


@pytest.fixture(scope="module", params=MODES)
def unbroken(request, tmp_path_factory):
    """A mode, and the outcome of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("unbroken")
    train(folder, train_freq=None, **MODES[request.param])
    return MODES[request.param], outcome(folder)


@pytest.mark.slow
def test_a_run_that_is_killed_25_times_can_be_resumed_each_time(tmp_path, unbroken):
    """No state and no checkpoint is damaged, and the result is that of an uninterrupted run."""
    mode, expected = unbroken
    draw, done = random.Random(1), [0]
    for _ in range(KILLS):
        status, _ = strike(tmp_path, mode, signal.SIGKILL, draw)
        assert status == -signal.SIGKILL
        if (tmp_path / "run/manifest.json").exists():  # not in the first milliseconds
            done.append(require_whole(tmp_path, is_killed=True))

    assert done == sorted(done)
    assert done[-1] > 10
    train(tmp_path, tmp_path, train_freq=None, **mode)
    assert outcome(tmp_path) == expected
    assert not [*tmp_path.rglob("*.tmp")]
    print(f"{KILLS} kills: {done[-1]} of {ITERATIONS} iterations before the last one, 0 files that cannot be read")


@pytest.mark.slow
def test_a_run_that_gets_10_signals_saves_its_state_and_ends_with_their_status(tmp_path, unbroken):
    mode, expected = unbroken
    draw, longest = random.Random(2), 0.0
    for number in range(max(10, KILLS // 5)):
        told, status = [(signal.SIGTERM, 143), (signal.SIGINT, 130)][number % 2]
        ended, seconds = strike(tmp_path, mode, told, draw)
        longest = max(longest, seconds)
        assert ended == status
        done = require_whole(tmp_path)
        assert rows(tmp_path) == list(range(1, done + 1))

    assert longest < 10
    train(tmp_path, tmp_path, train_freq=None, **mode)
    assert outcome(tmp_path) == expected
    print(f"{number + 1} signals: the longest end took {longest:.2f} s")
