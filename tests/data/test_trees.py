"""tree() against treetensor's own constructor, and the functions that walk through trees and nested dicts."""

import multiprocessing
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
import treetensor.torch as treetensor

from ding_lite.data import Tree, flatten, nested, to_device, tree, unflatten
from ding_lite.data.trees import first_leaf, has_leaf, map_leaves, with_leaves

AWKWARD = ("keys", "shape", "a.b", "0", "_private", "with space", "pop", "json", "é")


class Unprintable(torch.Tensor):
    """A leaf that tells whoever prints it."""

    def __repr__(self, **kwargs) -> str:
        raise AssertionError("a leaf was printed")

    __str__ = __repr__
    __format__ = __repr__


def batch() -> dict:
    return {
        "obs": {"image": torch.arange(24.0).reshape(4, 2, 3), "inner": {"speed": torch.arange(4)}},
        "reward": torch.ones(4, dtype=torch.float64),
    }


def as_dict(one: Tree) -> dict:
    """By treetensor's own means: names to arrays."""
    return one.json() if isinstance(one, treetensor.Tensor) else one


def assert_same(one, other):
    one, other = as_dict(one), as_dict(other)
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_tree_equals_the_one_that_treetensor_makes():
    ours, theirs = tree(batch()), treetensor.Tensor(batch())

    assert type(ours) is type(theirs) is Tree
    assert type(ours.obs.inner) is type(theirs.obs.inner)
    assert_same(ours, theirs)
    assert (ours == theirs).all()
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("operate", [lambda x: x[1:3], lambda x: x * 2, lambda x: x.sum(), lambda x: x.clone().double()])
def test_a_tree_behaves_as_the_one_that_treetensor_makes(operate):
    assert_same(operate(tree(batch())), operate(treetensor.Tensor(batch())))


def test_building_a_tree_prints_no_leaf():
    leaf = torch.ones(2).as_subclass(Unprintable)
    with pytest.raises(AssertionError, match="printed"):
        repr(leaf)
    built = tree({"obs": {"x": leaf}, "reward": leaf})

    assert built.obs.x is leaf
    assert with_leaves(built, weight=leaf).weight is leaf
    assert nested(map_leaves(lambda x: x, built))["obs"]["x"] is leaf


def test_building_a_tree_prints_no_tensor(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__repr__", Unprintable.__repr__)
    built = tree(batch())

    assert built.reward.shape == (4,)


def test_tensors_and_arrays_are_not_copied():
    array, tensor = np.zeros(3), torch.zeros(3)
    built = tree({"array": array, "inner": {"tensor": tensor}})
    array[0], tensor[1] = 5, 7

    assert built.array.tolist() == [5, 0, 0]
    assert built.inner.tensor is tensor


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (1, torch.int64),
        (1.5, torch.float32),
        (True, torch.bool),
        (np.float64(1.5), torch.float64),
        (np.int8(3), torch.int8),
        (np.bool_(True), torch.bool),
        (np.array(2.5), torch.float64),
        (np.arange(3, dtype=np.uint8), torch.uint8),
        (np.ones((0, 2), np.float16), torch.float16),
        (torch.ones(2, dtype=torch.bfloat16), torch.bfloat16),
        (torch.nn.Parameter(torch.ones(2)), torch.float32),
    ],
)
def test_numbers_arrays_and_tensors_become_tensors_of_the_same_value(leaf, dtype):
    built = tree({"x": leaf}).x

    assert isinstance(built, torch.Tensor)
    assert built.dtype == dtype
    assert built.tolist() == (leaf if isinstance(leaf, (int, float)) else leaf.tolist())


def test_a_tree_may_stand_inside_another():
    inner = tree({"x": torch.ones(2)})
    built = tree({"a": inner, "b": {"c": inner}, "d": tree(batch()).obs})

    assert_same(built, {"a": {"x": torch.ones(2)}, "b": {"c": {"x": torch.ones(2)}}, "d": batch()["obs"]})
    assert built.b.c.x is inner.x


@pytest.mark.parametrize("name", AWKWARD)
def test_any_string_may_be_a_name(name):
    built = tree({"obs": {name: torch.ones(2)}, name: torch.zeros(2)})

    assert built["obs"][name].tolist() == [1, 1]
    assert has_leaf(built, name)
    assert nested(built[1:])["obs"][name].tolist() == [1]
    assert dict(flatten(built))["obs", name].tolist() == [1, 1]


