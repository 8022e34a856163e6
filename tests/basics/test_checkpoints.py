"""Checkpoints: what goes in comes out."""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.basics import arrays, plain
from ding_lite.engine import load_checkpoint, save_checkpoint

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.complex_numbers()
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


class TestRoundTrip:
    @given(state=st.dictionaries(st.text(), PLAIN, max_size=4))
    @settings(deadline=None, max_examples=50)
    def test_any_plain_data_comes_back_with_the_same_values_and_types(self, state, tmp_path_factory):
        path = save_checkpoint(state, tmp_path_factory.getbasetemp() / "law.pt")

        assert repr(load_checkpoint(path)) == repr(state)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
    @pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
    def test_a_tensor_comes_back_bit_for_bit(self, tmp_path, dtype, shape):
        tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 10).to(dtype)
        loaded = load_checkpoint(save_checkpoint({"x": tensor}, tmp_path / "a.pt"))["x"]

        assert loaded.dtype == dtype
        assert loaded.shape == shape
        assert torch.equal(loaded, tensor)

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6.0).reshape(2, 3),
            np.arange(6, dtype=np.uint8),
            np.array(3),
            np.zeros(0),
            np.arange(6)[::2],
            np.arange(6)[::-1],
        ],
        ids=["matrix", "bytes", "no dimension", "empty", "strided", "reversed"],
    )
    def test_an_array_comes_back_as_an_array_by_way_of_a_tensor(self, tmp_path, array):
        loaded = load_checkpoint(save_checkpoint({"x": array}, tmp_path / "a.pt"))

        assert isinstance(loaded["x"], torch.Tensor)
        np.testing.assert_array_equal(arrays(loaded)["x"], array, strict=True)

    def test_the_state_of_a_module_an_optimizer_and_random_generators_go_on_as_if_nothing_had_happened(self, tmp_path):
        def fresh():
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1)
            return model, torch.optim.Adam(model.parameters()), torch.Generator().manual_seed(1), np.random.default_rng(2)

        def learn(model, optimizer, generator, rng):
            loss = model(torch.rand(3, 2, generator=generator)).sum() * float(rng.random())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return model.weight.detach().clone()

        model, optimizer, generator, rng = fresh()
        learn(model, optimizer, generator, rng)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": generator.get_state(),
            "rng": rng.bit_generator.state,
        }
        save_checkpoint(state, tmp_path / "a.pt")
        expected = learn(model, optimizer, generator, rng)

        loaded = load_checkpoint(tmp_path / "a.pt")
        model, optimizer, generator, rng = fresh()
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        generator.set_state(loaded["generator"])
        rng.bit_generator.state = arrays(loaded["rng"])

        assert torch.equal(learn(model, optimizer, generator, rng), expected)

    def test_it_returns_the_path_and_makes_the_folder(self, tmp_path):
        path = save_checkpoint({"x": 1}, str(tmp_path / "new" / "folder" / "a.pt"))

        assert path == tmp_path / "new" / "folder" / "a.pt"
        assert [entry.name for entry in path.parent.iterdir()] == ["a.pt"]

    def test_saving_leaves_the_state_as_it_was(self, tmp_path):
        state = {"x": torch.ones(2, requires_grad=True), "y": np.float32(1)}
        save_checkpoint(state, tmp_path / "a.pt")

        assert state["x"].requires_grad
        assert type(state["y"]) is np.float32

    def test_a_row_of_a_large_tensor_does_not_take_the_large_one_along(self, tmp_path):
        path = save_checkpoint({"row": torch.zeros(1_000_000)[:4]}, tmp_path / "a.pt")

        assert path.stat().st_size < 10_000


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    """A string with a class of its own."""


@dataclasses.dataclass
class Point:
    x: int = 1


Pair = collections.namedtuple("Pair", "first second")


