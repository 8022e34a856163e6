"""The learning runs in docs/learning: each reference has the curves of its seeds, and they reach its target."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def learning(monkeypatch):
    """The module benchmarks/learning.py."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import learning

    yield learning
    for name in {*sys.modules} - before:
        if name in ("learning", "references"):
            del sys.modules[name]


def test_all_seeds_of_each_reference_reach_its_target(learning):
    for reference in learning.REFERENCES:
        outcomes = learning.kept(reference, learning.KEPT)
        assert [one.seed for one in outcomes] == [*range(reference.seeds)], reference.name
        assert all(one.reached is not None for one in outcomes), reference.name


def test_compiled_runs_reach_their_targets_as_the_page_says(learning):
    short = [reference for reference in learning.REFERENCES if not reference.long]
    outcomes = {one.name: learning.kept(one, learning.KEPT / "compiled") for one in short}

    assert all(len(runs) == 1 for runs in outcomes.values())
    assert [name for name, runs in outcomes.items() if runs[0].reached is None] == []
    text = (ROOT / "docs/compile.md").read_text(encoding="utf-8")
    assert f"One seed of each of the {len(short)} shorter [learning runs](learning/compiled/README.md)" in text
    assert "and all of them reached their target in time" in text
