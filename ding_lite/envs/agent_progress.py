"""Agent progress: multi-agent environments that record what they are doing, so that an error can say where a worker died."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ding_lite.basics.blocks import block
from ding_lite.envs.agent_envs import AgentEnv
from ding_lite.envs.agent_slots import AgentStepResult
from ding_lite.envs.multi_agent import AgentEnvFactory, MultiAgentVectorEnv
from ding_lite.envs.progress import NOWHERE, REPLAYS, RESETS, STEPS, ProgressFields, write_action
from ding_lite.envs.spaces import to_nested


class ProgressMultiAgentVectorEnv(MultiAgentVectorEnv):
    """A MultiAgentVectorEnv that records in `progress` which environment it steps, when, and with which actions."""

    def __init__(
        self,
        factories: Sequence[AgentEnvFactory],
        seed: int,
        first_env: int,
        progress: NDArray[np.int64],
        info_columns: Sequence[str] = (),
    ) -> None:
        self._fields = ProgressFields(progress, len(factories))
        super().__init__(factories, seed, first_env, info_columns)
        self._fields.place[:2] = NOWHERE, STEPS

    def _made(self, factory: AgentEnvFactory, index: int, seed: int) -> AgentEnv:
        return _ProgressAgentEnv(factory, index, seed, self._fields, index - self.first_env)


class _ProgressAgentEnv(AgentEnv):
    """An AgentEnv that records its resets, steps and replays.

    Args:
        factory, index, run_seed: as for AgentEnv.
        fields: where it records them.
        position: index among the environments of the piece.
    """

    def __init__(self, factory: Callable[[], Any], index: int, run_seed: int, fields: ProgressFields, position: int) -> None:
        self._fields, self._position = fields, position
        super().__init__(factory, index, run_seed)

    def begin(self) -> Mapping[Any, Any]:
        """Reset the environment for its next episode. Returns observations by agent."""
        with self._recorded(RESETS, self.starts.number + 1):
            return super().begin()

    def play(self, actions: dict[Any, Any], remembered: dict[Any, Any]) -> AgentStepResult:
        """One step with the actions of the current agents."""
        fields, nested = self._fields, {agent: to_nested(self.spaces[agent][1], one) for agent, one in remembered.items()}
        fields.place[2:] = self._length, write_action(nested, fields.actions[self._position])
        with self._recorded(STEPS, self.starts.number):
            return super().play(actions, remembered)

    def restore(self, state: Mapping[str, Any], played: Callable[[int], None] | None = None) -> Mapping[Any, Any]:
        """Replay a saved episode. Returns observations by agent."""

        def seen(step: int) -> None:
            self._fields.place[2] = step

        self._fields.place[2] = 0
        with self._recorded(REPLAYS, state["number"]):
            return super().restore(state, seen)

    @block
    def _recorded(self, what: int, number: int) -> Iterator[None]:
        fields = self._fields
        fields.numbers[self._position] = number
        fields.place[:2] = self._position, what
        try:
            yield
        finally:
            fields.place[:2] = NOWHERE, STEPS
