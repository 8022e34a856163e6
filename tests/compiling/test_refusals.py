"""Losses that a compiled step cannot have: each is refused by name and line, and learns as without compilation."""

import itertools
import random
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreted_steps import (
    ACTIONS,
    OBSERVATIONS,
    Interpreted,
    assert_close,
    batch_of,
    compiled,
    interpreting,
    learn,
    made,
    no_warning,
    same,
    state_of,
)
from torch import nn

from ding_lite.compiling import functional_steps, optimizer_updates
from ding_lite.compiling.tracing import NotCompiledError, refusing_side_effects, user_line
from ding_lite.data.trees import with_leaves
from ding_lite.policy import DQNPolicy, Policy, PolicyConfig

OUTSIDE = torch.ones(3)


class Loss(DQNPolicy):
    """DQN with something more in its loss."""

    more = None

    def after_init(self):
        super().after_init()
        self.seen, self.history, self.table = 0, [], np.ones(2000)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return type(self).more(self, batch, loss), stats


def counts(self, batch, loss):
    self.seen += 1
    return loss


def appends(self, batch, loss):
    self.history.append(1)
    return loss


def prints(self, batch, loss):
    print("learning")
    return loss


def branches(self, batch, loss):
    return loss * 2 if loss > 1 else loss


def logs(self, batch, loss):
    self.metrics.log_value("twice", 2.0)
    return loss


def drops(self, batch, loss):
    return loss * (1 + self.rng.random())


def writes(self, batch, loss):
    batch.reward.add_(0.0)
    return loss


CASES = {
    "item": (lambda self, batch, loss: loss * loss.item(), "makes a number of a tensor"),
    "float": (lambda self, batch, loss: loss * float(loss), "makes a number of a tensor"),
    "a branch": (branches, "makes a condition of a tensor"),
    "numpy": (lambda self, batch, loss: loss * float(loss.detach().numpy()), "makes an array of a tensor"),
    "a list": (lambda self, batch, loss: loss * len(batch.reward.tolist()), "makes numbers of a tensor"),
    "text": (lambda self, batch, loss: loss * len(f"{loss}"), "makes text of a tensor"),
    "printing": (prints, "prints"),
    "a mask": (lambda self, batch, loss: loss + batch.reward[batch.terminated].sum(), "shape depends on numbers"),
    "a counter": (counts, "sets Loss.seen"),
    "a list that grows": (appends, "reads Loss.history, whose contents the loss changes"),
    "metrics": (logs, "logs with self.metrics"),
    "the gradient step": (lambda self, batch, loss: loss * (1 + self.train_iter), "reads train_iter"),
    "a generator of numpy": (drops, "draws from the random generator self.rng"),
    "the generator of Python": (
        lambda self, batch, loss: loss * (1 + random.random()),
        "draws from the random generator random",
    ),
    "numbers that depend on tensors": (
        lambda self, batch, loss: loss + torch.bernoulli(batch.reward.sigmoid(), generator=self.generator).mean(),
        "draws random numbers that depend on tensors",
    ),
    "an array": (lambda self, batch, loss: loss * float(self.table[0]), "Loss.table, a ndarray of 2,000"),
    "a tensor from elsewhere": (lambda self, batch, loss: loss * OUTSIDE.mean(), "neither a column of the batch"),
    "data": (lambda self, batch, loss: loss + self.model.layers[0].weight.data.mean(), "uses `data` of a tensor"),
    "a column in place": (writes, "changes reward in place"),
}


def kind_of(more):
    return type("Loss", (Loss,), {"more": staticmethod(more)})


@pytest.mark.few
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_compiled_is_refused_by_name_and_not_done_twice(case, capsys):
    more, words = CASES[case]
    random.seed(3)
    plain = made(kind_of(more), "off")
    stats, printed, python = learn(plain), capsys.readouterr().out, random.getstate()
    random.seed(3)
    policy = made(kind_of(more))
    with interpreting(), pytest.warns(UserWarning, match="Its gradient steps are not compiled") as found:
        found_stats = learn(policy)
    assert found_stats == stats
    assert words in str(found[0].message)
    assert len([it for it in found if "not compiled" in str(it.message)]) == 1
    assert (capsys.readouterr().out, random.getstate()) == (printed, python)
    assert (policy.seen, policy.history, compiled(policy)) == (plain.seen, plain.history, 0)
    assert same(state_of(policy), state_of(plain))