@pytest.mark.parametrize("leaf", ["text", None, [1.0, 2.0], (1,), 1j, object(), b"bytes", {1, 2}])
def test_a_leaf_that_is_no_number_is_refused_by_name(leaf):
    with pytest.raises(TypeError, match=rf"tree\.obs\.x is a {type(leaf).__name__}, expected a tensor, an array or a number"):
        tree({"obs": {"x": leaf}})


@pytest.mark.parametrize("leaf", [np.array(["2020-01-01"], "datetime64[D]"), np.zeros(2, ">f4")])
def test_an_array_that_no_tensor_can_hold_is_refused_by_name(leaf):
    with pytest.raises((TypeError, ValueError), match=r"tree\.obs\.x"):
        tree({"obs": {"x": leaf}})


@pytest.mark.parametrize("leaf", [1.0, torch.ones(2), np.ones(2), {"x": 1.0}])
def test_a_name_that_is_no_string_is_refused(leaf):
    with pytest.raises(TypeError, match=r"tree\.obs has the key 7 of type int: names of leaves must be strings"):
        tree({"obs": {7: leaf}})


def test_with_leaves_adds_and_replaces_and_leaves_the_batch_as_it_is():
    before = tree(batch())
    after = with_leaves(before, reward=np.zeros(4), weight={"x": torch.ones(4)})

    assert_same(before, batch())
    assert_same(after, {**batch(), "reward": torch.zeros(4, dtype=torch.float64), "weight": {"x": torch.ones(4)}})
    assert after.obs.image is before.obs.image


def test_has_leaf_looks_at_the_top_only():
    built = tree(batch())

    assert [has_leaf(built, name) for name in ("obs", "reward", "image", "shape", "json")] == [True, True, False, False, False]
    assert has_leaf(built.obs, "image")


@pytest.mark.parametrize("leaves", [batch(), types.MappingProxyType(batch())], ids=["dict", "mapping"])
def test_a_mapping_is_a_batch_as_it_is(leaves):
    after = with_leaves(leaves, weight=torch.ones(4))

    assert [has_leaf(leaves, name) for name in ("obs", "reward", "image")] == [True, True, False]
    assert type(after) is Tree
    assert_same(after, {**batch(), "weight": torch.ones(4)})
    assert "weight" not in leaves


def test_trees_of_a_class_of_their_own_are_trees():
    class Own(Tree):
        pass

    own = Own(batch())

    assert has_leaf(own, "obs")
    assert not has_leaf(own, "weight")
    assert_same(with_leaves(own, reward=torch.zeros(4)), {**batch(), "reward": torch.zeros(4)})


def refusals(path):
    """Write what is said of several things that are no batch to a file."""
    with path.open("w") as file:
        for given in (None, [tree({"obs": torch.zeros(2)})], (), np.zeros(3), torch.zeros(3), 3, "obs", object()):
            for ask in (has_leaf, with_leaves):
                try:
                    ask(given, "obs") if ask is has_leaf else ask(given, obs=torch.zeros(2))
                except TypeError as error:
                    print(error, file=file)


def test_what_is_no_batch_is_refused_by_its_type(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=refusals, args=(tmp_path / "said",))  # it might crash
    process.start()
    process.join()
    kinds = ("NoneType", "list", "tuple", "ndarray", "Tensor", "int", "str", "object")
    fix = 'pass a tree, such as tree({"obs": ..., "reward": ...}).'

    assert process.exitcode == 0
    assert (tmp_path / "said").read_text().splitlines() == [
        f"{who}() wants a tree or a mapping of leaves by name, got a {kind}: {fix}"
        for kind in kinds
        for who in ("has_leaf", "with_leaves")
    ]


def test_nested_gives_the_very_tensors_of_a_tree_as_dicts():
    built = tree(batch())
    plain = nested(built)

    assert_same(plain, batch())
    assert type(plain["obs"]["inner"]) is dict
    assert plain["obs"]["image"] is built.obs.image


@pytest.mark.parametrize("structure", [{"x": 1}, torch.ones(2), np.ones(2)])
def test_nested_leaves_what_is_no_tree_as_it_is(structure):
    assert nested(structure) is structure


def test_flatten_finds_every_leaf_and_unflatten_puts_it_back():
    built = tree(batch())
    leaves = dict(flatten(built))

    assert set(leaves) == {("obs", "image"), ("obs", "inner", "speed"), ("reward",)}
    assert leaves["obs", "image"] is built.obs.image
    assert_same(unflatten(leaves), batch())


