"""`normalize_obs` of policies that learn from replay, against observations normalised by hand with the same statistics."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import (
    AWACPolicy,
    C51Policy,
    CQLPolicy,
    DDPGPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    IQLPolicy,
    IQNPolicy,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    SACPolicy,
    TD3Policy,
)

OBS, DISCRETE, BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2), spaces.Box(-2, 1, (2,), np.float32)
DISCRETE_KINDS = (DQNPolicy, C51Policy, QRDQNPolicy, IQNPolicy, RainbowPolicy, R2D2Policy, DiscreteCQLPolicy)
DISCRETE_KINDS += (DiscreteIQLPolicy,)
BOX_KINDS = (DDPGPolicy, TD3Policy, SACPolicy, CQLPolicy, IQLPolicy, AWACPolicy)  # TD3BC learns as TD3
each = pytest.mark.parametrize("kind", [*DISCRETE_KINDS, *BOX_KINDS])
LENGTH = 5


def made(kind, **settings):
    small = {"seed": 0, "model.encoder_hidden_size_list": [6], "learn.target_update_freq": 2}
    if kind is R2D2Policy:
        small |= {"model.lstm_size": 4, "learn.burn_in": 2, "learn.unroll_len": LENGTH - 2, "learn.target_update_freq": 50}
    return kind({**small, **settings}, OBS, DISCRETE if kind in DISCRETE_KINDS else BOX)


def batch_of(kind, seed, n=8):
    """Rows, or sequences, with observations that are far from mean 0 and standard deviation 1."""
    g = torch.Generator().manual_seed(seed)
    lead = (n, LENGTH) if kind is R2D2Policy else (n,)
    far, wide = torch.tensor([50.0, -3.0, 0.0]), torch.tensor([9.0, 0.1, 1.0])
    obs, next_obs = (far + wide * torch.randn(*lead, 3, generator=g) for _ in range(2))
    batch = {"obs": obs, "next_obs": next_obs, "reward": torch.randn(lead, generator=g)}
    batch |= {name: torch.rand(lead, generator=g) < 0.2 for name in ("terminated", "truncated")}
    batch["action"] = torch.randint(2, lead, generator=g)
    if kind in BOX_KINDS:
        batch["action"] = 3 * torch.rand(*lead, 2, generator=g) - 2
    if kind is R2D2Policy:
        batch |= {f"state_in_{k}": torch.zeros(n, 4) for k in range(2)}
        batch["valid"] = torch.rand(lead, generator=g) < 0.8
    return batch


class ByHand:
    """Mean and variance of all observations seen, by numpy."""

    def __init__(self):
        self.seen = np.empty((0, 3))

    def update(self, batch):
        obs = batch["obs"][batch["valid"]] if "valid" in batch else batch["obs"]
        self.seen = np.concatenate([self.seen, obs.numpy().astype(np.float64)])

    def __call__(self, obs):
        mean, var = (self.seen.mean(0), self.seen.var(0)) if len(self.seen) else (0.0, 1.0)
        return np.clip((np.asarray(obs, np.float64) - mean) / np.sqrt(var + 1e-8), -10, 10).astype(np.float32)


@pytest.mark.few
@each
def test_a_run_equals_the_run_on_observations_that_were_normalised_by_hand(kind):
    policy, other, by_hand = made(kind, **{"model.normalize_obs": True}), made(kind), ByHand()
    for step in range(4):
        batch = batch_of(kind, step)
        output = policy.learn_mode.forward(tree(batch))
        normal = {name: torch.from_numpy(by_hand(batch[name])) for name in ("obs", "next_obs")}
        expected = other.learn_mode.forward(tree({**batch, **normal}))
        by_hand.update(batch)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)

    for one, two in zip(policy.params, other.params, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(policy.model.normalizer.mean, by_hand.seen.mean(0), rtol=1e-9)
    np.testing.assert_allclose(policy.model.normalizer.var, by_hand.seen.var(0), rtol=1e-9)
    obs = batch_of(kind, 99)["obs"].reshape(-1, 3)[:6].numpy()
    for mode in ("collect_mode", "eval_mode"):  # with the same random numbers
        acted = [getattr(it, mode) for it in (policy, other)]
        state = [mode.get_initial_state(6) for mode in acted]
        found, wanted = (it.forward(x, s)[0] for it, x, s in zip(acted, (obs, by_hand(obs)), state, strict=True))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.few
@each
def test_the_target_network_has_the_statistics_of_the_online_network_and_copies_get_them(kind):
    policy = made(kind, **{"model.normalize_obs": True, "learn.target_update_freq": 50})
    before = policy.eval_mode.actor
    worker = policy.collect_mode.worker_copy(1)
    policy.learn_mode.forward(tree(batch_of(kind, 0)))
    normalizer = policy.model.normalizer

    assert normalizer.count > 0
    assert any(module is normalizer for module in policy.target_model.modules())
    worker.actor.copy_weights(policy.snapshot())
    policy.eval_mode.forward(batch_of(kind, 1)["obs"].reshape(-1, 3)[:2].numpy(), policy.eval_mode.get_initial_state(2))
    for actor in (worker.actor, before):
        assert actor.model.normalizer is not normalizer
        assert torch.equal(actor.model.normalizer.mean, normalizer.mean)


@pytest.mark.few
@each
def test_a_saved_policy_goes_on_bit_for_bit(kind, same):
    schedule = [(0, 1e-2), (4, 1e-3)]
    settings = {"model.normalize_obs": True, "model.layer_norm": True, "learn.lr_schedule": schedule}
    policy, other = made(kind, **settings), made(kind, **settings, seed=5)
    for step in range(2):
        policy.learn_mode.forward(tree(batch_of(kind, step)))
    other.load_state_dict(policy.state_dict())
    for step in range(2, 5):
        batch = tree(batch_of(kind, step))
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))

    for part in ("model", "target_model", "optimizer"):
        assert same(policy.state_dict()[part], other.state_dict()[part])


def test_a_model_without_a_normalizer_does_not_normalise_and_says_so():
    class Plain(DQNPolicy):
        def make_model(self):
            return torch.nn.Linear(3, 2)

    with pytest.warns(UserWarning, match=r"normalize_obs = True has no effect: the model that make_model of Plain returns"):
        Plain({"model.normalize_obs": True}, OBS, DISCRETE)


def test_batches_of_several_buffers_all_count():
    class Two(DQNPolicy):
        def dummy_batch(self, batch):
            return tree({"own": batch, "demos": batch})

        def loss(self, batch):
            return super().loss(batch.own)

    policy = Two({"model.normalize_obs": True}, OBS, DISCRETE)
    policy.learn_mode.forward(tree({"own": batch_of(Two, 0), "demos": batch_of(Two, 1, n=5)}))
    assert policy.model.normalizer.count == 13
