"""vtrace() against its definition, and what it is where nothing is to be corrected."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.functional import corrections, gae, nstep_return, vtrace

NAMES = ("log_ratio", "reward", "value", "next_value", "terminated", "truncated")
unit = st.floats(0, 1)
clip = st.one_of(st.floats(0, 3), st.just(float("inf")))
anything = settings(max_examples=case_count(60), deadline=None, derandomize=True)


def rollout(seed: int, t: int = 7, n: int = 3, p_end: float = 0.2, dtype=torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    signals = torch.randn(4, t, n, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = torch.rand(2, t, n, generator=g) < p_end
    return [*signals, terminated, truncated]


def on_policy(seed: int, t: int = 7) -> list[torch.Tensor]:
    """As rollout(), by the policy that learns, and with the value of one observation the same wherever it stands."""
    _, reward, value, next_value, terminated, truncated = rollout(seed, t)
    inside = ~(terminated | truncated)[:-1]
    next_value[:-1] = torch.where(inside, value[1:], next_value[:-1])
    return [torch.zeros_like(reward), reward, value, next_value, terminated, truncated]


def vtrace_by_definition(log_ratio, reward, value, next_value, terminated, truncated, gamma, lambda_, clips):
    """Eq. 1 of the paper as the sum it is, no recursion; then section 4.2."""
    rho, c, pg_rho = [np.minimum(np.exp(log_ratio), clip) for clip in clips]
    bootstrap = np.where(terminated, 0, next_value)
    target = value.copy()
    for s, b in np.ndindex(*value.shape):
        weight = 1.0
        for t in range(s, len(value)):
            target[s, b] += weight * rho[t, b] * (reward[t, b] + gamma * bootstrap[t, b] - value[t, b])
            if terminated[t, b] or truncated[t, b]:
                break
            weight *= gamma * lambda_ * c[t, b]
    advantage = np.zeros_like(value)
    for t, b in np.ndindex(*value.shape):
        ends = terminated[t, b] or truncated[t, b] or t + 1 == len(value)
        future = bootstrap[t, b] if ends else target[t + 1, b]
        advantage[t, b] = pg_rho[t, b] * (reward[t, b] + gamma * future - value[t, b])
    return target, advantage


def assert_as_defined(data, gamma=0.9, lambda_=0.95, clips=(1.0, 1.0, 1.0), rtol=1e-12, atol=1e-13):
    exact = [x.detach().double().numpy() if x.is_floating_point() else x.numpy() for x in data]
    names = dict(zip(("rho_clip", "c_clip", "pg_rho_clip"), clips, strict=True))
    result = vtrace(*data, gamma=gamma, lambda_=lambda_, **names)
    for ours, theirs in zip(result, vtrace_by_definition(*exact, gamma, lambda_, clips), strict=True):
        np.testing.assert_allclose(ours.double(), theirs, rtol=rtol, atol=atol)
    return result


@pytest.mark.parametrize("clips", [(1.0, 1.0, 1.0), (2.0, 1.0, 1.5), (torch.inf, 0.5, torch.inf), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_matches_the_definition(seed, lambda_, clips):
    assert_as_defined(rollout(seed), 0.9, lambda_, clips)


@pytest.mark.few
@pytest.mark.parametrize(("t", "n"), [(0, 3), (1, 1), (1, 400), (9, 1), (64, 2), (33, 255), (33, 256), (17, 0)])
@pytest.mark.parametrize("p_end", [0.0, 0.1, 1.0])
def test_matches_the_definition_for_any_number_of_steps_and_environments(t, n, p_end):
    result = assert_as_defined(rollout(0, t, n, p_end), atol=1e-12)

    assert result.target.shape == result.advantage.shape == (t, n)


@anything
@given(st.integers(0, 12), st.integers(1, 4), unit, unit, unit, st.tuples(clip, clip, clip), st.integers(0, 2**32))
def test_matches_the_definition_for_any_rollout(t, n, gamma, lambda_, p_end, clips, seed):
    assert_as_defined(rollout(seed, t, n, p_end), gamma, lambda_, clips, rtol=1e-11, atol=1e-11)


@anything
@given(st.integers(1, 12), unit, st.integers(0, 999))
def test_where_the_policy_that_learns_acted_the_target_is_that_of_all_steps_to_the_end(t, gamma, seed):
    data = on_policy(seed, t)
    _, reward, value, next_value, terminated, truncated = data
    window = nstep_return(reward, terminated, truncated, n=t, gamma=gamma)
    future = next_value.gather(0, window.last).masked_fill(terminated.gather(0, window.last), 0)
    result = vtrace(*data, gamma=gamma)

    torch.testing.assert_close(result.target, window.return_ + window.discount * future, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.advantage, result.target - value, rtol=1e-12, atol=1e-12)


@anything
@given(st.integers(1, 12), unit, unit, st.integers(0, 999))
def test_where_the_policy_that_learns_acted_the_target_is_value_and_gae(t, gamma, lambda_, seed):
    data = on_policy(seed, t)
    advantage = gae(*data[1:], gamma=gamma, lambda_=lambda_)
    target = vtrace(*data, gamma=gamma, lambda_=lambda_).target

    torch.testing.assert_close(target, data[2] + advantage, rtol=1e-12, atol=1e-12)


def test_what_the_policy_would_never_do_teaches_nothing():
    data = rollout(0)
    result = vtrace(data[0] * 0 - torch.inf, *data[1:], gamma=0.9)

    assert torch.equal(result.target, data[2])
    assert result.advantage.abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_beyond_all_numbers_is_clipped_as_any_other(dtype):
    data = rollout(1, dtype=dtype)
    beyond = vtrace(data[0] * 0 + 1e4, *data[1:], gamma=0.9)
    at_the_clip = vtrace(data[0] * 0, *data[1:], gamma=0.9)

    assert all(map(torch.equal, beyond, at_the_clip))


def test_each_ending_bootstraps_as_it_should():
    one, yes, no = torch.ones(1, 1), torch.tensor([[True]]), torch.tensor([[False]])
    earned = [
        vtrace(0 * one, one, 0 * one, 10 * one, terminated, truncated, gamma=0.5)
        for terminated, truncated in [(no, no), (no, yes), (yes, no), (yes, yes)]
    ]

    assert [result.target.item() for result in earned] == [6, 6, 1, 1]
    assert [result.advantage.item() for result in earned] == [6, 6, 1, 1]


@pytest.mark.slow
@anything
@given(st.integers(2, 12), st.integers(1, 5), st.data())
def test_nothing_leaks_across_an_episode_end(t, n, data):
    signals = rollout(data.draw(st.integers(0, 999)), t, n)
    end = data.draw(st.integers(0, t - 2))
    signals[data.draw(st.sampled_from([4, 5]))][end] = True
    before = vtrace(*signals, gamma=0.9)
    for signal in signals[:4]:
        signal[end + 1 :] = data.draw(st.sampled_from([100.0, 1e300, torch.inf, torch.nan]))
    after = vtrace(*signals, gamma=0.9)

    for ours, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(ours[: end + 1], theirs[: end + 1], rtol=1e-12, atol=1e-12)


@pytest.mark.few
@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_stays_in_its_episode(junk, which, n):
    data = rollout(2, 9, n, p_end=0)
    data[5][[2, 5]] = True
    before = vtrace(*data, gamma=0.9)
    data[which][4, 1] = junk
    after = vtrace(*data, gamma=0.9)
    spoilt = torch.zeros(9, n, dtype=torch.bool)
    spoilt[3:6, 1] = True

    for ours, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(ours[~spoilt], theirs[~spoilt], rtol=1e-12, atol=1e-13)
    if which or junk != junk:
        assert not after.target[4, 1].isfinite()


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_the_value_after_a_termination_is_not_read(junk, n):
    data = rollout(3, n=n)
    before = vtrace(*data, gamma=0.9)
    data[3][data[4]] = junk
    after = vtrace(*data, gamma=0.9)

    for ours, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-200, 1e150, 1e300])
def test_huge_and_tiny_numbers_keep_their_precision(scale):
    log_ratio, *signals, terminated, truncated = rollout(4)

    assert_as_defined([log_ratio, *(x * scale for x in signals), terminated, truncated], atol=1e-13 * scale)


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)])
def test_keeps_the_dtype_of_value_to_its_precision(dtype, rtol, n):
    result = assert_as_defined(rollout(5, 20, n, dtype=dtype), rtol=rtol, atol=rtol)

    assert result.target.dtype == result.advantage.dtype == dtype


@pytest.mark.parametrize("junk", [0.0, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_takes_no_gradient_gives_none_and_leaves_its_inputs_untouched(dtype, junk):
    data = rollout(6, dtype=dtype)
    data[3][3, 1] += junk
    copies = [x.clone() for x in data]
    result = vtrace(*(x.requires_grad_() if x.is_floating_point() else x for x in data), gamma=0.9)
    for x in result:
        assert not x.requires_grad
        x.fill_(5)

    for x, copy in zip(data, copies, strict=True):
        torch.testing.assert_close(x.detach(), copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("n", [3, 300])
def test_memory_layout_does_not_matter(n):
    data = rollout(7, n=n)
    expected = vtrace(*data, gamma=0.9)
    strided = [torch.empty(7 * 2, n + 3, dtype=x.dtype)[::2, 3:].copy_(x) for x in data]

    assert all(map(torch.equal, vtrace(*strided, gamma=0.9), expected))


@pytest.mark.parametrize("n", [3, 300])
def test_other_devices_go_another_way_to_the_same_numbers(n):
    data = rollout(8, 20, n)
    clips = (1.2, 1.0, 2.0)
    expected = vtrace(*data, gamma=0.9, lambda_=0.8, rho_clip=clips[0], c_clip=clips[1], pg_rho_clip=clips[2])
    result = corrections._by_scan(data[0].exp(), data[1:], clips, 0.9, 0.8)

    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("which", range(6))
def test_tensors_of_another_shape_are_refused_by_name(which):
    data = rollout(0)
    data[which] = data[which][:, :1]

    with pytest.raises(ValueError, match=r"vtrace\(\) wants tensors of one shape \[T, B\].*squeeze") as error:
        vtrace(*data, gamma=0.9)
    assert f"'{NAMES[which]}': (7, 1)" in str(error.value)


@pytest.mark.parametrize("which", [4, 5])
def test_flags_that_are_not_bool_are_refused_by_name(which):
    data = rollout(0)
    data[which] = data[which].double()

    with pytest.raises(ValueError, match=rf"vtrace\(\) wants bool flags.*{NAMES[which]} torch.float64.*\.bool\(\)"):
        vtrace(*data, gamma=0.9)


def vtrace_in_decimals(log_ratio, reward, value, next_value, terminated, truncated, gamma, lambda_, clips):
    """The definition in numbers of any size: what is infinite here is beyond the largest float64."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 60, 10**15, -(10**15)
        gamma, lambda_, clips = Decimal(gamma), Decimal(lambda_), [Decimal(clip) for clip in clips]
        target, advantage = np.zeros((2, *value.shape))
        exact = {}
        for s, b in np.ndindex(*value.shape):
            weight, exact[s, b] = Decimal(1), Decimal(float(value[s, b]))
            for t in range(s, len(value)):
                ratio = Decimal(float(log_ratio[t, b])).exp()
                future = 0 if terminated[t, b] else gamma * Decimal(float(next_value[t, b]))
                td_error = Decimal(float(reward[t, b])) + future - Decimal(float(value[t, b]))
                exact[s, b] += weight * min(clips[0], ratio) * td_error
                if terminated[t, b] or truncated[t, b]:
                    break
                weight *= gamma * lambda_ * min(clips[1], ratio)
            target[s, b] = float(exact[s, b])
        for t, b in np.ndindex(*value.shape):
            ends = terminated[t, b] or truncated[t, b] or t + 1 == len(value)
            future = (0 if terminated[t, b] else Decimal(float(next_value[t, b]))) if ends else exact[t + 1, b]
            earned = Decimal(float(reward[t, b])) + gamma * future - Decimal(float(value[t, b]))
            advantage[t, b] = float(min(clips[2], Decimal(float(log_ratio[t, b])).exp()) * earned)
    return target, advantage