def test_the_message_has_the_file_and_line_of_the_loss():
    line = branches.__code__.co_firstlineno + 1
    with interpreting(), pytest.warns(UserWarning, match=rf"test_refusals.py:{line}, in branches, makes a condition"):
        learn(made(kind_of(branches)), 1)


class Sgd(DQNPolicy):
    def make_optimizer(self, params):
        return torch.optim.SGD(params, lr=0.1)


class Amsgrad(DQNPolicy):
    def make_optimizer(self, params):
        return torch.optim.Adam(params, lr=0.1, amsgrad=True)


@pytest.mark.parametrize(("kind", "words"), [(Sgd, "the optimizer is a torch.optim.sgd.SGD"), (Amsgrad, "amsgrad=True")])
def test_an_optimizer_that_cannot_be_compiled_is_named(kind, words):
    policy = made(kind)
    with interpreting(), pytest.warns(UserWarning, match=words):
        learn(policy)
    plain = made(kind, "off")
    learn(plain)
    assert same(state_of(policy), state_of(plain))


def test_a_column_of_objects_is_named():
    batch = with_leaves(batch_of(), info=np.empty(12, object))
    with interpreting(), pytest.warns(UserWarning, match="the column info of the batch is a ndarray"):
        made().gradient_step(batch)


def test_a_step_that_differs_from_the_plain_one_is_refused_and_undone(monkeypatch):
    adam = optimizer_updates._STEPS[optimizer_updates.own.Adam]
    wrong = lambda group, *args: adam({**group, "betas": (0.5, 0.9)}, *args)  # noqa: E731
    monkeypatch.setitem(optimizer_updates._STEPS, optimizer_updates.own.Adam, wrong)
    plain, policy = made(compiles="off"), made()
    with interpreting(), pytest.warns(UserWarning, match="differs from that of a step without compilation, by up to"):
        learn(policy)
    learn(plain)
    assert compiled(policy) == 0
    assert same(state_of(policy), state_of(plain))


NUMBERS = itertools.count()


def following():
    """A number that is another one in each call, from a place that compiled steps do not see."""
    return next(globals()["NUM" + "BERS"])


class Infinite(DQNPolicy):
    """With a number that changes in each step, hidden in an iterator, beside one that is infinite."""

    def after_init(self):
        super().after_init()
        self.mask = torch.tensor([-torch.inf, 0.0])


class InfiniteStatistic(Infinite):
    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss, {**stats, "seen": torch.stack([torch.tensor(torch.inf), torch.tensor(float(following()))])}


class InfiniteAttribute(Infinite):
    def loss(self, batch):
        with torch.no_grad():
            self.mask[1:].add_(float(following()))
        return super().loss(batch)


class InfiniteElsewhere(Infinite):
    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss, {**stats, "seen": torch.tensor([1.0, 1.0]) / torch.tensor([0.0, 1.0]).roll(following())}


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "name"), [(InfiniteStatistic, "seen"), (InfiniteAttribute, "mask"), (InfiniteElsewhere, "seen")]
)
def test_infinite_numbers_hide_no_difference(kind, name):
    policy = made(kind)
    with interpreting(), pytest.warns(UserWarning, match=f"its {name} differs from that of a step without compilation, by up"):
        learn(policy, 1)
    assert compiled(policy) == 0


def test_equal_infinite_numbers_and_nan_are_no_difference():
    class Constant(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss, {**stats, "seen": torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0])}

    policy = made(Constant)
    with interpreting(), no_warning():
        learn(policy)
    assert compiled(policy) == 4


class Noting(DQNPolicy):
    """With statistics that are no numbers."""

    note = None

    def loss(self, batch):
        loss, _ = super().loss(batch)
        return loss, {"note": self.note}


@pytest.mark.parametrize("note", [None, "text", [1.0, None], {"inner": {"a": 1.0}}, float("nan")])
def test_statistics_may_be_plain_values(note):
    kind = type("Noting", (Noting,), {"note": note})
    policy, plain = made(kind), made(kind, "off")
    with interpreting(), no_warning():
        assert str(policy.gradient_step(batch_of())) == str(plain.gradient_step(batch_of()))
    assert compiled(policy) == 1


def test_a_statistic_that_changes_by_itself_is_named():
    kind = type("Noting", (Noting,), {"note": property(lambda self: f"step {following()}")})
    with interpreting(), pytest.warns(UserWarning, match=r"its note is 'step \d+', and without compilation 'step \d+'"):
        made(kind).gradient_step(batch_of())


