"""Lists of transitions and of episodes as the rollouts and episodes that they are."""

import numpy as np
import pytest
import torch

from ding_lite.data import Episodes, PrioritizedReplayBuffer, ReplayBuffer, Trajectories, flatten, nested, tree
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.lists import episodes_from_list, rollout_from_list, stack_transitions
from ding_lite.data.trees import map_leaves, with_leaves

T, B = 4, 3


def rollout(valid=None) -> Trajectories:
    place = np.arange(T * B).reshape(T, B)
    no = np.zeros((T, B), bool)
    obs = {"x": place[..., None] + np.zeros(2, np.float32), "y": {"z": place}}
    return Trajectories({"obs": obs, "reward": place.astype(np.float32), "terminated": no, "truncated": no.copy()}, valid)


def resets() -> np.ndarray:
    valid = np.ones((T, B), bool)
    valid[0, 0] = valid[2, 1] = valid[3, 2] = False
    return valid


def only_resets() -> np.ndarray:
    """In the last row, and in one environment."""
    valid = np.ones((T, B), bool)
    valid[-1] = valid[:, 1] = False
    return valid


def plain(structure) -> dict:
    return {path: (str(leaf.dtype), leaf.tolist()) for path, leaf in flatten(structure)}


@pytest.mark.parametrize("valid", [None, resets(), only_resets()], ids=["all real", "some only resets", "whole row and column"])
@pytest.mark.parametrize("change", [list, reversed, lambda one: [with_leaves(t, bonus=t.reward) for t in one]])
def test_all_transitions_of_a_rollout_are_that_rollout_in_any_order(change, valid):
    one = rollout(valid)
    one.begins, one.has_scaled_rewards = np.array([True, False, True]), True
    listed = rollout_from_list(list(change(one)), "test")
    bonus = listed.columns.pop("bonus", None)

    assert (listed.order, len(listed), listed.end_idx) == ("whole", len(one), one.end_idx)
    assert (listed.begins is one.begins, listed.has_scaled_rewards) == (True, True)
    assert plain(listed.columns) == plain(one.columns)
    np.testing.assert_array_equal(listed.valid, one.valid)
    if bonus is not None:
        assert bonus[valid].tolist() == one.columns["reward"][valid].tolist()


@pytest.mark.parametrize("valid", [None, resets()], ids=["all real", "some only resets"])
@pytest.mark.parametrize("where", [slice(1, None), slice(6), slice(2, 9), slice(None, None, 2), slice(5, 6)])
def test_steps_that_followed_each_other_stay_a_column_and_all_others_begin_one(where, valid):
    one = rollout(valid)
    chosen = one[where]
    listed = rollout_from_list(chosen, "test")
    column_of = [None] * T * B
    for t, b in np.ndindex(listed.num_steps, listed.num_envs):
        if listed.valid is None or listed.valid[t, b]:
            column_of[int(listed.columns["reward"][t, b])] = (t, b)

    assert listed.order == "pieces"
    assert [plain(t) for t in listed] == [plain(t) for t in chosen]
    for earlier, later in [(int(t.reward), int(t.reward) + B) for t in chosen]:
        if later < T * B and column_of[later]:
            (t, b), (its_t, its_b) = column_of[earlier], column_of[later]
            assert (its_t, its_b) == (t + 1, b)
    if listed.valid is not None:
        assert listed.valid[-1].all()  # so that nothing that runs backwards carries what is no step into a piece


def test_pieces_with_recurrent_states_begin_in_the_first_row_and_short_ones_end_there_as_if_truncated():
    one = rollout()
    one.columns["terminated"][1, 1] = True
    one = one.with_columns(state_in_0=one.columns["reward"] + 100)
    listed = rollout_from_list([*one[:4], *one[4:6], *one[9:11]], "test")
    reward, valid = listed.columns["reward"], listed.valid

    assert listed.order == "pieces"
    assert [reward[valid[:, p], p].tolist() for p in range(listed.num_envs)] == [[0, 3, 6, 9], [1, 4], [5, 8]]
    assert listed.columns["state_in_0"][0].tolist() == [100, 101, 105]
    assert np.argwhere(listed.columns["truncated"]).tolist() == [[1, 2]]  # not where the piece has an end of its own
    assert not one.columns["truncated"].any()


