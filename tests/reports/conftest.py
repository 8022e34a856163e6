"""Folders as runs leave them, with curves that rise as curves do; and a browser to open pages in."""

import csv
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.config import DQNConfig, PPOConfig

PIPELINE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="90" viewBox="0 0 300 90"><rect width="300" height="90" '
    'fill="white"/><rect x="20" y="20" width="260" height="50" rx="8" fill="#d7e8f7" stroke="#666666"/>'
    '<text x="40" y="50" font-size="14">interaction_evaluator</text></svg>'
)


def rows_of(algorithm: str, seed: int, iterations: int) -> list[dict[str, Any]]:
    """Rows of one run: counters in each, an evaluation in every tenth, learning once there is data."""
    rng = np.random.default_rng([seed, len(algorithm), iterations])
    per_iteration, middle = (64, 5000) if algorithm == "dqn" else (512, 24_000)
    width, top = middle / 6, 500 - 25 * rng.random()
    rows = []
    for iteration in range(iterations):
        env_step = per_iteration * iteration
        level = 12 + (top - 12) / (1 + math.exp(-(env_step - middle * (1 + 0.15 * seed)) / width))
        seconds = {"collect": 0.01 + 0.002 * rng.random(), "learn": 0.03 + 0.01 * rng.random()}
        row = {
            "total_step": iteration,
            "env_step": env_step,
            "env_episode": 8 * iteration,
            "train_iter": max(iteration - 15, 0) * 64,
            "time_s": round(0.045 * iteration * (1 + 0.1 * seed), 3),
            "collect/episode_return_mean": level * (0.8 + 0.1 * rng.random()) if iteration else None,
            "collect/episode_return_max": level * 1.1 if iteration else None,
            "collect/episode_length_mean": level * 0.8,
            "collect/env_steps_throughput": per_iteration / seconds["collect"],
            "time/collect": seconds["collect"],
            "system/cpu_cores": 1 + 0.4 * rng.random(),
            "system/memory_mb": 420 + 0.3 * iteration,
        }
        if iteration % 10 == 0:
            value = min(level * (0.9 + 0.2 * rng.random()), 500.0)
            row |= {f"evaluate/episode_return_{name}": value * by for name, by in (("mean", 1), ("min", 0.8), ("max", 1.1))}
            row |= {"evaluate/episodes": 8, "time/evaluate": 0.05}
        if iteration >= 15:
            row |= {"learn/loss": math.exp(-iteration / 60) + 0.1 * rng.random(), "learn/grad_norm": 1 + rng.random()}
            row |= {"learn/q_value": level / 5} if algorithm == "dqn" else {"learn/kl": 0.01, "learn/entropy": 0.69}
            row |= {"time/learn": seconds["learn"]}
        rows.append(row)
    return rows


def write_run(
    folder: Path,
    algorithm: str = "dqn",
    seed: int = 0,
    iterations: int = 150,
    exp_name: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """A folder with the configuration, the rows and the picture of a run that never was."""
    folder.mkdir(parents=True)
    config = (DQNConfig if algorithm == "dqn" else PPOConfig)(exp_name=exp_name or f"runs/{folder.name}", seed=seed)
    (folder / "config.json").write_text(json.dumps(config.override(changes or {}).to_dict(), indent=2))
    rows = rows_of(algorithm, seed, iterations)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "pipeline.svg").write_text(PIPELINE)
    return folder


def write_video(folder: Path, evaluation: int, content: bytes) -> Path:
    """An evaluation's video, and what is said of it, as a run leaves them."""
    path = folder / "videos" / f"evaluation_{evaluation:06}_return_{100 + evaluation}.mp4"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    details = {
        "evaluation": evaluation,
        "env_step": 64 * evaluation,
        "train_iter": 0,
        "return": 100.0 + evaluation,
        "length": 100,
    }
    path.with_suffix(".json").write_text(json.dumps(details))
    return path


@pytest.fixture(scope="session", name="write_run")
def give_write_run() -> Callable[..., Path]:
    return write_run


@pytest.fixture(scope="session", name="write_video")
def give_write_video() -> Callable[..., Path]:
    return write_video


@pytest.fixture(scope="session")
def mp4(tmp_path_factory) -> bytes:
    """One second of a square that moves."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = tmp_path_factory.mktemp("video") / "square.mp4"
    writer = ffmpeg.write_frames(str(path), (64, 48), fps=10)
    writer.send(None)
    for step in range(10):
        frame = np.full((48, 64, 3), 240, np.uint8)
        frame[20:30, 4 * step : 4 * step + 10] = (0, 114, 178)
        writer.send(frame.tobytes())
    writer.close()
    return path.read_bytes()


@pytest.fixture
def six_runs(tmp_path) -> Path:
    """A folder with three seeds of DQN and three of PPO."""
    for seed in range(3):
        write_run(tmp_path / "runs" / f"dqn_{seed}", "dqn", seed, 150 + 10 * seed)
        write_run(tmp_path / "runs" / f"ppo_{seed}", "ppo", seed, 110)
    return tmp_path / "runs"


QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def require(condition: object, reason: str) -> None:
    if not condition:
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(reason)


@pytest.fixture(scope="module")  # tests in other files count threads and processes
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        require(False, "playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    require(found, "there is no chromium, chromium-browser or google-chrome on the path")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield chromium
        chromium.close()


class Opened:
    """A page in the browser, and all that it did."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def look(self, script: str) -> Any:
        return self.page.evaluate(script)

    def unfold(self) -> None:
        self.look("document.querySelectorAll('details').forEach(each => each.open = true)")


@pytest.fixture
def open_page(browser) -> Iterator[Any]:
    opened: list[Opened] = []

    def open_it(path: Path, **settings: Any) -> Opened:
        opened.append(Opened(browser, path, **settings))
        return opened[-1]

    yield open_it
    for each in opened:
        each.page.close()
