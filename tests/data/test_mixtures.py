"""Several buffers behind one interface: sizes, leaves, priorities, and what is refused."""

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
    if n:
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
def test_each_buffer_gives_its_share_of_the_first_batch(shares, size, sizes):
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


@pytest.mark.parametrize(("shares", "size"), [([0.99, 0.01], 32), ([0.5, 0.25, 0.25], 1), ([0.7, 0.1, 0.1, 0.1], 3)])
def test_over_many_batches_each_buffer_gives_its_share_to_within_one_row(shares, size):
    mixed, given = sampler([(uniform(100 * place), share) for place, share in enumerate(shares)]), np.zeros(len(shares))
    for n in range(1, 301):
        given += np.bincount(mixed.sample(size).number // 100, minlength=len(shares))
        assert (np.abs(given - np.array(shares) * size * n) < 1 + 1e-9).all()
    assert given.min() > 0


@pytest.mark.slow
def test_shares_stay_within_one_row_where_sizes_change_and_a_batch_may_have_none_of_a_buffer():
    rng = np.random.default_rng(0)
    for _ in range(50):
        shares = rng.dirichlet(np.ones(rng.integers(1, 7))) * 0.99
        shares[0] += 1 - shares.sum()
        mixed, given, total = sampler([(uniform(100 * place), share) for place, share in enumerate(shares)]), 0, 0
        for size in rng.integers(0, 9, 60):
            count = np.bincount(mixed.sample(int(size)).number // 100, minlength=len(shares))
            given, total = given + count, total + size
            assert count.sum() == size
            assert (np.abs(given - shares * total) < 1 + 1e-6).all()


def test_a_sampler_goes_on_from_its_state_with_what_is_owed():
    def make():
        return sampler([(uniform(0), 0.9), (uniform(100), 0.1)])

    one, other = make(), make()
    for _ in range(3):
        one.sample(3)
    other.load_state_dict(one.state_dict())
    expected = [(one.sample(3).number >= 100).tolist() for _ in range(9)]
    assert sampler(other) is other
    assert [(other.sample(3).number >= 100).tolist() for _ in range(9)] == expected
    assert [(make().sample(3).number >= 100).tolist() for _ in range(9)] != expected
    for state in ({"given": [1]}, {"given": [1, -2]}, {}, 3):
        with pytest.raises((TypeError, ValueError), match="sampler"):
            other.load_state_dict(state)
    assert other.state_dict() == one.state_dict()


def test_what_could_not_be_drawn_is_still_owed():
    late = uniform(100, n=0)
    mixed = sampler([(uniform(0), 0.75), (late, 0.25)])
    with pytest.raises(ValueError, match="which is empty"):
        mixed.sample(4)
    late.push(numbered(100, 4))
    assert (mixed.sample(4).number >= 100).sum() == 1


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
    message = (
        r"sample\(\) needs the leaves \['extra'\] from every buffer, but buffer 1 of the list, a PrioritizedReplayBuffer, "
        r"lacks them, "
        "and buffer 0 of the list, a ReplayBuffer, has them: push them into both, or pass the buffers by name"
    )
    with pytest.raises(ValueError, match=message):
        sampler([(with_extra, 0.5), (without, 0.5)]).sample(4, ("obs", "extra"))


@pytest.mark.parametrize("order", [1, -1])
def test_a_discount_that_one_buffer_lacks_is_refused_even_where_all_leaves_are_wanted(order):
    buffers = [uniform(0, discount=np.ones(10)), uniform(100)][::order]
    with pytest.raises(ValueError, match=r"needs the leaves \['discount'\] from every buffer"):
        sampler([(buffers[0], 0.5), (buffers[1], 0.5)]).sample(4)
    batch = sampler([(buffers[0], 0.5), (buffers[1], 0.5)]).sample(4, ("number",))

    assert set(batch.keys()) == {"number"}
    both = [(uniform(0, discount=np.ones(10)), 0.5), (uniform(100, discount=np.zeros(10)), 0.5)]
    assert sampler(both).sample(4).discount.tolist() == [1, 1, 0, 0]


def single(leaf, n: int = 4) -> ReplayBuffer:
    buffer = ReplayBuffer(10)
    buffer.push({"obs": {"x": np.broadcast_to(leaf, (n, *np.shape(leaf)))}})
    return buffer


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.float32(1), np.float64(2), torch.float32),
        (np.float64(1), np.float32(2), torch.float64),
        (np.float32([1, 1]), np.float16([2, 2]), torch.float32),
        (np.int64(1), np.int32(2), torch.int64),
        (np.int32(1), np.int64(2), torch.int32),
        (np.int64(1), np.uint8(2), torch.int64),
        (np.float32(1), np.int64(2), torch.float32),
        (np.bool_(1), np.bool_(0), torch.bool),
    ],
)
def test_numbers_are_joined_in_the_dtype_of_the_first_buffer(first, second, dtype):
    joined = sampler([(single(first), 0.5), (single(second), 0.25), (single(first), 0.25)]).sample(4).obs.x

    assert joined.dtype == dtype
    assert joined.tolist() == [first.tolist()] * 2 + [second.tolist()] + [first.tolist()]


