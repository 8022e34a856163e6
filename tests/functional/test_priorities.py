"""Importance weights and priorities of sequences against their equations, row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import case_count

from ding_lite.functional import importance_weight, sequence_priority

anything = settings(max_examples=case_count(60), deadline=None, derandomize=True)


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_importance_weights_match_their_equation(rows, beta):
    probability = double(100).softmax(0)[:rows]
    raw = [(100 * p) ** -beta for p in probability.tolist()]

    np.testing.assert_allclose(importance_weight(probability, 100, beta), np.array(raw) / max(raw), rtol=1e-12)
    np.testing.assert_allclose(importance_weight(probability.float(), 100, beta), np.array(raw) / max(raw), rtol=1e-5)


@anything
@given(st.integers(1, 40), st.integers(1, 10**9), st.integers(0, 999))
def test_weights_undo_the_bias_of_drawing_by_priority(rows, size, seed):
    probability = double(rows, seed=seed).softmax(0)
    weight = importance_weight(probability, size, 1.0)
    drawn_times_weight = probability * weight

    assert weight.max() == 1
    torch.testing.assert_close(drawn_times_weight, drawn_times_weight[:1].expand(rows), rtol=1e-12, atol=0)


def test_rows_that_are_drawn_most_weigh_least():
    probability = torch.tensor([0.4, 0.1, 0.3, 0.2])

    assert importance_weight(probability, 10, 0.5).argsort().tolist() == [0, 2, 3, 1]


def test_probabilities_as_small_as_they_come_have_finite_weights():
    weight = importance_weight(torch.tensor([1e-30, 1.0]), 10**8, 1.0)

    assert weight.tolist() == pytest.approx([1.0, 1e-30])


def test_weights_have_no_gradient_and_leave_probabilities_untouched():
    probability = torch.full((3,), 0.25, requires_grad=True)
    weight = importance_weight(probability, 1, 1.0)

    assert not weight.requires_grad
    assert probability.tolist() == [0.25] * 3


def priority_by_definition(td_error, eta, valid):
    result = np.zeros(td_error.shape[1])
    for b in range(td_error.shape[1]):
        error = np.abs(td_error[valid[:, b], b])
        if len(error):
            result[b] = eta * error.max() + (1 - eta) * error.mean()
    return result


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
@pytest.mark.parametrize(("t", "b"), [(1, 1), (1, 4), (7, 1), (7, 5), (3, 0)])
def test_priorities_of_sequences_match_their_equation(t, b, eta):
    td_error, every = double(t, b), np.ones((t, b), bool)
    valid = double(t, b, seed=1) > 0

    np.testing.assert_allclose(
        sequence_priority(td_error, eta), priority_by_definition(td_error.numpy(), eta, every), rtol=1e-12
    )
    np.testing.assert_allclose(
        sequence_priority(td_error, eta, valid), priority_by_definition(td_error.numpy(), eta, valid.numpy()), rtol=1e-12
    )
    np.testing.assert_allclose(
        sequence_priority(td_error.float(), eta, valid),
        priority_by_definition(td_error.numpy(), eta, valid.numpy()),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("junk", [100.0, torch.inf, torch.nan])
def test_steps_that_do_not_count_do_not_change_a_priority(junk):
    td_error, valid = double(6, 4), torch.ones(6, 4, dtype=torch.bool)
    valid[4:], valid[:, 3] = False, False
    before = sequence_priority(td_error, valid=valid)
    td_error[~valid] = junk

    assert torch.equal(sequence_priority(td_error, valid=valid), before)
    torch.testing.assert_close(before[:3], sequence_priority(td_error[:4, :3]), rtol=1e-12, atol=0)
    assert before[3] == 0


@anything
@given(st.integers(1, 9), st.floats(0, 1), st.integers(0, 999))
def test_a_priority_lies_between_the_mean_and_the_largest_error(t, eta, seed):
    error = double(t, 3, seed=seed)
    priority = sequence_priority(error, eta)

    assert (priority <= error.abs().amax(0) + 1e-12).all()
    assert (priority >= error.abs().mean(0) - 1e-12).all()


def test_priorities_have_no_gradient_and_leave_errors_untouched():
    td_error = double(3, 2).requires_grad_()
    before = td_error.detach().clone()

    assert not sequence_priority(td_error, valid=td_error > 0).requires_grad
    assert torch.equal(td_error, before)