@pytest.mark.parametrize("other", [lambda t: nested(t), lambda t: tree(nested(t)), lambda t: t.clone()])
def test_a_transition_from_elsewhere_leaves_nothing_known_of_the_order(other):
    one = rollout()
    listed = rollout_from_list([*one, other(one[0])], "test")

    assert (listed.order, listed.num_steps, listed.num_envs) == ("none", 1, T * B + 1)
    assert [int(t.reward) for t in listed] == [int(t.reward) for t in one] + [0]
    assert rollout_from_list(list(listed), "test").order == "none"
    assert listed.with_columns(more=listed.columns["reward"]).order == "none"


def test_pieces_of_several_rollouts_stand_side_by_side():
    one, two = rollout(), rollout()
    listed = rollout_from_list([*one[:4], *two[:4], *one[4:8]], "test")

    assert listed.order == "pieces"
    assert sorted(listed.columns["reward"].T.tolist()) == [[0, 3, 6, 9], [0, 3, 6, 9], [1, 4, 7, 10]]


@pytest.mark.parametrize("again", [slice(3), slice(1, 9, 2), slice(None)])
def test_transitions_that_are_listed_again_are_as_those_listed_alone_and_cut_no_others(again):
    one = rollout()
    listed = rollout_from_list([*one, *one[again]], "test")
    alone = rollout_from_list(one[again], "test")

    def pieces(rollout):
        valid = np.ones((rollout.num_steps, rollout.num_envs), bool) if rollout.valid is None else rollout.valid
        return [rollout.columns["reward"][valid[:, piece], piece].tolist() for piece in range(rollout.num_envs)]

    assert listed.order == "pieces"
    assert sorted(pieces(listed)) == sorted([*pieces(one), *pieces(alone)])


def test_what_a_list_holds_is_copied():
    one = rollout()
    listed = rollout_from_list(list(one), "test")
    listed.columns["reward"][:] = 50

    assert one.columns["reward"].max() == T * B - 1


WRONG = {
    "a number": ([1], TypeError, "test: transition 0 of a list is 1 of type int, expected a tree, or a dict"),
    "other leaves": ([{"x": 1}, {"y": 1}], ValueError, r"transition 1 of a list has the leaves \['y'\], the first has \['x'\]"),
    "other shapes": ([{"x": [1, 2]}, {"x": [1]}], ValueError, r"test: x of a list of .* has the shapes \[\(1,\), \(2,\)\]"),
    "no numbers": (
        [{"reward": 1}, {"reward": None}],
        TypeError,
        r"test: reward of transition 1 of a list is None, and array\(1\) in the first",
    ),
    "text": ([{"reward": 1}, {"reward": "a"}], TypeError, "test: reward of transition 1 of a list is 'a', and array"),
    "rows of other shapes": (
        [{"x": [[1], [1, 2]]}],
        ValueError,
        r"transition 0 of a list has x = \[\[1\], \[1, 2\]\], whose rows",
    ),
    "episodes": (
        [{"terminated": [True]}],
        ValueError,
        r"terminated has shape \(1,\) in each transition .* write the list to ctx.episodes",
    ),
}