@pytest.mark.parametrize(
    ("first", "second", "described"),
    [
        (np.int64(1), np.float32(2), (r"torch.int64 \(\)", r"torch.float32 \(\)")),
        (np.bool_(1), np.float32(1), (r"torch.bool \(\)", r"torch.float32 \(\)")),
        (np.uint8(1), np.int64(1), (r"torch.uint8 \(\)", r"torch.int64 \(\)")),
        (np.zeros(3), np.zeros(4), (r"torch.float64 \(3,\)", r"torch.float64 \(4,\)")),
        (np.float32(0), np.zeros(1), (r"torch.float32 \(\)", r"torch.float64 \(1,\)")),
        (np.array("a"), np.float32(1), (r"object \(\)", r"torch.float32 \(\)")),
        (np.float32(1), np.array("a"), (r"torch.float32 \(\)", r"object \(\)")),
    ],
)
def test_leaves_that_cannot_be_joined_are_refused_with_both_buffers_and_looks(first, second, described):
    message = (
        rf"rows of obs/x cannot be joined: buffer 0 of the list, a ReplayBuffer, holds {described[0]}, and buffer 1 of the "
        rf"list, a ReplayBuffer, holds {described[1]}: push the same shape and dtype into both, or pass the buffers by name"
    )
    with pytest.raises(ValueError, match=message):
        sampler([(single(first), 0.5), (single(second), 0.5)]).sample(4)


def test_numbers_that_the_dtype_of_the_first_buffer_cannot_hold_are_refused():
    buffers = [ReplayBuffer(4), ReplayBuffer(4)]
    for buffer, numbers in zip(buffers, (np.array([1], np.int32), np.array([2**33 + 5]))):
        buffer.push({"id": numbers})
    with pytest.raises(ValueError, match=r"id of buffer 0 of.*beside buffer 1 of.* has dtype int32, got 8589934597"):
        sampler([(buffers[0], 0.5), (buffers[1], 0.5)]).sample(4)


def test_leaves_that_are_nested_in_other_ways_cannot_be_joined():
    flat, more = ReplayBuffer(10), ReplayBuffer(10)
    flat.push({"obs": np.zeros(4)})
    more.push({"obs": {"x": np.zeros(4), "y": np.zeros(4)}})
    for other, holds in ((flat, r"torch.float64 \(\)"), (more, r"nested \['x', 'y'\]")):
        with pytest.raises(ValueError, match=rf"rows of obs cannot be joined: .* holds nested \['x'\], .* holds {holds}"):
            sampler([(single(0.0), 0.5), (other, 0.5)]).sample(4)


def test_an_empty_buffer_is_named_where_rows_of_it_are_wanted():
    full, empty = uniform(0), prioritized(0, n=0)
    message = "from buffer 1 of the list, a PrioritizedReplayBuffer, which is empty: push transitions into it"
    with pytest.raises(ValueError, match=message):
        sampler([(full, 0.9), (empty, 0.1)]).sample(10)
    with pytest.raises(ValueError, match="from the buffer 'demos', a PrioritizedReplayBuffer, which is empty"):
        sampler({"own": full, "demos": empty}).sample(10)
    with pytest.raises(ValueError, match="from buffer 0 of the list, a ReplayBuffer, which is empty"):
        sampler([(uniform(0, n=0), 0.5), (empty, 0.5)]).sample(0)


