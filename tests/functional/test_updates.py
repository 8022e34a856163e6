"""polyak_() against its equation, and what many updates add up to."""

import pytest
import torch

from ding_lite.functional import polyak_


def parameters(seed: int, dtype=torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in [(4, 3), (4,), (2, 4), ()]
    ]


@pytest.mark.parametrize("theta", [0.0, 0.005, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_targets_move_as_the_equation_says(dtype, rtol, theta):
    targets, onlines = parameters(0, dtype), parameters(1, dtype)
    expected = [t.detach() + theta * (o.detach() - t.detach()) for t, o in zip(targets, onlines, strict=True)]
    polyak_(iter(targets), iter(onlines), theta)

    for target, aim in zip(targets, expected, strict=True):
        torch.testing.assert_close(target.detach(), aim, rtol=rtol, atol=rtol)


def test_one_copies_and_zero_leaves_as_it_is():
    targets, onlines, before = parameters(0), parameters(1), parameters(0)
    polyak_(targets, onlines, 0.0)
    assert all(map(torch.equal, targets, before))
    polyak_(targets, onlines, 1.0)
    assert all(map(torch.equal, targets, onlines))


def test_k_updates_leave_a_distance_of_one_minus_theta_to_the_k():
    targets, onlines, start = parameters(0), parameters(1), parameters(0)
    for _ in range(50):
        polyak_(targets, onlines, 0.1)

    for target, online, begin in zip(targets, onlines, start, strict=True):
        torch.testing.assert_close(target - online, 0.9**50 * (begin - online), rtol=1e-9, atol=1e-14)


def test_updates_happen_in_place_without_a_gradient_and_leave_the_online_network_alone():
    targets, onlines, before = parameters(0), parameters(1), parameters(1)
    places = [x.data_ptr() for x in targets]
    polyak_(targets, onlines, 0.5)

    assert [x.data_ptr() for x in targets] == places
    assert all(x.is_leaf and x.requires_grad and x.grad is None for x in targets)
    assert all(map(torch.equal, onlines, before))


def test_what_cannot_be_is_refused_before_anything_moves():
    targets, before = parameters(0), parameters(0)
    with pytest.raises(ValueError, match=r"the same number of target and online parameters, got 4 and 3.*deep copy"):
        polyak_(targets, parameters(1)[:3], 0.5)
    for theta in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=rf"theta in \[0, 1\], got {theta}"):
            polyak_(targets, parameters(1), theta)

    assert all(map(torch.equal, targets, before))
