"""The state of a policy with compiled steps: saved, resumed, copied; and compilation beside the first steps."""

import copy
import pickle
import time
import warnings

import pytest
import torch
from interpreted_steps import (
    assert_close,
    batch_of,
    compiled,
    interpreting,
    learn,
    made,
    no_warning,
    same,
    state_of,
    weights_of,
)

from ding_lite.compiling import compiled_steps
from ding_lite.config import DQNConfig
from ding_lite.policy import DQNPolicy, DQNPolicyConfig


@pytest.fixture(autouse=True)
def interpreted():
    with interpreting(), no_warning():
        yield


def shrinking(step):
    return 7 if step % 3 == 2 else 12


@pytest.mark.few
@pytest.mark.parametrize("first", ["on", "off", "auto"])
@pytest.mark.parametrize("then", ["on", "off", "auto"])
def test_a_run_saved_in_one_mode_goes_on_in_another(first, then, monkeypatch):
    monkeypatch.setattr(compiled_steps, "AUTO_STEPS", 2)
    whole, plain = made(compiles=then), made(compiles="off")
    for policy in (whole, plain):
        learn(policy, 8, rows=shrinking)
    saved = made(compiles=first)
    learn(saved, 4, rows=shrinking)
    resumed = made(compiles=then)
    resumed.load_state_dict(copy.deepcopy(saved.state_dict()))
    learn(resumed, 4, 4, shrinking)
    if first == then:
        assert same(state_of(resumed), state_of(whole))
    assert_close(resumed, plain)


def test_the_same_seed_gives_the_same_result():
    one, other = made(), made()
    for policy in (one, other):
        learn(policy, 5)
    assert same(state_of(one), state_of(other))


class Changing(DQNPolicy):
    """With a number that changes in each step, so that there are more forms than are compiled."""

    def before_step(self):
        super().before_step()
        self.scale = 1.0 + self.train_iter % 9

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return self.scale * loss, stats


@pytest.mark.slow
def test_a_resumed_run_compiles_the_same_forms():
    warnings.filterwarnings("ignore", ".*6 forms of its gradient step")
    whole = made(Changing)
    learn(whole, 18)
    first = made(Changing)
    learn(first, 8)
    resumed = made(Changing)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    learn(resumed, 10, 8)
    assert compiled(whole) == compiled(first) + compiled(resumed) == 12
    assert same(state_of(resumed), state_of(whole))


class Branching(DQNPolicy):
    """A loss that cannot be compiled in step 3."""

    def before_step(self):
        super().before_step()
        self.is_odd = self.train_iter == 3

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return (loss * (1 + 0 * loss.item()) if self.is_odd else loss), stats


class Widening(DQNPolicy):
    """With a buffer that gets another shape in step 3."""

    def after_init(self):
        super().after_init()
        self.target_model.register_buffer("factors", torch.ones(3), persistent=False)

    def before_step(self):
        super().before_step()
        self.target_model.factors = torch.ones(4 if self.train_iter >= 3 else 3)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * self.target_model.factors.mean(), stats


class Counting(DQNPolicy):
    """With a number that changes in each step without effect."""

    def before_step(self):
        super().before_step()
        self.count = self.train_iter % 7 if self.train_iter < 12 else self.train_iter

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return (loss if self.count >= 0 else -loss), stats


