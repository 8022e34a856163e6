"""Checks of a state that take bounds in place of the work that they stand for: they never allow what the work would refuse."""

import itertools

import pytest
import torch

from ding_lite.nn import Adam
from ding_lite.policy_state import StateDictError, optimizer_states, require_optimizer_state
from ding_lite.policy_state.leaves import require_tensor

EXTREMES = [0.0, -1.0, 1e-45, 1e-38, -1e-30, 1.0, 1e10, -1e28, 1e30, 3e38, float("nan"), float("inf")]


def with_moments(first, square, step, kind, **settings):
    """An optimizer after a step, whose moments were replaced by these numbers, and its state."""
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([param], **settings)
    param.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0] |= {
        "exp_avg": torch.full((3,), first),
        "exp_avg_sq": torch.full((3,), square),
        "step": torch.tensor(step),
    }
    return optimizer, state


@pytest.mark.few
@pytest.mark.parametrize("kind", [Adam, torch.optim.Adam, torch.optim.AdamW])
def test_a_step_that_the_bounds_call_finite_is_finite(kind):
    known = 0
    for first, square, step in itertools.product(EXTREMES[:10], EXTREMES[:10], [0.0, 1.0, 1e6, -3.0]):
        optimizer, state = with_moments(first, square, step, kind)
        if optimizer_states._has_finite_step(optimizer, state):
            known += 1
            optimizer_states._require_finite_step("state", optimizer_states._trial_of(optimizer), state)
    assert known > 50


def test_ordinary_moments_need_no_step(monkeypatch):
    monkeypatch.setattr(optimizer_states, "_require_finite_step", lambda *args: pytest.fail("it takes a step"))
    for settings in ({}, {"amsgrad": True}, {"lr": torch.tensor(1e-3)}, {"weight_decay": 0.1}, {"foreach": True}):
        optimizer, state = with_moments(0.5, 0.3, 10.0, Adam, **settings)
        require_optimizer_state("state", optimizer, state)


@pytest.mark.parametrize(("first", "square"), [(1e37, 0.0), (1.0, -1e-20), (float("nan"), 1.0), (1.0, float("inf"))])
def test_what_the_step_would_make_infinite_is_refused(first, square):
    optimizer, state = with_moments(first, square, 3.0, Adam)
    with pytest.raises(StateDictError, match="in a step with zero gradients|not finite"):
        require_optimizer_state("state", optimizer, state)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.SGD])
def test_other_optimizers_take_the_step(kind, monkeypatch):
    steps, step = [], optimizer_states._step
    monkeypatch.setattr(optimizer_states, "_step", lambda *args: steps.append(step(*args)))
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones(3)
    optimizer.step()
    require_optimizer_state("state", optimizer, optimizer.state_dict())
    assert len(steps) == 2


def test_the_check_of_an_optimizer_changes_neither_it_nor_its_parameters():
    optimizer, state = with_moments(0.5, 0.3, 10.0, torch.optim.Adam)
    optimizer.load_state_dict(state)
    (param,) = optimizer.param_groups[0]["params"]
    before, moments = param.clone(), {name: value.clone() for name, value in optimizer.state[param].items()}
    require_optimizer_state("state", optimizer, state)
    assert optimizer.param_groups[0]["params"][0] is param
    assert torch.equal(param, before)
    assert torch.equal(param.grad, torch.ones(3))
    assert all(torch.equal(optimizer.state[param][name], value) for name, value in moments.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_finite_numbers_whose_sum_overflows_are_finite_and_others_are_not(dtype):
    most = torch.finfo(dtype).max
    large = torch.full((100,), most, dtype=dtype)
    require_tensor("it", large, large, must_be_finite=True)
    for odd in (float("nan"), float("inf"), -float("inf")):
        broken = torch.cat([torch.ones(50, dtype=dtype), torch.tensor([odd, 0.0], dtype=dtype)])
        with pytest.raises(StateDictError, match="it holds 1 numbers that are not finite"):
            require_tensor("it", broken, broken, must_be_finite=True)
    both = torch.tensor([float("inf"), -float("inf")], dtype=dtype)
    with pytest.raises(StateDictError, match="it holds 2 numbers that are not finite"):
        require_tensor("it", both, both, must_be_finite=True)
