"""Gradient steps of every policy on given rows: of one process with all rows, or of one of two with its part."""

import inspect
from contextlib import contextmanager
from unittest import mock

import torch
from gymnasium import spaces

import ding_lite.policy
from ding_lite.data import tree
from ding_lite.policy import Policy
from ding_lite.policy_state import networks_of

OBSERVATIONS, DISCRETE, BOX = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))
ROWS = (5, 9)
"""Rows, sequences or environments of a batch of each rank."""
STEPS, LENGTH, H = 3, 4, 5

LEARNING = sorted(
    name
    for name, kind in vars(ding_lite.policy).items()
    if inspect.isclass(kind) and issubclass(kind, Policy) and kind is not Policy and kind.loss is not Policy.loss
)
"""The policies with a loss."""
_LSTM = {"model.lstm_size": H}
_MORE = {
    "PPOPolicy, LSTM": _LSTM,
    "IMPALAPolicy, LSTM": _LSTM,
    "CQLPolicy, threshold": {"learn.lagrange_thresh": 1.0},
    "CQLPolicy, imitation": {"learn.bc_steps": 10},
    "REINFORCEPolicy, baseline": {"baseline": True},
    "PPOPolicy, clipped value": {"learn.value_clip": 0.1},
    "BCPolicy, mixture": {"model.mixture_components": 3},
}
CASES = {**{name: {} for name in LEARNING}, **_MORE}
_SETTINGS = {
    "model.encoder_hidden_size_list": [8],
    "model.head_hidden_size_list": [8],
    "model.normalize_obs": True,
    "model.size": 8,
    "learn.adv_norm": True,
    "learn.burn_in": 1,
    "learn.unroll_len": LENGTH - 1,
    "context_length": LENGTH,
    "target_return": 1.0,
}


def made(case, settings=None, is_double=True):
    """The policy of a case, with networks in float64 or as its constructor makes them."""
    name = case.partition(",")[0]
    cls = getattr(ding_lite.policy, name)
    cfg = cls.config_type()
    for key, value in _SETTINGS.items():
        block, _, last = key.rpartition(".")
        if hasattr(getattr(cfg, block) if block else cfg, last):
            cfg.override({key: value})
    if name == "R2D2Policy":
        cfg.override(_LSTM)
    takes_box = _takes_box(cls) or "mixture" in case
    policy = cls(cfg.override({"seed": 3, **CASES[case], **(settings or {})}), OBSERVATIONS, BOX if takes_box else DISCRETE)
    for network in networks_of(policy).values():
        if is_double and isinstance(network, torch.nn.Module):
            network.double()
    return policy


def _takes_box(cls):
    return cls.__name__ == "DecisionTransformerPolicy" or issubclass(cls, ding_lite.policy_parts.BoxActionMixin)


def rows_of(policy, step):
    """A batch of one process with all rows, and the dimension along which processes divide it."""
    g = torch.Generator().manual_seed(step)
    count = sum(ROWS)
    is_windows = type(policy).__name__ in ("R2D2Policy", "DecisionTransformerPolicy")
    is_recurrent = bool(getattr(policy, "is_recurrent", False))
    takes_rollouts = type(policy).__name__ == "IMPALAPolicy"
    lead = (LENGTH, count) if takes_rollouts else (count, LENGTH) if is_windows or is_recurrent else (count,)
    noise = lambda *shape: torch.randn(*lead, *shape, generator=g, dtype=torch.float64)  # noqa: E731
    flag = lambda share: torch.rand(*lead, generator=g) < share  # noqa: E731
    is_box = isinstance(policy.action_space, spaces.Box)
    batch = {
        "obs": noise(3),
        "next_obs": noise(3),
        "action": noise(2).clamp(-0.9, 0.9) if is_box else torch.randint(0, 2, lead, generator=g),
        "terminated": flag(0.2),
        "truncated": flag(0.1),
        "log_prob": -noise().abs(),
    }
    # The rows of the ranks have other scales, so that a statistic of the own rows is another one.
    scale = 1 + (torch.arange(count) >= ROWS[0])
    scale = scale if takes_rollouts or len(lead) == 1 else scale.unsqueeze(1)
    batch |= {name: scale * (1 + 2 * noise()) for name in ("reward", "advantage", "value", "return_")}
    batch["obs"] *= scale.unsqueeze(-1)
    if is_windows or is_recurrent or takes_rollouts:
        batch["valid"] = flag(0.7)
        batch["valid"][..., 0] = True
    if takes_rollouts:  # a row that is not a step follows the end of an episode, and precedes a start
        batch["terminated"] |= ~batch["valid"]
        batch["terminated"][:-1] |= ~batch["valid"][1:]
    if is_windows:
        batch |= {"timestep": torch.arange(LENGTH).expand(lead), "return_to_go": noise()}
    else:
        batch["discount"] = 0.9 * torch.ones(lead, dtype=torch.float64)
    if is_recurrent or type(policy).__name__ == "R2D2Policy":
        shape = (1, count, H) if takes_rollouts else (count, H)
        batch |= {f"state_in_{k}": torch.randn(*shape, generator=g, dtype=torch.float64) for k in range(2)}
    if not (is_recurrent or takes_rollouts):
        batch["weight"] = 0.1 + torch.rand(count, generator=g, dtype=torch.float64)
    return batch, int(takes_rollouts)


@contextmanager
def constant_noise():
    """All random numbers of a loss are the same, so that they do not depend on how many rows a process has."""

    def like(value):
        def constant(*shape, generator=None, **kwargs):
            shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
            return torch.full(tuple(shape), value, **kwargs)

        return constant

    with mock.patch.object(torch, "rand", like(0.37)), mock.patch.object(torch, "randn", like(0.3)):
        yield


def learned(case, rank=None):
    """The networks after some gradient steps, and the scalars of the last one; of one process if `rank` is None."""
    policy, stats = made(case), {}
    for step in range(STEPS):
        batch, dim = rows_of(policy, step)
        if rank is not None:
            begin = rank * ROWS[0]
            batch = {name: column.narrow(dim, begin, ROWS[rank]) for name, column in batch.items()}
        batch = tree(batch)
        with constant_noise():
            stats = policy.gradient_step(policy.postprocess(batch))
        policy.after_learning(batch)
    networks = {name: it.state_dict() for name, it in networks_of(policy).items() if isinstance(it, torch.nn.Module)}
    weights = {f"{name}.{key}": tensor.clone() for name, state in networks.items() for key, tensor in state.items()}
    return weights, {name: float(value) for name, value in stats.items() if torch.as_tensor(value).ndim == 0}