@pytest.mark.parametrize("structure", [{"a": 1, "b": {"c": 2, "d": {"e": 3}}}, 7, {}])
def test_unflatten_undoes_flatten(structure):
    assert unflatten(dict(flatten(structure))) == structure


def test_flatten_looks_into_trees_inside_dicts():
    assert [path for path, _ in flatten({"a": tree({"b": 1}), "c": 2}, ("root",))] == [("root", "a", "b"), ("root", "c")]


def test_map_leaves_keeps_the_kind_of_structure():
    doubled = map_leaves(lambda x: x * 2, tree(batch()))

    assert type(doubled) is Tree
    assert_same(doubled, {"obs": {"image": batch()["obs"]["image"] * 2, "inner": {"speed": torch.arange(4) * 2}},
                          "reward": torch.full((4,), 2.0, dtype=torch.float64)})  # fmt: skip
    assert map_leaves(str, {"a": 1, "b": {"c": 2}}) == {"a": "1", "b": {"c": "2"}}
    assert map_leaves(str, 1) == "1"


def test_map_leaves_walks_several_structures_together():
    assert map_leaves(lambda *x: x, {"a": 1, "b": {"c": 2}}, {"b": {"c": 20}, "a": 10}) == {"a": (1, 10), "b": {"c": (2, 20)}}
    summed = map_leaves(lambda x, y, z: x + y + z, tree({"a": {"b": 1}}), {"a": {"b": 10}}, tree({"a": {"b": 100}}))
    assert summed.a.b.item() == 111


@pytest.mark.parametrize(
    "structure", [{"a": {"b": np.zeros((5, 2))}, "c": np.ones(5)}, np.ones(5), tree({"a": {"b": np.ones(5)}})]
)
def test_first_leaf_finds_a_leaf(structure):
    assert len(first_leaf(structure)) == 5
    assert first_leaf(structure).dtype in (np.float64, torch.float64)


def words() -> dict:
    """Columns of numbers, objects and text."""
    things = np.empty(4, object)
    things[:] = ["a", "much longer", None, 7]
    return {"x": np.arange(4), "obs": {"thing": things, "word": np.array(["p", "q", "r", "s"])}, "raw": np.array([b"0"] * 4)}


def test_arrays_of_objects_and_text_stay_the_very_arrays_that_they_are():
    columns = words()
    built = tree(columns)

    assert built.obs.thing is columns["obs"]["thing"]
    assert built.obs.word is columns["obs"]["word"]
    assert built.raw is columns["raw"]
    assert isinstance(built.x, torch.Tensor)
    assert ("raw" in built.keys(), "thing" in built.obs.keys(), "thing" in built.keys()) == (True, True, False)  # noqa: SIM118
    assert has_leaf(built, "raw")


def test_a_tree_with_objects_is_sliced_indexed_and_taken_apart_like_any_other():
    built = tree(words())

    assert built[1:3].obs.thing.tolist() == ["much longer", None]
    assert built[:3].obs.word.tolist() == ["p", "q", "r"]
    assert built[torch.tensor([3, 0])].obs.thing.tolist() == [7, "a"]
    assert built[1].obs.thing == "much longer"
    assert nested(built)["obs"]["thing"] is built.obs.thing
    assert dict(flatten(built))["obs", "thing"] is built.obs.thing
    assert set(dict(flatten(built))) == {("x",), ("obs", "thing"), ("obs", "word"), ("raw",)}
    assert with_leaves(built, y=torch.ones(4)).obs.thing is built.obs.thing
    assert with_leaves(built, x=built.obs.thing).x is built.obs.thing
    assert map_leaves(lambda leaf: leaf[2:], built).obs.thing.tolist() == [None, 7]
    assert len(first_leaf(built.obs)) == 4


def test_to_device_moves_tensors_and_leaves_the_rest():
    built = tree(words())
    moved = to_device(built, "meta")

    assert type(moved) is Tree
    assert moved.x.device.type == "meta"
    assert moved.obs.thing is built.obs.thing
    assert to_device({"a": {"b": torch.ones(2)}, "c": "text"}, torch.device("meta"))["a"]["b"].device.type == "meta"
    assert to_device(built, "cpu").x is built.x


def test_importing_the_room_raises_no_warning_and_loads_nothing_heavy():
    script = "import ding_lite.data, sys; print(*{'gymnasium', 'ray', 'tensorboard', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "", "")
