"""The prioritised replay buffer against the formulas of its paper, and against a list of priorities, whatever is done to it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from random_runs import case_count

from ding_lite.data import LeafSpec, PrioritizedReplayBuffer, ReplayBuffer, Trajectories, flatten, nested
from ding_lite.data.sum_trees import SumTree
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.functional import importance_weight

ALPHA, EPS = 0.7, 0.01


def numbered(first: int, n: int, **more) -> dict:
    """Transitions first, first + 1, ... whose leaves say which they are."""
    number = np.arange(first, first + n)
    return {"number": number, "obs": {"x": number[:, None] + np.array([0, 0.25])}, **more}


def of(capacity: int = 10, pushed: int = 0, **options) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity, **{"alpha": ALPHA, "eps": EPS, **options})
    if pushed:
        buffer.push(numbered(0, pushed))
    return buffer


def scaled(priority) -> np.ndarray:
    return (np.asarray(priority, np.float64) + EPS) ** ALPHA


def priorities_of(buffer: PrioritizedReplayBuffer) -> list[float]:
    """The priority of each transition by its place, from the state that it would save."""
    return (buffer.state_dict()["scaled"].numpy() ** (1 / ALPHA) - EPS).tolist()


class Prioritized(RuleBasedStateMachine):
    """Any sequence of calls, on the buffer and on lists of numbers and priorities by place."""

    @initialize(capacity=st.integers(1, 40))
    def begin(self, capacity):
        self.capacity, self.buffer = capacity, of(capacity)
        self.number, self.priority, self.next, self.pushed, self.highest, self.saved = [], [], 0, 0, 1.0, None

    def note(self, priorities):
        for priority in priorities:
            if len(self.number) < self.capacity:
                self.number.append(0)
                self.priority.append(0.0)
            self.number[self.next], self.priority[self.next] = self.pushed, priority
            self.next, self.pushed = (self.next + 1) % self.capacity, self.pushed + 1
            self.highest = max(self.highest, priority)

    @rule(n=st.integers(0, 60))
    def push(self, n):
        self.buffer.push(numbered(self.pushed, n))
        self.note([self.highest] * n)

    @rule(given=st.lists(st.floats(0, 5), max_size=60))
    def push_with_priorities(self, given):
        self.buffer.push(numbered(self.pushed, len(given), priority=np.array(given, np.float64)))
        self.note(given)

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def update(self, data):
        index = data.draw(st.lists(st.integers(0, len(self.number) - 1), max_size=20))
        new = data.draw(st.lists(st.floats(0, 50), min_size=len(index), max_size=len(index)))
        self.buffer.update_priority(torch.tensor(index, dtype=torch.int64), torch.tensor(new, dtype=torch.float64))
        for place, priority in zip(index, new):
            self.priority[place] = priority
        self.highest = max([self.highest, *new])

    @rule()
    def clear(self):
        self.buffer.clear()
        self.number, self.priority, self.next = [], [], 0

    @rule()
    def save(self):
        model = list(self.number), list(self.priority), self.next, self.highest
        self.saved = copy.deepcopy(self.buffer.state_dict()), model

    @precondition(lambda self: self.saved is not None)
    @rule(fresh=st.booleans())
    def load(self, fresh):
        if fresh:
            self.buffer = of(self.capacity, seed=1)
        self.buffer.load_state_dict(self.saved[0])
        self.number, self.priority = list(self.saved[1][0]), list(self.saved[1][1])
        self.next, self.highest = self.saved[1][2:]

    @precondition(lambda self: self.number)
    @rule(size=st.integers(0, 50))
    def sample(self, size):
        batch = self.buffer.sample(size)
        assert batch.number.tolist() == [self.number[place] for place in batch.index.tolist()]
        assert (batch.obs.x[:, 0] == batch.number).all()

    @invariant()
    def holds_what_the_lists_hold(self):
        if hasattr(self, "buffer"):
            np.testing.assert_allclose(priorities_of(self.buffer), self.priority, rtol=1e-12, atol=1e-12)


Prioritized.TestCase.settings = settings(max_examples=case_count(60), stateful_step_count=15, deadline=None, derandomize=True)
TestHoldsWhatListsWouldHold = Prioritized.TestCase


def test_transitions_are_drawn_in_proportion_to_their_scaled_priorities():
    buffer, priority = of(50, pushed=30), np.random.default_rng(0).random(30) * 3
    priority[4] = 0
    buffer.update_priority(np.arange(30), priority)
    count = np.bincount(np.concatenate([buffer.sample(100).index.numpy() for _ in range(400)]), minlength=30)
    expected = 40_000 * scaled(priority) / scaled(priority).sum()

    assert count.sum() == 40_000  # and none beyond what was pushed
    assert (np.abs(count - expected) < 4 * np.sqrt(expected)).all()


def test_a_batch_is_spread_over_the_total():
    buffer = of(100, pushed=100)
    buffer.update_priority(np.arange(100), np.r_[50.0, np.zeros(99)])
    share = scaled(50) / (scaled(50) + 99 * scaled(0))
    for size in (1, 7, 64, 1000):
        count = (buffer.sample(size).index == 0).sum().item()

        assert abs(count - share * size) <= 1  # independent draws would miss this for 1000 by about 15


def test_each_draw_is_uniform_within_its_part():
    buffer = of(2, pushed=2, alpha=0)
    single = np.array([buffer.sample(1).index.item() for _ in range(2000)])
    first_of_two = np.array([buffer.sample(2).index[0].item() for _ in range(50)])

    assert 900 < single.sum() < 1100
    assert len(set(first_of_two)) == 1


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_those_of_the_paper(beta):
    buffer, priority = of(50, pushed=30, beta=beta, beta_end=beta), np.random.default_rng(0).random(30) * 3
    buffer.update_priority(np.arange(30), priority)
    batch = buffer.sample(16)
    probability = [scaled(priority[i]) / sum(scaled(p) for p in priority) for i in batch.index]
    weight = [(30 * p) ** -beta for p in probability]

    np.testing.assert_allclose(batch.weight, [w / max(weight) for w in weight], rtol=1e-6)
    torch.testing.assert_close(batch.weight.double(), importance_weight(torch.tensor(probability), 30, beta), rtol=1e-6, atol=0)
    assert (batch.weight.dtype, batch.index.dtype) == (torch.float32, torch.int64)
    assert batch.weight.max() == 1


def test_beta_goes_linearly_to_its_end_and_stays_there():
    buffer, betas = of(10, pushed=2, beta=0.4, beta_end=0.8, beta_samples=4, alpha=1), []
    buffer.update_priority(np.arange(2), [1 - EPS, 4 - EPS])
    for _ in range(6):
        expected = 0.25**buffer.beta
        betas.append(buffer.beta)
        batch = buffer.sample(40)
        assert batch.weight[batch.index == 1].numpy() == pytest.approx(expected)

    assert betas == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8, 0.8])
    with pytest.raises(AttributeError, match=r"beta=1.0 of a PrioritizedReplayBuffer: .*Pass these three when you make"):
        buffer.beta = 1.0


def test_with_alpha_0_all_are_alike():
    buffer = of(10, pushed=10, alpha=0)
    buffer.update_priority(np.arange(10), np.arange(10.0))
    batch = buffer.sample(10)

    assert sorted(batch.index.tolist()) == list(range(10))
    assert (batch.weight == 1).all()


def test_new_transitions_get_the_largest_priority_so_far():
    buffer = of(4, pushed=2)
    assert priorities_of(buffer) == pytest.approx([1, 1])
    buffer.update_priority([0, 1], [0.1, 0.2])
    buffer.push(numbered(2, 1))
    assert priorities_of(buffer) == pytest.approx([0.1, 0.2, 1])
    buffer.update_priority([1], [7.0])
    buffer.update_priority([1], [0.5])
    buffer.push(numbered(3, 1))

    assert priorities_of(buffer) == pytest.approx([0.1, 0.5, 1, 7])


@pytest.mark.parametrize("n", [3, 10, 11, 25])
def test_a_pushed_leaf_priority_is_theirs_and_no_column(n):
    buffer = of(10, pushed=4)
    buffer.push(numbered(4, n, priority=np.arange(n) / n))
    batch = buffer.sample(20)
    expected = dict(zip(range(4 + n), [1.0] * 4 + (np.arange(n) / n).tolist()))
    number = [0] * len(buffer)
    for place, one in zip(batch.index.tolist(), batch.number.tolist()):
        number[place] = one

    assert {path[0] for path, _ in flatten(batch)} == {"number", "obs", "weight", "index"}
    held = priorities_of(buffer)
    for place, one in zip(batch.index.tolist(), batch.number.tolist()):
        assert held[place] == pytest.approx(expected[one])


def test_the_priorities_of_a_rollout_are_those_of_its_real_steps():
    valid = np.ones((3, 2), bool)
    valid[1, 0] = False
    number = np.arange(6).reshape(3, 2)
    buffer = of(alpha=1)
    buffer.push(Trajectories({"number": number, "priority": number.astype(np.float32) + 1}, valid))
    batch = buffer.sample(100)

    assert sorted(set(batch.number.tolist())) == [0, 1, 3, 4, 5]
    np.testing.assert_allclose(buffer.state_dict()["scaled"], np.array([1, 2, 4, 5, 6]) + EPS)


def test_where_an_index_comes_twice_the_last_counts():
    buffer = of(10, pushed=3)
    buffer.update_priority(torch.tensor([2, 0, 2, 2]), torch.tensor([9.0, 1.0, 8.0, 3.0]))

    assert priorities_of(buffer) == pytest.approx([1, 1, 3])


FORMS = [list, np.asarray, torch.tensor, lambda x: torch.tensor(x, requires_grad=True), lambda x: torch.tensor(x).bfloat16()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor])
def test_priorities_may_come_in_any_form(form, kind):
    buffer = of(10, pushed=3)
    buffer.update_priority(kind([2, 0]), form([0.5, 0.25]))

    assert priorities_of(buffer) == pytest.approx([0.25, 1, 0.5])


@pytest.mark.parametrize(
    ("index", "priority", "error", "message"),
    [
        ([3, 5], [1.0, np.nan], ValueError, r"update_priority\(\): the priority of index 5 is nan, expected a number from 0"),
        ([3, 5], [-0.5, 1.0], ValueError, "the priority of index 3 is -0.5"),
        ([3, 5], [0.0, np.inf], ValueError, "the priority of index 5 is inf"),
        ([3, 5], [0.0, 1e200], ValueError, r"the priority of index 5 is 1e\+200, expected a number from 0 to 1e\+100"),
        ([3, 5], [0.0], ValueError, r"wants index \[B\] and priority \[B\], got shapes \(2,\) and \(1,\)"),
        ([[3, 5]], [[0.0, 1.0]], ValueError, r"got shapes \(1, 2\) and \(1, 2\)"),
        ([3, 6], [0.0, 1.0], IndexError, "got index 6, but the buffer holds 6 transitions, counted from 0"),
        ([-1, 5], [0.0, 1.0], IndexError, "got index -1"),
        ([3, 10**12], [0.0, 1.0], IndexError, "got index 1000000000000"),
    ],
)
def test_a_wrong_update_is_refused_by_name_and_changes_nothing(index, priority, error, message):
    buffer = of(10, pushed=6)
    with pytest.raises(error, match=message):
        buffer.update_priority(np.array(index), np.array(priority))
    buffer.push(numbered(6, 1))

    assert priorities_of(buffer) == pytest.approx([1] * 7)


def test_an_index_that_is_no_whole_number_is_refused():
    buffer = of(10, pushed=6)
    with pytest.raises(TypeError, match="index"):
        buffer.update_priority(np.array([0.7]), np.array([1.0]))


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        (np.array([0.0, np.nan]), r"push\(\): the priority of index 1 is nan"),
        (np.array([-1.0, 0.0]), "the priority of index 0 is -1.0"),
        (np.zeros(3), r"push\(\) of 2 transitions got priority of shape \(3,\), expected \(2,\)"),
        (np.zeros((2, 1)), r"priority of shape \(2, 1\)"),
    ],
)
def test_wrong_priorities_are_not_pushed_and_change_nothing(priority, message):
    buffer = of(10, pushed=3)
    with pytest.raises(ValueError, match=message):
        buffer.push(numbered(3, 2, priority=priority))
    with pytest.raises(ValueError, match="pass the same leaves"):
        buffer.push({"number": np.zeros((2, 1)), "priority": np.full(2, 50.0)})
    buffer.push(numbered(3, 2))

    assert priorities_of(buffer) == pytest.approx([1] * 5)


@pytest.mark.parametrize("batch", [None, [1], np.zeros(3), {}, {"priority": np.zeros(0)}])
def test_a_batch_without_leaves_is_refused(batch):
    with pytest.raises(ValueError, match="wants a batch with named leaves"):
        of().push(batch)


@pytest.mark.parametrize("name", ["weight", "index"])
def test_leaves_of_names_that_it_gives_itself_are_refused(name):
    with pytest.raises(ValueError, match=f"adds '{name}' to each batch"):
        of().push({name: np.zeros(3)})
    with pytest.raises(ValueError, match=f"adds '{name}' to each batch"):
        of(spec={name: LeafSpec((), np.dtype(np.float32))})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.1}, r"PrioritizedReplayBuffer\(alpha=1.1\): expected a number in \[0, 1\]"),
        ({"beta": -0.1}, r"\(beta=-0.1\)"),
        ({"beta_end": float("nan")}, r"\(beta_end=nan\)"),
        ({"eps": 0.0}, r"\(eps=0.0\): expected a number in \(0, 1\]"),
        ({"beta_samples": 0}, r"\(beta_samples=0\): expected 1 or more"),
        ({"lag": 2}, r"PrioritizedReplayBuffer\(lag=2\): expected 0 or 1"),
        ({"capacity": 0}, "the capacity must be at least 1"),
    ],
)
def test_options_out_of_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PrioritizedReplayBuffer(**{"capacity": 10, **options})


def test_an_empty_one_cannot_be_sampled_before_the_first_push_and_after_the_last():
    buffer = of()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sample\(\) from an empty replay buffer"):
            buffer.sample(3)
        buffer.push(numbered(0, 5))
        buffer.clear()
    with pytest.raises(ValueError, match=r"sample\(-1\)"):
        buffer.sample(-1)


def test_only_the_columns_that_are_wanted_come_with_weight_and_index():
    buffer = of(pushed=3)
    batch = buffer.sample(4, ("obs", "unknown"))

    assert set(batch.keys()) == {"obs", "weight", "index"}
    assert buffer.sample(0).weight.shape == buffer.sample(0).index.shape == (0,)


def test_the_memory_for_priorities_counts():
    spec = {"x": LeafSpec((1000,), np.dtype(np.float32))}
    buffer = of(10, spec=spec)
    assert (buffer.nbytes, of(10).nbytes) == (40_000 + SumTree.bytes_for(10), 0)
    large = PrioritizedReplayBuffer(10**10)
    with pytest.raises(MemoryError, match=r"of 4,000 bytes needs 4008\d\.\d GB"):
        large.push({"x": np.zeros((1, 1000), np.float32)})

    assert len(large) == 0


@pytest.mark.parametrize("pushed", [0, 4, 10, 27])
@pytest.mark.parametrize("used", [0, 3, 15])
def test_a_buffer_goes_on_from_a_checkpoint_as_if_nothing_had_happened(pushed, used, tmp_path, digest):
    straight, resumed = of(pushed=pushed, beta_samples=7), of(pushed=used, seed=5, beta_samples=7)
    if pushed:
        batch = straight.sample(3)
        straight.update_priority(batch.index, torch.tensor([0.3, 5.0, 1.7]))
    resumed.load_state_dict(load_checkpoint(save_checkpoint(straight.state_dict(), tmp_path / "buffer.pt")))

    for first in (100, 103, 106, 120):
        found = []
        for buffer in (straight, resumed):
            buffer.push(numbered(first, 3))
            batch = buffer.sample(20)
            buffer.update_priority(batch.index, batch.weight * 3)
            found.append(digest(nested(batch), buffer.state_dict()))
        assert found[0] == found[1]


def test_a_state_of_another_kind_is_refused():
    plain = {key: value for key, value in of(pushed=3).state_dict().items() if key not in ("scaled", "highest")}
    with pytest.raises(
        ValueError, match=r"not the state of a prioritised replay buffer: the keys \['highest', 'scaled'\] are missing"
    ):
        of().load_state_dict(plain)
    with pytest.raises(ValueError, match="a state with alpha=0.7 does not fit a buffer with alpha=0.5"):
        of(alpha=0.5).load_state_dict(of(pushed=3).state_dict())


def test_a_copy_stands_alone():
    buffer = of(pushed=8)
    buffer.update_priority(np.arange(8), np.r_[100.0, np.zeros(7)])
    other = copy.deepcopy(buffer)
    other.update_priority(np.arange(8), np.r_[np.zeros(7), 1e6])

    assert (other.sample(100).index == 7).all()
    assert (buffer.sample(100).index == 0).sum() > 90


BROKEN = {
    "priorities that are infinite": (
        {"scaled": torch.tensor([1.0, 1, torch.inf, 1], dtype=torch.float64)},
        r"scaled\[2\] = inf, expected a priority that is finite and above 0",
    ),
    "priorities that are not a number": ({"scaled": torch.full((4,), torch.nan, dtype=torch.float64)}, r"scaled\[0\] = nan"),
    "priorities of 0": ({"scaled": torch.zeros(4, dtype=torch.float64)}, r"scaled\[0\] = 0\.0"),
    "too large priorities": ({"scaled": torch.full((4,), 1e99, dtype=torch.float64)}, r"scaled\[0\] = 1e\+99"),
    "too few priorities": ({"scaled": torch.ones(3, dtype=torch.float64)}, r"torch.float64 \(3,\).*tensor of float64 \(4,\)"),
    "priorities of float32": ({"scaled": torch.ones(4)}, r"scaled = 'torch.float32 \(4,\)', expected a tensor of float64"),
    "a list of priorities": ({"scaled": [1.0] * 4}, "scaled = 'list'"),
    "a largest one that is infinite": (
        {"highest": float("inf")},
        "highest = inf, expected the largest priority so far, finite",
    ),
    "a largest one of text": ({"highest": "1"}, "highest = '1'"),
    "a negative count of samples": ({"sampled": -1}, r"sampled = -1, expected an integer from 0 to 2\*\*62"),
    "a count of samples beyond any number": ({"sampled": 10**400}, r"sampled = 10+, expected an integer from 0 to 2\*\*62"),
    "a position beyond its capacity": ({"next": 10}, "prioritised replay buffer has next = 10"),
}


@pytest.mark.parametrize(("changes", "words"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("used", [0, 2])
def test_a_state_in_which_no_buffer_can_be_is_refused_and_changes_nothing(changes, words, used, digest):
    buffer = of(pushed=used)
    before = digest(buffer.state_dict())
    with pytest.raises(ValueError, match=words):
        buffer.load_state_dict({**of(pushed=4).state_dict(), **changes})

    assert digest(buffer.state_dict()) == before


def test_a_uniform_buffer_takes_no_state_with_priorities_nor_the_other_way_round():
    with pytest.raises(
        ValueError, match=r"replay buffer: the keys \['alpha', 'highest', 'sampled', 'scaled'\] are unknown.*class"
    ):
        ReplayBuffer(10).load_state_dict(of(pushed=3).state_dict())
    with pytest.raises(
        ValueError, match=r"not the state of a prioritised replay buffer: the keys \['alpha', 'highest', 'sampled'"
    ):
        of().load_state_dict(ReplayBuffer(10).state_dict())
