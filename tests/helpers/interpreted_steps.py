"""Compiled gradient steps without the compiler: torch runs the operations of each program one by one."""

import contextlib
import warnings
from unittest import mock

import torch
from gymnasium import spaces

from ding_lite.compiling import compiled_steps
from ding_lite.compiling.programs import graph_of
from ding_lite.data import tree
from ding_lite.policy import DQNPolicy

OBSERVATIONS, ACTIONS = spaces.Box(-1.0, 1.0, (5,)), spaces.Discrete(3)
SMALL = {"model.encoder_hidden_size_list": [], "seed": 0, "learn.target_update_freq": 3}
"""Without hidden layers, because each operation is traced; the tests of all policies have some."""
GRAPHS = {}


class Interpreted:
    """A program that is run operation by operation, in the place of a package and of its compilation."""

    def __init__(self, program):
        if program.key not in GRAPHS:  # as in the cache of packages, programs with the same key are the same
            GRAPHS[program.key] = graph_of(program)
        self._graph = GRAPHS[program.key]

    def package(self):
        return self

    def run(self, inputs):
        with torch.no_grad():
            return self._graph(*inputs)


def _none(program):
    """No package is kept."""


@contextlib.contextmanager
def interpreting():
    """A block in which no compiler is needed."""
    with (
        mock.patch.object(compiled_steps, "load_package", _none),
        mock.patch.object(compiled_steps, "Compilation", Interpreted),
    ):
        yield


def made(kind=DQNPolicy, compiles="on", **settings):
    return kind(kind.config_type().override({**SMALL, "learn.compile": compiles, **settings}), OBSERVATIONS, ACTIONS)


def batch_of(step=0, rows=12, dtype=torch.float32, **columns):
    g = torch.Generator().manual_seed(step)
    found = {
        "obs": torch.randn(rows, 5, generator=g),
        "next_obs": torch.randn(rows, 5, generator=g),
        "action": torch.randint(3, (rows,), generator=g),
        "reward": torch.randn(rows, generator=g),
        "terminated": torch.rand(rows, generator=g) < 0.3,
        **columns,
    }
    return tree(found)


def learn(policy, steps=4, first=0, rows=lambda step: 12):
    """Take gradient steps. Returns the statistics of the last one, as numbers or lists."""
    found = {}
    for step in range(first, first + steps):
        policy.num_steps = {}
        found = policy.gradient_step(batch_of(step, rows(step)))
    return {name: torch.as_tensor(value).tolist() for name, value in found.items()}


def pair(change, kind=DQNPolicy, steps=6, rows=lambda step: 12, **settings):
    """A policy with compiled steps and one without, after some steps; `change(policy, step)` is called before each."""
    found = []
    with interpreting():
        for mode in ("on", "off"):
            policy = made(kind, mode, **settings)
            for step in range(steps):
                change(policy, step)
                learn(policy, 1, step, rows)
            found.append(policy)
    return found


def forms(policy):
    return len(policy.compiled_steps._forms)


def weights_of(policy):
    return torch.cat([tensor.detach().double().flatten() for tensor in (*policy.model.parameters(), *policy.model.buffers())])


def state_of(policy):
    """Weights, moments and random generators, to compare bit for bit."""
    state = policy.state_dict()
    return {name: state[name] for name in ("model", "optimizer", "target_model", "learn", "train_iter", "version")}


def same(one, other):
    """Bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def compiled(policy):
    """The compiled steps that a policy has taken."""
    return policy.compiled_steps.taken


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def assert_close(one, other):
    assert torch.allclose(weights_of(one), weights_of(other), rtol=1e-5, atol=1e-6), (
        (weights_of(one) - weights_of(other)).abs().max()
    )
