"""Collection: the loops in which a policy acts in environments, for a number of steps or for whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.basics import arrays, base_state, plain
from ding_lite.data import Episodes, RolloutArrays, allocate, flatten
from ding_lite.data.column_arrays import available_bytes
from ding_lite.data.episodes import cut_episodes
from ding_lite.data.trees import map_leaves
from ding_lite.envs import INFO, EpisodeResult, LocalVectorEnv, action_masks, stepper
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.envs.saved_states import only_piece_of
from ding_lite.envs.spaces import column_limits, space_spec
from ding_lite.envs.step_interfaces import Step
from ding_lite.envs.vector_adapters import VectorEnvAdapter
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode, EvalMode
from ding_lite.rollout.evaluation import EpisodeBudget, EpisodeUnit, play_episodes
from ding_lite.rollout.final_masks import FinalMasks, last_step
from ding_lite.rollout.random_actions import RandomActions
from ding_lite.rollout.recurrent_states import RecurrentState
from ding_lite.rollout.rollout_results import NO_POLICY, EpisodeRollout, Rollout

WORKER_KEYS = ("memory", "random", "pieces")
"""The keys of the state of a worker, of one in this process or of several."""

_AT_FIRST = 128  # steps of whole episodes allocated at first; doubled when full


class LocalWorker:
    """Acts in environments of this process. Each rollout continues where the previous one ended.

    Args:
        env: any gymnasium vector environment.
        policy: the acting mode.

    Raises:
        SpaceError: the policy was made for other spaces.
        TypeError: not an acting mode, or not a vector environment.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], policy: ActMode) -> None:
        self.require_fit(env, policy)
        self.env, self.policy = stepper(env), policy
        self.num_envs: int = env.num_envs
        self.first_env: int = getattr(env, "first_env", 0)
        """Index of its first environment, if it is one of several workers."""
        self.obs_spec = space_spec(env.single_observation_space)
        self.limits = column_limits(env.single_observation_space, env.single_action_space)
        recurrent_state = RecurrentState(policy, self.env)
        self._recurrent_state = recurrent_state if recurrent_state.is_needed else None
        # Pieces of one seed are not those of another one, and the first piece is like all environments in one.
        seeds = np.random.SeedSequence([policy.seed, self.first_env])
        self._random_actions = RandomActions(env, int(seeds.generate_state(1)[0]) if self.first_env else policy.seed)
        self._times = MetricsLogger(owner="the worker")
        self._masks = action_masks(env.single_observation_space, env.single_action_space)
        self._final_masks = FinalMasks.of(self._masks, policy)
        self._infos: Any = self.env if getattr(self.env, "info_columns", ()) else None
        """The environments, if columns of their infos are recorded."""
        if self._infos is not None and INFO in getattr(policy, "outputs", ()):
            raise ValueError(
                f"the policy returns the extra output {INFO!r}, and the environments record columns of infos under this name: "
                "give the output another name."
            )

    @staticmethod
    def require_fit(env: VectorEnv[Any, Any, Any], policy: ActMode) -> None:
        """Raise an error if this is not an acting mode, or the environments have other spaces than the policy.

        Raises:
            TypeError: not an acting mode, or not a vector environment.
            SpaceError: the spaces differ.
        """
        if not hasattr(policy, "require_spaces"):
            raise TypeError(
                f"a {type(policy).__name__} is not an acting mode: pass policy.collect_mode to a collector, policy.eval_mode "
                "to an evaluator."
            )
        stepper(env)
        policy.require_spaces(env.single_observation_space, env.single_action_space)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment. The first rollout calls it if no episode has begun.

        Args:
            seed: random seed of the environments. None continues with the current one; environments of other libraries that
                were not seeded get a seed derived from the policy's, different for collection and evaluation.
        """
        if seed is None and isinstance(self.env, VectorEnvAdapter):
            own = self.policy.seed
            seed = self.env.first_seed(episode_seed(own, 0, 0) if isinstance(self.policy, EvalMode) else own)
        self.env.begin(allocate(self.obs_spec, self.num_envs), seed)

    def act(self, obs: Any, random: bool = False, **kwargs: Any) -> dict[str, Any]:
        """The policy's action and extra outputs for these observations [B, ...], arrays by name.

        Args:
            random: sample actions from the action space instead. A policy with extra outputs still computes these;
                log_prob is that of the sampled actions.
            **kwargs: for the policy's `compute_actions`.

        Returns:
            action; for a recurrent policy, `state_in_0`, `state_out_0` and so on, the state before and after; and its
            extra outputs.

        Raises:
            ActionMaskError: the mask of an observation allows no action, or the policy takes one that it does not allow.
        """
        if self._masks is not None:
            self._masks.require_choice(obs, lambda row: f"environment {self.first_env + row}", self.env.idle)
        if random:
            return self._act_at_random(obs, **kwargs)
        if self._recurrent_state is not None:
            return self._recurrent_state.act(obs, **kwargs)
        action, _, outputs = self.policy.forward(obs, **kwargs)
        return {"action": action, **outputs} if outputs else {"action": action}

    def _act_at_random(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        action, recurrent_state = self._random_actions.draw(obs), self._recurrent_state
        if not getattr(self.policy, "outputs", ()):  # the policy has nothing else to compute
            return {"action": action} if recurrent_state is None else recurrent_state.pass_through(action)
        outputs = {**self.act(obs, **kwargs), "action": action}
        if "log_prob" in outputs:
            outputs["log_prob"] = self._random_actions.log_prob(action, obs)
        return outputs

    def step(self, outputs: Mapping[str, Any], out: Any) -> Step:
        """Step with the outputs of `act`, and write the next observations to `out`, nested arrays [B, ...]."""
        action = outputs["action"]
        step = self.env.advance(self.policy.env_action(action), out)
        if self._recurrent_state is not None:
            self._recurrent_state.observe_step(action, step.reward)
        return step

    def _require_final_choice(self, masks: FinalMasks, step: Step, obs: Any) -> None:
        """Raise ActionMaskError if a truncated state allows no action, and the policy's targets need one."""

        def where(row: int) -> str:
            env = self.first_env + row
            return f"environment {env}{last_step(step.finished, env)}"

        masks.require(step.truncated, step.final_obs, obs, where)

    def collect(self, num_steps: int, random: bool = False, **kwargs: Any) -> Rollout:
        """Act for `num_steps` steps in every environment.

        Args:
            random: sample actions from the action space instead of the policy.
            **kwargs: for the policy's `compute_actions`.
        """
        return self._collect(num_steps, partial(self.act, random=random, **kwargs), random)

    def collect_episodes(
        self, count: int | Sequence[int], random: bool = False, unit: EpisodeUnit = "episodes", **kwargs: Any
    ) -> EpisodeRollout:
        """Act for `count` whole episodes, or for whole episodes with at least `count` steps.

        Each environment runs a fixed share of the episodes, or whole episodes until it has a fixed share of the steps; see
        `EpisodeBudget`.

        Environments of `make_envs` are not stepped after their last episode, and start the next rollout with their next
        episode. Other environments continue unrecorded until all have finished, and each call resets them first.

        Args:
            count: total number of episodes or steps, split evenly; or the number for each environment.
            random: sample actions from the action space instead of the policy.
            unit: whether `count` is a number of episodes or of steps.
            **kwargs: for the policy's `compute_actions`.

        Raises:
            TypeError, ValueError: the count is not of integers, is negative, or lacks an environment.
            RuntimeError: an episode does not end within a million steps.
            MemoryError: an episode does not fit into memory.
        """
        budget = EpisodeBudget(count, self.num_envs, self.first_env, unit, self.env)
        if budget.is_used_up:
            return EpisodeRollout(Episodes({}, []), [], 0)
        env = self.env
        pausable = env if isinstance(env, LocalVectorEnv) else None
        if pausable is None or env.current is None or env.restarted is None or not env.restarted.all():
            self.begin()
        if pausable is not None:
            pausable.pause(index for index, more in enumerate(budget.due) if not more)
        try:
            storage, episodes = self._collect_budget(budget, random, kwargs)
        finally:
            if pausable is not None:
                pausable.resume()
        env.current = map_leaves(np.copy, env.current)  # a view would keep the whole storage alive
        version = NO_POLICY if random else self.policy.version
        trajectories = storage.trajectories(policy_version=np.full((storage.num_steps, self.num_envs), version))
        transitions = cut_episodes(trajectories, budget.completed)
        env_steps = len(trajectories) if pausable is None else int(transitions.lengths.sum())
        return EpisodeRollout(transitions, sorted(episodes, key=lambda episode: (episode.env, episode.number)), env_steps)

    def play_episodes(
        self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False, **settings: Any
    ) -> list[EpisodeResult]:
        """Run `count` episodes, or the given number in each environment; see `ding_lite.rollout.play_episodes`."""
        return play_episodes(self, count, is_stopping, **settings)

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """What was logged since the last call, as results of `MetricsLogger.reduce()`.

        These are the metrics of the policy while acting, and the mean seconds per rollout in which the policy acted and in
        which the environments were stepped.
        """
        metrics = getattr(self.policy, "metrics", None)  # a mode of another library may have none
        loggers = [metrics, self._times] if isinstance(metrics, MetricsLogger) else [self._times]
        return [logger.reduce() for logger in loggers]

    def _log_times(self, acting_ns: int, stepping_ns: int) -> None:
        """Log the seconds of a rollout in which the policy acted, and in which the environments were stepped."""
        self._times.log_value(("time", "inference"), acting_ns / 1e9)
        self._times.log_value(("time", "env_step"), stepping_ns / 1e9)

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that acted last."""
        return self.policy.get_weights()

    def raw_state(self) -> dict[str, Any]:
        """The same as `state_dict`, with unchanged objects of a recurrent state."""
        recurrent_state = None if self._recurrent_state is None else self._recurrent_state.raw_state()
        return {"memory": recurrent_state, "random": self._random_actions.state_dict()}

    @staticmethod
    def as_plain(raw_state: Mapping[str, Any]) -> dict[str, Any]:
        """A result of `raw_state` as plain data.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        recurrent_state = None if raw_state["memory"] is None else RecurrentState.as_plain(raw_state["memory"])
        return {"memory": recurrent_state, "random": plain(raw_state["random"])}

    def state_dict(self) -> dict[str, Any]:
        """The recurrent state in each environment, and the generator of random actions; environments have their own state.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        return self.as_plain(self.raw_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, or a result of `raw_state`.

        Raises:
            ValueError: the state has another recurrent state, or another number of environments.
        """
        state = only_piece_of(base_state(self, state, WORKER_KEYS))
        if self._recurrent_state is not None:
            self._recurrent_state.load_state_dict(state["memory"] or {"state": [], "last": None})
        self._random_actions.load_state_dict(arrays(state["random"]))

    def complete_step(self, outputs: dict[str, Any]) -> Rollout:
        """Take one step with the outputs of `act` for the current observations: a rollout of T = 1.

        Another worker may have acted: then the episodes are those of that worker's recurrent state.
        """
        acted_by = self.env.acted_by
        rollout = self._collect(1, lambda obs: outputs)
        if acted_by is not None:
            self.env.stepped_by = acted_by
        return rollout

    def _collect(self, num_steps: int, act: Callable[[Any], dict[str, Any]], random: bool = False) -> Rollout:
        if self.env.current is None:
            self.begin()
        storage = RolloutArrays(num_steps, self.num_envs, self.obs_spec, self.limits)
        obs_at, add, advance, env_action = storage.obs_at, storage.add, self.env.advance, self.policy.env_action
        recurrent_state, infos, final_masks = self._recurrent_state, self._infos, self._final_masks
        storage.begins = first_steps(self.env.restarted, self.num_envs)
        obs = obs_at(0)
        map_leaves(np.copyto, obs, self.env.current)
        episodes: list[EpisodeResult] = []
        clock, acting, stepping = perf_counter_ns, 0, 0
        with torch.inference_mode():
            for t in range(num_steps):
                begun = clock()
                outputs = act(obs)
                obs = obs_at(t + 1)
                acted = clock()
                step = advance(env_action(outputs["action"]), obs)
                reward, terminated, truncated, final_obs, valid, finished = step
                stepped = clock()
                if final_masks is not None:
                    self._require_final_choice(final_masks, step, obs)
                acting, stepping = acting + acted - begun, stepping + stepped - acted
                if recurrent_state is not None:
                    recurrent_state.observe_step(outputs["action"], reward)
                if infos is not None:
                    outputs = {**outputs, INFO: infos.step_info()}
                add(t, outputs, reward, terminated, truncated, final_obs, valid)
                if finished:
                    episodes += finished
        self._log_times(acting, stepping)
        version = NO_POLICY if random else self.policy.version
        trajectories = storage.trajectories(policy_version=np.full((num_steps, self.num_envs), version))
        return Rollout(trajectories, episodes)

    def _collect_budget(
        self, budget: EpisodeBudget, random: bool, kwargs: dict[str, Any]
    ) -> tuple[RolloutArrays, list[EpisodeResult]]:
        """All steps until each environment has completed its episodes, and the results of these episodes."""
        storage = RolloutArrays(_AT_FIRST, self.num_envs, self.obs_spec, self.limits)
        obs = storage.obs_at(0)
        map_leaves(np.copyto, obs, self.env.current)
        episodes: list[EpisodeResult] = []
        pausable = self.env if isinstance(self.env, LocalVectorEnv) else None
        t = acting = stepping = 0
        with torch.inference_mode():
            while not budget.is_used_up:
                if t == storage.num_steps:
                    _grow(storage, budget.unit)
                begun = perf_counter_ns()
                outputs = self.act(obs, random, **kwargs)
                obs = storage.obs_at(t + 1)
                acted = perf_counter_ns()
                step = self.step(outputs, obs)
                acting, stepping = acting + acted - begun, stepping + perf_counter_ns() - acted
                if self._final_masks is not None:
                    self._require_final_choice(self._final_masks, step, obs)
                if self._infos is not None:
                    outputs = {**outputs, INFO: self._infos.step_info()}
                storage.add(t, outputs, *step[:-1])
                t += 1
                counted = budget.count(step.finished, t)
                episodes += counted
                if pausable is not None and counted:
                    ended = (episode.env - self.first_env for episode in counted)
                    pausable.pause(index for index in ended if not budget.due[index])
        storage.resize(t)
        self._log_times(acting, stepping)
        return storage, episodes


def first_steps(restarted: np.ndarray[Any, Any] | None, num_envs: int) -> np.ndarray[Any, Any]:
    """[B] bool: whether an episode begins with the next real step of an environment, from `Stepper.restarted`."""
    return np.zeros(num_envs, np.bool_) if restarted is None else restarted.copy()


def _grow(storage: RolloutArrays, unit: EpisodeUnit) -> None:
    """Double the number of steps, if there is enough memory."""
    columns = {"obs": storage.obs, **storage.outputs}
    needed, available = 2 * sum(leaf.nbytes for _, leaf in flatten(columns)), available_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"whole episodes of more than {storage.num_steps:,} steps in each of {storage.num_envs} environments need "
            f"{needed / 1e9:.1f} GB or more, but only {available / 1e9:.1f} GB are available: lower policy.collect."
            f"{'n_sample' if unit == 'steps' else 'n_episode'}, or set a time limit, such as make_envs(..., "
            "max_episode_steps=1000)."
        )
    storage.resize(2 * storage.num_steps)