@pytest.mark.parametrize(("listed", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_list_of_transitions_is_refused_by_name(listed, error, words):
    with pytest.raises(error, match=words):
        stack_transitions(listed, "test")


def steps(begin: int, end: int, ends: bool = True) -> dict:
    done = np.zeros(end - begin, bool)
    done[-1] = ends
    number = np.arange(begin, end)
    return {"obs": {"x": number[:, None] * 1.0}, "reward": number, "terminated": done, "truncated": done & False}


def one_by_one(episode: dict) -> list[dict]:
    return [nested(tree(episode)[t]) for t in range(len(episode["reward"]))]


@pytest.mark.parametrize("form", [dict, tree, one_by_one])
def test_a_list_of_episodes_is_episodes(form):
    listed = episodes_from_list([form(steps(0, 2)), form(steps(2, 5)), form(steps(5, 6, ends=False))], "test")

    assert listed.lengths.tolist() == [2, 3, 1]
    assert listed.rows()["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert listed.rows()["obs"]["x"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert listed.rows()["terminated"].tolist() == [False, True, False, False, True, False]
    assert listed.rows()["truncated"].tolist() == [False] * 5 + [True]  # a piece that goes on is cut there
    assert episodes_from_list([listed[2], listed[0]], "test").rows()["reward"].tolist() == [5, 0, 1]


@pytest.mark.parametrize("kept", [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5], [5, 4, 3], [1, 1, 2]])
@pytest.mark.parametrize("form", ["mask", "dicts", "list"])
def test_an_episode_with_gaps_is_as_many_episodes(kept, form):
    number = np.arange(6.0)
    no = np.zeros(6, bool)
    rows = {"obs": {"x": number[:, None]}, "next_obs": {"x": number[:, None] + 1}, "reward": number}
    episode = Episodes({**rows, "terminated": no, "truncated": no}, [6])[0]
    if form == "list":
        one = Trajectories({name: map_leaves(lambda leaf: leaf[:, None], leaf) for name, leaf in nested(episode).items()})
        element = [one[place] for place in kept]
    else:
        element = episode[np.array(kept)] if form == "mask" else [nested(episode[place]) for place in kept]
    listed = episodes_from_list([element, element], "test")
    begins = [place for place in range(len(kept)) if not place or kept[place] != kept[place - 1] + 1]
    lengths = [stop - begin for begin, stop in zip(begins, [*begins[1:], len(kept)])]

    assert listed.lengths.tolist() == 2 * lengths
    assert listed.rows()["reward"].tolist() == 2 * kept
    assert [one.truncated.tolist() for one in listed] == 2 * [[False] * (length - 1) + [True] for length in lengths]


@pytest.mark.filterwarnings("error")
def test_whole_episodes_stay_whole_whatever_changes_in_them():
    rows = {**steps(0, 5), "next_obs": {"x": np.arange(1.0, 6.0)[:, None]}, "terminated": np.zeros(5, bool)}
    made = Episodes({**rows, "truncated": np.arange(5) == 2}, [3, 2])
    for _ in range(2):  # stored by rows, and padded
        one, other = made
        one.obs.x[1] += 9
        listed = episodes_from_list([with_leaves(other, obs={"x": np.full((2, 1), 7.0)}), one], "test")
        assert listed.lengths.tolist() == [2, 3]
        shifted = with_leaves(one, obs={"x": one.obs.x + 0.5}, next_obs={"x": one.next_obs.x + torch.rand(3, 1)})
        assert episodes_from_list([other, shifted], "test").lengths.tolist() == [2, 3]
        assert made.batch is not None
    parts = episodes_from_list([other, one[np.array([0, 2])], one[1:]], "test")  # these two are no whole episodes
    assert parts.lengths.tolist() == [2, 1, 1, 2]
    swapped = with_leaves(other, **{name: map_leaves(lambda leaf: leaf.flip(0), nested(other)[name]) for name in other})
    assert episodes_from_list([other, swapped], "test").lengths.tolist() == [2, 1, 1]


def test_a_reward_of_a_list_may_become_a_fraction():
    one = Trajectories({"reward": np.arange(4).reshape(2, 2), "action": np.ones((2, 2), np.int64)})
    listed = rollout_from_list([with_leaves(step, reward=step.reward + 0.5) for step in one], "test")

    assert (listed.columns["reward"].dtype, listed.columns["reward"].tolist()) == (np.float32, [[0.5, 1.5], [2.5, 3.5]])
    with pytest.raises(ValueError, match=r"action of a list of transitions is int64 in the rollout, which cannot hold 0\.5"):
        rollout_from_list([with_leaves(step, action=0.5) for step in one], "test")


def test_observations_of_sums_of_several_steps_say_nothing_about_gaps():
    rows = {**steps(0, 4), "next_obs": {"x": np.full((4, 1), 9.0)}}

    assert episodes_from_list([{**rows, "discount": np.ones(4)}], "test").lengths.tolist() == [4]
    with pytest.warns(UserWarning, match="so each step is an episode of its own. If you have changed the observations"):
        assert episodes_from_list([rows], "test").lengths.tolist() == [1, 1, 1, 1]


def test_columns_of_objects_and_text_are_the_same_in_a_list():
    words = np.array([["a", "bc", "d"]] * 4)
    pairs = to_objects([(row,) for row in range(24)]).reshape(4, 3, 2)
    one = Trajectories({"word": words, "pair": pairs, "texts": np.array([["x", "yz"]] * 12).reshape(4, 3, 2)})
    listed = rollout_from_list(list(one), "test")
    buffer = ReplayBuffer(100)
    buffer.push(one)
    buffer.push(list(one))

    assert listed.columns["word"].tolist() == words.tolist()
    assert all(type(word) is str for word in listed.columns["word"].flat)
    assert listed.columns["pair"].tolist() == pairs.tolist()
    assert listed.columns["texts"].shape == (4, 3, 2)
    assert len(buffer) == 24


def test_a_number_that_the_rollout_cannot_hold_is_refused_by_name():
    one = list(rollout())
    with pytest.raises(ValueError, match=r"test: obs/y/z of a list of transitions is int64 in the rollout, .* hold 0.5"):
        rollout_from_list([with_leaves(one[0], obs=with_leaves(one[0].obs, y={"z": 0.5})), *one[1:]], "test")
    with pytest.raises(TypeError, match=r"reward of a list of transitions is 'a', and float32 in the rollout: give numbers"):
        rollout_from_list([with_leaves(t, reward=np.array("a")) for t in one], "test")


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_flags_of_a_list_of_episodes_may_be_numbers(dtype):
    one, other = steps(0, 2), steps(2, 4, ends=False)
    for episode in (one, other):
        episode.update({name: episode[name].astype(dtype) for name in ("terminated", "truncated")})
    listed = episodes_from_list([one, other], "test")

    assert listed.rows()["terminated"].tolist() == [0, 1, 0, 0]
    assert listed.rows()["truncated"].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("listed", "error", "words"),
    [
        ([1], TypeError, "test: episode 0 of a list is 1 of type int"),
        (
            [steps(0, 2), {"reward": np.ones(2)}],
            ValueError,
            r"episode 1 of a list .*'reward': \(2,\).*expected the leaves \['obs/x', 'reward'",
        ),
        ([{"reward": np.ones(())}], ValueError, r"episode 0 of a list has leaves of the shapes {'reward': \(\)}"),
        ([{"o": "ab"}], ValueError, r"test: episode 0 of a list has leaves of the shapes {'o': \(\)}"),
        (
            [{"reward": np.ones((6, 2)), "terminated": np.ones((6, 2))}],
            ValueError,
            r"episode 0 of a list has terminated of shape \(6, 2\), .* write it to ctx.trajectories",
        ),
        ([{"reward": np.ones(0)}], ValueError, r"{'reward': \(0,\)}, .* same number of rows, 1 or more"),
        ([{"a": np.ones(2), "b": np.ones(3)}], ValueError, r"'a': \(2,\), 'b': \(3,\)"),
        (
            [{"a": np.ones((2, 1))}, {"a": np.ones((2, 2))}],
            ValueError,
            r"a of a list of .* has the shapes \[\(1,\), \(2,\)\]",
        ),
    ],
)
def test_what_is_no_list_of_episodes_is_refused_by_name(listed, error, words):
    with pytest.raises(error, match=words):
        episodes_from_list(listed, "test")


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("form", [list, tuple, lambda one: list(map(nested, one)), lambda one: [tree(nested(t)) for t in one]])
def test_a_list_of_transitions_is_pushed_as_its_rows(kind, form):
    one, buffer, stacked = rollout(), kind(100), kind(100)
    buffer.push(one)
    buffer.push(form(one))
    stacked.push(form(one))
    told = {int(number) for number in stacked.sample(500).reward}

    assert (len(buffer), len(stacked), told) == (2 * T * B, T * B, set(range(T * B)))
    assert stacked.sample(5).obs.y.z.shape == (5,)


def test_priorities_may_stand_in_the_transitions_of_a_list():
    buffer = PrioritizedReplayBuffer(10, alpha=1.0, eps=1e-9)
    buffer.push([{"number": number, "priority": float(number == 2)} for number in range(4)])

    assert set(buffer.sample(50).number.tolist()) == {2}


def test_episodes_are_pushed_as_their_steps():
    buffer = ReplayBuffer(10)
    buffer.push(episodes_from_list([steps(0, 2), steps(2, 5)], "test"))

    assert buffer.state_dict()["columns"]["reward"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("pushed", "error", "words"),
    [
        ([], ValueError, "got a list without leaves: pass a dict or tree of rows"),
        ("text", ValueError, "got a str without leaves: pass a dict or tree of rows .* or a list of transitions"),
        ([{"x": 1}, 2], TypeError, r"push\(\): transition 1 of a list is 2 of type int"),
        ([{"x": 1}, {"z": 2}], ValueError, r"push\(\): transition 1 of a list has the leaves \['z'\]"),
        ({"x": [[1], [1, 2]]}, ValueError, r"of one shape, got x = \[\[1\], \[1, 2\]\]: give each row the same shape"),
    ],
)
def test_what_cannot_be_pushed_is_refused_by_name_and_changes_nothing(kind, pushed, error, words):
    buffer = kind(10)
    with pytest.raises(error, match=words):
        buffer.push(pushed)
    buffer.push([{"x": torch.tensor(1.0)}])

    assert len(buffer) == 1