@pytest.mark.few
@pytest.mark.parametrize(
    "clips", [(1.0, torch.inf, 1.0), (torch.inf, 1.0, 1.0), (1.0, 1.0, torch.inf), (torch.inf, torch.inf, torch.inf)]
)
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_ratios_beyond_all_numbers_give_what_numbers_of_any_size_give(seed, lambda_, clips):
    data = rollout(seed, 6, 4)
    data[0] *= torch.tensor([1e4, -1e4, 700.0, 1.0])  # of each environment
    data[1][1, 0], data[2][1, 0], data[3][1, 0] = 0, 0, 0  # there is nothing to correct, by a huge factor
    names = dict(zip(("rho_clip", "c_clip", "pg_rho_clip"), clips, strict=True))
    result = vtrace(*data, gamma=0.5, lambda_=lambda_, **names)

    for ours, theirs in zip(result, vtrace_in_decimals(*data, 0.5, lambda_, clips), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [3, 300])
def test_beside_a_column_that_is_not_a_number_all_others_keep_theirs_without_clips(n, dtype):
    data = rollout(9, 9, n, dtype=dtype)
    data[0][:, 0] = 1e4
    data[1][:, 0], data[2][:, 0], data[3][:, 0] = 0, 0, 0
    clips = {"rho_clip": torch.inf, "c_clip": torch.inf, "pg_rho_clip": torch.inf}
    before = vtrace(*data, gamma=0.9, **clips)
    data[1][:, 1] = torch.nan
    after = vtrace(*data, gamma=0.9, **clips)

    for ours, theirs in zip(after, before, strict=True):
        assert ours[:, 1].isnan().any()
        assert torch.equal(ours[:, 0], torch.zeros(9, dtype=dtype))
        torch.testing.assert_close(ours[:, 2:], theirs[:, 2:], rtol=1e-6 if dtype is torch.float32 else 1e-12, atol=1e-13)
