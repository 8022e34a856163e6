"""Which names are public: those of the packages that users import from, and only these are in documents and examples."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = {
    *("config", "contexts", "data", "datasets", "distributed", "engine", "envs", "functional", "metrics", "middleware", "nn"),
    *("policy", "reports", "rewards", "rollout"),
}
OLDER = {"hooks"}
PACKAGES = {path.parent.name for path in (ROOT / "ding_lite").glob("*/__init__.py")}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_page_on_design_lists_the_public_packages():
    section = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("## Public names\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"`ding_lite\.(\w+)`", section)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_is_public_or_says_that_it_is_internal(name):
    package = importlib.import_module(f"ding_lite.{name}")

    assert ("\nInternal: " in package.__doc__) == (name not in PUBLIC)
    assert all(hasattr(package, one) for one in package.__all__)


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda path: path.name)
def test_documents_and_examples_import_public_names_alone(path):
    text = path.read_text(encoding="utf-8")
    blocks = [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        for module, names in imports_of(block):
            top, *rest = module.split(".")[1:] or [""]
            assert top in {"", *PUBLIC, *OLDER}, f"{module} is internal"
            if top and not rest and not path.stem.startswith("from_"):  # these show names of other libraries
                assert set(names) <= {*importlib.import_module(module).__all__}, module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_documents_mention_no_internal_package_as_the_address_of_a_name(path):
    named = set(re.findall(r"(?:of|in|from)\s`ding_lite\.(\w+)", path.read_text(encoding="utf-8")))

    assert named & (PACKAGES - PUBLIC) == set()


def imports_of(block):
    """The modules of ding_lite that a block of code imports from, with the names."""
    try:
        tree = ast.parse(block)
    except SyntaxError:  # a part of a program
        found = re.findall(r"^from (ding_lite[\w.]*) import ([\w, ]+)$", block, re.MULTILINE)
        return [(module, [name.strip() for name in names.split(",")]) for module, names in found]
    return [
        (node.module, [alias.name for alias in node.names])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ding_lite")
    ]
