"""The shipped contexts: every field of the document's two tables, and which of them are kept."""

import dataclasses
import math
import pickle
import re
from pathlib import Path

import pytest

from ding_lite.contexts import OfflineRLContext, OnlineRLContext

# Field: (kept, what it starts with).
ONLINE = {
    "total_step": (True, 0),
    "env_step": (True, 0),
    "env_episode": (True, 0),
    "train_iter": (True, 0),
    "train_data": (False, None),
    "train_output": (False, None),
    "collect_kwargs": (False, {}),
    "obs": (False, None),
    "action": (False, None),
    "inference_output": (False, None),
    "trajectories": (False, None),
    "episodes": (False, None),
    "trajectory_end_idx": (False, []),
    "eval_value": (False, -math.inf),
    "last_eval_iter": (True, -1),
}
OFFLINE = {
    "total_step": (True, 0),
    "train_epoch": (False, 0),
    "train_iter": (True, 0),
    "train_data": (False, None),
    "train_output": (False, None),
    "eval_value": (False, -math.inf),
    "last_eval_iter": (True, -1),
}
ROWS = [
    (cls, name, *row) for cls, table in ((OnlineRLContext, ONLINE), (OfflineRLContext, OFFLINE)) for name, row in table.items()
]


@pytest.mark.parametrize(("cls", "name", "kept", "start"), ROWS)
def test_the_field_exists_and_starts_as_users_know_it(cls, name, kept, start):
    assert name in {field.name for field in dataclasses.fields(cls)}
    assert getattr(cls(), name) == start


@pytest.mark.parametrize(("cls", "name", "kept", "start"), ROWS)
def test_the_field_is_kept_just_where_the_table_says_so(cls, name, kept, start):
    ctx = cls()
    setattr(ctx, name, 7)
    ctx = ctx.renew().renew()

    expected = 7 if kept else start
    assert getattr(ctx, name) == (expected + 2 if name == "total_step" else expected)


@pytest.mark.parametrize("cls", [OnlineRLContext, OfflineRLContext])
def test_containers_are_new_in_every_iteration(cls):
    ctx = cls()
    for field in dataclasses.fields(cls):
        if isinstance(getattr(ctx, field.name), (list, dict)):
            assert getattr(ctx.renew(), field.name) is not getattr(ctx, field.name)


@pytest.mark.parametrize("cls", [OnlineRLContext, OfflineRLContext])
def test_it_survives_pickling_and_goes_on_from_there(cls):
    ctx = cls(train_iter=3)
    ctx.last_eval_iter = 2
    ctx = pickle.loads(pickle.dumps(ctx.renew())).renew()

    assert (ctx.train_iter, ctx.last_eval_iter, ctx.total_step) == (3, 2, 2)


@pytest.mark.parametrize("cls", [OnlineRLContext, OfflineRLContext])
def test_every_field_has_a_docstring(cls):
    import ast
    import inspect

    body = ast.parse(inspect.getsource(cls)).body[0].body
    fields = [index for index, node in enumerate(body) if isinstance(node, ast.AnnAssign)]

    assert len(fields) == len(dataclasses.fields(cls))
    for index in fields:
        after = body[index + 1]
        assert isinstance(after, ast.Expr), f"{cls.__name__}.{body[index].target.id} is not explained"
        assert isinstance(after.value.value, str)


@pytest.mark.parametrize("calls_its_parents", [False, True])
@pytest.mark.parametrize(("cls", "table"), [(OnlineRLContext, ONLINE), (OfflineRLContext, OFFLINE)])
def test_a_subclass_keeps_what_the_table_says_whatever_its_post_init_does(cls, table, calls_its_parents):
    @dataclasses.dataclass
    class Mine(cls):
        loss_sum: float = 0.0

        def __post_init__(self):
            if calls_its_parents:
                super().__post_init__()
            self.keep("loss_sum")

    ctx = Mine()
    for name in (*table, "loss_sum"):
        setattr(ctx, name, 7)
    ctx = ctx.renew().renew()

    assert ctx.loss_sum == 7
    kept = {name for name, row in table.items() if row[0]} - {"total_step"}
    assert {name for name in table if getattr(ctx, name) == 7} == kept


def test_the_guide_lists_the_fields_of_both_contexts():
    text = (Path(__file__).parent.parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in text.split("| field | in |")[1].split("\n\n")[0].splitlines()[2:]]
    for kind, others in ((OnlineRLContext, "offline"), (OfflineRLContext, "online")):
        listed = {name: words for names, where, words, _ in rows for name in re.findall(r"`(\w+)`", names) if where != others}
        fields = {it.name: it.metadata.get("kept", it.name == "total_step") for it in dataclasses.fields(kind)}
        assert listed.keys() == fields.keys()
        assert {name: words.startswith("kept: ") for name, words in listed.items()} == fields
