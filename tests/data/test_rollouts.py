"""Rollouts: what was stored against plain lists of it, and the sequence of transitions against a list of dicts."""

import copy
import pickle

import numpy as np
import pytest
import torch

from ding_lite.data import LeafSpec, RolloutArrays, Trajectories, Tree, flatten, nested, tree
from ding_lite.data.column_arrays import to_objects

FLOAT = np.dtype(np.float32)
T, B = 6, 3


def columns() -> dict:
    place = np.arange(T * B).reshape(T, B)
    return {
        "obs": {"a": place[..., None] + np.zeros((1, 1, 2), np.float32), "b": {"c": place.astype(np.int64)}},
        "reward": place.astype(np.float64) / 8,
        "terminated": place % 4 == 0,
    }


def plain(structure) -> dict:
    """A tree or arrays as nested dicts of lists."""
    structure = nested(structure)
    return {name: plain(inner) for name, inner in structure.items()} if isinstance(structure, dict) else structure.tolist()


def listed(valid=None) -> list[dict]:
    """Every transition as a dict, environment by environment."""
    return [plain(row(columns(), (t, b))) for b in range(B) for t in range(T) if valid is None or valid[t, b]]


def row(leaves, where):
    return {name: row(leaf, where) for name, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[where]


def some_valid() -> np.ndarray:
    valid = np.ones((T, B), bool)
    valid[0, 0] = valid[3, 1] = valid[5, 1] = valid[4, 2] = False
    return valid


masks = pytest.mark.parametrize("valid", [None, some_valid()], ids=["all real", "some only resets"])


@masks
def test_the_sequence_is_the_list_of_transitions_environment_by_environment(valid):
    rollout, expected = Trajectories(columns(), valid), listed(valid)

    assert len(rollout) == len(expected)
    assert [plain(one) for one in rollout] == expected
    assert [plain(rollout[i]) for i in range(len(rollout))] == expected
    assert [plain(rollout[-i]) for i in range(1, len(rollout) + 1)] == expected[::-1]
    assert [plain(one) for one in reversed(rollout)] == expected[::-1]
    assert plain(rollout[np.int64(2)]) == expected[2]


@masks
@pytest.mark.parametrize("where", [slice(None), slice(2, 5), slice(-3, None), slice(None, None, -2), slice(5, 2), slice(0, 99)])
def test_a_slice_is_a_list_of_transitions(where, valid):
    assert [plain(one) for one in Trajectories(columns(), valid)[where]] == listed(valid)[where]


@masks
def test_an_index_beyond_the_sequence_is_refused(valid):
    rollout = Trajectories(columns(), valid)
    for index in (len(rollout), -len(rollout) - 1):
        with pytest.raises(IndexError):
            rollout[index]


@pytest.mark.parametrize(
    "index",
    [[0, 5], np.array([0, 5]), np.array([0, 1, 2]), np.arange(T * B) < 2, torch.arange(T * B) < 3, (0, 1), True, 1.0, None],
)
def test_an_index_that_is_neither_an_integer_nor_a_slice_is_refused(index):
    with pytest.raises(TypeError, match=rf"of type {type(index).__name__}.*\[ctx.trajectories\[i\] for i in ...\]"):
        Trajectories(columns())[index]


def test_the_name_of_a_column_as_an_index_is_refused_with_the_column():
    with pytest.raises(TypeError, match=r"ctx.trajectories\['obs'\] .*a column is ctx.trajectories.batch.obs"):
        Trajectories(columns())["obs"]


@masks
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_the_batch_of_a_copy_is_a_view_of_its_columns(copied, valid):
    rollout = Trajectories(columns(), valid)
    assert rollout.batch is rollout.batch
    made = copied(rollout)
    made.batch.reward[1, 2] = 77.0

    assert made.columns["reward"][1, 2] == 77
    assert np.array_equal(made.columns["reward"], rollout.columns["reward"]) == (copied is copy.copy)


def test_a_transition_is_a_tree_of_single_steps():
    one = Trajectories(columns())[T + 2]

    assert isinstance(one, Tree)
    assert (one.obs.a.shape, one.reward.shape) == ((2,), ())
    assert (one.obs.b.c.dtype, one.reward.dtype, one.terminated.dtype) == (torch.int64, torch.float64, torch.bool)


@masks
def test_end_idx_points_to_the_last_transition_of_each_environment(valid):
    rollout = Trajectories(columns(), valid)
    lengths = [T, T, T] if valid is None else [5, 4, 5]

    assert rollout.end_idx == np.subtract(np.cumsum(lengths), 1).tolist()
    assert all(type(index) is int for index in rollout.end_idx)
    last = [max(t for t in range(T) if valid is None or valid[t, b]) for b in range(B)]
    assert [rollout[index].obs.b.c.item() for index in rollout.end_idx] == [t * B + b for b, t in enumerate(last)]


@masks
def test_rows_are_every_transition_once_time_major(valid):
    rows, keep = Trajectories(columns(), valid).rows(), slice(None) if valid is None else valid.reshape(-1)

    assert rows["obs"]["b"]["c"].tolist() == np.arange(T * B)[keep].tolist()
    assert rows["reward"].tolist() == (np.arange(T * B)[keep] / 8).tolist()
    assert rows["obs"]["a"][:, 1].tolist() == np.arange(T * B)[keep].tolist()


def test_the_batch_is_a_tree_over_the_same_memory():
    data = columns()
    rollout = Trajectories(data)
    data["reward"][2, 1] = 77

    assert isinstance(rollout.batch, Tree)
    assert rollout.batch is rollout.batch
    assert rollout.batch.reward[2, 1].item() == 77
    assert rollout.batch.obs.b.c.shape == (T, B)
    assert (rollout.num_steps, rollout.num_envs) == (T, B)


@pytest.mark.parametrize(("t", "b", "end_idx"), [(1, 1, [0]), (1, 3, [0, 1, 2]), (4, 1, [3]), (2, 2, [1, 3])])
def test_a_rollout_may_be_as_short_and_narrow_as_it_likes(t, b, end_idx):
    rollout = Trajectories({"reward": np.arange(t * b).reshape(t, b)})

    assert rollout.end_idx == end_idx
    assert [int(one.reward) for one in rollout] == np.arange(t * b).reshape(t, b).T.reshape(-1).tolist()


class Recorded:
    """A random rollout as a list of steps, and the buffer that it was recorded in."""

    def __init__(self, seed: int, is_nested: bool, with_valid: bool) -> None:
        rng = np.random.default_rng(seed)
        draw = (lambda *s: {"x": rng.normal(size=(*s, 2)), "k": rng.integers(9, size=s)}) if is_nested else (
            lambda *s: rng.normal(size=(*s, 2))
        )  # fmt: skip
        spec = {"x": LeafSpec((2,), FLOAT), "k": LeafSpec((), np.dtype(np.int64))} if is_nested else LeafSpec((2,), FLOAT)
        self.buffer, self.steps = RolloutArrays(T, B, spec), []
        obs = draw(B)
        write(self.buffer.obs_at(0), obs)
        for t in range(T):
            outputs = {"action": draw(B), "log_prob": rng.normal(size=B).astype(np.float32)}
            reward, (terminated, truncated), after = rng.normal(size=B), rng.random((2, B)) < 0.3, draw(B)
            final = {int(b): draw() for b in np.flatnonzero(terminated | truncated)}
            valid = rng.random(B) < 0.8 if with_valid and t % 2 else None
            write(self.buffer.obs_at(t + 1), after)
            self.buffer.add(t, outputs, reward, terminated, truncated, final, valid)
            next_obs = [final.get(b, row(after, b)) for b in range(B)]
            self.steps.append({"obs": [row(obs, b) for b in range(B)], "next_obs": next_obs, "reward": reward, "valid": valid,
                               "terminated": terminated, "truncated": truncated, **outputs})  # fmt: skip
            obs = after


def write(where, obs):
    if isinstance(obs, dict):
        for name in obs:
            where[name][...] = obs[name]
    else:
        where[...] = obs


def assert_rows(found, expected):
    if isinstance(expected, dict):
        for name in expected:
            assert_rows(found[name], expected[name])
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected, np.asarray(found).dtype))


