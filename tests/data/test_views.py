"""What is written to a transition or an episode reaches the rollout or the episodes, or is refused with what to do instead."""

import copy
import pickle

import numpy as np
import pytest
import torch

from ding_lite.data import Episodes, Trajectories, Tree, flatten, nested, tree
from ding_lite.data.column_arrays import to_objects
from ding_lite.data.trees import with_leaves

T, B = 3, 2
FLAGS = ("terminated", "truncated")


def columns() -> dict:
    place = np.arange(T * B).reshape(T, B)
    return {
        "obs": {"x": (place[..., None] + np.zeros(2)).astype(np.float32), "y": {"z": place.copy()}},
        "action": place.copy(),
        "reward": place.astype(np.float32),
        "word": to_objects([f"word {n}" for n in range(T * B)]).reshape(T, B),
        **{flag: np.zeros((T, B), bool) for flag in FLAGS},
    }


def listed(one) -> dict:
    return {path: leaf.tolist() for path, leaf in flatten(one)}


def rollout() -> Trajectories:
    return Trajectories(columns())


def episodes() -> Episodes:
    """Two steps, and three."""
    rows = {name: leaf.copy() for name, leaf in flatten({**columns(), "truncated": np.zeros((T, B), bool)}) if name != ("obs",)}
    flat = {path: leaf.reshape(T * B, *leaf.shape[2:])[:5] for path, leaf in rows.items()}
    flat["truncated",][[1, 4]] = True
    made: dict = {"obs": {"x": flat.pop(("obs", "x")), "y": {"z": flat.pop(("obs", "y", "z"))}}}
    return Episodes({**made, **{path[0]: leaf for path, leaf in flat.items()}}, [2, 3])


def episodes_with_a_batch() -> Episodes:
    made = episodes()
    assert made.batch.reward.shape == (3, 2)
    return made


def set_attribute(one, name, value):
    setattr(one, name, value)


def set_item(one, name, value):
    one[name] = value


def update(one, name, value):
    one.update({name: value})


def fill(one, name, value):
    leaf = one[name]
    if isinstance(leaf, np.ndarray):
        leaf[...] = value
    else:
        leaf.copy_(torch.as_tensor(value))


ways = pytest.mark.parametrize("way", [set_attribute, set_item, update, fill])
sources = pytest.mark.parametrize(
    ("made", "place"), [(rollout, 1), (rollout, -1), (episodes, 0), (episodes, 1), (episodes_with_a_batch, 1)]
)
VALUES = {"reward": -7.5, "action": 40, "terminated": True, "word": "longer than before"}


@ways
@sources
@pytest.mark.parametrize("name", VALUES)
def test_what_is_written_to_a_leaf_stands_in_every_form_of_what_was_collected(made, place, name, way):
    collected, value = made(), VALUES[name]
    expected = [one[name].tolist() for one in made()]
    expected[place] = value if isinstance(collected, Trajectories) else [value] * len(expected[place])
    way(collected[place], name, value)

    assert [one[name].tolist() for one in collected] == expected
    if isinstance(collected, Trajectories):
        assert collected.columns[name].T.reshape(-1).tolist() == expected
        assert np.asarray(collected.batch[name]).T.reshape(-1).tolist() == expected
        assert np.asarray(collected.rows()[name]).reshape(T, B).T.reshape(-1).tolist() == expected
    else:
        assert collected.rows()[name].tolist() == [value for one in expected for value in one]
        assert np.asarray(collected.batch[name]).T[collected.valid.T].tolist() == [value for one in expected for value in one]


@sources
@pytest.mark.parametrize("way", [set_attribute, set_item, fill])
def test_nested_leaves_are_written_likewise(made, place, way):
    collected = made()
    way(collected[place].obs, "x", np.full(2, 9.0))
    way(collected[place].obs.y, "z", 8)

    for position, one in enumerate(collected):
        is_written = position == place % len(collected)
        assert bool((one.obs.x == 9).all()) is bool((one.obs.y.z == 8).all()) is is_written
    collected[place].obs = {"x": [10, 10], "y": {"z": 20}}
    assert (collected[place].obs.x == 10).all()
    assert (collected.batch.obs.y.z == 20).any()