@pytest.mark.parametrize("empty", [uniform(0, n=0), prioritized(0, n=0)])
def test_an_empty_buffer_whose_share_is_no_row_is_not_needed(empty):
    source = sampler([(empty, 0.01), (uniform(0), 0.99)])
    batch = source.sample(10)

    assert batch.number.shape == (10,)
    assert batch.obs.x.shape == (10, 2)
    if source.takes_priorities:
        assert batch.index.tolist() == [-1] * 10
        source.update_priority(batch, torch.ones(10))


def test_a_leaf_named_index_of_a_buffer_without_priorities_does_not_number_its_rows():
    plain, buffer = uniform(0, index=np.arange(10)), prioritized(100)
    batch = sampler([(plain, 0.5), (buffer, 0.5)]).sample(8)

    assert batch.index[:4].tolist() == [-1] * 4
    assert (batch.index[4:] == batch.number[4:] - 100).all()


def test_named_buffers_give_a_batch_each():
    batch = sampler({"agent": uniform(0), "expert": prioritized(100)}).sample(6, ("number",))

    assert (set(batch.agent.keys()), set(batch.expert.keys())) == ({"number"}, {"number", "weight", "index"})
    assert (batch.agent.number < 100).all()
    assert (batch.expert.number >= 100).all()
    assert (len(batch.agent.number), len(batch.expert.number)) == (6, 6)


@pytest.mark.parametrize("columns", [("agent", "expert"), ("expert",), ("agent", "number")])
def test_names_of_buffers_want_all_that_these_have(columns):
    source = sampler({"agent": uniform(0), "expert": prioritized(100)})
    batch, whole = source.sample(6, columns), source.sample(6)

    assert set(batch.agent.keys()) == set(whole.agent.keys()) == {"number", "obs"}
    assert set(batch.expert.keys()) == set(whole.expert.keys()) == {"number", "obs", "weight", "index"}


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
        with pytest.raises(ValueError, match=r"got no priorities for the prioritised buffers.*\['first', 'second'\]"):
            source.update_priority(batch, wrong)


def test_priorities_of_the_only_named_buffer_that_takes_them_need_no_name():
    only = prioritized(0)
    source = sampler({"plain": uniform(50), "only": only})
    source.update_priority(source.sample(3), torch.full((3,), 2.0))

    assert {round(p) for p in priorities_of(only)} == {1, 2}


def test_it_knows_whether_any_buffer_takes_priorities():
    assert [sampler(it).takes_priorities for it in (uniform(0), prioritized(0), {"x": prioritized(0)})] == [False, True, True]
    assert sampler([(uniform(0), 0.5), (prioritized(0), 0.5)]).takes_priorities


class Own(ReplayBuffer):
    """Draws and copies in one."""

    def sample(self, size, columns=None):
        return super().sample(size, columns)


def test_batches_are_drawn_ahead_where_no_buffer_needs_what_is_learned_from_the_one_before():
    late = PrioritizedReplayBuffer(10, lag=1)
    leads = {
        1: (uniform(0), late, {"x": uniform(0), "y": late}),
        0: (prioritized(0), Own(10), [(uniform(0), 0.5), (Own(10), 0.5)]),
    }
    for lead, forms in leads.items():
        assert [sampler(form).lead for form in forms] == [lead] * 3


@pytest.mark.parametrize("make", [lambda a, b: a, lambda a, b: [(a, 0.5), (b, 0.5)], lambda a, b: {"a": a, "b": b}])
@pytest.mark.parametrize("kind", [uniform, prioritized])
def test_what_is_drawn_and_taken_later_is_what_is_sampled(make, kind):
    one, other = sampler(make(kind(0), kind(100))), sampler(make(kind(0), kind(100)))
    sampled, drawn = [one.sample(6) for _ in range(3)], [other.draw(6) for _ in range(3)]

    for first, second in zip(sampled, map(other.take, drawn), strict=True):
        assert repr(nested(first)) == repr(nested(second))


