"""Attributes that acting reads and learning changes, which the copies that act do not see, are named in a warning."""

import array
import functools
import warnings
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ding_lite import OnlineRLContext, Task
from ding_lite.config import DQNConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, OffPolicyLearner, StepCollector, data_pusher
from ding_lite.policy import DQNPolicy


class Acting(DQNPolicy):
    """Acts with an exploration of its own."""

    acting_settings = ()
    eps = 1.0

    def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
        return super().compute_actions(obs, state, explore=explore, eps=self.share_of_random() if explore else 0.0)

    def share_of_random(self):
        return self.eps


class Annealed(Acting):
    def after_step(self):
        super().after_step()
        self.eps *= 0.9


class AnnealedInClass(Annealed):
    def share_of_random(self):
        return AnnealedInClass.eps

    def after_step(self):
        DQNPolicy.after_step(self)
        AnnealedInClass.eps *= 0.9


class AnnealedBehindHolder(Annealed):
    def after_init(self):
        super().after_init()
        self.schedule = Schedule(self)

    def share_of_random(self):
        return self.schedule.value()


class Schedule:
    def __init__(self, policy):
        self.policy = policy

    def value(self):
        return self.policy.eps


class AnnealedByHelper(Acting):
    def share_of_random(self):
        return epsilon_of(self)

    def loss(self, batch):
        self.eps = self.eps - 0.01
        return super().loss(batch)


def epsilon_of(policy):
    return policy.eps


class InWeights(Annealed):
    def get_weights(self):
        return {"networks": super().get_weights(), "eps": self.eps}

    def set_weights(self, weights):
        super().set_weights(weights["networks"])
        self.eps = weights["eps"]


class InBuffer(Acting):
    def make_model(self):
        model = super().make_model()
        model.register_buffer("epsilon", torch.ones(()))
        return model

    def share_of_random(self):
        return float(self.model.epsilon)

    def after_step(self):
        super().after_step()
        self.model.epsilon *= 0.9


class ByTrainIter(Acting):
    def share_of_random(self):
        return 0.9**self.train_iter


class NotRead(Acting):
    """Learning changes what acting does not read."""

    turns = 0

    def after_step(self):
        super().after_step()
        self.turns += 1


class NotReadOfItself(Acting):
    """Acting uses attributes of other objects with the names of those that learning changes."""

    temperature = entropy = 1.0

    def share_of_random(self):
        return SETTINGS.temperature * float(torch.distributions.Bernoulli(0.5).entropy())

    def after_step(self):
        super().after_step()
        self.temperature *= 0.9
        self.entropy *= 0.9


SETTINGS = SimpleNamespace(temperature=0.5)


class Counting(Acting):
    """Acting changes what it reads."""

    turns = 0

    def share_of_random(self):
        self.turns += 1
        return max(0.0, 1 - self.turns / 60)


class CountingWithState(Counting):
    def state_dict(self):
        return {**super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state):
        super().load_state_dict({name: it for name, it in state.items() if name != "turns"})
        self.turns = state["turns"]


class Caching(Acting):
    """Acting assigns what it does not read."""

    def share_of_random(self):
        self.last = self.eps
        return self.eps


class LeavingOut(Counting):
    not_saved = ("turns",)


def warned(kind, folder, words, **mode):
    return [it for it in all_warned(kind, folder, **mode) if words in it]


def all_warned(kind, folder, **mode):
    cfg = DQNConfig().override(
        {
            "policy.learn.learning_starts": 8,
            "policy.learn.batch_size": 4,
            "policy.learn.update_per_collect": 1,
            "policy.collect.n_sample": 8,
        }
    )
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_ = ReplayBuffer(100, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext(), **mode) as loop:
            loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_)).use(CkptSaver(policy, folder, train_freq=1))
            loop.run(5)
    return [str(it.message) for it in caught]


MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "async"])