def test_slices_and_steps_of_them_are_views_too():
    one, many = rollout(), episodes()
    for transition in one[1:3]:
        transition.reward *= 10
    one.batch[0].action = -1
    one.batch[1:].obs.x[:, 1] = 5
    many[1][0].reward = 100
    many[1][1:].reward = [7, 8]
    many[1].reward[-1] += 1
    for episode in many[:1]:
        episode.reward = episode.reward / 2

    assert one.columns["reward"].T.tolist() == [[0, 20, 40], [1, 3, 5]]
    assert one.columns["action"].tolist() == [[-1, -1], [2, 3], [4, 5]]
    assert one.columns["obs"]["x"][:, 1].tolist() == [[1, 1], [5, 5], [5, 5]]
    assert many.rows()["reward"].tolist() == [0, 0.5, 100, 7, 9]


def test_what_is_written_to_the_batch_stands_in_the_transitions_and_episodes():
    for made in (rollout, episodes):
        collected = made()
        collected.batch.reward = collected.batch.reward * 2
        collected.batch.reward[0] += 1
        assert torch.cat([one.reward.reshape(-1) for one in collected]).tolist() == (
            [1, 4, 8, 3, 6, 10] if made is rollout else [1, 2, 5, 6, 8]
        )


REFUSED = {
    "a leaf that is not there": (lambda one: setattr(one, "bonus", 1), ValueError, "'bonus' cannot be set in a view of {}"),
    "an item that is not there": (lambda one: one.update(reward=9, bonus=1), ValueError, "it has no such leaf, and a new one"),
    "a default that is not there": (lambda one: one.setdefault("bonus", 1), ValueError, "'bonus' cannot be set"),
    "a fraction for an integer": (lambda one: setattr(one, "action", 0.5), ValueError, "int64, which cannot hold 0.5"),
    "a number for a flag": (lambda one: setattr(one, "terminated", 2), ValueError, "bool, which cannot hold 2"),
    "too large a number": (lambda one: setattr(one, "reward", 1e300), ValueError, r"cannot hold 1e\+300"),
    "too many": (lambda one: setattr(one, "reward", [1] * 9), ValueError, r"got values of shape \(9,\)"),
    "text": (lambda one: setattr(one, "reward", "much"), TypeError, "got 'much': give numbers"),
    "none": (lambda one: setattr(one, "reward", None), TypeError, "got None: give numbers"),
    "one for nested ones": (lambda one: setattr(one, "obs", 1), ValueError, r"has the leaves \['x', 'y'\], got int"),
    "other nested ones": (lambda one: setattr(one, "obs", {"x": 1}), ValueError, r"obs of .* got \['x'\]"),
    "to delete": (lambda one: delattr(one, "reward"), ValueError, "reward cannot be removed from a view of {}"),
    "to delete an item": (lambda one: one.__delitem__("reward"), ValueError, "cannot be removed"),
    "to pop": (lambda one: one.pop("reward"), ValueError, "cannot be removed"),
    "to pop any": (lambda one: one.popitem(), ValueError, "any leaf cannot be removed"),
    "to clear": (lambda one: one.clear(), ValueError, "all leaves cannot be removed"),
}