class Differing(DQNPolicy):
    """With a statistic that changes by itself, so that the compiled step is not taken."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss, {**stats, "time": time.perf_counter()}


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "cut", "reason"),
    [
        (Branching, 2, "makes a number of a tensor"),
        (Branching, 6, "makes a number of a tensor"),
        (Widening, 6, "factors is torch.float32 of shape"),
        (Counting, 10, "it had 10 values of what its loss reads. In this step, Counting.count is 15"),
        (Counting, 17, "it had 10 values of what its loss reads. In this step, Counting.count is 15"),
        (Differing, 2, "its time is"),
    ],
)
def test_a_run_that_refuses_to_compile_resumes_bit_for_bit(kind, cut, reason, monkeypatch):
    monkeypatch.setattr(compiled_steps, "_MOST_VALUES", 10)
    begun = Compilations(monkeypatch, False)
    whole, first, resumed = made(kind), made(kind), made(kind)
    with pytest.warns(UserWarning, match=reason):
        learn(whole, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn(first, cut)
    before = len(begun)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.warns(UserWarning, match=reason) as found:
        learn(resumed, 20 - cut, cut)
    assert len([it for it in found if "not compiled" in str(it.message)]) == 1
    assert compiled(whole) == compiled(first) + compiled(resumed)
    assert same(state_of(whole), state_of(resumed))
    one, other = whole.compiled_steps.state_dict(), resumed.compiled_steps.state_dict()
    assert same(*({**it, "failed": [digest for digest, _ in it["failed"]]} for it in (one, other)))
    assert not (kind is Differing and len(begun) > before)  # it is known that this fails


def test_an_earlier_state_in_the_same_process_is_that_of_a_new_one():
    policy, fresh = made(Branching), made(Branching)
    learn(policy, 2)
    state = copy.deepcopy(policy.state_dict())
    with pytest.warns(UserWarning, match="makes a number of a tensor"):
        learn(policy, 4, 2)
    for one in (policy, fresh):
        one.load_state_dict(state)
    assert policy.compiled_steps.refused == ""
    learn(policy, 1, 2)
    learn(fresh, 1, 2)
    assert compiled(policy) == 3 + compiled(fresh)
    assert same(state_of(policy), state_of(fresh))


def test_on_compiles_at_once_what_auto_has_put_off():
    first, resumed = made(compiles="auto"), made()
    learn(first, 2)
    resumed.load_state_dict(first.state_dict())
    learn(resumed, 2, 2)
    assert compiled(resumed) == 2


def test_another_value_of_the_setting_tries_again_what_was_refused():
    first, resumed = made(Branching), made(Branching, "auto")
    with pytest.warns(UserWarning, match="makes a number of a tensor"):
        learn(first, 5)
    resumed.load_state_dict(first.state_dict())
    learn(resumed, 1, 5)
    assert compiled(resumed) == 1


def test_a_state_of_an_older_version_has_only_the_forms():
    first, resumed = made(), made()
    learn(first, 2)
    state = first.state_dict()
    state["attached"]["compiled_steps"] = {"forms": state["attached"]["compiled_steps"]["forms"]}
    resumed.load_state_dict(state)
    learn(resumed, 2, 2)
    assert compiled(resumed) == len(resumed.compiled_steps.state_dict()["forms"]) + 1 == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_of_a_policy_learns_on(copied):
    policy = made()
    learn(policy, 3)
    other = copied(policy)
    learn(policy, 3, 3)
    assert not same(state_of(policy), state_of(other))
    learn(other, 3, 3)
    assert same(state_of(policy), state_of(other))
    assert compiled(other) == 3


def test_what_was_learned_moves_to_another_policy():
    policy, other = made(), made(seed=5)
    for one in (policy, other):
        learn(one, 3)
    other.load_learned_state(policy.learned_state())
    plain = made(compiles="off", seed=5)
    plain.load_learned_state(policy.learned_state())
    plain.train_iter = other.train_iter
    for one in (other, plain):
        learn(one, 3, 3)
    assert_close(other, plain)


def test_acting_copies_follow_the_weights():
    policy = made()
    actor = policy.collect_mode.actor
    assert actor.compiled_steps is None
    learn(policy, 3)
    actor.copy_weights(policy)
    assert (weights_of(actor) == weights_of(policy)).all()
    snapshot = policy.snapshot()
    learn(policy, 1, 3)
    assert policy.snapshot() is not snapshot
    assert (weights_of(actor) != weights_of(policy)).any()


def test_statistics_are_not_views_of_weights():
    class Seen(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, "bias": self.model.layers[0].bias.detach(), "reward": batch.reward}

    policy = made(Seen)
    before = policy.model.layers[0].bias.detach().clone()
    stats = policy.gradient_step(batch_of())
    assert (stats["bias"] == before).all()
    stats["reward"].zero_()
    assert (batch_of().reward != 0).any()


class Compilations(list):
    """Counts compilations, and may have all packages at hand."""

    def __init__(self, monkeypatch, are_at_hand):
        real = compiled_steps.Compilation
        monkeypatch.setattr(compiled_steps, "Compilation", lambda program: self.append(program) or real(program))
        if are_at_hand:
            monkeypatch.setattr(compiled_steps, "load_package", real)


@pytest.mark.parametrize("are_at_hand", [False, True])
def test_auto_switches_at_a_fixed_step_whether_or_not_a_package_is_at_hand(are_at_hand, monkeypatch):
    monkeypatch.setattr(compiled_steps, "AUTO_STEPS", 3)
    begun = Compilations(monkeypatch, are_at_hand)
    policy, plain = made(compiles="auto"), made(compiles="off")
    for step in range(3):
        for one in (policy, plain):
            learn(one, 1, step)
        assert len(begun) == (0 if are_at_hand else 1)
        assert compiled(policy) == 0
    assert same(state_of(policy), state_of(plain))
    learn(policy, 3, 3)
    learn(plain, 3, 3)
    assert compiled(policy) == 3
    assert len(begun) == (0 if are_at_hand else 1)
    assert_close(policy, plain)


def test_forms_with_the_same_program_are_compiled_once(monkeypatch):
    monkeypatch.setattr(compiled_steps, "AUTO_STEPS", 5)
    begun, policy = Compilations(monkeypatch, False), made(Counting, "auto")
    learn(policy, 12)
    assert (compiled(policy), len(begun)) == (7, 1)


def test_a_compilation_that_was_interrupted_begins_again(monkeypatch):
    interruptions = [KeyboardInterrupt]

    class Interrupted(compiled_steps.Compilation):
        def package(self):
            if interruptions:
                raise interruptions.pop()
            return super().package()

    monkeypatch.setattr(compiled_steps, "Compilation", Interrupted)
    policy, plain = made(), made(compiles="off")
    with pytest.raises(KeyboardInterrupt):
        learn(policy)
    learn(policy)
    learn(plain)
    assert compiled(policy) == 4
    assert_close(policy, plain)


def test_a_form_that_comes_later_has_its_own_switch(monkeypatch):
    monkeypatch.setattr(compiled_steps, "AUTO_STEPS", 3)
    policy = made(compiles="auto")
    learn(policy, 8, rows=lambda step: 12 if step < 4 else 7)
    assert compiled(policy) == 1 + 1  # the fourth step, and the last one, three steps after the first of 7 rows


@pytest.mark.parametrize(("given", "found"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")])
def test_a_configuration_file_may_have_bools(given, found):
    assert DQNConfig().override({"policy.learn.compile": given}).policy.learn.compile == found


def test_the_setting_cannot_be_changed_in_a_run():
    policy = made()
    with pytest.raises(ValueError, match=r"learn\.compile cannot be changed in a run"):
        policy.reset_config({"learn.compile": "off"})


def test_compilation_is_off_by_default():
    assert DQNPolicyConfig().learn.compile == "off"
    assert made(compiles="off").compiled_steps is None
