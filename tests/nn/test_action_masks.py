"""Masked logits against distributions over the allowed actions only."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.nn import (
    action_distribution,
    make_actor_critic,
    make_encoder,
    make_normalizer,
    make_q_network,
    make_recurrent_actor_critic,
    masked,
)

N, ROWS = 6, 40
SPACE = spaces.Dict(x=spaces.Box(-1, 1, (3,)), action_mask=spaces.MultiBinary(N))


def drawn(seed=0, dtype=torch.float64):
    """Logits, and masks that allow at least one of three parts' actions: 1 to 6 in all."""
    g = torch.Generator().manual_seed(seed)
    logit = 3 * torch.randn(ROWS, N, generator=g, dtype=dtype)
    mask = torch.rand(ROWS, N, generator=g) < 0.5
    mask[:, [0, 3]] |= ~mask[:, :3].any(-1, keepdim=True) | ~mask[:, 3:].any(-1, keepdim=True)
    return logit, mask.to(torch.int8)


def over_allowed(logit, mask):
    """Probabilities of one row by a softmax over the allowed actions, in numpy."""
    prob, allowed = np.zeros(len(logit)), np.flatnonzero(mask)
    weights = np.exp(logit[allowed] - logit[allowed].max())
    prob[allowed] = weights / weights.sum()
    return prob


def entropy_of(prob):
    return -sum(p * np.log(p) for p in prob if p > 0)


