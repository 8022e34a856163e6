"""Minibatches: every row once, whole, in equal parts; and the rows of a rollout."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.data import Tree, minibatches, tree
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.minibatches import rollout_rows


def rows(n: int) -> dict:
    x = torch.arange(n)
    return {"x": x, "obs": {"a": x.float().reshape(n, 1).expand(n, 3) * 10, "b": {"c": x + 1000}}, "keep": x > 3}


def epoch(n: int, batch_size: int, seed: int = 0) -> list[Tree]:
    return list(minibatches(rows(n), batch_size, torch.Generator().manual_seed(seed)))


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200), st.integers(1, 250))
def test_each_row_comes_exactly_once_in_equal_parts_of_about_the_size_asked_for(n, batch_size):
    parts = epoch(n, batch_size)
    sizes = [len(part.x) for part in parts]

    assert sorted(torch.cat([part.x for part in parts]).tolist()) == list(range(n))
    assert max(sizes) - min(sizes) <= 1
    assert abs(len(parts) - n / batch_size) <= 0.5 or len(parts) == 1


@pytest.mark.parametrize(("n", "batch_size", "sizes"), [
    (8, 4, [4, 4]), (10, 4, [5, 5]), (11, 4, [3, 4, 4]), (3, 4, [3]), (5, 100, [5]), (4, 1, [1, 1, 1, 1]), (1, 1, [1]),
])  # fmt: skip
def test_parts_have_the_size_asked_for_where_it_divides_the_rows(n, batch_size, sizes):
    assert sorted(len(part.x) for part in epoch(n, batch_size)) == sizes


def test_all_leaves_of_a_row_stay_together():
    for part in epoch(50, 8):
        assert isinstance(part, Tree)
        assert torch.equal(part.obs.a, (part.x * 10).float().unsqueeze(1).expand(-1, 3))
        assert torch.equal(part.obs.b.c, part.x + 1000)
        assert torch.equal(part.keep, part.x > 3)


def order(seed: int) -> list[int]:
    return torch.cat([part.x for part in epoch(50, 8, seed)]).tolist()


def test_the_generator_decides_the_order():
    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != list(range(50))


def test_two_epochs_of_one_generator_differ():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.cat([part.x for part in minibatches(rows(50), 8, generator)]) for _ in range(2))

    assert not torch.equal(first, second)


def test_the_rows_stay_as_they_are():
    data = rows(20)
    for part in minibatches(data, 6, torch.Generator().manual_seed(0)):
        part.x.fill_(-1)

    assert data["x"].tolist() == list(range(20))


def rollout(t: int, n: int, **more) -> Tree:
    step = torch.arange(t * n).reshape(t, n)
    return tree({"step": step, "obs": {"x": step.unsqueeze(-1).expand(t, n, 2) * 10}, "unused": step, **more})


def test_the_rows_of_a_rollout_are_its_steps_without_the_time():
    found = rollout_rows(rollout(4, 3), ["obs", "step"])

    assert list(found) == ["obs", "step"]
    assert found["step"].tolist() == list(range(12))
    assert torch.equal(found["obs"]["x"], torch.arange(12).unsqueeze(-1).expand(12, 2) * 10)


def test_steps_that_are_not_valid_are_left_out_of_every_leaf():
    valid = np.ones((4, 3), bool)
    valid[0, 1] = valid[3, 2] = False
    found = rollout_rows(rollout(4, 3, valid=valid), ["step", "obs"])
    expected = [step for step in range(12) if step not in (1, 11)]

    assert found["step"].tolist() == expected
    assert (found["obs"]["x"][:, 0] // 10).tolist() == expected


def test_the_rows_are_the_same_whether_all_steps_are_valid_or_there_is_no_such_leaf():
    found = rollout_rows(rollout(4, 3, valid=np.ones((4, 3), bool)), ["step", "obs"])
    expected = rollout_rows(rollout(4, 3), ["step", "obs"])

    assert torch.equal(found["step"], expected["step"])
    assert torch.equal(found["obs"]["x"], expected["obs"]["x"])


@pytest.mark.parametrize("first", ["words", "x"])
def test_objects_stay_with_their_rows(first):
    words = to_objects([f"word {number}" for number in range(23)])
    data = {"words": words, "x": torch.arange(23), "deep": {"word": words, "text": words.astype("U")}}
    parts = list(minibatches({first: data.pop(first), **data}, 5, torch.Generator().manual_seed(0)))

    assert sorted(word for part in parts for word in part.words) == sorted(words)
    for part in parts:
        assert part.words.tolist() == part.deep.word.tolist() == part.deep.text.tolist()
        assert part.words.tolist() == [f"word {int(number)}" for number in part.x]


@pytest.mark.parametrize("with_valid", [False, True])
def test_the_rows_of_a_rollout_take_objects_along(with_valid):
    valid = np.ones((4, 3), bool)
    valid[0, 1] = valid[3, 2] = not with_valid
    words = to_objects([str(step) for step in range(12)]).reshape(4, 3)
    found = rollout_rows(rollout(4, 3, words=words, **({"valid": valid} if with_valid else {})), ["words", "step"])

    assert found["words"].tolist() == [str(int(step)) for step in found["step"]]
    assert len(found["words"]) == (10 if with_valid else 12)
