"""Several buffers behind one face: sizes, leaves, priorities, and what is refused."""

import numpy as np
import pytest
import torch

from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, nested, sampler, tree


def numbered(first: int, n: int, **more) -> dict:
    number = np.arange(first, first + n)
    return {"number": number, "obs": {"x": number[:, None] + np.array([0, 0.25])}, **more}


def uniform(first: int, n: int = 10, capacity: int = 10, **more) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, seed=first)
    if n:
        buffer.push(numbered(first, n, **more))
    return buffer


def prioritized(first: int, n: int = 10, capacity: int = 10, **more) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity, seed=first, alpha=1.0)
    buffer.push(numbered(first, n, **more))
    return buffer


def priorities_of(buffer: PrioritizedReplayBuffer) -> list[float]:
    return buffer.state_dict()["scaled"].tolist()


@pytest.mark.parametrize(
    ("shares", "size", "sizes"),
    [
        ([0.5, 0.5], 10, [5, 5]),
        ([0.5, 0.5], 7, [4, 3]),
        ([0.75, 0.25], 32, [24, 8]),
        ([0.1, 0.9], 10, [1, 9]),
        ([0.45, 0.35, 0.2], 10, [5, 3, 2]),
        ([1 / 3, 1 / 3, 1 / 3], 100, [34, 33, 33]),
        ([0.29, 0.71], 100, [29, 71]),
        ([0.001, 0.999], 10, [0, 10]),
        ([1.0], 5, [5]),
        ([0.5, 0.5], 0, [0, 0]),
    ],
)
def test_each_buffer_gives_its_share_by_the_largest_remainders(shares, size, sizes):
    buffers = [uniform(100 * place) for place in range(len(shares))]
    batch = sampler(list(zip(buffers, shares))).sample(size)

    assert np.bincount(batch.number // 100, minlength=len(sizes)).tolist() == sizes
    assert (np.diff(batch.number // 100) >= 0).all()
    np.testing.assert_array_equal(batch.obs.x, batch.number.numpy()[:, None] + np.array([0, 0.25]))


def test_sizes_are_within_one_row_of_the_share_and_sum_up():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shares = rng.dirichlet(np.ones(rng.integers(1, 6)))
        size = int(rng.integers(0, 300))
        batch = sampler([(uniform(100 * place), share) for place, share in enumerate(shares)]).sample(size)
        count = np.bincount(batch.number // 100, minlength=len(shares))

        assert count.sum() == size
        assert (np.abs(count - shares * size) < 1).all()


def test_a_joined_batch_has_the_leaves_that_all_have():
    more, less = (
        uniform(0, extra=np.zeros(10), text=np.array(list("abcdefghij"))),
        uniform(100, text=np.array(["long text"] * 10)),
    )
    batch = sampler([(more, 0.5), (less, 0.5)]).sample(4)

    assert set(batch.keys()) == {"number", "obs", "text"}
    assert isinstance(batch.number, torch.Tensor)
    assert batch.text.tolist() == ["abcdefghij"[i] for i in batch.number[:2]] + ["long text"] * 2
    assert set(sampler([(more, 0.5), (less, 0.5)]).sample(4, ("obs", "unknown")).keys()) == {"obs"}


def test_a_leaf_that_is_asked_for_and_that_one_buffer_lacks_is_an_error_that_names_the_buffer():
    with_extra, without = uniform(0, extra=np.zeros(10)), prioritized(100)
    message = r"\['extra'\] are asked for, which buffer 0 of the list has and buffer 1, a PrioritizedReplayBuffer, lacks"
    with pytest.raises(ValueError, match=message):
        sampler([(with_extra, 0.5), (without, 0.5)]).sample(4, ("obs", "extra"))


def test_named_buffers_give_a_batch_each():
    batch = sampler({"agent": uniform(0), "expert": prioritized(100)}).sample(6, ("number",))

    assert (set(batch.agent.keys()), set(batch.expert.keys())) == ({"number"}, {"number", "weight", "index"})
    assert (batch.agent.number < 100).all()
    assert (batch.expert.number >= 100).all()
    assert (len(batch.agent.number), len(batch.expert.number)) == (6, 6)


def test_one_buffer_is_sampled_as_it_is():
    same, again = uniform(0), uniform(0)

    assert sampler(same).sample(20).number.tolist() == again.sample(20).number.tolist()


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), [5, 1, 7]])
def test_priorities_come_back_to_the_rows_they_are_of(order):
    first, plain, last = prioritized(0, capacity=30), uniform(100), prioritized(200)
    source = sampler([(first, 0.5), (plain, 0.25), (last, 0.25)])
    batch = source.sample(8)
    assert (batch.index[4:6] == -1).all()
    assert (batch.weight[4:6] == 1).all()
    rows = tree({name: leaf.numpy()[order].copy() for name, leaf in nested(batch).items() if name != "obs"})
    source.update_priority(rows, rows.number + 1.0)
    expected = {int(number): number + 1.0 for number in rows.number.numpy()}

    assert priorities_of(first) == pytest.approx([expected.get(i, 1) for i in range(10)], abs=1e-5)
    assert priorities_of(last) == pytest.approx([expected.get(200 + i, 1) for i in range(10)], abs=1e-4)


def test_priorities_of_named_buffers_are_given_by_name():
    first, second = prioritized(0), prioritized(100)
    source = sampler({"first": first, "plain": uniform(50), "second": second})
    batch = source.sample(3)
    source.update_priority(batch, {"first": torch.full((3,), 2.0), "second": np.full(3, 5.0)})

    assert {round(p) for p in priorities_of(first)} == {1, 2}
    assert {round(p) for p in priorities_of(second)} == {1, 5}
    for wrong in (torch.ones(3), {"first": torch.ones(3)}):
        with pytest.raises(ValueError, match=r"go by priority, and none was given for them.*\['first', 'second'\]"):
            source.update_priority(batch, wrong)


def test_priorities_of_the_only_named_buffer_that_takes_them_need_no_name():
    only = prioritized(0)
    source = sampler({"plain": uniform(50), "only": only})
    source.update_priority(source.sample(3), torch.full((3,), 2.0))

    assert {round(p) for p in priorities_of(only)} == {1, 2}


def test_it_knows_whether_any_buffer_takes_priorities():
    assert [sampler(it).takes_priorities for it in (uniform(0), prioritized(0), {"x": prioritized(0)})] == [False, True, True]
    assert sampler([(uniform(0), 0.5), (prioritized(0), 0.5)]).takes_priorities


def test_there_is_enough_when_each_buffer_has_enough_or_is_full():
    large, small = uniform(0, n=20, capacity=100), uniform(0, n=9, capacity=10)
    for source in (sampler([(large, 0.5), (small, 0.5)]), sampler({"large": large, "small": small})):
        assert not source.has_enough(15)
    small.push(numbered(9, 1))

    assert source.has_enough(15)
    assert not source.has_enough(21)


def test_a_buffer_made_elsewhere_may_stand_in_for_ours():
    class Own:
        def __len__(self):
            return 3

        def sample(self, size):
            return tree({"x": torch.ones(size)})

    source = sampler(Own())

    assert source.sample(4, ("y",)).x.tolist() == [1] * 4
    assert (source.has_enough(3), source.has_enough(4), source.takes_priorities) == (True, False, False)


BUFFER = uniform(0)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, "learner wants a ReplayBuffer, got 3 of type int, which has no 'sample'"),
        (None, TypeError, "wants a ReplayBuffer, got None"),
        ([], TypeError, r"wants a ReplayBuffer, got \[\] of type list"),
        ({}, TypeError, r"wants a ReplayBuffer, got {} of type dict"),
        ([BUFFER, BUFFER], TypeError, r"wants buffers with their shares, \[\(buffer, 0.75\).*got <ding_lite"),
        ([(BUFFER, "half")], TypeError, "wants buffers with their shares"),
        ([(BUFFER, 0.5, 1)], TypeError, "wants buffers with their shares"),
        ([(0.5, 0.5), (BUFFER, 0.5)], TypeError, "wants a ReplayBuffer as buffer 0, got 0.5"),
        ({"a": BUFFER, "b": (BUFFER, 1)}, TypeError, "wants a ReplayBuffer as the buffer 'b', got"),
        ([(BUFFER, 0.5), (BUFFER, 0.4)], ValueError, r"with the shares \[0.5, 0.4\]: each is above 0, and together they are 1"),
        ([(BUFFER, 1.5), (BUFFER, -0.5)], ValueError, "each is above 0"),
        ([(BUFFER, 1.0), (BUFFER, 0.0)], ValueError, "each is above 0"),
        ([(BUFFER, float("nan"))], ValueError, "each is above 0"),
    ],
)
def test_other_forms_are_refused_by_name(given, error, message):
    with pytest.raises(error, match=message):
        sampler(given, "learner")
