"""Environments of this process, stepped in a plain loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import add_note, arrays, base_state, plain, seed_of
from ding_lite.basics.comparisons import same_values
from ding_lite.data import allocate
from ding_lite.data.trees import map_leaves
from ding_lite.envs.action_masks import ACTION_MASK
from ding_lite.envs.batched_steps import BatchedSteps, Vectorization
from ding_lite.envs.bounds import BoxBounds
from ding_lite.envs.carried_state import warn_of_carried
from ding_lite.envs.changes import Change, EnvChanges
from ding_lite.envs.env_data_checks import EnvDataError, require_in_range, shown
from ding_lite.envs.episode_starts import EpisodeResult, EpisodeStarts, described
from ding_lite.envs.error_locations import EnvLocation, ErrorLocation, with_location
from ding_lite.envs.factories import EnvFactory, close_all, made_alike, made_by
from ding_lite.envs.final_observations import final_obs
from ding_lite.envs.info_columns import InfoColumns
from ding_lite.envs.infos import info_of_step, own_info
from ding_lite.envs.recipes import recipe_of
from ding_lite.envs.reproducibility_checks import require_same_obs, require_same_return, sum_of, warn_of_other_envs
from ding_lite.envs.results import Results, checked, write_obs
from ding_lite.envs.saved_states import ENV_KEYS, only_piece_of, require_action, require_env_state
from ding_lite.envs.spaces import integer_bounds, is_scalar, splitter, to_gymnasium
from ding_lite.envs.step_interfaces import RunningEpisode, Step
from ding_lite.envs.vector_bases import SameStepVectorEnv, Traits


class LocalVectorEnv(SameStepVectorEnv):
    """B environments of this process as one vector environment. Each is reset in the step that ends its episode.

    It is nearly twice as fast as gymnasium's SyncVectorEnv, and checks every observation, reward and flag. Observations outside
    the bounds of a Box are used unchanged; the first one causes a warning.

    Each episode has its own seed, derived from (seed, index of the environment, number of the episode).

    Args:
        factories: one per environment, each returning a new one.
        seed: random seed of the run.
        first_env: index of the first environment, if this is one of several pieces.
        info_columns: keys of infos whose values a collector records.
        vectorization: "none" for a plain loop, "auto" to step environments of classic control all at once; see `make_envs`.

    Raises:
        SpaceError: the environments have different spaces, or a space has no fixed layout.
        ValueError: the value of `vectorization` is unknown.
    """

    restarts_with = "reset"
    """The method with which its environments begin anew, before a replay of what follows restores them: what it sets is not to
    be saved."""

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seed: int = 0,
        first_env: int = 0,
        info_columns: Sequence[str] = (),
        vectorization: Vectorization = "none",
    ) -> None:
        if not factories:
            raise ValueError("a vector environment needs at least one environment, got no factories.")
        self.first_env = first_env
        self._factories = list(factories)
        self.info_columns = tuple(info_columns)
        self._info_columns = InfoColumns(self.info_columns, first_env)
        self._step_infos: tuple[Any, ...] = ()
        self._envs = made_alike(factories, first_env)
        first = self._envs[0]
        self.traits = Traits.of(first)
        """The attributes that all of its environments share."""
        self._describe(len(self._envs), self.traits)
        self._batch = BatchedSteps(self._envs, vectorization, self.env_name)
        self._obs_bounds = integer_bounds(first.observation_space)
        self._boxes = BoxBounds([env.observation_space for env in self._envs])
        self._split = splitter(first.action_space)
        self._actions_are_values = is_scalar(first.action_space)
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._paused_steps: dict[int, Callable[[Any], Any]] = {}  # step functions of paused environments
        self._has_begun = False
        self._dirty: set[int] = set()  # environments that were changed since they were made, which no replay can begin with
        self.starts: list[EpisodeStarts] = []
        self._carried_reported: set[str] = set()
        self._seed(seed)
        self.action_space.seed(seed)

    @property
    def factory(self) -> EnvFactory:
        """Makes another one of its environments."""
        return self._factories[0]

    @property
    def recipe(self) -> dict[str, Any] | str:
        """How one of its environments is made, as plain data; or a text that says why another program cannot make it."""
        return recipe_of(self._factories[0])

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments. From then on, a plain loop steps them, because a script may change them at any time; `call`,
        `get_attr` and `set_attr` do not have this cost."""
        if self._batch.is_used:
            self._batch.stop("`envs` was read, by which the script may change them at any time")
        return self._envs

    @property
    def is_vectorized(self) -> bool:
        """Whether all environments are stepped at once, as arrays; see `vectorization` of `make_envs`."""
        return self._batch.is_used

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        earlier = [start.changes for start in self.starts]
        self.starts = [
            EpisodeStarts(env, seed, self.first_env + index, earlier[index] if earlier else None)
            for index, env in enumerate(self._envs)
        ]
        self._remember = [start.actions.append for start in self.starts]
        self._returns = np.zeros(self.num_envs)
        self._clock = 0
        self._begun_at = [0] * self.num_envs
        self._no = np.zeros(self.num_envs, np.bool_)
        self._no.flags.writeable = False
        self._flags_checked = False
        self._is_paused: np.ndarray[Any, Any] | None = None
        self.current: Any = None
        self.restarted: np.ndarray[Any, Any] | None = None
        self.last: tuple[Any, np.ndarray[Any, Any]] | None = None
        self.stepped_by: Any = None
        self.acted_by: Any = None
        self._info: tuple[dict[str, Any], ...] = ()

    # The interface for rollouts.

    def begin(self, out: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...].

        Args:
            seed: start as if newly created with this seed; None starts each environment's next episode.
            options: options of each `env.reset`.
        """
        self.resume()
        self._batch.release()
        if seed is not None:
            self._seed(seed_of(seed, "reset(seed={})"))
            self.action_space.seed(self.run_seed)
        for start, earned in zip(self.starts, self._returns.tolist()):
            start.earned = earned
        self._returns[:] = 0
        self._begun_at = [self._clock] * self.num_envs
        obs, self._info = zip(*[self._begin(index, options) for index in range(self.num_envs)])
        self._warn_of_unused_masks()
        try:
            self._write(obs, out)
        except EnvDataError as error:
            raise self._placed(error)  # noqa: B904  the same error
        self.current, self.restarted = out, np.ones(self.num_envs, np.bool_)

    def _warn_of_unused_masks(self) -> None:
        """Warn once if infos have masks of actions that policies do not see."""
        if self._has_begun:
            return
        self._has_begun = True
        space = self.single_observation_space
        if ACTION_MASK in self._info[0] and not (isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces):
            warnings.warn(
                f"the infos of {self.env_name} have an {ACTION_MASK!r}, which policies do not see: "
                "make_envs(..., action_mask=True), or --env.action-mask, adds it to the observations.",
                stacklevel=3,
            )

    def advance(self, action: Any, out: Any) -> Step:
        """Step with nested actions [B, ...], and write the next observations to `out`.

        Raises:
            gymnasium.error.ResetNeeded: `begin` was not called.
            EnvDataError: an observation, reward or flag has the wrong shape, type or range, or is not finite; the message names
                environment, episode, step, action and seed.
            RuntimeError: an environment called `sys.exit`.
            Exception: the error of an environment, with a note that names the environment, its step and its action.
        """
        if self.current is None:
            raise gymnasium.error.ResetNeeded("step() before reset(): call reset() first.")
        action = np.asarray(action) if isinstance(action, (list, tuple)) else action
        with self._batch.lock:
            results = self._play(action)
            self._clock += 1
            try:
                return self._seen(results, out)
            except EnvDataError as error:
                raise self._placed(error)  # noqa: B904  the same error

    def _seen(self, results: list[Any] | Results, out: Any) -> Step:
        """The checked results of a step; environments whose episode ended start the next one."""
        if not isinstance(results, Results):
            results = checked(results, self.first_env, not self._flags_checked)
            self._flags_checked = True
        obs, reward, terminated, truncated, self._info = results
        self._step_infos = self._info
        self._returns += reward
        self.restarted, self.last, self.stepped_by = self._is_paused, None, None
        if terminated is None or truncated is None:
            self._write(obs, out)
            self.current = out  # not earlier: after an error, `out` may hold memory that nobody wrote
            return Step(reward, self._no, self._no, {}, None, [])
        truncated = truncated > terminated  # if both are set, termination counts
        ended = terminated | truncated
        self.restarted = ended if self._is_paused is None else ended | self._is_paused
        is_array = isinstance(obs, np.ndarray)
        are_usual = is_array and self._boxes.hold(obs)
        current: Any = obs if is_array else list(obs)
        indices = ended.nonzero()[0].tolist()
        self._keep_last(indices)
        infos = list(self._info)
        finals: dict[int, Any] = {}
        finished: list[EpisodeResult] = []
        self._batch.ends(indices)
        for index in indices:
            finals[index] = obs[index].copy() if are_usual else self._final(index, obs[index])
            finished.append(self._finish(index))
            current[index], infos[index] = self._begin(index)
        self._batch.begun(indices)
        self._info = tuple(infos)
        self._write(current, out)
        self.current = out
        return Step(reward, terminated, truncated, finals, None, finished)

    def _keep_last(self, indices: Sequence[int]) -> None:
        """Copy the infos of the last step of these environments, because a reset may change them in place."""
        infos, of_step = list(self._info), list(self._info)
        for index in indices:
            last = infos[index]
            infos[index] = of_step[index] = own_info(last)
            if info_of_step(last) is not last:
                of_step[index] = own_info(info_of_step(last))
        self._info, self._step_infos = tuple(infos), tuple(of_step)

    def _final(self, index: int, obs: Any) -> Any:
        """The checked final observation of an episode, nested."""
        final = final_obs(obs, self.first_env + index, self.single_observation_space, self._obs_spec, self._obs_bounds)
        self._boxes.check_row(index, final, self._where)
        return final

    def expect_columns(self, layout: Mapping[str, Any]) -> None:
        """Check columns of infos from now on as if these shapes and dtypes were found in earlier steps.

        Args:
            layout: see `InfoColumns.layout`.
        """
        self.info_columns, self._info_columns = tuple(layout), InfoColumns.from_layout(layout, self.first_env)

    def step_info(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns [B, ...] of `info_columns` in the infos of the last step.

        Raises:
            EnvDataError: a value is missing, or does not fit its column.
        """
        try:
            columns = self._info_columns.gather(self._step_infos, self._paused_steps)
        except EnvDataError as error:
            raise self._placed(error, of_step=True)  # noqa: B904  the same error
        if self.starts[0].number > 0:
            self._info_columns.warn_of_missing(self.env_name)
        return columns

    @property
    def running_episodes(self) -> list[RunningEpisode]:
        """The current episode of each environment."""
        rows = zip(self.starts, self._begun_at, self._returns.tolist())
        return [RunningEpisode(start.index, start.number, self._clock - begun, total) for start, begun, total in rows]

    def pause(self, indices: Iterable[int]) -> None:
        """Pause these environments, which must be at the start of an episode. `advance` skips them until `resume` or `begin`.

        Their observations do not change, their rewards are 0, and `restarted` stays true.
        """
        self._batch.release()
        for index in indices:
            row = map_leaves(lambda leaf, at=index: np.copy(leaf[at]), self.current)
            info = self._info[index] if self._info else {}  # none right after loading a saved state
            at_rest = to_gymnasium(self.single_observation_space, row), 0.0, False, False, info
            self._paused_steps.setdefault(index, self._steps[index])
            self._steps[index] = lambda action, result=at_rest: result  # type: ignore[misc]
            self._remember[index] = lambda action: None
        self._is_paused = np.isin(np.arange(self.num_envs), list(self._paused_steps)) if self._paused_steps else None

    def resume(self) -> None:
        """End `pause`."""
        for index, step in self._paused_steps.items():
            self._steps[index], self._remember[index] = step, self.starts[index].actions.append
            self._begun_at[index] = self._clock
        self._paused_steps, self._is_paused = {}, None

    def _begin(self, index: int, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        start = self.starts[index]
        try:
            result = start.begin(options)
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            raise with_location(error, self._in_episode(index))  # noqa: B904  mostly it is the same error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise EnvDataError(
                f"environment {start.index} returned {shown(result, 80)} from reset(), expected (obs, info).",
                start.index,
            )
        return result

    def _who(self, index: int) -> str:
        return f"environment {self.first_env + index} ({self._envs[index]})"

    def _in_episode(self, index: int) -> ErrorLocation:
        """The place of the reset of its current episode."""
        start = self.starts[index]
        recipe = recipe_of(self._factories[index])
        known = EnvLocation(
            *(start.index, self.env_name, start.number),
            start=start.start,
            actions=start.all_actions,
            run_seed=self.run_seed,
            recipe=recipe,
            changes=start.changes.state_dict() if start.changes else None,
        )
        return ErrorLocation(self._who(index), start.described, known=known)

    def _placed(self, error: EnvDataError, of_step: bool = False) -> BaseException:
        """The error with the place of its environment: its last step or reset; `of_step`: its last step."""
        if error.env is None:
            return error
        index = error.env - self.first_env
        place, played = self._place_of(index), self.starts[index].previous if of_step else None
        if played is not None:  # the step ended its episode
            number, start, actions = played["number"], played["start"], tuple(played["actions"])
            known: Any = place.known
            known = replace(known, episode=number, start=start, actions=actions, changes=played.get("changes"))
            place = place._replace(episode=described(number, start), step=len(actions) - 1, action=actions[-1], known=known)
        if of_step:
            wanted: Any = place.known
            place = place._replace(known=replace(wanted, info_columns=self._info_columns.layout))
        return with_location(error, place)

    def _where(self, index: int) -> tuple[str, str]:
        return self._who(index), self._place_of(index).sentence

    def _place_of(self, index: int) -> ErrorLocation:
        """The place of its last step, which `_clock` already includes, or of the reset."""
        start = self.starts[index]
        step = self._clock - self._begun_at[index] - 1
        place = self._in_episode(index)
        return place._replace(step=step, action=start.actions[-1]) if start.actions else place

    def _play(self, action: Any) -> list[Any] | Results:
        if self._is_paused is None and (batch := self._batch.step(self._envs, action)) is not None:
            for remember, one in zip(self._remember, self._split(np.copy(action))):
                remember(one)
            return batch
        actions = self._split(action if self._actions_are_values else map_leaves(np.copy, action))
        # Copies, because the environment or the caller may change the array.
        kept = actions if self._actions_are_values else self._split(map_leaves(np.copy, action))
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, one for each environment, got {len(actions)}.")
        results: list[Any] = []
        append = results.append
        try:
            for step, remember, one, remembered in zip(self._steps, self._remember, actions, kept):
                remember(remembered)
                append(step(one))
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            index = len(results)
            taken = self._clock - self._begun_at[index]
            place = self._in_episode(index)._replace(step=taken, action=kept[index])
            raise with_location(error, place)  # noqa: B904  mostly it is the same error
        return results

    def _finish(self, index: int) -> EpisodeResult:
        start = self.starts[index]
        total, length = float(self._returns[index]), self._clock - self._begun_at[index]
        self._returns[index], self._begun_at[index], start.earned = 0, self._clock, total
        return EpisodeResult(start.index, start.number, total, length, start.start.get("seed"), self._info[index])

    def _write(self, obs: Sequence[Any], out: Any) -> None:
        write_obs(obs, out, self.single_observation_space, self._obs_spec, self.first_env)
        require_in_range(out, self._obs_bounds, "obs", self.first_env)
        self._boxes.check(out, self._where)

    def apply_changes(self, changes: Sequence[Change]) -> tuple[Any, ...]:
        """Apply and record one change per environment. Returns their results."""
        for start, change in zip(self.starts, changes):
            start.require_possible(change)
        results: list[Any] = []
        with self._batch.lock:
            self._batch.release()
            for index, (start, change) in enumerate(zip(self.starts, changes)):
                self._dirty.add(index)
                results.append(start.change(change))
            self._batch.hand_out(results)
        return tuple(results)

    def read_attribute(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        with self._batch.lock:
            self._batch.release()
            values = tuple(start.read(name) for start in self.starts)
            self._batch.hand_out(values)
        return values

    def _renew_changed(self) -> None:
        """Make the environments anew that were changed, before a replay."""
        for index in sorted(self._dirty):
            with suppress(Exception):
                self._envs[index].close()
            self._use(index, made_by(self._factories[index], self.first_env + index))
        self._dirty.clear()

    def _use(self, index: int, env: gymnasium.Env[Any, Any]) -> None:
        """Use this environment from now on."""
        self._envs[index] = env
        steps: Any = self._paused_steps if index in self._paused_steps else self._steps
        steps[index] = env.step
        self.starts[index].use(env)

    def state_dict(self) -> dict[str, Any]:
        """The state of each environment: the start of its episode, the actions since, the episode's statistics, and changes."""
        if self.current is None:
            unbegun: dict[str, Any] = {"run_seed": self.run_seed, "made_as": self.made_as, "current": None}
            if any(start.changes for start in self.starts):
                unbegun["changes"] = [start.changes.state_dict() for start in self.starts]
            return plain(unbegun)  # type: ignore[no-any-return]
        warn_of_carried([start.carried for start in self.starts], self._carried_reported)
        state = {
            "run_seed": self.run_seed,
            "made_as": self.made_as,
            "current": map_leaves(np.copy, self.current),
            "restarted": self.restarted,
            "episodes": [start.state_dict() for start in self.starts],
            "returns": self._returns.copy(),
            "lengths": [len(start.actions) for start in self.starts],
        }
        if self.info_columns:
            state["info_columns"] = self._info_columns.state_dict()
        return plain(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode.

        If a replay fails, the environments are restored to their state before the call, also by replays. If the state is of
        the current episodes, the object that took the last step continues with its recurrent state.

        Raises:
            TypeError, ValueError: not a state of such environments, or their number differs; nothing was changed.
            EnvDataError: a replayed environment returns other observations or rewards: it does not depend on its seed alone.
        """
        whole = base_state(self, state, ENV_KEYS)
        state = only_piece_of(whole)
        require_env_state(state, self.num_envs, self._obs_spec)
        warn_of_other_envs(whole, self.made_as)
        self._batch.release()
        before = {name: copy(value) if isinstance(value, (list, dict)) else value for name, value in vars(self).items()}
        earlier, last, stepped_by = self._episodes(), self.last, self.stepped_by
        try:
            self.resume()
            self._go_to(state)
        except Exception as error:
            envs = self._envs
            vars(self).update(before)
            for index, env in enumerate(envs):
                if env is not self._envs[index]:  # it was made anew
                    self._use(index, env)
            self._come_back(error)
            raise
        if same_values(earlier, self._episodes()):
            self.last, self.stepped_by = last, stepped_by
        self.action_space.seed(self.run_seed)

    def _episodes(self) -> list[Any]:
        """The number, the start and the actions of the current episode of each environment."""
        return [(start.number, start.start, list(start.actions)) for start in self.starts]

    def _go_to(self, state: Mapping[str, Any]) -> None:
        """Replay the saved episodes."""
        self._renew_changed()
        self.starts = []  # their changes do not belong to the state
        self._seed(int(state["run_seed"]))
        if state["current"] is None:
            self._load_changes(arrays(state.get("changes")))
            return
        self._clock = max(state["lengths"])
        self._begun_at = [self._clock - length for length in state["lengths"]]
        current, returns = arrays(state["current"]), np.asarray(arrays(state["returns"]), np.float64)
        self.current = self._replayed(state["episodes"], current, returns)
        self.restarted = arrays(state["restarted"])
        self._returns[:] = returns
        self._info_columns = InfoColumns(self.info_columns, self.first_env)
        self._info_columns.load_state_dict(state.get("info_columns", {}))

    def _load_changes(self, states: Sequence[Mapping[str, Any]] | None) -> None:
        """Apply the changes of environments in which no episode has begun."""
        for index, start in enumerate(self.starts):
            state = None if states is None else states[index]
            if EnvChanges.of(state):
                self._dirty.add(index)
            start.load_changes(state)

    def _come_back(self, refusal: Exception) -> None:
        """Replay the current episodes, after a state was refused."""
        try:
            self._renew_changed()
            if self.current is None:
                self._load_changes([start.changes.state_dict() for start in self.starts])
                return
            states = [{**start.state_dict(), "attributes": None} for start in self.starts]
            self._replayed(states, self.current, self._returns)
        except Exception as error:  # noqa: BLE001  added to the refusal, which is the first error
            self.current = None
            add_note(refusal, f"the environments could not be restored to their earlier state, and will be reset: {error}")

    def _replayed(self, episodes: Sequence[Mapping[str, Any]], current: Any, returns: np.ndarray[Any, Any]) -> Any:
        """Replay these episodes. Returns the observations, which must equal `current`; the returns must equal `returns`."""
        played = [self._restore(index, one) for index, one in enumerate(episodes)]
        found = allocate(self._obs_spec, self.num_envs)
        self._info = tuple(dict(start.info) for start in self.starts)
        try:
            self._write([obs for obs, _ in played], found)
            require_same_obs(found, current, self.first_env, self._envs)
            for index, ((_, now), then) in enumerate(zip(played, returns.tolist())):
                require_same_return(self.first_env + index, now, then, self._envs[index])
        except EnvDataError as error:
            raise self._placed(error)  # noqa: B904  the same error
        return found

    def _restore(self, index: int, state: Mapping[str, Any], played: Callable[[int], None] | None = None) -> tuple[Any, float]:
        """Replay a saved episode. Returns its current observation and its return."""
        start, previous = self.starts[index], state.get("previous")
        if "changes" in state or (previous and "changes" in previous):
            self._dirty.add(index)
        try:
            if previous:
                _, rewards = start.load_state_dict(arrays(previous), played)
                require_same_return(start.index, sum_of(rewards, start.index), previous["return"], start.env)
            obs, rewards = start.load_state_dict(arrays(state), played, follows=bool(previous))
            return obs, sum_of(rewards, start.index)
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            place = self._in_episode(index)._replace(is_replay=True)
            if start.replayed is not None and start.replayed < len(start.actions):
                action = start.actions[start.replayed]
                place = place._replace(step=start.replayed, action=action)
                require_action(f"episodes[{index}]['actions'][{start.replayed}]", action, start.env.action_space, error)
            raise with_location(error, place)  # noqa: B904  mostly it is the same error

    def render(self) -> tuple[Any, ...]:
        """The frame of each environment."""
        with self._batch.lock:
            self._batch.release()
            return tuple(env.render() for env in self._envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close each environment, also after an error of another one."""
        self._batch.release()
        close_all(self._envs)
