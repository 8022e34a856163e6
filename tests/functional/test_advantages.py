"""gae() and discounted_sum() against their definitions, and laws that gae() keeps for any input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.functional import discounted_sum, gae, normalize_advantage

NAMES = ("reward", "value", "next_value", "terminated", "truncated")
unit = st.floats(0, 1)
anything = settings(max_examples=case_count(60), deadline=None, derandomize=True)


def rollout(seed: int, t: int = 7, n: int = 3, p_end: float = 0.2, dtype=torch.float64) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, t, n, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = torch.rand(2, t, n, generator=g) < p_end
    return reward, value, next_value, terminated, truncated


def gae_by_definition(reward, value, next_value, terminated, truncated, gamma, lambda_):
    """The sum of eq. 16 written out: no recursion, nothing shared with the code under test."""
    advantage = np.zeros(reward.shape)
    for t, n in np.ndindex(*reward.shape):
        weight = 1.0
        for k in range(t, len(reward)):
            future = 0.0 if terminated[k, n] else gamma * next_value[k, n]
            advantage[t, n] += weight * (reward[k, n] + future - value[k, n])
            if terminated[k, n] or truncated[k, n]:
                break
            weight *= gamma * lambda_
    return advantage


def assert_as_defined(data, gamma=0.9, lambda_=0.95, rtol=1e-12, atol=1e-14):
    exact = [x.detach().double().numpy() if x.is_floating_point() else x.numpy() for x in data]
    advantage = gae(*data, gamma=gamma, lambda_=lambda_)
    expected = gae_by_definition(*exact, gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(advantage.double(), expected, rtol=rtol, atol=atol)
    return advantage


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_matches_the_definition(seed, lambda_, gamma):
    assert_as_defined(rollout(seed), gamma, lambda_)


@pytest.mark.parametrize(("t", "n"), [(1, 1), (1, 5), (9, 1), (64, 2), (33, 255), (33, 256), (5, 300), (1, 400), (17, 0)])
def test_matches_the_definition_for_any_number_of_steps_and_environments(t, n):
    assert assert_as_defined(rollout(0, t, n)).shape == (t, n)


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("p_end", [0.0, 1.0])
def test_matches_the_definition_where_no_step_or_every_step_ends_an_episode(p_end, n):
    assert_as_defined(rollout(1, n=n, p_end=p_end))


@pytest.mark.parametrize("n", [0, 1, 300])
def test_no_steps_have_no_advantages(n):
    data = rollout(0, 0, n)

    assert gae(*data, gamma=0.9, lambda_=0.9).shape == (0, n)


@anything
@given(st.integers(0, 12), st.integers(1, 5), unit, unit, unit, st.integers(0, 2**32))
def test_matches_the_definition_for_any_rollout(t, n, gamma, lambda_, p_end, seed):
    assert_as_defined(rollout(seed, t, n, p_end), gamma, lambda_, atol=1e-13)


@anything
@given(st.integers(2, 12), st.integers(1, 5), st.data())
def test_nothing_leaks_across_an_episode_end(t, n, data):
    reward, value, next_value, terminated, truncated = rollout(data.draw(st.integers(0, 999)), t, n)
    end = data.draw(st.integers(0, t - 2))
    (terminated if data.draw(st.booleans()) else truncated)[end] = True
    before = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)
    for signal in (reward, value, next_value):
        signal[end + 1 :] = data.draw(st.sampled_from([100.0, 1e300, torch.inf, torch.nan]))
    after = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)

    torch.testing.assert_close(after[: end + 1], before[: end + 1], rtol=1e-13, atol=1e-13)


@anything
@given(st.permutations(range(5)), st.integers(1, 12), st.integers(0, 999))
def test_permuting_environments_permutes_the_result(order, t, seed):
    data = rollout(seed, t, 5)
    permuted = gae(*(x[:, order] for x in data), gamma=0.9, lambda_=0.9)

    assert torch.equal(permuted, gae(*data, gamma=0.9, lambda_=0.9)[:, order])


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_stays_in_its_episode(junk, n):
    reward, value, next_value, terminated, truncated = rollout(2, 9, n, p_end=0)
    truncated[[2, 5]] = True
    before = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)
    reward[4, 1] = junk
    after = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)
    spoilt = torch.zeros(9, n, dtype=torch.bool)
    spoilt[3:5, 1] = True

    assert torch.equal(after.isfinite(), ~spoilt)
    torch.testing.assert_close(after[~spoilt], before[~spoilt], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_the_value_after_a_termination_is_not_read(junk, n):
    reward, value, next_value, terminated, truncated = rollout(3, n=n)
    before = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)
    next_value[terminated] = junk
    after = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lambda_=0.9)

    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-14)


def test_the_value_after_a_truncation_is_bootstrapped_from():
    one, yes, no = torch.ones(1, 1), torch.tensor([[True]]), torch.tensor([[False]])

    assert gae(one, 0 * one, 10 * one, no, yes, gamma=0.5, lambda_=1.0).item() == 6
    assert gae(one, 0 * one, 10 * one, yes, no, gamma=0.5, lambda_=1.0).item() == 1
    assert gae(one, 0 * one, 10 * one, yes, yes, gamma=0.5, lambda_=1.0).item() == 1


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("scale", [1e-200, 1e150, 1e300])
def test_huge_and_tiny_numbers_keep_their_precision(scale, n):
    data = rollout(4, n=n)
    scaled = [x * scale if x.is_floating_point() else x for x in data]

    assert_as_defined(scaled, atol=1e-14 * scale)


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
def test_keeps_the_dtype_of_value_to_its_precision(dtype, rtol, n):
    advantage = assert_as_defined(rollout(5, 20, n, dtype=dtype), rtol=rtol, atol=rtol)

    assert advantage.dtype == dtype


def test_half_precision_inputs_are_summed_in_single_precision():
    t = 3000
    one, no = torch.ones(t, 1, dtype=torch.float16), torch.zeros(t, 1, dtype=torch.bool)
    advantage = gae(one, 0 * one, 0 * one, no, no, gamma=1.0, lambda_=1.0)

    assert advantage[0].item() == t  # adding ones in half precision stops at 2048


def test_the_dtype_of_value_decides_where_dtypes_differ():
    reward, value, next_value, terminated, truncated = rollout(6)
    single = gae(reward, value.float(), next_value, terminated, truncated, gamma=0.9, lambda_=0.9)
    double = gae(reward.float(), value, next_value.float(), terminated, truncated, gamma=0.9, lambda_=0.9)

    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)


def test_takes_no_gradient_and_gives_none():
    data = rollout(7)
    plain = gae(*data, gamma=0.9, lambda_=0.9)
    advantage = gae(*(x.requires_grad_() if x.is_floating_point() else x for x in data), gamma=0.9, lambda_=0.9)

    assert not advantage.requires_grad
    assert torch.equal(advantage, plain)


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("junk", [0.0, torch.nan])
def test_leaves_its_inputs_untouched_and_shares_no_memory_with_them(junk, dtype, n):
    data = rollout(8, n=n, dtype=dtype)
    data[2][3, 1] += junk
    copies = [x.clone() for x in data]
    gae(*data, gamma=0.9, lambda_=0.9).fill_(5)

    for x, copy in zip(data, copies, strict=True):
        torch.testing.assert_close(x, copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("n", [3, 300])
def test_memory_layout_does_not_matter(n):
    data = rollout(9, n=n)
    expected = gae(*data, gamma=0.9, lambda_=0.9)
    strided = [torch.empty(7 * 2, n + 3, dtype=x.dtype)[::2, 3:].copy_(x) for x in data]
    transposed = [x.T.contiguous().T for x in data]

    assert not any(x.is_contiguous() for x in (*strided, *transposed))
    assert torch.equal(gae(*strided, gamma=0.9, lambda_=0.9), expected)
    assert torch.equal(gae(*transposed, gamma=0.9, lambda_=0.9), expected)


@pytest.mark.parametrize("which", range(5))
def test_tensors_of_another_shape_are_refused_by_name(which):
    data = list(rollout(0))
    data[which] = data[which][:, :1]

    with pytest.raises(ValueError, match=r"gae\(\) wants tensors of one shape \[T, B\].*squeeze") as error:
        gae(*data, gamma=0.9, lambda_=0.9)
    assert f"'{NAMES[which]}': (7, 1)" in str(error.value)


@pytest.mark.parametrize("reshape", [lambda x: x.unsqueeze(-1), lambda x: x[:, 0], lambda x: x[0, 0]])
def test_tensors_that_are_not_time_by_environment_are_refused(reshape):
    with pytest.raises(ValueError, match=r"\[T, B\]"):
        gae(*(reshape(x) for x in rollout(0)), gamma=0.9, lambda_=0.9)


@pytest.mark.parametrize(("which", "dtype"), [(3, torch.float64), (4, torch.int64), (4, torch.uint8)])
def test_flags_that_are_not_bool_are_refused_by_name(which, dtype):
    data = list(rollout(0))
    data[which] = data[which].to(dtype)

    with pytest.raises(ValueError, match=rf"{NAMES[which]} {dtype}.*\.bool\(\)"):
        gae(*data, gamma=0.9, lambda_=0.9)


@pytest.mark.parametrize("as_array", [torch.from_numpy, np.asarray])
@pytest.mark.parametrize(("t", "n"), [(0, 3), (1, 3), (2, 1), (13, 4), (13, 255), (13, 256)])
def test_discounted_sum_matches_its_recursion(t, n, as_array):
    rng = np.random.default_rng(0)
    x, decay = rng.normal(size=(2, t, n))
    expected = np.zeros((t + 1, n))
    for k in reversed(range(t)):
        expected[k] = x[k] + decay[k] * expected[k + 1]
    taken = as_array(x.copy())
    result = discounted_sum(taken, as_array(decay))

    np.testing.assert_allclose(result, expected[:-1], rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(taken, result)  # written in place, as it says


def normalized_by_definition(advantage, valid):
    kept = [float(x) for x, counts in zip(advantage.flatten(), valid.flatten()) if counts]
    mean = sum(kept) / len(kept)
    std = (sum((x - mean) ** 2 for x in kept) / (len(kept) - 1)) ** 0.5
    return np.where(valid, (np.nan_to_num(advantage) - mean) / (std + 1e-8), 0)


@pytest.mark.parametrize("junk", [0.0, 1e30, np.nan])
@pytest.mark.parametrize("shape", [(12,), (5, 4)])
def test_advantages_are_normalised_over_the_steps_that_count(shape, junk):
    rng = np.random.default_rng(0)
    advantage, valid = 3 * rng.normal(size=shape) + 7, rng.random(shape) < 0.7
    everything = np.ones(shape, bool)
    found = normalize_advantage(torch.from_numpy(np.where(valid, advantage, junk)), torch.from_numpy(valid))

    np.testing.assert_allclose(found, normalized_by_definition(advantage, valid), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        normalize_advantage(torch.from_numpy(advantage)),
        normalized_by_definition(advantage, everything),
        rtol=1e-12,
        atol=1e-14,
    )


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_advantage_has_no_spread_and_stays_as_it_is(count):
    advantage = torch.full((count,), 3.0)
    one_of_three = torch.tensor([3.0, 5.0, 7.0]), torch.arange(3) < count

    assert torch.equal(normalize_advantage(advantage), advantage)
    assert normalize_advantage(*one_of_three).tolist() == [3.0 * count, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_advantages_are_all_zero(dtype):
    rng = np.random.default_rng(0)
    for _ in range(50):
        advantage = torch.full((int(rng.integers(2, 2048)),), rng.normal() * 10 ** rng.uniform(-3, 3), dtype=dtype)
        valid = torch.rand(len(advantage)) < 0.7
        valid[:2] = True  # fewer than two are not normalised

        assert not normalize_advantage(advantage).any()
        assert not normalize_advantage(advantage, valid).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_advantages_that_differ_little_are_not_equal(dtype):
    advantage = torch.tensor([10.0, 10.5, 11.0], dtype=dtype)
    for found in (normalize_advantage(advantage), normalize_advantage(advantage, torch.ones(3, dtype=torch.bool))):
        assert found.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,)])
def test_fewer_than_two_advantages_are_not_normalised(shape):
    advantage, valid = torch.ones(shape), torch.zeros(shape, dtype=torch.bool)

    assert torch.equal(normalize_advantage(advantage), advantage)
    assert torch.equal(normalize_advantage(advantage, valid), torch.zeros(shape))


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_an_advantage_that_is_not_finite_is_not_hidden(junk):
    assert normalize_advantage(torch.tensor([1.0, junk, 2.0])).isnan().all()