@pytest.mark.parametrize(("write", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("made", [rollout, episodes])
def test_what_would_be_lost_is_refused_and_changes_nothing(made, write, error, words):
    collected = made()
    before = [{path: leaf.tolist() for path, leaf in flatten(one)} for one in collected]
    with pytest.raises(error, match=words.format("a rollout" if made is rollout else "episodes")):
        write(collected[1])

    assert [{path: leaf.tolist() for path, leaf in flatten(one)} for one in collected] == before


def test_the_message_about_a_new_leaf_says_how_to_add_it():
    with pytest.raises(ValueError, match=r"ctx.trajectories = ctx.trajectories.with_columns\(bonus=...\) adds it"):
        rollout()[0].bonus = 1
    with pytest.raises(ValueError, match=r"Episodes\({\*\*ctx.episodes.rows\(\), 'bonus': ...}, ctx.episodes.lengths\)"):
        episodes()[0]["bonus"] = 1


def test_of_text_nothing_is_cut_off_in_a_column_of_text():
    made = Trajectories({"word": np.array([["ab", "cd"]])})
    with pytest.raises(ValueError, match="word of a rollout is <U2, which cannot hold 'longer'"):
        made[0].word = "longer"
    made[0].word = "xy"

    assert made.columns["word"].tolist() == [["xy", "cd"]]


@pytest.mark.parametrize("name", ["append", "extend", "insert", "pop", "remove", "sort", "clear"])
@pytest.mark.parametrize("made", [rollout, episodes])
def test_what_only_lists_do_is_refused_with_how_to_get_one(made, name):
    field = "ctx.trajectories" if made is rollout else "ctx.episodes"
    with pytest.raises(AttributeError, match=rf"has no '{name}', .*make it a list first, {field} = list\({field}\)"):
        getattr(made(), name)
    with pytest.raises(TypeError, match=rf"{field}\[0\] cannot be replaced: .*{field}\[0\].reward = ..."):
        made()[0] = {}
    with pytest.raises(TypeError, match=rf"{field}\[0\] cannot be deleted: .*list\({field}\)"):
        del made()[0]
    assert not hasattr(made(), "no_such_thing")


def test_plus_makes_a_list():
    one = rollout()

    assert [int(t.reward) for t in one + one[:1]] == [0, 2, 4, 1, 3, 5, 0]
    assert [int(t.reward) for t in one[:1] + one] == [0, 0, 2, 4, 1, 3, 5]


def test_what_is_made_of_a_view_is_a_tree_of_its_own():
    one = Trajectories({"reward": np.arange(3.0)[:, None]})
    masked = one.batch[one.batch.reward[:, 0] > 0]
    for own in (one[1].clone(), one[1] * 1, with_leaves(one[1], reward=1.0), masked, tree(nested(one[1]))):
        own.reward = torch.tensor(77.0)
        own.bonus = torch.tensor(1.0)
        assert isinstance(own, Tree)

    assert one.columns["reward"][:, 0].tolist() == [0, 1, 2]
    again = pickle.loads(pickle.dumps(one))
    again[0].reward = 50
    assert (again.columns["reward"][0, 0], one.columns["reward"][0, 0]) == (50, 0)


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda it: pickle.loads(pickle.dumps(it))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("of", [lambda one: one[0], lambda one: one[0].obs, lambda one: one.batch[0:2]])
def test_a_copy_of_a_view_is_a_tree_of_its_own(how, of):
    one = rollout()
    before = listed(one[0])
    own = COPIES[how](of(one))
    assert isinstance(own, Tree)
    assert not isinstance(own, type(one[0]))
    assert listed(own) == listed(of(one))
    for _, leaf in flatten(own):
        leaf[...] = 77 if isinstance(leaf, torch.Tensor) else "seen"
    own.bonus = torch.tensor(1.0)

    assert listed(one[0]) == before
    assert COPIES[how]([one[0], {"a": one[1]}])[1]["a"].word == one[1].word


def test_a_pickled_transition_takes_no_more_than_itself():
    rows = Trajectories({"obs": np.zeros((1000, 1, 50), np.float32)})

    assert len(pickle.dumps(rows[3])) < 5_000


def test_columns_that_can_only_be_read_are_copied():
    shared = np.broadcast_to(np.float32(3), (T, B))
    one = Trajectories({"reward": np.zeros((T, B)), "bonus": shared}).with_columns(more=shared)
    one[0].bonus, one[1].more = 5, 6

    assert (one.columns["bonus"].sum(), one.columns["more"].sum(), shared.sum()) == (20, 21, 18)
    assert Episodes({"reward": np.broadcast_to(1.0, 3)}, [3])[0].reward.fill_(4).tolist() == [4, 4, 4]


def test_lists_find_and_remove_the_transition_that_is_meant():
    one = Trajectories({"obs": np.zeros((4, 2, 3), np.float32), "reward": np.arange(8.0).reshape(4, 2)})
    listed_ones, meant = list(one), one[5]

    assert listed_ones.index(meant) == 5
    assert meant not in listed_ones[:5]
    assert [one[0]] != [one[1]]
    assert one[5] == meant
    assert (one[5] != meant) is False
    listed_ones.remove(meant)
    assert [float(t.reward) for t in listed_ones] == [float(t.reward) for t in [*one[:5], *one[6:]]]


def test_steps_with_the_same_numbers_are_two_transitions():
    one = Trajectories({"reward": np.zeros((4, 1))})

    assert list(one).index(one[3]) == 3
    assert one[3] != one[2]
    assert one[3] == tree({"reward": torch.tensor(0.0)})  # which comes from nowhere


def test_what_with_leaves_made_is_found_as_well():
    one = rollout()
    changed = [with_leaves(t, reward=-1.0) for t in one]

    assert changed.index(with_leaves(with_leaves(one[3], reward=2.0), reward=-1.0)) == 3
    assert one[3] not in changed
    for copied in (copy.deepcopy(list(one)), pickle.loads(pickle.dumps(changed))):
        copied.remove(copied[3])
        assert [int(t.obs.y.z) for t in copied] == [0, 2, 4, 3, 5]
    assert with_leaves(one[3], bonus=1.0) != one[3]


def test_episodes_and_objects_are_compared_by_all_that_they_hold():
    one, other = rollout(), rollout()
    assert one.batch == other.batch
    assert one[0] != other[0]  # a step of another rollout
    other[3].word = "else"
    assert one.batch != other.batch
    nan = Trajectories({"reward": np.full((2, 1), np.nan)})
    assert nan[1] == nan[1]
    episodes = Episodes({"reward": np.arange(6.0)}, [2, 2, 2])
    kept = list(episodes)
    kept.remove(episodes[1])
    assert [float(e.reward[0]) for e in kept] == [0, 4]


def test_compared_with_a_number_a_view_gives_a_tree():
    one = rollout()

    assert isinstance(one[0].obs == 0, Tree)
    assert bool((one[0].reward == 0).all())


@pytest.mark.parametrize(("name", "value"), [("obs", {"x": 3.0, "y": {"z": 1}}), ("reward", [1.0, 2.0])])
def test_a_leaf_of_one_step_is_given_as_many_numbers_as_it_has(name, value):
    one = rollout()
    before = listed(one[0])
    with pytest.raises(ValueError, match=r"got values of shape .*: give the same shape"):
        one[0][name] = value
    with pytest.raises(ValueError, match=r"x of a rollout is torch.float32 \(2,\), got values of shape \(\)"):
        one[0].obs.x = 3.0

    assert listed(one[0]) == before


def test_a_number_is_no_column():
    with pytest.raises(ValueError, match=r"the column bonus of shape \(\) for a rollout of 3 steps of 2 environments"):
        rollout().with_columns(bonus=1.0)


LIMITS = {"action": (0, 9), "obs": {"y": {"z": (0, 9)}}, "next": (np.array([0, 1]), np.array([2, 3]))}


@pytest.mark.parametrize("made", [rollout, episodes])
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda t: setattr(t, "action", 10), r"action of .* cannot be 10: its space allows 0 to 9 there"),
        (lambda t: t.__setitem__("action", -1), "action of .* cannot be -1"),
        (lambda t: t.update(action=99), "action of .* cannot be 99"),
        (lambda t: setattr(t.obs.y, "z", 10), "z of .* cannot be 10"),
        (lambda t: setattr(t, "obs", {"x": t.obs.x, "y": {"z": 77}}), "obs.y.z of .* cannot be 77"),
    ],
)
def test_a_number_that_is_not_of_its_space_is_refused_where_it_is_written(made, write, words):
    collected = made().with_limits(LIMITS)
    before = [listed(one) for one in collected]
    for one in (collected[0][:1] if made is episodes else collected[0], collected.batch, collected.batch[0]):
        if one.action.ndim and "obs" in words:
            continue
        with pytest.raises(ValueError, match=words):
            write(one)

    assert [listed(one) for one in collected] == before
    collected[0].action = collected[0].action * 0 + 9


