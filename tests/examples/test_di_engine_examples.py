"""DI-engine's examples: what a user changes in them is what docs/from_di_engine.md says, and then they run."""

import inspect
import re
from pathlib import Path

import pytest
from di_engine_examples import CONFIGS, PORTED, RENAMED, TYPES, USES

from ding_lite import task
from ding_lite.config import ConfigError

PAGE = (Path(__file__).resolve().parents[2] / "docs/from_di_engine.md").read_text(encoding="utf-8")
CHANGED = re.findall(r"^\| ([\w, ]+) \| `(task\.use\(.*\))` \| (?:`(task\.use\(.*\))`|no line).* \|$", PAGE, re.MULTILINE)
"""The page's table of lines that change: examples, the line there, the line here or nothing."""
SETTINGS = {
    name for row in re.findall(r"^\| (`[\w.`, ]+`) \| .* \|$", PAGE, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)
}
"""The settings in the first columns of the page's tables."""


class AttributeDict(dict):
    """A dict whose keys are attributes, as those of easydict are."""

    def __init__(self, values):
        super().__init__({name: AttributeDict(it) if isinstance(it, dict) else it for name, it in values.items()})

    __getattr__ = dict.__getitem__


def refused_settings(name):
    """The settings that the configuration does not have, each with the advice in the error."""
    with pytest.raises(ConfigError) as caught:
        TYPES[name]().override(AttributeDict(CONFIGS[name]))
    return dict(line.split(": ", 1) for line in str(caught.value).splitlines())


def ported(name):
    """The configuration as a user changes it: without what is refused, or with its new name."""
    values = dict(flat(CONFIGS[name]))
    for key in refused_settings(name):
        taken = [one for one in values if one == key or one.startswith(f"{key}.")]
        inner = {one.removeprefix(key).lstrip("."): values.pop(one) for one in taken}
        rename = RENAMED.get(key.removeprefix("policy."))
        if rename is not None:
            values |= {f"policy.{new}": it for new, it in rename(inner.get("", inner)).items()}
    return values


def flat(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("name", USES)
def test_the_lines_of_an_example_that_change_are_those_in_the_page(name):
    here = re.findall(r"^ +(task\.use\(.*\))$", inspect.getsource(PORTED[name]), re.MULTILINE)
    changes = {there: new for names, there, new in CHANGED if name in names.split(", ")}
    expected = [changes.get(line, line) for line in USES[name]]

    assert len(CHANGED) == 5
    assert set(changes) <= set(USES[name])
    assert here == [line for line in expected if line]


@pytest.mark.parametrize("name", USES)
def test_each_setting_of_an_example_is_taken_or_has_advice_and_stands_in_the_page(name):
    refused = refused_settings(name)

    assert all(" has no " in words and "did you mean" not in words and " It has " not in words for words in refused.values())
    assert [key for key in refused if not {key, key.removeprefix("policy."), key.rpartition(".")[2]} & SETTINGS] == []


@pytest.mark.few
@pytest.mark.parametrize("name", USES)
def test_an_example_runs_with_its_settings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = TYPES[name]().override(ported(name))
    PORTED[name](cfg)

    assert task.ctx.train_iter > 0
    assert task.ctx.last_eval_iter >= 0
    assert (tmp_path / CONFIGS[name]["exp_name"] / "ckpt/final.pt").is_file()
