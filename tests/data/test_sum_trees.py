"""The sum tree against plain proportions: each position gets its share of [0, 1), and nothing else does."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from ding_lite.data.sum_trees import SumTree

CAPACITIES = [1, 2, 15, 16, 17, 300, 4096, 4097, 70_000]


def numbers(capacity: int, kind: str, seed: int = 0) -> np.ndarray:
    """One number a position; at least one of them above 0."""
    rng = np.random.default_rng(seed)
    value = rng.random(capacity)
    if kind == "sparse":
        value[rng.random(capacity) < 0.9] = 0
    if kind == "huge and tiny":
        value = 10.0 ** rng.integers(-12, 12, capacity) * (rng.random(capacity) < 0.8)
    value[rng.integers(capacity)] = 1
    return value


def filled(value: np.ndarray) -> SumTree:
    tree = SumTree(len(value))
    tree.put(np.arange(len(value)), value)
    return tree


def points(count: int, seed: int = 0) -> np.ndarray:
    return np.concatenate([[0.0, np.nextafter(1.0, 0.0), 1.0], np.random.default_rng(seed).random(count)])


kinds = pytest.mark.parametrize("kind", ["dense", "sparse", "huge and tiny"])


@pytest.mark.few
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_each_position_gets_one_interval_as_long_as_its_share(capacity, kind):
    value, grid = numbers(capacity, kind), 200_000
    found = filled(value).draw((np.arange(grid) + 0.5) / grid)
    count = np.bincount(found, minlength=capacity)

    assert np.abs(count - grid * value / value.sum()).max() <= 1 + 1e-6  # of evenly spaced points, an interval has one too many
    assert (np.diff(found) != 0).sum() == len(np.unique(found)) - 1  # or too few; and each is visited once


@pytest.mark.few
@pytest.mark.parametrize("capacity", CAPACITIES)
@kinds
def test_nothing_that_is_0_is_ever_drawn(capacity, kind):
    for seed in range(2):
        value = numbers(capacity, kind, seed)
        tree = filled(value)
        total = value.sum()
        edges = np.concatenate([np.cumsum(value), np.cumsum(value[::-1])]) / total
        near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
        found = tree.draw(np.concatenate([points(2000, seed), near[near <= 1]]))

        assert (value[found] > 0).all()


@pytest.mark.parametrize("last", [0, 1, 15, 16, 4095, 4999])
def test_a_single_number_is_drawn_from_everywhere(last):
    tree = SumTree(5000)
    tree.put(np.array([last]), np.array([1e-30]))

    assert (tree.draw(points(100)) == last).all()


def test_a_number_that_vanishes_beside_another_leads_to_no_0():
    tree = SumTree(10_000)
    tree.fill(5, 9000, 1e-20)
    tree.put(np.array([4000]), np.array([1e20]))

    assert (tree.draw(points(1000)) == 4000).mean() > 0.99
    assert (tree.values[tree.draw(points(1000))] > 0).all()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_sums_are_right_after_any_changes(capacity):
    rng = np.random.default_rng(0)
    tree, value = SumTree(capacity), np.zeros(capacity)
    for turn in range(200):
        index = rng.integers(0, capacity, 32)
        new = 10.0 ** rng.integers(-9, 9, 32) * rng.random(32)
        tree.put(index, new)
        for place, number in zip(index, new):
            value[place] = number
        start, stop = sorted(rng.integers(0, capacity + 1, 2))
        if turn % 3 == 0:
            some = rng.random(stop - start)
            tree.fill(start, stop, some if turn % 2 else 0.25)
            value[start:stop] = some if turn % 2 else 0.25
    np.testing.assert_array_equal(tree.values, value)
    where = points(5000)

    np.testing.assert_array_equal(tree.draw(where), filled(value).draw(where))


def test_large_numbers_that_were_there_leave_nothing_behind():
    tree = SumTree(50_000)
    tree.fill(0, 50_000, 1e-3)
    fresh = tree.draw(points(5000))
    rng = np.random.default_rng(0)
    for _ in range(300):
        index = rng.integers(0, 50_000, 256)
        tree.put(index, np.full(256, 1e12))
        tree.put(index, np.full(256, 1e-3))

    np.testing.assert_array_equal(tree.draw(points(5000)), fresh)


def test_where_a_position_comes_twice_the_last_counts():
    tree = SumTree(100)
    tree.put(np.array([7, 3, 7, 3, 3, 7]), np.array([1.0, 2.0, 3.0, 4.0, 0.0, 5.0]))

    assert (tree.values[7], tree.values[3]) == (5.0, 0.0)
    assert (tree.draw(points(100)) == 7).all()


def test_what_is_drawn_does_not_depend_on_what_is_drawn_beside_it():
    tree, where = filled(numbers(70_000, "dense")), points(300)

    assert tree.draw(where).tolist() == [int(tree.draw(where[i : i + 1])[0]) for i in range(len(where))]
    assert tree.draw(where[::-1]).tolist() == tree.draw(where).tolist()[::-1]
    assert tree.draw(np.zeros(0)).tolist() == []


@pytest.mark.parametrize("capacity", [3, 70_000])
def test_there_is_nothing_to_draw_where_all_are_0(capacity):
    tree = SumTree(capacity)
    for _ in range(2):
        with pytest.raises(ValueError, match="every number of this sum tree is 0"):
            tree.draw(np.array([0.5]))
        tree.fill(0, capacity, 2.0)
        tree.fill(0, capacity, 0.0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_a_copy_stands_alone(duplicate):
    tree = filled(numbers(70_000, "dense"))
    other, where = duplicate(tree), points(1000)
    np.testing.assert_array_equal(other.draw(where), tree.draw(where))
    other.fill(0, 70_000, 0.0)
    other.put(np.array([5]), np.array([1.0]))

    assert (other.draw(where) == 5).all()
    assert len(np.unique(tree.draw(where))) > 900


@pytest.mark.parametrize("capacity", [1, 100, 100_000, 3_000_000])
def test_it_knows_its_size_in_bytes(capacity):
    tracemalloc.start()
    tree = SumTree(capacity)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert SumTree.bytes_for(capacity) <= taken <= SumTree.bytes_for(capacity) + 5000
    assert len(tree.values) == capacity


@pytest.mark.parametrize("capacity", CAPACITIES)
@kinds
def test_the_numbers_come_with_their_positions(capacity, kind):
    value = numbers(capacity, kind)
    tree, where = filled(value), points(500)
    place, found = tree.draw_with_values(where)

    np.testing.assert_array_equal(place, tree.draw(where))
    np.testing.assert_array_equal(found, value[place])


@pytest.mark.few
@pytest.mark.parametrize("capacity", CAPACITIES)
@kinds
def test_positions_are_those_of_a_descent_that_checks_every_child(capacity, kind):
    for seed in range(3):
        value = numbers(capacity, kind, seed)
        tree = filled(value)
        edges = np.cumsum(value) / value.sum()
        where = np.concatenate([points(600, seed), edges[edges <= 1][-900:]])

        np.testing.assert_array_equal(tree.draw(where), checked_draw(value, where))


def checked_draw(value: np.ndarray, where: np.ndarray) -> list[int]:
    """The positions in a tree of the same shape, by a loop: in each node the first child above 0 with a large enough rest."""
    levels = [value]
    while len(levels[-1]) > 4096:
        blocks = np.append(levels[-1], np.zeros(-len(levels[-1]) % 16)).reshape(-1, 16)
        levels.append(np.einsum("ij->i", blocks))
    before = np.concatenate([[0.0], torch.from_numpy(levels[-1]).cumsum(0).numpy()])
    return [_one_draw(levels, before, min(share * before[-1], np.nextafter(before[-1], 0.0))) for share in where]


def _one_draw(levels: list[np.ndarray], before: np.ndarray, rest: float) -> int:
    place = int(np.searchsorted(before[1:], rest, "right"))
    rest -= before[place]
    for level in reversed(levels[:-1]):
        children = level[16 * place : 16 * place + 16]
        later = [sum(children[child + 1 :], 0.0) for child in range(len(children))]
        child = next(at for at, number in enumerate(children) if number > 0 and later[at] <= rest)
        place, rest = 16 * place + child, rest - later[child]
    return place
