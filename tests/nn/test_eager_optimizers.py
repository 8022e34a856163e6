"""Our optimizers against torch's own: equal to the last bit, and without the import of torch's compiler."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from states import same

from ding_lite.nn import Adam, RMSprop
from ding_lite.nn.eager_optimizers import without_compiler

KINDS = {
    "adam": (Adam, torch.optim.Adam, {"lr": 0.01}),
    "adam fused": (Adam, torch.optim.Adam, {"lr": 0.01, "fused": True}),
    "adam fused, with decay": (
        Adam,
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.1, "maximize": True, "fused": True},
    ),
    "adam fused, with amsgrad": (Adam, torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "fused": True}),
    "adam with every option": (
        Adam,
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.1, "amsgrad": True, "maximize": True, "foreach": True},
    ),
    "rmsprop": (RMSprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.99, "eps": 1e-5, "foreach": True}),
    "rmsprop with momentum": (RMSprop, torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def trained(optimizer_type, settings, steps, loaded=None):
    """(Parameters, optimizer's state, scheduled rates) after random steps in which some gradients are missing."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = optimizer_type([{"params": net[0].parameters(), "lr": 0.003}], **settings)
    optimizer.add_param_group({"params": list(net[2].parameters())})
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if loaded is not None:
        net.load_state_dict(loaded[0])
        optimizer.load_state_dict(copy.deepcopy(loaded[1]))  # torch goes on with the tensors that it was given
    rates = []
    for step in range(steps):
        loss = net(torch.randn(5, 4)).square().mean() if step % 7 else net[0](torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=bool(step % 3))
        if step % 10 == 9:
            schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return net.state_dict(), optimizer.state_dict(), rates


@pytest.mark.few
@EACH
def test_a_hundred_random_steps_equal_those_of_torch(kind):
    ours, theirs, settings = KINDS[kind]

    assert same(trained(ours, settings, 100), trained(theirs, settings, 100))


@pytest.mark.few
@EACH
def test_a_state_is_loaded_from_torch_and_by_torch(kind):
    ours, theirs, settings = KINDS[kind]
    begun = trained(theirs, settings, 20)
    expected = trained(theirs, settings, 20, loaded=begun)

    assert same(trained(ours, settings, 20, loaded=begun), expected)
    assert same(trained(theirs, settings, 20, loaded=trained(ours, settings, 20)), expected)


@EACH
def test_copies_and_pickles_go_on_where_the_optimizer_stood(kind):
    optimizer_type, _, settings = KINDS[kind]

    def stepped(optimizer):
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.ones(3)
        optimizer.step()
        return weight.detach().clone()

    first = optimizer_type([torch.nn.Parameter(torch.ones(3))], **settings)
    stepped(first)
    copies = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    expected = stepped(first)

    assert all(torch.equal(stepped(again), expected) for again in copies)


@EACH
def test_it_is_an_optimizer_of_torch_with_its_hooks_closure_and_errors(kind):
    ours, theirs, settings = KINDS[kind]
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = ours([weight], **settings)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        calls.append(torch.is_grad_enabled())
        weight.grad = torch.ones(3)
        return weight.sum()

    assert isinstance(optimizer, theirs)
    assert repr(optimizer) == repr(theirs([weight], **settings))
    assert optimizer.step(closure).item() == 3
    assert calls == ["before", True, "after"]
    assert torch.is_grad_enabled()
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [weight]})


def fused(*params, steps=1, **settings):
    """A fused Adam that has taken steps with gradients of 1."""
    optimizer = Adam(params, lr=0.5, fused=True, **settings)
    for _ in range(steps):
        again(optimizer)
    return optimizer


def again(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()


def counts(optimizer):
    return [state["step"].item() for state in optimizer.state.values()]


def test_a_fused_step_calls_the_kernel_of_torch_directly(monkeypatch):
    optimizer = fused(*map(torch.nn.Parameter, torch.ones(2, 3)))
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "adam", None)
    again(optimizer)

    assert counts(optimizer) == [2, 2]


def test_counts_of_fused_steps_stay_the_objects_that_others_hold():
    optimizer = fused(*map(torch.nn.Parameter, torch.ones(2, 3)))
    held, saved = [state["step"] for state in optimizer.state.values()], copy.deepcopy(optimizer.state_dict())
    again(optimizer)
    again(optimizer)

    assert [step.item() for step in held] == counts(optimizer) == [3, 3]
    assert [state["step"].item() for state in saved["state"].values()] == [1, 1]
    optimizer.load_state_dict(saved)
    again(optimizer)
    assert counts(optimizer) == [2, 2]
    assert [step.item() for step in held] == [3, 3]


