"""Every policy with compiled gradient steps, beside the same steps without compilation."""

import rank_policies
import torch

from ding_lite.data import tree

MORE = {
    "DQNPolicy": {"learn.lr_schedule": [(0, 1e-3), (30, 1e-4)], "learn.grad_clip_norm": 1.0},
    "PPOPolicy": {
        "learn.kl_coeff": 0.2,
        "learn.entropy_schedule": [(0, 0.02), (30, 0.001)],
        "learn.lr_schedule": [(0, 1e-3), (30, 1e-4)],
    },
    "A2CPolicy": {"learn.optimizer": "rmsprop", "learn.entropy_weight": 0.01},
    "SACPolicy": {"learn.grad_clip_norm": 1.0},
    "DDPGPolicy": {"learn.optimizer": "rmsprop", "learn.rmsprop_momentum": 0.9},
    "TD3Policy": {"learn.learning_rate_actor": 1e-4},
    "CQLPolicy, imitation": {"learn.bc_steps": 3},
}
FORMS = {"TD3Policy": 2, "TD3BCPolicy": 2, "CQLPolicy, imitation": 2}
WITHOUT_VALID = "IMPALAPolicy", "PPOPolicy, LSTM", "IMPALAPolicy, LSTM"
"""Cases whose steps are not compiled if some rows are not steps."""


def made(monkeypatch, case, mode, device="cpu"):
    settings = {**rank_policies.CASES[case], **MORE.get(case, {}), "learn.compile": mode, "device": device}
    monkeypatch.setitem(rank_policies.CASES, case, settings)
    return rank_policies.made(case)


def learned(monkeypatch, case, mode, steps, device="cpu"):
    """A policy after some gradient steps, and the statistics of the last one."""
    policy = made(monkeypatch, case, mode, device)
    return policy, learn(policy, case, range(steps))


def learn(policy, case, steps):
    """Take these gradient steps. Returns the statistics of the last one."""
    stats = {}
    for step in steps:
        batch, _ = rank_policies.rows_of(policy, step)
        if case in WITHOUT_VALID:
            batch.pop("valid")
        batch, policy.num_steps = tree({name: it.to(policy.device) for name, it in batch.items()}), {}
        stats = policy.gradient_step(policy.postprocess(batch))
        policy.after_learning(batch)
    return stats


def assert_equal(one, stats, other, other_stats):
    """Everything that a step may change, and the random numbers that it has drawn."""
    state, other_state = one.state_dict(), other.state_dict()
    for name in ("train_iter", "version"):
        assert state[name] == other_state[name]
    assert torch.equal(state["learn"]["generator"], other_state["learn"]["generator"])
    found, wanted = (dict(leaves({k: it for k, it in s.items() if k not in _OTHER})) for s in (state, other_state))
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.allclose(tensor.double(), wanted[name].double(), rtol=1e-5, atol=1e-7), name
    assert stats.keys() == other_stats.keys()
    for name, value in stats.items():
        assert torch.allclose(torch.as_tensor(value).double(), torch.as_tensor(other_stats[name]).double(), 1e-5, 1e-6), name


_OTHER = "metrics", "learn", "collect", "evaluate", "made_with", "attached", "train_iter", "version"


def leaves(part, place=""):
    if isinstance(part, dict):
        for name, inner in part.items():
            yield from leaves(inner, f"{place}/{name}")
    elif isinstance(part, torch.Tensor):
        yield place, part
