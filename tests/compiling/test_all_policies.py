"""Compiled gradient steps of every policy, beside the same steps without compilation."""

import warnings

import pytest
import rank_policies
from compiled_policies import FORMS, WITHOUT_VALID, assert_equal, learned, made
from interpreted_steps import interpreting
from slow_cases import mostly_slow

from ding_lite.data import tree


@pytest.mark.few
@pytest.mark.parametrize("case", mostly_slow(rank_policies.CASES, "DQNPolicy", "PPOPolicy", "SACPolicy", "C51Policy"))
def test_the_traced_steps_of_every_policy_are_its_steps(case, monkeypatch):
    plain, stats = learned(monkeypatch, case, "off", 5)
    with interpreting(), warnings.catch_warnings():
        warnings.simplefilter("error")
        policy, found = learned(monkeypatch, case, "on", 5)
    taken = policy.compiled_steps
    assert (taken.taken, len(taken._forms)) == (5, FORMS.get(case, 1))
    assert_equal(policy, found, plain, stats)


def learns_once(case, monkeypatch):
    policy = made(monkeypatch, case, "on")
    policy.gradient_step(policy.postprocess(tree(rank_policies.rows_of(policy, 0)[0])))


@pytest.mark.parametrize("case", WITHOUT_VALID)
def test_rows_that_are_no_steps_are_left_out_without_compiling(case, monkeypatch):
    with pytest.warns(UserWarning, match=r"(x\[mask\]|makes a condition).*Its gradient steps are not compiled"):
        learns_once(case, monkeypatch)


def test_a_sequence_that_is_too_long_for_a_program_is_named(monkeypatch):
    monkeypatch.setattr("ding_lite.nn.recurrent._LONGEST", 2)
    with pytest.warns(UserWarning, match="an LSTM unrolls 3 steps, and a compiled program has at most 2: learn from shorter"):
        learns_once("R2D2Policy", monkeypatch)


@pytest.mark.compiled
@pytest.mark.parametrize("case", rank_policies.CASES)
def test_the_compiled_steps_of_every_policy_are_its_steps(case, monkeypatch):
    plain, stats = learned(monkeypatch, case, "off", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy, found = learned(monkeypatch, case, "on", 100)
    assert policy.compiled_steps.taken == 100
    assert_equal(policy, found, plain, stats)
