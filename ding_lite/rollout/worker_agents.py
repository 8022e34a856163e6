"""Multi-agent rollouts of workers: one worker per piece of the environments, with copies of all policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ding_lite.data import Trajectories
from ding_lite.data.column_arrays import concatenate_flags
from ding_lite.envs.agent_bases import MultiAgentVectorBase
from ding_lite.envs.pieces import ENV
from ding_lite.envs.worker_agent_envs import SplitMultiAgentVectorEnv
from ding_lite.policy import ActMode
from ding_lite.processes import Copied
from ding_lite.rollout.multi_agent import MultiAgentRollout, MultiAgentWorker, actors_for
from ding_lite.rollout.piece_workers import PieceWorkers, episodes_of, rows_of
from ding_lite.rollout.worker_rollouts import joined


def make_multi_agent_worker(
    env: MultiAgentVectorBase, policies: Mapping[str, ActMode], policy_of: Callable[[Any], str] | Mapping[Any, str]
) -> MultiAgentWorker | SplitMultiAgentWorker:
    """A worker for these multi-agent environments: one per piece if they are split, else one in this process.

    Raises:
        TypeError, ValueError, SpaceError: as for MultiAgentWorker.
    """
    if isinstance(env, SplitMultiAgentVectorEnv):
        return SplitMultiAgentWorker(env, policies, policy_of)
    return MultiAgentWorker(env, policies, policy_of)


class SplitMultiAgentWorker(PieceWorkers):
    """Acts in all pieces of the environments at the same time, with copies of all policies in each; see `PieceWorkers`.

    Args:
        env: environments in pieces.
        policies: the acting mode of each policy, by name; copies act on the CPU.
        policy_of: function or mapping from an agent to the name of its policy.

    Raises:
        TypeError, ValueError, SpaceError: as for MultiAgentWorker.
    """

    def __init__(
        self,
        env: SplitMultiAgentVectorEnv,
        policies: Mapping[str, ActMode],
        policy_of: Callable[[Any], str] | Mapping[Any, str],
    ) -> None:
        actors = actors_for(env, policies, policy_of)
        self.env = env
        self._limits = {name: one.limits for name, one in actors.items()}
        name_of = {agent: name for name, one in actors.items() for agent in one.slots.agents}
        super().__init__(env, policies, partial(_made, name_of), MultiAgentWorker.as_plain)

    def collect(self, num_steps: int, **kwargs: Any) -> MultiAgentRollout:
        """Act for `num_steps` steps in every environment.

        Args:
            **kwargs: for `compute_actions` of each policy.
        """
        return self.take(self.ask(num_steps, **kwargs))

    def ask(self, num_steps: int, **kwargs: Any) -> list[Any]:
        """Begin `collect`. Returns the request, for `take` or `drop`; call these in the order of requests."""
        return self._submit(_collect, [(num_steps, kwargs)] * len(self.env.hosts))

    def take(self, asked: list[Any]) -> MultiAgentRollout:
        """Wait for the requested rollout."""
        answers = self._taken(asked)
        parts = [columns for columns, _ in answers]
        trajectories = {
            name: _joined([part[name] for part in parts]).with_limits(limits) for name, limits in self._limits.items()
        }
        episodes = episodes_of([copied.value[0] for _, copied in answers])
        return MultiAgentRollout(trajectories, episodes, sum(copied.value[2] for _, copied in answers))

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights with which each policy acted last, by name."""
        return {name: self._weights_of(name) for name in self._limits}


def _joined(parts: list[tuple[dict[str, Any], Any, Any]]) -> Trajectories:
    """The rollouts of all pieces, joined in new memory."""
    columns = joined([columns for columns, _, _ in parts], axis=1)
    sizes = [columns["reward"].shape[1] for columns, _, _ in parts]
    made = Trajectories(columns, concatenate_flags([valid for _, valid, _ in parts], sizes, missing=True, axis=1))
    made.begins = np.concatenate([begins for _, _, begins in parts])
    return made


# Functions that run in the process of the environments.


class _Piece(MultiAgentWorker):
    """The worker of a piece. Its state is pickled, including objects in recurrent states."""

    def state_dict(self) -> dict[str, Any]:
        return self.raw_state()


def _made(name_of: Mapping[Any, str], objects: dict[str, Any], modes: Mapping[str, ActMode]) -> MultiAgentWorker:
    return _Piece(objects[ENV], modes, name_of)


def _collect(objects: dict[str, Any], worker: MultiAgentWorker, num_steps: int, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    rollout = worker.collect(num_steps, **kwargs)
    columns = {name: (part.columns, part.valid, part.begins) for name, part in rollout.trajectories.items()}
    return columns, Copied((rows_of(rollout.episodes), worker.reduce_metrics(), rollout.env_steps))


SplitAgentWorker = SplitMultiAgentWorker  # its name in earlier versions
make_agent_worker = make_multi_agent_worker  # its name in earlier versions
