"""nstep_return() and discounted_return() against their definitions, and laws that tie them to each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.functional import discounted_return, nstep_return

unit = st.floats(0, 1)
anything = settings(max_examples=case_count(60), deadline=None, derandomize=True)


def rollout(seed: int, t: int = 9, n: int = 3, p_end: float = 0.2, dtype=torch.float64) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    reward = torch.randn(t, n, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = torch.rand(2, t, n, generator=g) < p_end / 2
    return reward, terminated, truncated


def values(seed: int, shape: tuple[int, ...], dtype=torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64).to(dtype)


def resets(terminated: torch.Tensor, truncated: torch.Tensor) -> torch.Tensor:
    """What is left of a rollout whose environments spend the step after an episode's end on a reset."""
    valid = torch.ones_like(terminated)
    for t in range(1, len(valid)):
        valid[t] = ~(valid[t - 1] & (terminated | truncated)[t - 1])
    return valid


def nstep_by_definition(reward, terminated, truncated, n, gamma, valid):
    return_, discount, last = np.zeros(reward.shape), np.zeros(reward.shape), np.zeros(reward.shape, int)
    for t, b in np.ndindex(*reward.shape):
        last[t, b] = t
        if not valid[t, b]:
            continue
        for k in range(n):
            return_[t, b] += gamma**k * reward[t + k, b]
            discount[t, b] = gamma ** (k + 1)
            last[t, b] = t + k
            if terminated[t + k, b] or truncated[t + k, b] or t + k + 1 == len(reward):
                break
    return return_, discount, last


def assert_nstep_as_defined(data, n, gamma, valid=None, rtol=1e-12, atol=1e-14):
    reward, *flags = data
    result = nstep_return(reward, *flags, n=n, gamma=gamma, valid=valid)
    real = torch.ones_like(flags[0]) if valid is None else valid
    exact = [x.numpy() for x in (reward.double(), *flags)]
    expected = nstep_by_definition(*exact, n, gamma, real.numpy())
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_allclose(ours.double(), theirs, rtol=rtol, atol=atol)
    assert result.last.dtype == torch.int64
    return result


def discounted_by_definition(reward, terminated, truncated, gamma, bootstrap):
    return_ = np.zeros(reward.shape)
    for t, b in np.ndindex(*reward.shape):
        for k in range(t, len(reward)):
            return_[t, b] += gamma ** (k - t) * reward[k, b]
            if terminated[k, b]:
                break
            if truncated[k, b] or k + 1 == len(reward):
                return_[t, b] += gamma ** (k - t + 1) * bootstrap[k, b]
                break
    return return_


def assert_discounted_as_defined(data, gamma, bootstrap, rtol=1e-12, atol=1e-13):
    exact = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in data]
    known = np.zeros(data[0].shape) if bootstrap is None else bootstrap.double().numpy()
    result = discounted_return(*data, gamma=gamma, bootstrap=bootstrap)
    np.testing.assert_allclose(result.double(), discounted_by_definition(*exact, gamma, known), rtol=rtol, atol=atol)
    return result


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 100])
@pytest.mark.parametrize("seed", range(3))
def test_nstep_matches_the_definition(seed, n, gamma):
    assert_nstep_as_defined(rollout(seed), n, gamma)


@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
def test_nstep_passes_over_steps_that_were_only_a_reset(seed, n):
    reward, terminated, truncated = rollout(seed, t=20, p_end=0.5)
    valid = resets(terminated, truncated)
    terminated, truncated = terminated & valid, truncated & valid
    reward = reward.masked_fill(~valid, torch.nan)

    assert not valid.all()
    assert_nstep_as_defined((reward, terminated, truncated), n, 0.9, valid)


@anything
@given(st.integers(0, 12), st.integers(0, 4), st.integers(1, 14), unit, unit, st.integers(0, 2**32))
def test_nstep_matches_the_definition_for_any_rollout(t, b, n, gamma, p_end, seed):
    assert_nstep_as_defined(rollout(seed, t, b, p_end), n, gamma)


