"""Space checks: columns whose elements are not those of a space are named, with the fix, nested ones too."""

import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.data import LeafSpec
from ding_lite.datasets.space_checks import find_space_mismatch

BOX = spaces.Box(-2, 2, (1,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 8, 1), np.uint8)
NESTED = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "rest": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(4)))})


def spec(dtype, *shape):
    return LeafSpec(shape, np.dtype(dtype))


def nested_spec(dtype="f4", name="rest", count=4):
    return {"at": spec(dtype, 2), name: {"0": spec("i8"), "1": spec("i1", count)}}


MISFITS = [
    (BOX, spec("f4"), r"elements float32 \(\), and Box.* wants float32 \(1,\): give action\.reshape\(-1, 1\)\."),
    (BOX, spec("f4", 2), r"elements float32 \(2,\).*: give arrays \[N, 1\], or use the action space of the data"),
    (spaces.Box(-2, 2, (2,)), spec("f4", 1), r"elements float32 \(1,\).* wants float32 \(2,\)"),
    (
        BOX,
        spec("i8", 1),
        r"of a Discrete space, use a policy for it\. .* give action\.astype\(np\.float32\)\.",
    ),
    (
        BOX,
        spec("i8"),
        r"of a Discrete space.* give action\.reshape\(-1, 1\)\.astype\(np\.float32\)\.",
    ),
    (BOX, spec("f2", 1), r"give action\.astype\(np\.float32\)\."),
    (spaces.Discrete(3), spec("i8", 1), r"give action\.reshape\(-1\)\."),
    (
        spaces.Discrete(3),
        spec("f4"),
        r"of a Box, use a policy for it\. .* give action\.astype\(np\.int64\)\.",
    ),
    (spaces.Discrete(3, start=1), spec("f4", 3), r"if it is one-hot, give action\.argmax\(-1\) \+ 1\."),
    (spaces.Discrete(3), spec("?"), r"elements bool \(\).*give action\.astype\(np\.int64\)\."),
    (NESTED, spec("f4", 2), r"the column action has float32 \(2,\), and Dict.* has the parts \['at', 'rest'\]"),
    (NESTED, nested_spec(name="more"), r"has the parts \['at', 'more'\], and .* has the parts \['at', 'rest'\]"),
    (NESTED, nested_spec(dtype="i4"), r"the column action/at has elements int32 \(2,\)"),
    (
        NESTED,
        nested_spec(count=5),
        r"the column action/rest/1 has elements int8 \(5,\), and .* wants int8 \(4,\)",
    ),
    (BOX, nested_spec(), r"the column action has the parts \['at', 'rest'\], and Box.* has no parts"),
]


@pytest.mark.parametrize(("space", "column", "words"), MISFITS)
def test_a_misfit_is_named_with_what_is_wanted_and_the_fix(space, column, words):
    found = find_space_mismatch({"action": column}, None, space)
    with pytest.raises(ValueError, match=words):
        raise ValueError(found)


@pytest.mark.parametrize(
    ("space", "column"),
    [
        (BOX, spec("f4", 1)),
        (BOX, spec("f8", 1)),
        (spaces.Discrete(3), spec("u1")),
        (spaces.MultiBinary(3), spec("?", 3)),
        (IMAGE, spec("i8", 8, 8, 1)),
        (NESTED, nested_spec()),
        (NESTED, nested_spec("f8")),
    ],
)
def test_dtypes_of_the_same_kind_fit(space, column):
    assert find_space_mismatch({"obs": column, "next_obs": column, "action": column}, space, space) is None


def test_observations_are_compared_and_images_are_not_scaled():
    found = find_space_mismatch({"obs": spec("f4", 8, 8, 1), "next_obs": spec("f4", 8, 8, 1)}, IMAGE, None)
    assert "the column obs has elements float32 (8, 8, 1)" in found
    assert found.endswith("give the integers of the environment, not scaled.")
    found = find_space_mismatch({"obs": spec("f4", 1), "next_obs": spec("f4", 2)}, BOX, None)
    assert "the column next_obs has elements float32 (2,)" in found
    assert "or use the observation space of the data" in found


def test_flat_actions_of_one_number_are_refused_with_the_fix():
    assert find_space_mismatch({"action": spec("f4")}, None, BOX).endswith("give action.reshape(-1, 1).")


def test_a_large_space_is_shortened():
    wide = spaces.Box(np.linspace(-1, 0, 300, dtype=np.float32), np.ones(300, np.float32))
    assert len(find_space_mismatch({"obs": spec("f4", 3)}, wide, None)) < 400