def test_a_parameter_without_a_gradient_is_not_counted_in_fused_steps():
    first, second = map(torch.nn.Parameter, torch.ones(2, 3))
    optimizer = fused(first, second, steps=2)
    second.grad = None
    optimizer.step()
    before = second.detach().clone()
    optimizer.step()

    assert counts(optimizer) == [4, 2]
    assert torch.equal(second, before)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize("twice", ["in the list", "by the same count"])
def test_parameters_with_the_same_count_take_the_steps_of_torch(twice):
    def trained_twice(optimizer_type):
        one, two = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        optimizer = optimizer_type([one, one if twice == "in the list" else two], lr=0.1, fused=True)
        for step in range(5):
            one.grad = two.grad = torch.ones(3) * (step + 1)
            optimizer.step()
            if twice != "in the list" and step == 1:
                optimizer.state[two]["step"] = optimizer.state[one]["step"]
        return one.tolist(), two.tolist(), optimizer.state[one]["step"].item()

    assert trained_twice(Adam) == trained_twice(torch.optim.Adam)


@pytest.mark.parametrize("at", range(5))
def test_a_step_in_inference_mode_leaves_the_later_ones_possible(at):
    def trained_there(optimizer_type):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = optimizer_type([weight], lr=0.1, fused=True)
        for step in range(5):
            weight.grad = torch.ones(3) * (step + 1)
            with torch.inference_mode(step == at and step > 0):
                optimizer.step()
        return weight.tolist(), optimizer.state[weight]["step"].item()

    assert trained_there(Adam) == trained_there(torch.optim.Adam)


def test_hooks_and_profilers_notice_fused_steps_from_when_they_are_there():
    optimizer, calls = fused(torch.nn.Parameter(torch.ones(3)), steps=2), []
    with optimizer.register_step_post_hook(lambda *_: calls.append(counts(optimizer))):
        again(optimizer)
    with torch.profiler.profile() as profile:
        again(optimizer)
    again(optimizer)

    assert calls == [[3]]
    assert "Optimizer.step#Adam.step" in {event.key for event in profile.key_averages()}
    assert counts(optimizer) == [5]


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_a_fused_step_refuses_moments_of_another_type_as_torch_does(name):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = fused(weight)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    optimizer.state[weight][name] = torch.ones(3, dtype=torch.float64)

    with pytest.raises(RuntimeError, match="scalar type|dtype"):
        again(optimizer)


def test_gradients_flow_through_a_differentiable_step_as_through_torchs():
    def gradient(optimizer_type):
        start = torch.full((2,), 0.5, requires_grad=True)
        weight = start.clone()
        weight.grad = (start**2).clone()
        optimizer_type([weight], lr=0.1, differentiable=True).step()
        return torch.autograd.grad(weight.sum(), start)[0]

    assert torch.equal(gradient(Adam), gradient(torch.optim.Adam))


def test_a_method_without_such_a_wrapper_stays_as_it_is():
    def plain():
        pass

    assert without_compiler(plain) is plain
    assert without_compiler(torch.no_grad()(plain)).__wrapped__ is plain


@pytest.mark.slow
def test_no_policy_imports_the_compiler_of_torch():
    """Where a version of torch wraps its methods in another way, this shows it, and without_compiler has to know that way."""
    program = """
import sys
import gymnasium
import torch
import ding_lite.policy
from ding_lite.data import tree
from ding_lite.nn import Adam, RMSprop
from ding_lite.policy import Policy
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

def guard(who):
    if "torch._dynamo" in sys.modules:
        sys.exit(f"{who} imports torch._dynamo")

for kind in (Adam, RMSprop):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = kind([weight])
    weight.grad = torch.ones(1)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    guard(kind)

box, two = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(2)
for name, kind in vars(ding_lite.policy).items():
    if isinstance(kind, type) and issubclass(kind, Policy) and kind is not Policy:
        try:
            policy = kind(None, box, box)
        except (TypeError, ValueError):
            policy = kind(None, box, two)
        policy.load_state_dict(policy.state_dict())
        guard(name)

RNDRewardModel(RNDRewardConfig(), box).learn(tree({"next_obs": torch.zeros(2, 3)}))
guard("RNDRewardModel")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
