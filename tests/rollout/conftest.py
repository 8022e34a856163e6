"""Policies and environments whose rollouts tell every difference, and what is done with them."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, Policy, PolicyConfig, PPOPolicy, PPOPolicyConfig

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FAULTS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(60),
    "raise": lambda: int("no number"),
}


class Drifting(gymnasium.Env):
    """Drifts by its seed and by what it is pushed; a fault strikes once, in the environment and step that a file names.

    Args:
        faults: the file that lists faults, which is emptied before one strikes; None for none.
        discrete: whether its actions are.
    """

    def __init__(self, discrete: bool, faults: Path | None = None) -> None:
        self.observation_space = spaces.Dict(at=spaces.Box(-99, 99, (3,), np.float32), lamp=spaces.Discrete(4))
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        self.faults, self.steps = faults, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.normal(size=3), 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        self._strike()
        self.at = 0.9 * self.at + self.np_random.normal(size=3) + np.mean(action)
        ends = self.np_random.random() < 0.15
        return self._observe(), float(self.at[0]), bool(ends), self.t == 9, {"path": np.full(900, self.at[1])}

    def _observe(self) -> dict[str, Any]:
        return {"at": self.at.astype(np.float32), "lamp": self.t % 4}

    def _strike(self) -> None:
        if self.faults is not None and self.t == 4 and (fault := self.faults.read_text()):
            self.faults.write_text("")
            FAULTS[fault]()


class Recurrent(Policy):
    """Remembers in a GRU, in words and in objects, listens to the step before, acts by chance, and tells all of it."""

    def make_model(self):
        return torch.nn.ModuleDict({"gru": torch.nn.GRUCell(3, 40), "head": torch.nn.Linear(40, 3)})

    def get_initial_state(self):
        return [torch.zeros(40), "", {"seen": [0]}]

    def compute_actions(
        self, obs, state=None, *, prev_action_batch=None, prev_reward_batch=None, explore=True, temperature=1.0, **kwargs
    ):
        before = torch.as_tensor(prev_reward_batch).tanh() + torch.as_tensor(prev_action_batch)
        h = self.model["gru"](obs["at"], state[0]) + 0.1 * before[:, None]
        logit = self.model["head"](h) / temperature
        if explore:
            logit = logit - torch.rand(logit.shape, generator=self.generator).clamp_min(1e-9).log().neg().log()
        action = logit.argmax(-1)
        words = [f"{word}{one}" for word, one in zip(state[1], action.tolist())]
        things = [{"seen": [*thing["seen"], len(word)]} for thing, word in zip(state[2], words)]
        return action, [h, words, things], {"logit": logit, "word": [word[-3:] for word in words], "thing": things}


class Note:
    """What `Noting` remembers: an object of a class of its own, with an array and a set in it."""

    def __init__(self, trail: np.ndarray, seen: frozenset[int] = frozenset()) -> None:
        self.trail, self.seen = trail, seen

    def __repr__(self) -> str:
        return f"Note({type(self.trail).__name__} {self.trail.tolist()}, {sorted(self.seen)})"


class Noting(Recurrent):
    """Remembers in objects of its own, by which it acts."""

    def get_initial_state(self):
        return [torch.zeros(40), "", Note(np.zeros(3))]

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, prev_reward_batch=None, **kwargs):
        things = [{"seen": [len(note.seen)]} for note in state[2]]
        before = {"prev_action_batch": prev_action_batch, "prev_reward_batch": prev_reward_batch}
        action, (h, words, _), outputs = super().compute_actions(obs, [*state[:2], things], **before, **kwargs)
        notes = [
            Note(np.append(note.trail[1:], float(one)), note.seen | {len(word)})
            for note, one, word in zip(state[2], action.tolist(), words)
        ]
        assert all(isinstance(note, Note) for note in state[2])
        return action, [h + len(notes[0].seen), words, notes], {**outputs, "kind": [repr(note) for note in state[2]]}


_POLICIES: dict[str, tuple[type[Policy], type[PolicyConfig], bool]] = {
    "dqn": (DQNPolicy, DQNPolicyConfig, True),
    "ppo": (PPOPolicy, PPOPolicyConfig, False),
    "recurrent": (Recurrent, PolicyConfig, True),
    "noting": (Noting, PolicyConfig, True),
}
KWARGS = {"dqn": {"eps": 0.4}, "ppo": {}, "recurrent": {"temperature": 0.5}, "noting": {"temperature": 0.5}}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and workers have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """A kind of policy and the environments for it, which are closed in the end."""

    def __init__(self, kind: str) -> None:
        self.kind, self.kwargs, self._made = kind, KWARGS[kind], []

    def envs(self, workers: int = 1, backend: str = "local", faults: Path | None = None, **settings: Any) -> Any:
        make = partial(Drifting, _POLICIES[self.kind][2], faults)
        self._made.append(make_envs(make, 5, seed=3, workers=workers, backend=backend, **settings))
        return self._made[-1]

    def policy(self, seed: int = 0) -> Policy:
        policy, config, discrete = _POLICIES[self.kind]
        env = Drifting(discrete)
        settings = {} if config is PolicyConfig else {"model.encoder_hidden_size_list": [48, 48]}  # 9 KiB a layer
        return policy(config().override({"seed": seed, **settings}), env.observation_space, env.action_space)

    def change(self, policy: Policy, rollout: Any) -> None:
        """New weights, by learning where the policy is able to."""
        if self.kind == "dqn":
            policy.learn_mode.forward(tree(rollout.trajectories.rows()))
        elif self.kind == "ppo":
            batch = policy.collect_mode.with_values(rollout.trajectories.batch)
            policy.learn_mode.forward(with_leaves(batch, advantage=batch.reward, return_=batch.reward))
        else:
            policy.set_weights({name: 1.3 * tensor for name, tensor in policy.get_weights().items()})

    def close(self) -> None:
        for envs in self._made:
            envs.close()


@pytest.fixture(params=["dqn", "ppo", "recurrent"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each kind of policy in turn."""
    case = Case(request.param)
    yield case
    case.close()


@pytest.fixture
def recurrent_case() -> Iterator[Case]:
    """The recurrent policy alone."""
    case = Case("recurrent")
    yield case
    case.close()


@pytest.fixture
def noting_case() -> Iterator[Case]:
    """The policy whose state no checkpoint holds."""
    case = Case("noting")
    yield case
    case.close()


@pytest.fixture
def dqn_case() -> Iterator[Case]:
    """DQN, where one kind of policy will do."""
    case = Case("dqn")
    yield case
    case.close()


@pytest.fixture(scope="session")
def contents() -> Callable[[Any], Any]:
    """All that a rollout holds."""
    return lambda rollout: (rollout.trajectories.columns, rollout.trajectories.valid, rollout.episodes, rollout.version)