@pytest.mark.parametrize("p_end", [0.0, 2.0])
@pytest.mark.parametrize("t", [1, 6])
def test_nstep_matches_the_definition_where_no_step_or_every_step_ends_an_episode(t, p_end):
    assert_nstep_as_defined(rollout(0, t, p_end=p_end), 3, 0.9)


def test_nstep_follows_a_table_worked_out_by_hand():
    reward = torch.tensor([[1.0, 32.0], [2.0, 64.0], [4.0, 128.0], [8.0, 256.0], [16.0, 512.0]])
    terminated, truncated = torch.zeros(2, 5, 2, dtype=torch.bool)
    terminated[2, 0], truncated[1, 1] = True, True
    result = nstep_return(reward, terminated, truncated, n=2, gamma=0.5)

    assert result.return_.T.tolist() == [[2, 4, 4, 16, 16], [64, 64, 256, 512, 512]]
    assert result.discount.T.tolist() == [[0.25, 0.25, 0.5, 0.25, 0.5], [0.25, 0.5, 0.25, 0.25, 0.5]]
    assert result.last.T.tolist() == [[1, 2, 2, 4, 4], [1, 1, 3, 4, 4]]


def test_windows_of_one_step_leave_rewards_as_they_are():
    reward, terminated, truncated = rollout(0)
    result = nstep_return(reward, terminated, truncated, n=1, gamma=0.9)

    assert torch.equal(result.return_, reward)
    assert result.discount.unique().tolist() == [0.9]
    assert torch.equal(result.last, torch.arange(9).unsqueeze(1).expand(9, 3))


@anything
@given(st.integers(1, 12), unit, unit, st.integers(0, 2**32))
def test_windows_longer_than_the_rollout_bootstrap_to_the_discounted_return(t, gamma, p_end, seed):
    data = rollout(seed, t, p_end=p_end)
    bootstrap = values(seed, data[0].shape)
    window = nstep_return(*data, n=t + 1, gamma=gamma)
    future = bootstrap.gather(0, window.last).masked_fill(data[1].gather(0, window.last), 0)

    expected = discounted_return(*data, gamma=gamma, bootstrap=bootstrap)
    torch.testing.assert_close(window.return_ + window.discount * future, expected, rtol=1e-12, atol=1e-13)