def test_a_compiled_step_that_fails_is_undone(monkeypatch):
    run = Interpreted.run

    def fails(self, inputs):
        run(self, inputs)
        raise TypeError("impossible")

    monkeypatch.setattr(Interpreted, "run", fails)
    policy, plain = made(), made(compiles="off")
    with interpreting(), pytest.warns(UserWarning, match="the compiled step fails: TypeError: impossible"):
        learn(policy)
    learn(plain)
    assert same(state_of(policy), state_of(plain))


def test_an_interrupted_comparison_is_undone(monkeypatch):
    run = Interpreted.run

    def is_interrupted(self, inputs):
        run(self, inputs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Interpreted, "run", is_interrupted)
    policy, plain = made(), made(compiles="off")
    with interpreting(), pytest.raises(KeyboardInterrupt):
        learn(policy)
    assert same(state_of(policy), state_of(plain))


def test_lines_of_torch_that_is_reached_by_a_link_are_not_the_users(tmp_path):
    (tmp_path / "linked").symlink_to(Path(torch.__file__).parent)
    frames = [
        traceback.FrameSummary(str(tmp_path / "linked/utils/_pytree.py"), 7, "tree_map"),
        traceback.FrameSummary(__file__, 5, "loss"),
    ]
    assert user_line(frames[::-1]) == f"{__file__}:5, in loss,"


def test_a_hidden_change_of_a_network_is_a_change_of_the_loss():
    class Layer(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    class Counting(DQNPolicy):
        def make_model(self):
            return Layer(5, 3)

    policy = made(Counting)
    with interpreting(), pytest.warns(UserWarning, match=r"sets Layer\.calls"):
        learn(policy, 2)
    assert policy.model.calls == 4  # two for each step: obs and next_obs


def test_a_network_may_have_scratch_attributes():
    class Seen(nn.Linear):
        scratch_attributes = ("seen",)

        def __init__(self):
            super().__init__(5, 3)
            self.seen = []

        def forward(self, x):
            self.seen[:] = [x]
            return super().forward(x)

    class Seeing(DQNPolicy):
        def make_model(self):
            return Seen()

    policy, plain = made(Seeing), made(Seeing, "off")
    with interpreting():
        learn(policy)
    learn(plain)
    assert compiled(policy) == 4
    assert_close(policy, plain)


def test_a_policy_without_a_loss_says_that_nothing_is_compiled():
    class Counting(Policy):
        def learn_on_batch(self, batch):
            return {}

        def get_weights(self):
            return {}

        def set_weights(self, weights):
            pass

    cfg = PolicyConfig().override({"learn.compile": "on"})
    with pytest.warns(UserWarning, match=r'learn\.compile = "on" has no effect: Counting has no loss'):
        Counting(cfg, OBSERVATIONS, ACTIONS)


def test_an_error_of_a_traced_loss_is_a_reason_and_the_loss_raises_its_own(monkeypatch):
    def fails(self, batch, loss):
        raise ArithmeticError("impossible")

    policy = made(kind_of(fails))
    with (
        interpreting(),
        pytest.warns(UserWarning, match="in fails, raises ArithmeticError while it is traced: impossible"),
        pytest.raises(ArithmeticError, match="impossible"),
    ):
        policy.gradient_step(batch_of())


def test_an_error_of_the_tracer_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(functional_steps, "program_of", lambda *args: {}["missing"])
    policy, plain = made(), made(compiles="off")
    with interpreting(), pytest.warns(UserWarning, match="tracing the step fails: KeyError: 'missing'"):
        learn(policy)
    learn(plain)
    assert same(state_of(policy), state_of(plain))


def test_declared_numbers_are_a_tuple():
    class Single(DQNPolicy):
        step_inputs = "bonus"

    policy = made(Single)
    with interpreting(), pytest.warns(UserWarning, match="Single.step_inputs is 'bonus', expected a tuple of names"):
        learn(policy, 1)


def test_without_standard_streams_only_the_own_thread_may_not_print(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    errors = []

    def prints_elsewhere():
        try:
            print("progress", flush=True)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    with refusing_side_effects():
        thread = threading.Thread(target=prints_elsewhere)
        thread.start()
        thread.join()
        with pytest.raises(NotCompiledError, match="prints"):
            print("mine")
    assert errors == []
    assert sys.stdout is sys.stderr is None