@pytest.mark.parametrize("space", [spaces.Discrete(N), spaces.MultiDiscrete([3, 3])], ids=str)
def test_log_prob_entropy_and_kl_are_those_of_a_distribution_over_the_allowed_actions(space):
    (logit, mask), (other, _) = drawn(0), drawn(1)
    found = masked(logit, {"action_mask": mask})
    distribution = action_distribution(space)
    action, log_prob = distribution.sample(found, torch.Generator().manual_seed(0))
    evaluated, entropy = distribution.evaluate(found, action)
    kl = distribution.kl(found, masked(other, {"action_mask": mask}))
    cuts = [slice(0, N)] if isinstance(space, spaces.Discrete) else [slice(0, 3), slice(3, N)]

    assert torch.equal(log_prob, evaluated)
    for row in range(ROWS):
        parts = [over_allowed(logit[row, cut].numpy(), mask[row, cut].numpy()) for cut in cuts]
        others = [over_allowed(other[row, cut].numpy(), mask[row, cut].numpy()) for cut in cuts]
        taken = np.ravel(action[row].numpy())
        np.testing.assert_allclose(log_prob[row], sum(np.log(p[a]) for p, a in zip(parts, taken)), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(entropy[row], sum(map(entropy_of, parts)), rtol=1e-12, atol=1e-15)
        wanted = sum(x * np.log(x / y) for p, q in zip(parts, others) for x, y in zip(p, q) if x > 0)
        np.testing.assert_allclose(kl[row], wanted, rtol=1e-9, atol=1e-12)


def test_samples_have_the_probabilities_of_the_allowed_actions():
    logit, mask = drawn(2)
    draws = 4000
    found = masked(logit[:5], {"action_mask": mask[:5]}).repeat_interleave(draws, 0)
    action = action_distribution(spaces.Discrete(N)).sample(found, torch.Generator().manual_seed(0))[0].view(5, draws)
    for row in range(5):
        prob = over_allowed(logit[row].numpy(), mask[row].numpy())
        counts = np.bincount(action[row].numpy(), minlength=N)
        assert (counts[mask[row].numpy() == 0] == 0).all()
        assert (abs(counts / draws - prob) <= 4.5 * np.sqrt(prob * (1 - prob) / draws)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_are_finite_and_zero_for_actions_that_are_not_allowed(dtype):
    logit, mask = drawn(dtype=torch.float32)
    logit = logit.to(dtype).requires_grad_()
    distribution = action_distribution(spaces.Discrete(N))
    found = masked(logit, {"action_mask": mask})
    action = distribution.sample(found.detach(), torch.Generator().manual_seed(0))[0]
    log_prob, entropy = distribution.evaluate(found, action)
    kl = distribution.kl(found.detach(), found * 2)
    (log_prob.exp().sum() + entropy.sum() + (kl.sum() if dtype in (torch.float32, torch.float64) else 0)).backward()

    assert entropy.isfinite().all()
    assert logit.grad.isfinite().all()
    assert (logit.grad[mask == 0] == 0).all()
    assert (logit.grad[mask == 1] != 0).any()


def test_a_row_that_allows_nothing_gives_finite_numbers():
    logit = drawn()[0].requires_grad_()
    found = masked(logit, {"action_mask": torch.zeros(ROWS, N, dtype=torch.int8)})
    log_prob, entropy = action_distribution(spaces.Discrete(N)).evaluate(found, torch.zeros(ROWS, dtype=torch.int64))
    (log_prob.sum() + entropy.sum()).backward()

    np.testing.assert_allclose(log_prob.detach(), -np.log(N))
    assert (logit.grad == 0).all()


@pytest.mark.parametrize("obs", [torch.zeros(ROWS, 3), {"x": torch.zeros(ROWS, 3)}, tree({"x": torch.zeros(ROWS, 3)}), None])
def test_values_without_a_mask_are_returned_unchanged(obs):
    logit = drawn()[0]
    assert masked(logit, obs) is logit


def test_a_value_for_each_atom_is_refused():
    with pytest.raises(ValueError, match=r"each number of 'action_mask', \[40, 6\], got \[40, 6, 6\]: pass one number"):
        masked(torch.zeros(ROWS, N, N), {"action_mask": drawn()[1]})


def obs_of(mask, as_tree=False):
    obs = {"x": torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(5)), "action_mask": mask}
    return tree(obs) if as_tree else obs


@pytest.mark.parametrize("share", [False, True])
def test_an_actor_critic_masks_its_logit_and_its_critic_does_not_see_the_mask(share):
    mask = drawn()[1]
    model = make_actor_critic(SPACE, spaces.Discrete(N), [8], share_encoder=share, normalize_obs=True)
    model.normalizer.update(obs_of(mask))
    plain = obs_of(torch.ones_like(mask))
    for obs in (obs_of(mask), obs_of(mask, as_tree=True)):
        logit, value = model(obs)
        assert torch.equal(logit, masked(model.logits(plain), obs))
        assert torch.equal(logit, model.logits(obs))
        assert torch.equal(logit, model.from_batch({"obs": obs})[0])
        assert torch.equal(logit, model.last_output())
        assert torch.equal(value, model.values(plain))


def test_a_recurrent_actor_critic_masks_each_step_alike():
    steps, envs = 4, 10
    mask = drawn()[1].view(steps, envs, N)
    obs = {"x": torch.randn(steps, envs, 3), "action_mask": mask}
    model = make_recurrent_actor_critic(SPACE, spaces.Discrete(N), [8], 4)
    state = [element.repeat(envs, 1) for element in model.initial_state()]
    unrolled = model.unroll(tree(obs), state, torch.zeros(steps, envs, dtype=torch.bool))[0]
    for t in range(steps):
        logit, state = model.step({name: part[t] for name, part in obs.items()}, state)
        torch.testing.assert_close(logit, unrolled[t])
        assert ((logit < -1e30) == (mask[t] == 0)).all()


def test_the_mask_is_no_feature_and_is_not_normalised():
    size = spaces.Dict(x=SPACE["x"])
    assert make_encoder(SPACE)[1] == 3
    shapes = [[param.shape for param in make_q_network(space, N, [8]).parameters()] for space in (SPACE, size)]
    assert shapes[0] == shapes[1]
    floats = spaces.Dict(x=SPACE["x"], action_mask=spaces.Box(0, 1, (N,)))
    normalizer, obs = make_normalizer(floats), obs_of(drawn()[1].float())
    normalizer.update(obs)
    assert torch.equal(normalizer(obs)["action_mask"], obs["action_mask"])
    assert len(list(normalizer.buffers())) == 3