def test_limits_stay_with_other_columns_and_hold_for_each_place():
    two = np.zeros((T, B, 2), np.int64) + 1
    collected = Trajectories(columns()).with_limits(LIMITS).with_columns(next=two)
    collected[1].next = [2, 3]
    with pytest.raises(ValueError, match="next of a rollout cannot be 0: its space allows 1 to 3 there"):
        collected[1].next = [0, 0]
    collected.batch[0, 0].next = [0, 1]

    assert collected[1].next.tolist() == [2, 3]
    assert collected[0].next.tolist() == [0, 1]


def test_a_leaf_that_a_rollout_does_not_have_is_named_with_those_that_it_has():
    batch = Trajectories({"obs": {"x": np.zeros((2, 3, 4))}, "reward": np.zeros((2, 3))}).batch
    for thing in (batch, batch[0], Trajectories({"obs": {"x": np.zeros((2, 3, 4))}, "reward": np.zeros((2, 3))})[0]):
        words = r"^a view of a rollout has no leaf 'rewrad': did you mean 'reward'\? It has obs, reward"
        with pytest.raises(KeyError, match=words):
            thing["rewrad"]
        with pytest.raises(AttributeError, match=words):
            _ = thing.rewrad
        assert not hasattr(thing, "rewrad")
        assert thing.get("rewrad", 3) == 3
    with pytest.raises(KeyError, match="has no leaf 'y'.* It has x"):
        batch.obs["y"]
    with pytest.raises(KeyError, match=r"'state_in_0'.*only if a hook that learns reads it.*as an extra output") as caught:
        batch["state_in_0"]

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_column_of_another_library_gives_advice():
    rollout = Trajectories({name: np.zeros((2, 3)) for name in ("reward", "next_obs", "terminated", "truncated")})
    for thing in (rollout.batch, rollout[0], Episodes(rollout.rows(), [2, 4])[0]):
        with pytest.raises(AttributeError, match=r"has no leaf 'done': an episode ends where terminated \| truncated of"):
            _ = thing.done
        with pytest.raises(KeyError, match="has no leaf 'new_obs': did you mean 'next_obs'"):
            thing["new_obs"]