@anything
@given(st.integers(2, 12), st.integers(1, 5), st.data())
def test_nothing_of_the_next_episode_is_earned(t, n, data):
    reward, terminated, truncated = rollout(data.draw(st.integers(0, 999)), t)
    end = data.draw(st.integers(0, t - 2))
    (terminated if data.draw(st.booleans()) else truncated)[end] = True
    bootstrap = values(0, reward.shape)

    def earned() -> torch.Tensor:
        window = nstep_return(reward, terminated, truncated, n=n, gamma=0.9)
        monte_carlo = discounted_return(reward, terminated, truncated, gamma=0.9, bootstrap=bootstrap)
        assert (window.last[: end + 1] <= end).all()
        return torch.stack((window.return_, monte_carlo))[:, : end + 1]

    before = earned()
    reward[end + 1 :] = bootstrap[end + 1 :] = data.draw(st.sampled_from([100.0, 1e300, torch.inf, torch.nan]))

    torch.testing.assert_close(earned(), before, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_a_reward_that_is_not_finite_stays_in_its_window(junk):
    reward, terminated, truncated = rollout(0, 12, p_end=0)
    terminated[8] = True
    reward[6, 1] = junk
    spoilt = torch.zeros(12, 3, dtype=torch.bool)
    spoilt[4:7, 1] = True

    assert torch.equal(nstep_return(reward, terminated, truncated, n=3, gamma=0.9).return_.isfinite(), ~spoilt)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("with_bootstrap", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_discounted_return_matches_the_definition(seed, with_bootstrap, gamma):
    data = rollout(seed)
    assert_discounted_as_defined(data, gamma, values(seed, data[0].shape) if with_bootstrap else None)


@pytest.mark.parametrize(("t", "n"), [(0, 3), (1, 1), (1, 300), (9, 0), (64, 2), (33, 300)])
@pytest.mark.parametrize("p_end", [0.0, 0.3, 2.0])
def test_discounted_return_matches_the_definition_for_any_number_of_steps_and_environments(t, n, p_end):
    data = rollout(1, t, n, p_end)
    assert assert_discounted_as_defined(data, 0.9, values(0, (t, n))).shape == (t, n)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_the_bootstrap_is_read_only_where_nobody_saw_the_rest(junk):
    reward, terminated, truncated = rollout(2)
    bootstrap = values(2, reward.shape)
    cut = truncated.clone()
    cut[-1] = True
    before = discounted_return(reward, terminated, truncated, gamma=0.9, bootstrap=bootstrap)
    after = discounted_return(
        reward, terminated, truncated, gamma=0.9, bootstrap=bootstrap.masked_fill(~cut | terminated, junk)
    )

    assert before.isfinite().all()
    assert torch.equal(after, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_rewards_of_other_dtypes_are_summed_in_single_precision(dtype):
    reward, terminated, truncated = rollout(3, 20)
    data = (reward * 10).to(dtype), terminated, truncated

    assert assert_nstep_as_defined(data, 3, 0.9, rtol=1e-5, atol=1e-5).return_.dtype == torch.float32
    assert assert_discounted_as_defined(data, 0.9, None, rtol=1e-5, atol=1e-5).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inputs_are_untouched_and_no_memory_is_shared_with_them(dtype):
    reward, terminated, truncated = data = rollout(4, dtype=dtype)
    bootstrap = values(4, reward.shape, dtype)
    valid = resets(terminated, truncated)
    everything = (*data, bootstrap, valid)
    copies = [x.clone() for x in everything]
    for mask in (None, valid):
        for x in nstep_return(*data, n=3, gamma=0.9, valid=mask):
            x.fill_(5)
    for known in (None, bootstrap):
        discounted_return(*data, gamma=0.9, bootstrap=known).fill_(5)

    assert all(map(torch.equal, everything, copies))


def test_no_gradient_is_given():
    reward, terminated, truncated = rollout(5)
    reward.requires_grad_()
    bootstrap = values(5, reward.shape).requires_grad_()

    assert not nstep_return(reward, terminated, truncated, n=3, gamma=0.9).return_.requires_grad
    assert not discounted_return(reward, terminated, truncated, gamma=0.9, bootstrap=bootstrap).requires_grad


@pytest.mark.parametrize("n", [0, -1])
def test_windows_without_a_step_are_refused(n):
    with pytest.raises(ValueError, match=rf"n >= 1 steps, got n={n}"):
        nstep_return(*rollout(0), n=n, gamma=0.9)


def test_tensors_of_another_shape_are_refused_by_name():
    reward, terminated, truncated = rollout(0)
    with pytest.raises(ValueError, match=r"nstep_return\(\) wants tensors of one shape \[T, B\].*'valid': \(9, 1\)"):
        nstep_return(reward, terminated, truncated, n=2, gamma=0.9, valid=terminated[:, :1])
    with pytest.raises(ValueError, match=r"discounted_return\(\) wants.*'bootstrap': \(9, 3, 1\).*squeeze"):
        discounted_return(reward, terminated, truncated, gamma=0.9, bootstrap=reward.unsqueeze(-1))
    with pytest.raises(ValueError, match=r"'reward': \(9,\).*unsqueeze"):
        nstep_return(reward[:, 0], terminated[:, 0], truncated[:, 0], n=2, gamma=0.9)


def test_flags_that_are_not_bool_are_refused_by_name():
    reward, terminated, truncated = rollout(0)
    with pytest.raises(ValueError, match=r"bool flags, got terminated torch.float64, truncated torch.bool: use .bool"):
        discounted_return(reward, reward, truncated, gamma=0.9)
    with pytest.raises(ValueError, match=r"valid torch.float64: use .bool"):
        nstep_return(reward, terminated, truncated, n=2, gamma=0.9, valid=reward)
