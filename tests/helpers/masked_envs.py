"""Environments with action masks, which raise an error if an action is taken that the mask does not allow."""

import sys

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # for worker processes


class MaskedEnv(gymnasium.Env):
    """Its mask changes at random in each step; in a terminal state it allows nothing.

    Args:
        nvec: sizes of a MultiDiscrete action; None for Discrete.
        in_info: whether the mask is in the infos instead of the observations.
        is_stuck: whether the mask allows nothing in step 2 of each episode.
    """

    def __init__(self, nvec=None, in_info=False, is_stuck=False, render_mode=None):
        self.action_space = spaces.Discrete(5, start=2) if nvec is None else spaces.MultiDiscrete(nvec, start=[1] * len(nvec))
        self.sizes = [5] if nvec is None else nvec
        self.in_info, self.is_stuck, self.render_mode = in_info, is_stuck, render_mode
        obs = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        parts = {"obs": obs, "action_mask": spaces.MultiBinary(sum(self.sizes))}
        self.observation_space = obs if in_info else spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 9))
        return self._seen()

    def step(self, action):
        parts = np.ravel(action) - np.ravel(self.action_space.start)
        for part, mask in zip(parts, self.masks):
            if not mask[part]:
                raise RuntimeError(f"the action {action!r} was taken, but only {self.masks} is allowed")
        self.t += 1
        ends = self.t == self.length
        obs, info = self._seen(ends and self.length % 2 == 0)
        return obs, float(np.sum(parts)), ends and self.length % 2 == 0, ends and self.length % 2 == 1, info

    def _seen(self, is_terminal=False):
        self.masks = [self.np_random.random(size) < 0.4 for size in self.sizes]
        for mask in self.masks:
            mask[self.np_random.integers(len(mask))] = True
            mask &= not (is_terminal or (self.is_stuck and self.t == 2))
        obs, mask = self.np_random.normal(size=3).astype(np.float32), np.concatenate(self.masks).astype(np.int8)
        return (obs, {"action_mask": mask}) if self.in_info else ({"obs": obs, "action_mask": mask}, {})


gymnasium.register("Masked-v0", MaskedEnv)
gymnasium.register("MaskedInInfo-v0", MaskedEnv, kwargs={"in_info": True})
gymnasium.register("MaskedMulti-v0", MaskedEnv, kwargs={"nvec": [2, 4], "in_info": True})