def test_every_change_of_the_rows_is_told():
    buffer = uniform(0)
    source, seen = sampler(buffer), []
    for change in (
        lambda: buffer.push(numbered(5, 2)),
        buffer.clear,
        lambda: buffer.load_state_dict(uniform(3).state_dict()),
        lambda: source.sample(4),
    ):
        change()
        seen.append(source.writes)

    assert len(set(seen)) == 3
    assert seen[2] == seen[3]


def test_there_is_enough_when_the_buffers_together_have_enough():
    own, demos = uniform(0, n=700, capacity=50_000), uniform(0, n=299, capacity=50_000)
    sources = sampler([(own, 0.75), (demos, 0.25)]), sampler({"own": own, "demos": demos})
    assert [source.has_enough(1000) for source in sources] == [False, False]
    demos.push(numbered(299, 1))

    assert [source.has_enough(1000) for source in sources] == [True, True]
    assert [source.has_enough(1001) for source in sources] == [False, False]


def test_there_is_enough_when_all_buffers_are_full():
    large, small = uniform(0, n=19, capacity=20), uniform(0, n=10, capacity=10)
    source = sampler([(large, 0.5), (small, 0.5)])
    assert not source.has_enough(1000)
    large.push(numbered(19, 1))

    assert source.has_enough(1000)


def test_an_empty_buffer_is_waited_for_by_name():
    some, empty = uniform(0), prioritized(0, n=0)
    joined, named = sampler([(some, 0.5), (empty, 0.5)]), sampler({"own": some, "demos": empty})

    assert [source.has_enough(10) for source in (joined, named)] == [False, False]
    assert joined.waited_for(10) == ["buffer 1 of the list, a PrioritizedReplayBuffer"]
    assert named.waited_for(10) == ["the buffer 'demos', a PrioritizedReplayBuffer"]
    assert joined.waited_for(11) == named.waited_for(11) == []
    empty.push(numbered(0, 1))
    assert joined.waited_for(10) == []
    assert joined.has_enough(10)


def test_an_empty_buffer_never_has_enough():
    assert not sampler(uniform(0, n=0)).has_enough(0)


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
        ([BUFFER, BUFFER], TypeError, r"wants buffers with their fractions, \[\(buffer, 0.75\).*got <ding_lite"),
        ([(BUFFER, "half")], TypeError, "wants buffers with their fractions"),
        ([(BUFFER, 0.5, 1)], TypeError, "wants buffers with their fractions"),
        ([(0.5, 0.5), (BUFFER, 0.5)], TypeError, "wants a ReplayBuffer as buffer 0, got 0.5"),
        ({"a": BUFFER, "b": (BUFFER, 1)}, TypeError, "wants a ReplayBuffer as the buffer 'b', got"),
        (
            [(BUFFER, 0.5), (BUFFER, 0.4)],
            ValueError,
            r"with the fractions \[0.5, 0.4\]: each must be above 0, and their sum must be 1",
        ),
        ([(BUFFER, 1.5), (BUFFER, -0.5)], ValueError, "each must be above 0"),
        ([(BUFFER, 1.0), (BUFFER, 0.0)], ValueError, "each must be above 0"),
        ([(BUFFER, float("nan"))], ValueError, "each must be above 0"),
    ],
)
def test_other_forms_are_refused_by_name(given, error, message):
    with pytest.raises(error, match=message):
        sampler(given, "learner")


def test_rows_of_a_buffer_with_weights_keep_these_beside_a_prioritised_one():
    weighted = uniform(0, weight=np.full(10, 0.25, np.float32))
    batch = sampler([(weighted, 0.5), (prioritized(100), 0.5)]).sample(8)

    assert batch.weight[:4].tolist() == [0.25] * 4
    assert batch.weight[4:].tolist() == [1.0] * 4
    assert (batch.index[:4] == -1).all()