@pytest.mark.parametrize("with_valid", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_rollout_equals_the_list_of_its_steps(seed, is_nested, with_valid):
    recorded = Recorded(seed, is_nested, with_valid)
    rollout = recorded.buffer.trajectories()
    batch = rollout.batch

    assert (rollout.num_steps, rollout.num_envs) == (T, B)
    for t, step in enumerate(recorded.steps):
        for b in range(B):
            assert_rows(nested(batch[t, b])["obs"], step["obs"][b])
            assert_rows(nested(batch[t, b])["next_obs"], step["next_obs"][b])
            assert_rows(nested(batch[t, b])["action"], row(step["action"], b))
        assert_rows(batch.log_prob[t], step["log_prob"])
        assert_rows(batch.reward[t], step["reward"])
        assert_rows(batch.terminated[t], step["terminated"])
        assert_rows(batch.truncated[t], step["truncated"])
    marked = [np.ones(B, bool) if step["valid"] is None else step["valid"] for step in recorded.steps]
    assert with_valid == (rollout.valid is not None)
    assert len(rollout) == np.sum(marked)
    if with_valid:
        np.testing.assert_array_equal(rollout.valid, marked)


def test_the_leaves_have_the_standard_names_and_dtypes():
    rollout = Recorded(0, is_nested=False, with_valid=False).buffer.trajectories()
    dtypes = {name: leaf.dtype for name, leaf in nested(rollout.batch).items()}

    assert dtypes == {"obs": torch.float32, "action": torch.float64, "log_prob": torch.float32, "reward": torch.float32,
                      "next_obs": torch.float32, "terminated": torch.bool, "truncated": torch.bool}  # fmt: skip


@pytest.mark.parametrize("is_nested", [False, True])
def test_obs_and_next_obs_do_not_share_memory(is_nested):
    rollout = Recorded(0, is_nested, with_valid=False).buffer.trajectories()
    before = plain(tree({"obs": rollout.columns["obs"]}).clone())
    write(rollout.columns["next_obs"], {"x": 9.0, "k": 9} if is_nested else 9.0)

    assert plain(tree({"obs": rollout.columns["obs"]})) == before


def test_what_was_recorded_is_copied_from_the_arrays_that_were_given():
    buffer = RolloutArrays(2, B, LeafSpec((), FLOAT))
    action, reward, flag = np.ones((B, 2)), np.ones(B), np.zeros(B, bool)
    for t in range(2):
        buffer.add(t, {"action": action}, reward, flag, flag, {}, None)
        for array in (action, reward):
            array += 1
    batch = buffer.trajectories().batch

    assert batch.action[:, 0, 0].tolist() == batch.reward[:, 0].tolist() == [1, 2]


# Objects and text.


def words(valid=None) -> Trajectories:
    place = np.arange(T * B).reshape(T, B)
    things = to_objects([f"step {number}" if number % 3 else {"step": number} for number in range(T * B)]).reshape(T, B)
    return Trajectories({"reward": place, "thing": things, "deep": {"word": place.astype("U")}}, valid)


@masks
def test_objects_come_with_their_transitions(valid):
    rollout = words(valid)
    expected = [f"step {number}" if number % 3 else {"step": number} for number in (int(one.reward) for one in rollout)]

    assert [one.thing.item() for one in rollout] == expected
    assert [rollout[i].thing.item() for i in range(len(rollout))] == expected
    assert [one.thing.item() for one in rollout[2:5]] == expected[2:5]
    assert [one.deep.word.item() for one in rollout] == [str(int(one.reward)) for one in rollout]
    rows = rollout.rows()
    assert rows["deep"]["word"].tolist() == [str(number) for number in rows["reward"]]
    assert rows["thing"].tolist() == [f"step {number}" if number % 3 else {"step": number} for number in rows["reward"]]


def test_a_batch_with_objects_is_sliced_and_told_its_names():
    batch = words().batch

    assert "thing" in batch.keys()  # noqa: SIM118  `in` asks the leaves of a tree
    assert batch[:3].thing.shape == batch[:3].deep.word.shape == (3, B)
    assert batch[2, 1].thing == "step 7"
    assert batch[1].thing.tolist() == [{"step": 3}, "step 4", "step 5"]


def recorded(*steps, num_envs=2) -> RolloutArrays:
    """A buffer with these outputs, one dict a step."""
    buffer = RolloutArrays(len(steps), num_envs, LeafSpec((), FLOAT))
    buffer.obs[...] = 0
    zeros, no = np.zeros(num_envs, np.float32), np.zeros(num_envs, bool)
    for t, outputs in enumerate(steps):
        buffer.add(t, outputs, zeros, no, no, {}, None)
    return buffer


def test_outputs_of_any_kind_are_recorded_and_text_is_never_cut_short():
    thing = object()
    steps = [
        {"word": np.array(["a", "bc"]), "thing": to_objects([None, thing]), "number": np.array([1, 2])},
        {"word": np.array(["a long word", ""]), "thing": to_objects([{"x": 1}, [2]]), "number": np.array([3, 4])},
    ]
    batch = recorded(*steps).trajectories().batch

    assert batch.word.tolist() == [["a", "bc"], ["a long word", ""]]
    assert batch.thing.tolist() == [[None, thing], [{"x": 1}, [2]]]
    assert (batch.number.tolist(), batch.number.dtype) == ([[1, 2], [3, 4]], torch.int64)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (
            np.zeros((2, 3)),
            np.zeros((2, 4)),
            r"output a/x is float64 \(2, 4\) in step 1 .* was float64 \(2, 3\) in earlier steps",
        ),
        (np.zeros((2, 3)), np.zeros(2), r"output a/x is float64 \(2,\) in step 1 .* was float64 \(2, 3\) in earlier steps"),
        (np.zeros(2, np.int64), np.zeros(2), r"output a/x is float64 \(2,\) in step 1 .* was int64 \(2,\) in earlier steps"),
        (np.zeros(2), np.array(["a", "b"]), r"output a/x is <U1 \(2,\) in step 1 .* was float64 \(2,\) in earlier steps"),
        (
            np.array(["a", "b"]),
            np.array([["a", "b"]] * 2),
            r"output a/x is <U1 \(2, 2\) in step 1 .* was object \(2,\) in earlier steps",
        ),
        (np.zeros(2), np.zeros(1), r"output a/x has the shape \(1,\) in step 1 .* one row for each of 2 environments"),
        (np.zeros(2), np.array(0.0), r"output a/x has the shape \(\) in step 1 .* one row for each of 2 environments"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_an_output_that_changes_its_shape_is_refused_with_name_step_and_both_shapes(first, then, words, is_nested):
    steps = ({"a": {"x": first}}, {"a": {"x": then}}) if is_nested else ({"a": first}, {"a": then})
    with pytest.raises(ValueError, match=words if is_nested else words.replace("a/x", "a")):
        recorded(*steps)


def test_an_output_without_a_row_for_each_environment_or_with_other_parts_is_refused():
    with pytest.raises(
        ValueError, match=r"output a has the shape \(3,\) in step 0 .* expected one row for each of 2 environments"
    ):
        recorded({"a": np.zeros(3)})
    with pytest.raises(
        ValueError, match=r"output a has the parts \['y'\] in step 1 of a rollout, but \['x'\] in earlier steps"
    ):
        recorded({"a": {"x": np.zeros(2)}}, {"a": {"y": np.zeros(2)}})


@pytest.mark.parametrize("value", [np.ones(2, np.float32), {"x": np.ones(2)}])
def test_an_output_that_is_missing_in_a_step_or_comes_late_is_refused_with_its_name_and_the_step(value):
    action = {"action": np.zeros(2)}
    with pytest.raises(
        ValueError, match=r"output value is missing in step 2 of a rollout, but was in earlier steps: return the same"
    ):
        recorded({**action, "value": value}, {**action, "value": value}, action)
    with pytest.raises(ValueError, match="output value is new in step 1 of a rollout: return the same outputs in every step"):
        recorded(action, {**action, "value": value})
    with pytest.raises(ValueError, match="output value is new in step 1 of a rollout"):
        recorded({**action, "log_prob": np.zeros(2)}, {**action, "value": value})


def test_the_order_of_the_outputs_may_change():
    columns = recorded({"a": np.zeros(2), "b": np.ones(2)}, {"b": np.ones(2), "a": np.zeros(2)}).trajectories().columns

    assert (columns["a"].tolist(), columns["b"].tolist()) == ([[0, 0]] * 2, [[1, 1]] * 2)


def test_an_output_of_a_narrower_dtype_is_taken():
    column = recorded({"a": np.zeros(2)}, {"a": np.ones(2, np.float32)}).trajectories().columns["a"]

    assert (column.tolist(), column.dtype) == ([[0, 0], [1, 1]], np.float64)


@pytest.mark.parametrize("with_valid", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_buffer_that_grows_and_is_cut_keeps_what_was_recorded(is_nested, with_valid):
    expected, grown = Recorded(0, is_nested, with_valid), Recorded(0, is_nested, with_valid)
    grown.buffer.resize(5 * T)
    assert grown.buffer.num_steps == 5 * T
    write(grown.buffer.obs_at(T + 3), {"x": 9.0, "k": 9} if is_nested else 9.0)
    grown.buffer.resize(T)

    found = dict(flatten(grown.buffer.trajectories().batch))
    for path, leaf in flatten(expected.buffer.trajectories().batch):
        assert torch.equal(found.pop(path), leaf), path
    assert not found


def test_steps_beyond_those_that_were_marked_are_real():
    buffer = RolloutArrays(1, B, LeafSpec((), FLOAT))
    zeros, no = np.zeros(B, np.float32), np.zeros(B, bool)
    buffer.add(0, {}, zeros, no, no, {}, np.array([True, False, True]))
    buffer.resize(3)
    for t in (1, 2):
        buffer.add(t, {}, zeros, no, no, {}, None)

    assert buffer.trajectories().valid.tolist() == [[True, False, True]] + [[True] * B] * 2


# Columns beside the others.


def test_with_columns_takes_the_columns_of_the_batch():
    valid = np.array([[True, False], [True, True]])
    before = Trajectories({"reward": np.arange(4.0).reshape(2, 2)}, valid)
    after = before.with_columns(**nested(before.batch))
    assert (after.valid.tolist(), len(after)) == (valid.tolist(), 3)
    with pytest.raises(ValueError, match="got a column 'valid'.*To leave steps out, choose the others"):
        before.with_columns(valid=~valid)


@masks
def test_with_columns_puts_columns_beside_or_in_place_of_others_and_copies_nothing(valid):
    before = Trajectories(columns(), valid)
    weight, reward = np.ones((T, B), np.float32), torch.zeros(T, B)
    after = before.with_columns(weight=weight, reward=reward, deep={"x": weight}, pair=tree({"y": reward}))

    assert set(after.columns) == {"obs", "reward", "terminated", "weight", "deep", "pair"}
    assert after.valid is valid
    assert after.columns["weight"] is after.columns["deep"]["x"] is weight
    assert after.columns["obs"] is before.columns["obs"]
    assert np.shares_memory(after.columns["reward"], reward.numpy())
    assert np.shares_memory(after.columns["pair"]["y"], reward.numpy())
    assert set(before.columns) == {"obs", "reward", "terminated"}
    assert before.columns["reward"].any()
    assert len(after) == len(before)
    assert after[3].weight.item() == 1
    assert after.rows()["weight"].shape == (len(before),)


@pytest.mark.parametrize(
    "column", [np.zeros(T), np.zeros((T, B + 1)), np.zeros((B, T)), torch.zeros(T * B), {"x": np.zeros(3)}]
)
def test_a_column_of_another_length_is_refused(column):
    with pytest.raises(ValueError, match=r"the column weight(/x)? of shape .* a rollout of 6 steps of 3 environments"):
        Trajectories(columns()).with_columns(weight=column)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "got no columns"),
        ({"obs": {}}, "got no columns"),
        ({"reward": np.zeros(3)}, r"reward of shape \(3,\), expected \[T, B, ...\]"),
        ({"obs": np.zeros((2, 3)), "reward": np.zeros((3, 2))}, r"reward of shape \(3, 2\), .*, and obs has \(2, 3\)"),
        ({"terminated": np.full((2, 3), np.nan)}, r"terminated = np.float64\(nan\) at \[0, 0\], expected True or False"),
        ({"truncated": np.full((2, 3), None)}, r"truncated = None at \[0, 0\]"),
        ({"reward": np.zeros((2, 3)), "terminated": {"x": np.zeros((2, 3))}}, r"terminated of shape \(\)"),
        ({"reward": np.zeros((2, 3)), "valid": np.ones((2, 3))}, "a column 'valid'.*choose the others"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(changed, words):
    with pytest.raises(ValueError, match=r"Trajectories\(\) " + ".*" + words):
        Trajectories(changed)


@pytest.mark.parametrize("valid", [np.ones((T, B + 1), bool), np.full((T, B), 2)])
def test_a_mask_that_does_not_fit_is_refused(valid):
    with pytest.raises(ValueError, match=r"Trajectories\(\) got valid"):
        Trajectories(columns(), valid)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_flags_may_be_numbers_and_become_bool(dtype):
    flags = (columns()["terminated"]).astype(dtype)
    made = Trajectories({"terminated": flags})

    assert made.columns["terminated"].dtype == np.bool_
    assert made.columns["terminated"].tolist() == columns()["terminated"].tolist()
    assert flags.dtype == dtype


def test_a_mask_cannot_be_added_as_a_column():
    with pytest.raises(ValueError, match="got a column 'valid'.*choose the others"):
        Trajectories(columns()).with_columns(valid=np.ones((T, B), bool))


def test_an_output_that_the_dtype_of_the_first_step_cannot_hold_is_refused_with_its_name():
    storage = RolloutArrays(3, 2, LeafSpec((), np.dtype(np.float32)))
    rest = np.zeros(2, np.float32), np.zeros(2, bool), np.zeros(2, bool), {}, None
    storage.add(0, {"id": np.zeros(2, np.int32)}, *rest)
    storage.add(1, {"id": np.array([1, 2])}, *rest)
    with pytest.raises(ValueError, match="output id has dtype int32, got 8589934597, which int32 cannot hold"):
        storage.add(2, {"id": np.array([1, 2**33 + 5])}, *rest)