@pytest.mark.few
@MODES
@pytest.mark.parametrize("kind", [Annealed, AnnealedByHelper, AnnealedInClass, AnnealedBehindHolder])
def test_what_acting_reads_and_learning_changes_is_named_once(kind, mode, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, "eps", 1.0)
    (found,) = warned(kind, tmp_path, "acting hooks read it", **mode)
    assert f"learning changes self.eps of {kind.__name__}, from 1.0 to 0.9" in found
    assert "Compute it from self.train_iter" in found


@pytest.mark.few
@pytest.mark.parametrize("kind", [Acting, InWeights, InBuffer, ByTrainIter, NotRead, NotReadOfItself, Counting, Caching])
def test_what_the_copies_get_or_do_not_read_is_not(kind, tmp_path):
    assert warned(kind, tmp_path, "acting hooks read it") == []


@pytest.mark.parametrize("kind", [InWeights, InBuffer, ByTrainIter])
def test_the_fixes_reach_the_copy_that_collects(kind):
    """What the warning advises."""
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = kind(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    obs = torch.rand(2, 4)
    rows = {"obs": obs, "next_obs": obs, "action": torch.tensor([0, 1]), "reward": torch.ones(2)}
    rows["terminated"] = torch.tensor([False, True])
    assert policy.collect_mode.current().share_of_random() == 1.0
    for _ in range(3):
        policy.learn_mode.forward(rows)
    assert policy.collect_mode.current().share_of_random() == pytest.approx(0.9**3)


@pytest.mark.few
@MODES
@pytest.mark.parametrize("kind", [Counting, CountingWithState])
def test_what_the_copy_that_collects_changes_by_itself_is_named_as_unsaved(kind, mode, tmp_path):
    """Also where the class has a state_dict, since that is called for the policy, not for the copy."""
    (found,) = warned(kind, tmp_path, "in the copy that collects", **mode)
    assert f"{kind.__name__} remembers something from iteration to iteration (turns), in the copy that collects" in found


@pytest.mark.few
@pytest.mark.parametrize("kind", [Acting, Annealed, Caching, LeavingOut])
def test_what_it_does_not_change_or_read_or_need_is_not(kind, tmp_path):
    assert warned(kind, tmp_path, "in the copy that collects") == []


class Holder:
    """An object of a script."""

    def __init__(self, x=1.0):
        self.x = x


class Slots:
    __slots__ = ("_x",)

    def __init__(self):
        self._x = 1.0


def shrink(held):
    """Change the number in a value in place."""
    if isinstance(held, (Holder, SimpleNamespace)):
        held.x *= 0.9
    elif isinstance(held, Slots):
        held._x *= 0.9
    elif isinstance(held, dict):
        held["x"] *= 0.9
    elif isinstance(held[0], (Holder, dict)):
        shrink(held[0])
    else:
        held[0] *= 0.9


def number_in(held):
    if isinstance(held, dict):
        return held["x"]
    if isinstance(held, Slots):
        return held._x
    found = held.x if isinstance(held, (Holder, SimpleNamespace)) else held[0]
    return found if isinstance(found, (float, np.floating, torch.Tensor)) else number_in(found)


HELD = {
    "dict": lambda: {"x": 1.0},
    "list": lambda: [1.0],
    "deque": lambda: deque([1.0]),
    "array": lambda: np.ones(1),
    "array of Python": lambda: array.array("d", [1.0]),
    "tensor": lambda: torch.ones(1),
    "namespace": lambda: SimpleNamespace(x=1.0),
    "object": Holder,
    "slots": Slots,
    "nested": lambda: [{"x": 1.0}],
    "objects in a tuple": lambda: (Holder(),),
    "long list": lambda: [1.0] * 5000,
}


class Held(Acting):
    make = None

    def after_init(self):
        super().after_init()
        self.mine = self.make()

    def share_of_random(self):
        return float(number_in(self.mine))


class LearnedInPlace(Held):
    def after_step(self):
        super().after_step()
        shrink(self.mine)


class LearnedInClass(LearnedInPlace):
    def after_init(self):
        type(self).mine = self.make()


class LearnedInSpace(Acting):
    def after_init(self):
        super().after_init()
        self.observation_space.scale = 1.0

    def share_of_random(self):
        return self.observation_space.scale

    def after_step(self):
        super().after_step()
        self.observation_space.scale *= 0.9


class Saving(LearnedInPlace):
    """With a state of its own, so that everything is as it should be if iterations do not overlap."""

    def state_dict(self):
        return {**super().state_dict(), "x": float(number_in(self.mine))}

    def load_state_dict(self, state):
        super().load_state_dict({name: it for name, it in state.items() if name != "x"})
        self.mine = {"x": state["x"]}


def of(kind, make):
    return type(kind.__name__, (kind,), {"make": staticmethod(make)})


@pytest.mark.few
@pytest.mark.parametrize("held", HELD)
def test_what_learning_changes_in_place_is_named_once_and_as_unsaved(held, tmp_path):
    found = all_warned(of(LearnedInPlace, HELD[held]), tmp_path)
    (first,) = [it for it in found if "acting hooks read it" in it]
    assert "learning changes self.mine" in first
    assert "of LearnedInPlace in place" in first
    (second,) = [it for it in found if "remembers" in it]
    assert "(mine" in second
    assert "which its inherited state_dict does not have" in second


@pytest.mark.few
@MODES
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (of(LearnedInPlace, HELD["dict"]), "self.mine['x'] of LearnedInPlace"),
        (of(LearnedInClass, HELD["dict"]), "self.mine['x'] of LearnedInClass"),
        (LearnedInSpace, "self.observation_space.scale of LearnedInSpace"),
    ],
    ids=["dict", "class", "space"],
)
def test_what_learning_changes_in_place_is_named_in_every_mode(kind, place, mode, tmp_path):
    (found,) = warned(kind, tmp_path, "acting hooks read it", **mode)
    assert f"learning changes {place} in place" in found


