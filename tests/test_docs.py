"""The documentation: every Python block in it runs, top to bottom; every link leads somewhere."""

import difflib
import re
from pathlib import Path

import pytest
from pages import run_blocks
from slow_cases import mostly_slow

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {"README.md", "cluster.md"}  # the blocks of cluster.md run in tests/distributed
RUN = [page for page in PAGES if page.name not in ELSEWHERE]
SLOW = {
    "policies.md",
    "offline.md",
    "action_masks.md",
    "populations.md",
    "goals.md",
    "environments.md",
    "deploying.md",
    "off_policy_evaluation.md",
    "atari.md",
}
PROMISE = re.compile(r"print\(error\)  # (.*?)(?: \.\.\.)?$", re.MULTILINE)


def page_name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.few
@pytest.mark.parametrize("page", mostly_slow(RUN, *(page for page in RUN if page.name not in SLOW)), ids=page_name)
def test_the_blocks_of_a_page_run_and_print_the_errors_that_it_promises(page, tmp_path, monkeypatch, capsys):
    """`print(error)  # text ...`: the text is what comes, as far as it goes."""
    monkeypatch.chdir(tmp_path)
    run_blocks(page)
    printed = capsys.readouterr().out

    for words in PROMISE.findall(page.read_text(encoding="utf-8")):
        assert words in printed


def test_the_guide_promises_errors():
    assert len(PROMISE.findall((ROOT / "docs/guide.md").read_text(encoding="utf-8"))) >= 3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)  # it learns
def test_the_readme_solves_cartpole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks(ROOT / "README.md")
    task, cfg = names["task"], names["cfg"]

    assert not task.running
    assert task.ctx.last_eval_value >= 475
    assert 0 < task.ctx.env_step <= 60_000
    assert task.ctx.train_iter == names["policy"].train_iter > 0
    assert {path.name for path in (tmp_path / cfg.exp_name / "ckpt").iterdir()} >= {"best.pt", "final.pt"}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert not missing


def test_what_the_glossary_points_to_is_there():
    rows = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    places = [
        place for row in rows if row.startswith("| ") for place in re.findall(r"`([a-z_/.]+(?:\.py|/))`", row.split("|")[-2])
    ]
    assert len(places) > 20
    assert [place for place in places if not (ROOT / place).exists() and not (ROOT / "ding_lite" / place).exists()] == []


def test_the_page_about_datasets_shows_the_difference_of_an_offline_pipeline():
    """That of examples/dqn.py and examples/cql.py, with the other arguments of task.start left out."""
    dqn, cql = (_pipeline((ROOT / "examples" / name).read_text()) for name in ("dqn.py", "cql.py"))
    (shown,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "offline.md").read_text(), re.DOTALL)

    _, _, _, *lines = difflib.unified_diff(dqn, cql, n=100, lineterm="")
    assert lines == shown.splitlines()


def _pipeline(source):
    start, rest = re.search(r"\n    with task\.start\((.*?)\):\n(.*?)\n    return", source, re.DOTALL).groups()
    return [f"    with task.start({re.search('ctx=.*', start).group()}):", *rest.split("\n")]