def test_a_column_read_from_the_sequence_itself_says_where_it_is():
    rollout = Trajectories({name: np.zeros((2, 3)) for name in ("reward", "terminated", "truncated")})
    episodes = Episodes(rollout.rows(), [2, 4])
    for name in ("reward", "rewards"):
        with pytest.raises(AttributeError, match=r"The column is ctx.trajectories.batch.reward\.$"):
            getattr(rollout, name)
        for _ in range(2):  # the batch changes how the columns are stored
            with pytest.raises(AttributeError, match=r"a sequence of episodes. The column is ctx.episodes.batch.reward\.$"):
                getattr(episodes, name)
            _ = episodes.batch
    with pytest.raises(
        AttributeError, match=r"Trajectories has no 'done': an episode ends where .* in ctx.trajectories.batch\."
    ):
        _ = rollout.done
    with pytest.raises(AttributeError, match="^'Trajectories' object has no attribute 'rewrad'$"):
        _ = rollout.rewrad
    assert not hasattr(rollout, "reward")


def test_an_episode_is_a_tree_of_columns_whose_steps_have_an_index():
    episode = Episodes({"reward": np.arange(5.0), "value": np.arange(5.0)}, [2, 3])[1]

    assert (len(episode), list(episode)) == (2, ["reward", "value"])
    assert [float(episode[step].reward) for step in range(len(episode.reward))] == [2, 3, 4]
