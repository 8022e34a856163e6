"""Rescaling against its equation in fifty digits, and the inverse against what it inverts."""

from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ding_lite.functional import rescale_value, unrescale_value

anything = settings(max_examples=200, deadline=None, derandomize=True)
sizes = [0.0, 1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 0.5, 1.0, 3.0, 1e3, 1e6, 1e12, 1e30, 1e300]


def exactly(x: float, eps: float) -> float:
    with localcontext() as context:
        context.prec = 400
        size = (abs(Decimal(x)) + 1).sqrt() - 1 + Decimal(eps) * abs(Decimal(x))
        return float(size.copy_sign(Decimal(x)))


def inverted_exactly(x: float, eps: float) -> float:
    with localcontext() as context:
        context.prec = 700
        size, e = abs(Decimal(x)), Decimal(eps)
        if e == 0:
            root = size + 1
        else:
            root = ((1 + 4 * e * (size + 1 + e)).sqrt() - 1) / (2 * e)
        return float((root * root - 1).copy_sign(Decimal(x)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 1e-2, 0.5])
@pytest.mark.parametrize("size", sizes)
def test_matches_its_equation_from_the_tiniest_to_the_hugest(size, eps, sign):
    x = sign * size
    result = rescale_value(torch.tensor([x], dtype=torch.float64), eps).item()

    assert result == pytest.approx(exactly(x, eps), rel=1e-14, abs=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 1e-2, 0.5])
@pytest.mark.parametrize("size", [size for size in sizes if size < 1e150])
def test_the_inverse_matches_its_equation_from_the_tiniest_to_the_hugest(size, eps, sign):
    x = sign * size
    result = unrescale_value(torch.tensor([x], dtype=torch.float64), eps).item()

    assert result == pytest.approx(inverted_exactly(x, eps), rel=1e-14, abs=0)


@pytest.mark.parametrize(("dtype", "largest", "rtol"), [(torch.float32, 38, 1e-6), (torch.float64, 307, 1e-14)])
@anything
@given(st.data())
def test_the_inverse_gives_back_what_was_rescaled(dtype, largest, rtol, data):
    size, sign = data.draw(st.floats(1 - largest, largest)), data.draw(st.sampled_from([1, -1]))
    x, eps = torch.tensor([sign * 10.0**size], dtype=dtype), data.draw(st.sampled_from([0.0, 1e-3, 1e-2]))

    torch.testing.assert_close(unrescale_value(rescale_value(x, eps), eps), x, rtol=rtol, atol=0)


@pytest.mark.parametrize("function", [rescale_value, unrescale_value])
def test_both_are_odd_and_rise(function):
    x = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    y = function(x)

    assert (y.diff() > 0).all()
    assert torch.equal(y, -function(-x))
    assert function(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("function", [rescale_value, unrescale_value])
def test_gradients_are_right_and_finite_at_zero(function):
    x = torch.tensor([-1e3, -1.0, -1e-2, 1e-2, 2.0, 1e3], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    function(zero, 1e-3).sum().backward()

    assert torch.autograd.gradcheck(function, (x,))
    slope = 0.5 + 1e-3
    assert zero.grad.item() == pytest.approx(slope if function is rescale_value else 1 / slope, rel=1e-12)


def test_huge_values_are_made_small_and_small_ones_kept():
    x = torch.tensor([1e-4, 1e6])

    assert rescale_value(x, 0.0)[0].item() == pytest.approx(0.5e-4, rel=1e-4)
    assert rescale_value(x, 0.0)[1].item() == pytest.approx(999, rel=1e-3)
