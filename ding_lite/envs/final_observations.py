"""The true last observation of each episode, checked; used in `local_vectors.py`, and put into rollouts by `data/rollouts.py`.

- `final_obs` checks and copies one. `LocalVectorEnv._seen` (`local_vectors.py`) and `AgentSlots` (`agent_slots.py`) call it
  before the environment is reset.
- `FinalObservations` finds those of vector environments of gymnasium and other libraries, which may have been reset in the step
  itself. `VectorEnvAdapter` (`vector_adapters.py`) has one.
- `RolloutArrays` (`data/rollouts.py`) puts them into `next_obs`, where the next row is the start of another episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from ding_lite.data import LeafSpec, Spec, flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.bounds import BoxBounds, Where
from ding_lite.envs.env_data_checks import EnvDataError, require_finite, require_in_range, to_element, to_leaf
from ding_lite.envs.spaces import SpaceError, to_nested

FINAL_KEYS = ("final_obs", "final_observation", "final_info")
"""Keys of infos with the end of an episode: its last observation, in two versions of gymnasium, and its last info."""


def final_obs(obs: Any, index: int, space: gymnasium.Space[Any], spec: Spec, bounds: Any = None, what: str = "obs") -> Any:
    """The last observation of an episode of environment `index`, nested, checked and copied.

    A copy, because an environment may write its next episode's first observation into the same array.
    """
    if isinstance(spec, LeafSpec):
        fits = type(obs) is np.ndarray and obs.shape == spec.shape and obs.dtype == spec.dtype
        leaf = (obs if fits else to_leaf(obs, spec, f"environment {index}, {what}", index)).copy()
        require_finite(leaf[None], what, first=index)
        require_in_range(leaf[None], bounds, what, first=index)
        return leaf
    checked = to_element(space, obs, spec, f"environment {index}, {what}", index)
    copied = map_leaves(lambda leaf: np.array(leaf)[None], checked)
    require_finite(copied, what, first=index)
    require_in_range(copied, bounds, what, first=index)
    return map_leaves(lambda leaf: leaf[0, ...], copied)


class FinalObservations:
    """Finds the final observations of a vector environment in its autoreset mode; see `VectorEnvAdapter`.

    Args:
        env: the vector environment.
        mode: its autoreset mode.
        spec, bounds, boxes: layout, integer bounds and Box bounds of its observations.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], mode: AutoresetMode, spec: Spec, bounds: Any, boxes: BoxBounds) -> None:
        self._env, self._mode, self._space = env, mode, env.single_observation_space
        self._spec, self._bounds, self._boxes = spec, bounds, boxes
        self._lent: list[tuple[Any, Any]] = []  # arrays that the environment might still write into, and copies of them

    def of(self, indices: list[int], infos: Any, out: Any, before: Any, where: Where) -> dict[int, Any]:
        """The final observations of the last step, nested; none if the rows of `out` hold them until the next step.

        Args:
            indices: environments whose episode ended.
            infos: infos of the step.
            out: the observations that the step returned, nested arrays [B, ...].
            before: the observations before the step.
            where: place of an environment's observation, for warnings.

        Raises:
            EnvDataError: one is missing or invalid, or the environment resets itself in another way than its mode says.
        """
        if self._mode is not AutoresetMode.SAME_STEP:
            self._refuse_reset_in_same_step(indices, infos, out)
            if self._mode is AutoresetMode.NEXT_STEP:
                return {}
            return {index: map_leaves(lambda column, row=index: np.copy(column[row]), out) for index in indices}
        found = infos.get("final_obs", infos.get("final_observation"))
        if found is None:
            raise EnvDataError(
                f"{self._env} has autoreset mode SAME_STEP, but its infos have no 'final_obs' in the step that ends an "
                "episode: add it, or set another autoreset_mode in its metadata."
            )
        finals = {}
        for index in indices:
            finals[index] = final_obs(found[index], index, self._space, self._spec, self._bounds, "final obs")
            self._boxes.check_row(index, finals[index], where)
            lent = to_nested(self._space, found[index])
            if self._may_be_overwritten(index, lent):
                self._refuse_overwritten(index, finals[index], out, before)
                self._lent.append((lent, map_leaves(np.array, lent)))
        return finals

    def require_kept(self) -> None:
        """Raise EnvDataError if the environment has written into its last final observations in the step after them."""
        for lent, copy in self._lent:
            if any(not np.array_equal(one, dict(flatten(copy))[path]) for path, one in flatten(lent)):  # of the same dtype
                raise EnvDataError(self._overwritten("an environment"))
        self._lent.clear()

    def _refuse_reset_in_same_step(self, indices: list[int], infos: dict[str, Any], out: Any) -> None:
        """Raise an error if the infos hold another final observation than the step returned: then it returned one of a reset.

        Without it, the first step of each episode would be left out, or each episode would be reset twice, and the last step
        would have a wrong next observation. An environment may well give the observation that it returned there.
        """
        key = next((name for name in FINAL_KEYS[:2] if isinstance(infos, dict) and infos.get(name) is not None), None)
        if key is None:
            return
        found, mask = infos[key], infos.get(f"_{key}")
        for index in indices:
            if mask is not None and not mask[index]:
                continue
            try:
                final = found[index]
                if final is None:
                    continue
                leaves = flatten(to_nested(self._space, final))
                is_returned = all(np.array_equal(leaf, dict(flatten(out))[path][index]) for path, leaf in leaves)
            except (SpaceError, KeyError, IndexError, TypeError):  # no such observation at all
                is_returned = False
            if not is_returned:
                raise EnvDataError(
                    f"environment {index} of {self._env} has autoreset mode {self._mode.name}, but in the step that ends its "
                    f"episode, the infos have {key!r}, which is not the observation that the step returned. So it was reset in "
                    "the same step: set env.metadata['autoreset_mode'] = AutoresetMode.SAME_STEP.",
                    index,
                )

    def _may_be_overwritten(self, index: int, lent: Any) -> bool:
        """Whether the reset in the last step may have written into the arrays of the final observation.

        A SyncVectorEnv still has the observations as its environments returned them, so that this is known. In others, such as
        those with workers, only the values can be compared.
        """
        returned = getattr(self._env, "_env_obs", None) if type(self._env) is SyncVectorEnv else None
        if not isinstance(returned, list):
            return True
        began = dict(flatten(to_nested(self._space, returned[index])))
        return any(_share_memory(leaf, began[path]) for path, leaf in flatten(lent))

    def _refuse_overwritten(self, index: int, final: Any, out: Any, before: Any) -> None:
        """Raise an error if the environment writes every observation into the same arrays, which overwrites the final one.

        Then all arrays of the final observation are those of the first observation of the next episode. One that differs shows
        that it is not so; a part that is equal may be the same in both. Of an environment that overwrites only some parts,
        `require_kept` finds this in the next step, if the arrays were not copied by then. Numbers without dimensions say
        nothing, because they are not written in place.

        Also raised if an episode really ends in the first observation of the next one, because both look the same, unless
        `_may_be_overwritten` knows better.
        """
        began, earlier = dict(flatten(out)), dict(flatten(before))
        arrays = [(path, leaf) for path, leaf in flatten(final) if leaf.ndim and leaf.size]
        are_as_reset = all(np.array_equal(leaf, began[path][index]) for path, leaf in arrays)
        if are_as_reset and any(not np.array_equal(leaf, earlier[path][index]) for path, leaf in arrays):
            raise EnvDataError(self._overwritten(f"environment {index}"), index)

    def _overwritten(self, who: str) -> str:
        return (
            f"{who} of {self._env} seems to end in the first observation of its next episode: it writes all observations into "
            "one array, which overwrites the final one. Return a new array each step, take another autoreset_mode, or use "
            "make_envs()."
        )


def _share_memory(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return one is other and isinstance(one, (list, bytearray))  # numbers are not written in place