def test_a_saved_object_that_learning_changes_is_named_only_if_iterations_overlap(tmp_path):
    kind = of(Saving, HELD["dict"])
    assert warned(kind, tmp_path / "plain", "acting hooks read it") == []
    for number, mode in enumerate(({"max_lag": 1}, {"async_mode": True})):
        assert len(warned(kind, tmp_path / str(number), "acting hooks read it", **mode)) == 1


class BesideWeights(LearnedInPlace):
    def get_weights(self):
        return {"networks": super().get_weights()}

    def set_weights(self, weights):
        super().set_weights(weights["networks"])


def test_copies_of_a_policy_with_weights_of_its_own_keep_the_earlier_value(tmp_path):
    (found,) = warned(of(BesideWeights, HELD["dict"]), tmp_path, "acting hooks read it")
    assert "self.mine['x'] of BesideWeights in place" in found
    assert "They get only the weights, and keep the earlier value" in found


class Normalizer:
    """Statistics that loss updates and acting reads."""

    def __init__(self):
        self.mean, self.count = torch.zeros(4), 0

    def update(self, obs):
        self.count += 1
        self.mean += (obs.mean(0) - self.mean) / self.count

    def state_dict(self):
        return {"mean": self.mean.clone(), "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.count = state["mean"].clone(), state["count"]


class Normalized(DQNPolicy):
    acting_settings = ()

    def after_init(self):
        super().after_init()
        self.normalizer = Normalizer()
        self.attach("normalizer", self.normalizer)

    def compute_actions(self, obs, state=(), **kwargs):
        return super().compute_actions(obs - self.normalizer.mean, state, eps=0.5)

    def loss(self, batch):
        self.normalizer.update(batch.obs)
        return super().loss(batch)


def test_an_attached_object_that_learning_changes_is_named_only_if_iterations_overlap(tmp_path):
    assert [it for it in all_warned(Normalized, tmp_path / "plain") if "normalizer" in it] == []
    for number, mode in enumerate(({"max_lag": 1}, {"async_mode": True})):
        (found,) = warned(Normalized, tmp_path / str(number), "normalizer", **mode)
        assert "learning changes self.normalizer" in found
        assert "if iterations overlap, they see changes that do not belong to their weights" in found


class Unchanged(Held):
    """Learning and acting read the same constant."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * number_in(self.mine), stats


class Replaced(Held):
    """Learning assigns an equal value."""

    def after_step(self):
        super().after_step()
        self.mine = {**self.mine}


class LearnedCache(LearnedInPlace):
    not_saved = ("mine",)


class Networks(Acting):
    """Acting reads parts of the model, and an object that refers to the policy."""

    def after_init(self):
        super().after_init()
        self.body, self.holder = self.model, Holder(self)
        self.buffer = ReplayBuffer(10)

    def share_of_random(self):
        return 1.0 if self.body is self.model and self.holder.x is not None and len(self.buffer) >= 0 else 0.5

    def loss(self, batch):
        self.buffer.push({"obs": batch.obs.numpy()})
        return super().loss(batch) if self.body is not None and self.holder.x is self else None


@pytest.mark.few
@MODES
@pytest.mark.parametrize(
    "kind", [of(kind, HELD["dict"]) for kind in (Unchanged, Replaced, LearnedCache)] + [Networks], ids=lambda it: it.__name__
)
def test_constants_equal_values_caches_and_networks_are_not_named(kind, mode, tmp_path):
    found = all_warned(kind, tmp_path, **mode)
    assert [it for it in found if "acting hooks read it" in it or "in the copy that collects" in it] == []


class Watched(dict):
    reads = 0

    def items(self):
        type(self).reads += 1
        return super().items()


@pytest.mark.few
@pytest.mark.parametrize(
    ("make", "most"),
    [(lambda: Watched(x=1.0), 1), (lambda: [Watched(x=1.0)] * 5000, 1), (lambda: [Watched(x=1.0) for _ in range(5000)], 200)],
    ids=["dict", "one object", "long list"],
)
def test_contents_are_not_compared_after_each_batch(make, most):
    envs = make_envs("CartPole-v1", 1, seed=0)
    policy = of(Unchanged, make)(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    obs = torch.rand(2, 4)
    rows = {"obs": obs, "next_obs": obs, "action": torch.tensor([0, 1]), "reward": torch.ones(2)}
    rows["terminated"] = torch.tensor([False, True])
    policy.dry_run()
    before = Watched.reads
    for _ in range(64):
        policy.learn_mode.forward(rows)
    assert 0 < Watched.reads - before <= (1 + 7) * most  # at the beginning, and after 1, 2, 4, ... 64 batches


class OU:
    """Noise with a memory."""

    def __init__(self):
        self.x, self.rng = 0.0, np.random.default_rng(1)

    def __call__(self):
        self.x = 0.9 * self.x + 0.3 * self.rng.normal()
        return abs(self.x) % 1

    def state_dict(self):
        return {"x": self.x, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.x, self.rng.bit_generator.state = state["x"], state["rng"]


class Drawing(Held):
    """Acting changes what it reads."""

    use = None

    def share_of_random(self):
        return float(type(self).use(self.mine))


class DrawingWithState(Drawing):
    def state_dict(self):
        return {**super().state_dict(), "mine": self.mine.bit_generator.state}

    def load_state_dict(self, state):
        super().load_state_dict({name: it for name, it in state.items() if name != "mine"})
        self.mine.bit_generator.state = state["mine"]


class SettingByName(Held):
    def share_of_random(self):
        setattr(self, "mine", getattr(self, "mine") + 1)  # noqa: B009, B010
        return 0.5


def counted(held):
    held[0] = held[0] * 0.9
    return held[0]


DRAWN = {
    "list": (lambda: [1.0], counted),
    "deque": (lambda: deque([1.0]), counted),
    "array": (lambda: np.ones(1), counted),
    "tensor": (lambda: torch.ones(1), counted),
    "numpy's generator": (lambda: np.random.default_rng(0), lambda it: it.random()),
    "torch's generator": (torch.Generator, lambda it: torch.rand((), generator=it)),
    "noise": (OU, lambda it: it()),
}


def drawing(case, kind=Drawing):
    make, use = DRAWN[case]
    return type(kind.__name__, (kind,), {"make": staticmethod(make), "use": staticmethod(use)})


@pytest.mark.few
@pytest.mark.parametrize(
    "kind",
    [*map(drawing, DRAWN), of(SettingByName, lambda: 0), drawing("numpy's generator", DrawingWithState)],
    ids=[*DRAWN, "set by name", "in a state of its own"],
)
def test_what_acting_changes_in_place_or_draws_from_is_named_once_as_unsaved(kind, tmp_path):
    found = all_warned(kind, tmp_path)
    (first,) = [it for it in found if "remembers" in it]
    assert f"{kind.__name__} remembers something from iteration to iteration (mine" in first
    assert "in the copy that collects, and no state has it" in first
    assert "self.rng or self.generator" in first
    assert [it for it in found if "acting hooks read it" in it] == []


@pytest.mark.few
@pytest.mark.parametrize("case", ["list", "numpy's generator"])
@pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}], ids=["lag", "async"])
def test_so_it_is_if_iterations_overlap(case, mode, tmp_path):
    (found,) = [it for it in all_warned(drawing(case), tmp_path, **mode) if "remembers" in it or "acting hooks read it" in it]
    assert "in the copy that collects" in found


class OwnGenerator(Drawing):
    """With more random generators, as `require_generator_state` describes."""

    def generator_state(self):
        return {**super().generator_state(), "mine": self.mine.bit_generator.state}

    def require_generator_state(self, where, state):
        super().require_generator_state(where, state)

    def load_generator_state(self, state):
        super().load_generator_state(state)
        self.mine.bit_generator.state = state["mine"]


class Cached(Held):
    @functools.cached_property
    def table(self):
        return [1.0]

    def share_of_random(self):
        self.table.append(1.0)
        return self.table[0]


@pytest.mark.few
@pytest.mark.parametrize(
    "kind",
    [
        of(Held, HELD["dict"]),
        of(LearnedInPlace, HELD["dict"]),
        drawing("numpy's generator", OwnGenerator),
        of(Cached, HELD["dict"]),
        type("LeavingOut", (drawing("list"),), {"not_saved": ("mine",)}),
    ],
    ids=lambda it: it.__name__,
)
def test_constants_saved_generators_caches_and_what_learning_changes_are_not(kind, tmp_path):
    assert warned(kind, tmp_path, "in the copy that collects") == []


class Attached(Drawing):
    def after_init(self):
        super().after_init()
        self.attach("noise", self.mine)


def test_an_attached_object_that_acting_changes_is_named_before_the_run(tmp_path):
    envs = make_envs("CartPole-v1", 2, seed=0)
    cfg = DQNConfig()
    policy = drawing("noise", Attached)(cfg.policy, envs.single_observation_space, envs.single_action_space)
    before = policy.mine.state_dict()
    with pytest.warns(UserWarning, match="acting changes the OU that Attached has attached as 'noise'") as caught:
        StepCollector(cfg, policy.collect_mode, envs)
    (found,) = [it for it in caught if "attached as" in str(it.message)]
    assert "Draw random numbers from self.rng or self.generator" in str(found.message)
    assert found.filename == __file__
    assert policy.mine.state_dict() == before

    assert [it for it in all_warned(drawing("noise", Attached), tmp_path) if "remembers" in it or "acting hooks" in it] == []
