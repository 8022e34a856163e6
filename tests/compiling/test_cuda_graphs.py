"""Gradient steps on a GPU as CUDA graphs; on a machine without one, graphs that are only pretended."""

import contextlib
import warnings

import pytest
import rank_policies
import torch
from compiled_policies import FORMS, assert_equal, learn, learned
from interpreted_steps import weights_of
from meta_device import META, traced
from pretended_graphs import DEVICE, made, recording, rows
from slow_cases import mostly_slow

from ding_lite.compiling import NotCompiledError, cuda_graphs
from ding_lite.compiling.programs import program_of
from ding_lite.compiling.tracing import Trace
from ding_lite.policy import DQNPolicy, NonFiniteError


@pytest.fixture
def graphs():
    """What was recorded."""
    with recording() as recordings:
        yield recordings


@contextlib.contextmanager
def on_gpu(policy):
    """A block in which a policy checks only some of its steps, as on a GPU."""
    device, policy.device = policy.device, torch.device("cuda")
    yield
    policy.device = device


@pytest.mark.few
@pytest.mark.parametrize("case", mostly_slow(rank_policies.CASES, "DQNPolicy", "PPOPolicy", "SACPolicy", "A2CPolicy"))
def test_the_recorded_steps_of_every_policy_are_its_steps(case, graphs, monkeypatch):
    plain, stats = learned(monkeypatch, case, "off", 6, DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy, found = learned(monkeypatch, case, "on", 6, DEVICE)
    assert policy.compiled_steps.taken == 6
    assert len(graphs) == FORMS.get(case, 1)
    assert_equal(policy, found, plain, stats)


@pytest.mark.parametrize("case", ["DQNPolicy", "SACPolicy", "A2CPolicy"])
def test_moments_go_on_from_those_of_plain_steps(case, graphs, monkeypatch):
    plain, stats = learned(monkeypatch, case, "off", 6, DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy, _ = learned(monkeypatch, case, "off", 3, DEVICE)
        other, _ = learned(monkeypatch, case, "on", 0, DEVICE)
        other.load_state_dict(policy.state_dict())
        found = learn(other, case, range(3, 6))
    assert other.compiled_steps.taken == 3
    assert_equal(other, found, plain, stats)


def test_outputs_are_not_those_of_later_steps(graphs):
    policy = made()
    kept = [policy.gradient_step(rows(step)) for step in range(5)]
    before = [{name: torch.as_tensor(value).tolist() for name, value in it.items()} for it in kept]
    for step in range(5, 9):
        policy.gradient_step(rows(step))

    assert [{name: torch.as_tensor(value).tolist() for name, value in it.items()} for it in kept] == before
    assert len({it["loss"] for it in before}) == 5


def test_weights_that_were_replaced_are_recorded_anew(graphs):
    one, two = made(), made(compiles="off")
    for step in range(8):
        for policy in (one, two):
            if step == 4:
                for param in policy.model.parameters():
                    param.data = param.data * 1.5
            policy.gradient_step(rows(step))

    assert len(graphs) == 2
    assert one.compiled_steps.taken == 8
    assert torch.allclose(weights_of(one), weights_of(two), atol=1e-6)


class Replacing(DQNPolicy):
    """Has a tensor that is another one in each step."""

    def before_step(self):
        super().before_step()
        self.scale = torch.tensor(1.0 + self.train_iter, device=self.device)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * self.scale, stats


def test_tensors_that_are_replaced_and_only_read_are_copied(graphs):
    one, two = made(Replacing), made(Replacing, compiles="off")
    for step in range(8):
        found = [policy.gradient_step(rows(step))["loss"].item() for policy in (one, two)]
        assert found[0] == pytest.approx(found[1], rel=1e-5)

    assert one.compiled_steps.taken == 8
    assert len(graphs) == 2  # from the second one on, the tensor is copied


def test_weights_that_are_always_replaced_are_not_recorded(graphs, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_MOST_RECORDINGS", 3)
    policy = made()

    def steps():
        for step in range(5):
            for param in policy.model.parameters():
                param.data = param.data.clone()
            policy.gradient_step(rows(step))

    with pytest.warns(UserWarning, match="were replaced by other tensors 3 times. Its gradient steps are not"):
        steps()
    assert policy.train_iter == 5
    assert policy.compiled_steps.taken == 3


def test_a_graph_that_cannot_be_recorded_is_named(graphs, monkeypatch):
    def fails(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "record", fails)
    policy, plain = made(), made(compiles="off")
    with pytest.warns(UserWarning, match="a CUDA graph of it cannot be recorded: operation not permitted when stream is"):
        policy.gradient_step(rows())
    plain.gradient_step(rows())
    assert policy.compiled_steps.taken == 0
    assert torch.equal(weights_of(policy), weights_of(plain))


def nan_at(step, when):
    batch = rows(step)
    if step == when:
        batch.reward[0] = torch.nan
    return batch


def test_a_loss_that_is_not_finite_changes_nothing_and_is_found_later(graphs):
    policy = made()
    policy.gradient_step(rows(0))

    def learn_to_64():
        for step in range(5, 70):
            policy.gradient_step(rows(step))

    with on_gpu(policy):
        for step in range(1, 5):
            before = weights_of(policy)
            policy.gradient_step(nan_at(step, 3))
            assert torch.equal(weights_of(policy), before) == (step == 3)
        with pytest.raises(NonFiniteError, match=r"the loss of DQNPolicy is nan in gradient step 3"):
            learn_to_64()
    assert policy.train_iter == 64


def test_a_loss_that_is_not_finite_is_found_before_a_state_is_saved(graphs):
    policy = made()
    with on_gpu(policy):
        for step in range(6):
            policy.gradient_step(nan_at(step, 4))
    with pytest.raises(NonFiniteError, match="the loss of DQNPolicy is nan in gradient step 4"):
        policy.state_dict()
    policy.state_dict()  # the weights are sound


def test_a_loss_that_is_not_finite_is_skipped_at_once(graphs):
    policy, found = made(**{"learn.on_nonfinite": "skip"}), []

    def learn_at(step):
        with on_gpu(policy):
            found.append(policy.gradient_step(nan_at(step, 2))["skipped_fraction"])

    learn_at(1)
    with pytest.warns(UserWarning, match="the loss of DQNPolicy is nan in gradient step 1: the step is skipped"):
        learn_at(2)
    learn_at(3)
    assert found == [0.0, 1.0, 0.0]


def test_auto_does_not_wait_where_nothing_is_compiled(graphs):
    policy = made(compiles="auto")
    for step in range(3):
        policy.gradient_step(rows(step))
    assert policy.compiled_steps.taken == 3


@pytest.mark.parametrize("case", rank_policies.CASES)
def test_no_step_of_a_policy_on_a_gpu_computes_on_the_cpu(case):
    assert {meta.device for meta in traced(case).program.metas} == {META}


def on_meta_device(function):
    """The inputs on the CPU of a function of a tensor on another device."""
    given = torch.ones(2, device=META)
    with Trace([given]) as trace:
        result = function(given)
    numbers = [trace.number_of(result)]
    _, inputs = program_of(trace, numbers, [])
    assert result.device == META
    return [trace.tensor(number) for number in inputs if number and trace.tensor(number).is_cpu]


def test_what_is_made_of_python_numbers_is_moved_to_the_gpu_once():
    assert on_meta_device(lambda x: x + torch.tensor([1.0, 2.0]).to(META)) == []
    assert on_meta_device(lambda x: x + (torch.zeros(2) + torch.tensor(3.0)).to(META)) == []
    assert on_meta_device(lambda x: x * torch.arange(2).to(META)) == []


def test_a_scalar_on_the_cpu_is_a_number():
    assert [it.item() for it in on_meta_device(lambda x: x * torch.tensor(3.0))] == [3.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + ON_CPU.to(META),  # it may change
        lambda x: x * ON_CPU.sum(),
        lambda x: x + torch.zeros_like(x, device="cpu").to(META),
        lambda x: x + torch.zeros(2).add_(1).to(META),
    ],
)
def test_what_is_computed_on_the_cpu_is_named(function):
    given = torch.ones(2, device=META)
    with (
        pytest.raises(NotCompiledError, match=r"test_cuda_graphs.py:\d+, in <lambda>, computes on the CPU \(aten.*device=self"),
        Trace([given, ON_CPU]),
    ):
        function(given)


ON_CPU = torch.ones(2)
