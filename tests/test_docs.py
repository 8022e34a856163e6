"""The documentation: every Python block in it runs, top to bottom; every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(900)  # the README's learns
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert not missing


def test_the_documents_promises_in_comments_are_what_is_printed(capsys, tmp_path, monkeypatch):
    """`print(x)  # text ...` in the guide: the text is what comes, as far as it goes."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    promised = re.findall(r"print\(error\)  # (.*?)(?: \.\.\.)?$", text, re.MULTILINE)
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        exec(block.group(1), names)
    printed = capsys.readouterr().out

    assert len(promised) >= 3
    for words in promised:
        assert words in printed