class TestPlain:
    def test_numpy_scalars_become_numbers(self):
        state = plain({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)})

        assert state == {"a": 0.5, "b": 3, "c": True}
        assert [type(value) for value in state.values()] == [float, int, bool]

    def test_tensors_leave_their_graph_and_mappings_become_dicts(self):
        state = plain(collections.OrderedDict(x=torch.ones(2, requires_grad=True), y=torch.nn.Parameter(torch.zeros(1))))

        assert type(state) is dict
        assert not state["x"].requires_grad
        assert type(state["y"]) is torch.Tensor

    @pytest.mark.parametrize(
        ("odd", "words"),
        [
            (np.ma.array([1.0, 2.0], mask=[False, True]), r"return its \.data and \.mask"),
            (np.asmatrix(np.eye(2)), r"return np\.asarray\(it\)"),
        ],
        ids=["masked", "matrix"],
    )
    def test_arrays_that_would_lose_their_mask_or_their_class_are_refused_with_what_to_save(self, odd, words):
        with pytest.raises(TypeError, match=rf"^state\['seen'\] is a {type(odd).__name__}, which would be loaded as .*{words}"):
            plain({"seen": odd})

    @pytest.mark.parametrize(
        "odd",
        [
            {1},
            b"",
            object(),
            lambda: None,
            range(3),
            np.dtype("f4"),
            pathlib.Path(),
            torch.device("cpu"),
            Colour.RED,
            Level.LOW,
            Word("a"),
            Point(),
            collections.deque([1]),
            frozenset({1}),
            bytearray(b"a"),
            datetime.date(2000, 1, 1),
            decimal.Decimal(1),
            functools.partial(max, 1),
            torch.Generator(),
            np.datetime64("2000-01-01"),
            np.str_("a"),
            np.longdouble(1),
            slice(1),
        ],
        ids=lambda odd: type(odd).__name__,
    )
    def test_anything_else_is_refused_with_its_place_and_type(self, odd, tmp_path):
        state = {"policy": {"layers": [1, (2, odd)]}}
        match = rf"^state\['policy'\]\['layers'\]\[1\]\[1\] is a {type(odd).__name__}, which a checkpoint cannot hold: let"
        with pytest.raises(TypeError, match=match):
            save_checkpoint(state, tmp_path / "a.pt")

        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("odd", "loaded"),
        [
            (np.float32(0.5), 0.5),
            (np.float16(0.5), 0.5),
            (np.complex64(1j), 1j),
            (np.uint64(2**64 - 1), 2**64 - 1),
            (np.bool_(True), True),
            (collections.defaultdict(int, a=1), {"a": 1}),
            (collections.Counter("a"), {"a": 1}),
            (collections.OrderedDict(a=1), {"a": 1}),
            (Pair(1, 2), (1, 2)),
            (torch.Size([1]), (1,)),
        ],
        ids=lambda odd: type(odd).__name__,
    )
    def test_numpy_scalars_and_subclasses_of_dict_and_tuple_become_plain_data(self, odd, loaded, tmp_path):
        found = load_checkpoint(save_checkpoint({"x": [odd]}, tmp_path / "a.pt"))["x"][0]

        assert found == loaded
        assert type(found) is type(loaded)

    @pytest.mark.parametrize("array", [np.array([object()]), np.array(["text"])], ids=["objects", "strings"])
    def test_an_array_of_no_numbers_is_refused_with_its_place(self, array, tmp_path):
        with pytest.raises(TypeError, match=r"^state\['buffer'\]"):
            save_checkpoint({"buffer": array}, tmp_path / "a.pt")

    @pytest.mark.parametrize("key", [np.int64(3), pathlib.Path("a"), frozenset({1})], ids=repr)
    def test_a_key_that_no_reader_takes_is_refused_or_made_plain(self, key, tmp_path):
        with contextlib.suppress(TypeError):
            save_checkpoint({"counts": {key: 1}}, tmp_path / "a.pt")
            assert list(load_checkpoint(tmp_path / "a.pt")["counts"].values()) == [1]

    def test_arrays_turns_tensors_back_wherever_they_stand(self):
        state = arrays({"a": [torch.ones(2), (torch.zeros(1), "text")], "b": 3})

        assert isinstance(state["a"][0], np.ndarray)
        assert isinstance(state["a"][1], tuple)
        assert isinstance(state["a"][1][0], np.ndarray)
        assert (state["a"][1][1], state["b"]) == ("text", 3)
