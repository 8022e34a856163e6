"""Policies with learners, and a host for learners in this process."""

import torch
from gymnasium import spaces

from ding_lite.basics.global_random import global_random_states, set_global_random_states
from ding_lite.config import DQNConfig
from ding_lite.data import tree
from ding_lite.policy import DQNPolicy
from ding_lite.processes import LocalHost
from ding_lite.processes.pickles import dumps, loads

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)
SMALL = {"model.encoder_hidden_size_list": [8], "learn.batch_size": 8}


class Apart(LocalHost):
    """A host in this process, whose requests and results are pickled. It has its own global random generators and no autocast,
    as in another process."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        self._randoms = global_random_states()

    def submit(self, fn, *args, **kwargs):
        return super().submit(*loads(dumps((fn, *args), by_value=True)))

    def result(self, *args, **kwargs):
        of_script = global_random_states()
        set_global_random_states(self._randoms)
        try:
            with torch.autocast("cpu", enabled=False):
                return loads(dumps(super().result(*args, **kwargs)))
        finally:
            self._randoms = global_random_states()
            set_global_random_states(of_script)


def dqn(learners=1, kind=DQNPolicy, **settings):
    settings = {"learners.num_learners": learners, **SMALL, **settings}
    if not learners:
        settings["learners.restart"] = False
    return kind(DQNConfig().policy.override({"seed": 3, **settings}), OBS, ACTIONS)


def transitions(step=0, rows=8, dtype=torch.float32):
    g = torch.Generator().manual_seed(step)
    return tree(
        {
            "obs": torch.rand(rows, 4, generator=g, dtype=dtype),
            "next_obs": torch.rand(rows, 4, generator=g, dtype=dtype),
            "action": torch.randint(0, 2, (rows,), generator=g),
            "reward": torch.randn(rows, generator=g),
            "terminated": torch.rand(rows, generator=g) < 0.2,
            "truncated": torch.zeros(rows, dtype=torch.bool),
            "discount": torch.full((rows,), 0.9),
            "weight": torch.rand(rows, generator=g) + 0.1,
        }
    )


def learned(policy, steps=range(3)):
    return [policy.learn_mode.forward(transitions(step)) for step in steps]


def state_of(policy):
    """The state, without how it was made, and without the metrics, which know whether they come from another process."""
    return {name: part for name, part in policy.state_dict().items() if name not in ("made_with", "metrics")}


def with_reward(value, rows=8):
    batch = transitions(rows=rows)
    batch.reward[-1] = value
    return batch


class Several(DQNPolicy):
    """A policy that takes several gradient steps, of which a later one may fail."""

    def learn_on_batch(self, batch):
        output = {}
        for _ in range(3):
            output = self.gradient_step(batch)
        if bool((batch.reward == 17).any()):
            raise ZeroDivisionError("a mistake after three steps")
        if bool((batch.reward == 15).any()):
            self.reset_config({"discount_factor": 0.2})
        return output
