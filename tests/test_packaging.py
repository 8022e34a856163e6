"""Packaging: what an installed ding_lite holds, and what importing it loads."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: object, cwd: Path | None = None) -> str:
    finished = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from the files that git tracks, as a clean checkout has them."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    checkout.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    files = [name.decode() for name in tracked if name and (ROOT / name.decode()).exists()]
    subprocess.run(["cp", "--parents", "--no-dereference", *files, str(checkout)], cwd=ROOT, check=True)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, checkout)
    return next(folder.glob("ding_lite-*.whl"))


def test_the_checkout_has_no_folder_that_a_run_has_left():
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    folders = {"benchmarks", "contexts", "ding_lite", "docs", "examples", "middleware", "tests", ".ci"}
    assert {name.partition("/")[0] for name in tracked if "/" in name} <= folders


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_once_and_nothing_else(wheel):
    sources = {
        (
            path.relative_to(ROOT) if path.relative_to(ROOT).parts[0] == "ding_lite" else "ding_lite" / path.relative_to(ROOT)
        ).as_posix()
        for folder in ("ding_lite", "contexts", "middleware")
        for path in (ROOT / folder).rglob("*.py")
    }
    held = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]

    assert sorted(held) == sorted({*sources, "ding_lite/py.typed", "ding_lite/reports/page.html"})


@pytest.mark.slow
def test_an_installed_wheel_works_far_from_the_checkout(wheel, tmp_path):
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", wheel)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import ding_lite.middleware, ding_lite.contexts, ding_lite.config, pickle\n"
        "print(ding_lite.middleware.__file__)\n"
        "print(type(pickle.loads(pickle.dumps(ding_lite.contexts.OnlineRLContext()))).__module__)"
    )
    place, module = run(sys.executable, "-c", code, cwd=tmp_path).split()

    assert place.startswith(str(tmp_path / "site"))
    assert module == "ding_lite.contexts.online"


def test_the_core_asks_for_four_packages_and_no_more(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    needed = [
        line.split(":")[1].strip()
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    ]

    assert sorted(name.split(">")[0].split("<")[0] for name in needed) == ["DI-treetensor", "gymnasium", "numpy", "torch"]
    versions = next(line for line in metadata.splitlines() if line.startswith("Requires-Python"))
    assert set(versions.removeprefix("Requires-Python: ").split(",")) == {">=3.10", "<3.13"}


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, ding_lite; print(*sys.modules)"
    loaded = set(run(sys.executable, "-c", code).split())

    assert not loaded & {"gymnasium", "ray", "tensorboard", "matplotlib", "torch", "treetensor", "tyro"}


@pytest.mark.slow
def test_a_bare_checkout_works_and_importing_everything_loads_no_extra_and_warns_about_nothing(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "import ding_lite, ding_lite.middleware, ding_lite.contexts, ding_lite.config, ding_lite.policy, ding_lite.envs, "
        "ding_lite.data, ding_lite.rollout, ding_lite.rewards, ding_lite.reports, ding_lite.processes, ding_lite.commands; "
        "print(ding_lite.middleware.StepCollector.__module__, *sys.modules)"
    )
    place, *loaded = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path).split()

    assert place == "ding_lite.middleware.collectors"
    extras = {"ray", "tensorboard", "wandb", "matplotlib", "jinja2", "tyro", "rich", "psutil", "ale_py", "pygame", "pettingzoo"}
    assert not set(loaded) & {*extras, "imageio_ffmpeg", "mpe2"}


PUBLIC = {
    "ding_lite": "task Task Context contract PipelineError",
    "ding_lite.contexts": "OnlineRLContext OfflineRLContext",
    "ding_lite.middleware": "interaction_evaluator eps_greedy_handler inferencer rolloutor StepCollector data_pusher "
    "offpolicy_data_fetcher trainer OffPolicyLearner gae_estimator multistep_trainer CkptSaver termination_checker "
    "online_logger",
    "ding_lite.policy": "Policy DQNPolicy PPOPolicy",
    "ding_lite.config": "DQNConfig PPOConfig",
    "ding_lite.envs": "make_envs",
    "ding_lite.data": "ReplayBuffer",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_where_users_look_for_them(module):
    imported = __import__(module, fromlist=["x"])
    for name in PUBLIC[module].split():
        assert hasattr(imported, name), f"{module}.{name}"
        assert name in imported.__all__, f"{module}.{name}"


@pytest.mark.parametrize(
    ("blocked", "code", "extra"),
    [
        (
            "tyro",
            "from ding_lite.config import *\nprint(from_command_line(DQNConfig, []).seed)\n"
            "from_command_line(DQNConfig, ['--seed', '1'])",
            "cli",
        ),
        (
            "matplotlib",
            "from ding_lite import task\nprint(0)\nwith task.start():\n  task.use(lambda ctx: None).draw('x.png')",
            "plot",
        ),
    ],
)
def test_a_missing_extra_is_named_and_the_rest_of_a_script_works_without_it(blocked, code, extra, tmp_path):
    program = f"import sys; sys.modules[{blocked!r}] = None\n{code}"
    finished = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert finished.stdout.strip() == "0"
    assert finished.returncode == 1
    assert f"pip install 'ding_lite[{extra}]'" in finished.stderr
