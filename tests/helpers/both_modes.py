"""The same environments, stepped one by one and all at once."""

import warnings

import gymnasium
import numpy as np
from states import same

from ding_lite.envs import make_envs


class Both:
    """The same environments in both modes, which take every step together."""

    def __init__(self, env, num_envs=5, uses=True, seed=3, **options):
        self.plain, self.batched = (make_envs(env, num_envs, seed, vectorization=v, **options) for v in ("none", "auto"))
        assert (self.plain.is_vectorized, self.batched.is_vectorized) == (False, uses)
        self.filter, self.warnings = "always", []
        self.each, self.generator = (self.plain, self.batched), np.random.default_rng(seed)
        self.agree(lambda envs: [envs.begin(out := envs.new_obs()), out])

    def agree(self, fn):
        """Call a function of the environments. Its results, and its errors and warnings, must be the same."""
        results = []
        for envs in self.each:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(self.filter)
                try:
                    result = fn(envs)
                except Exception as error:  # noqa: BLE001  compared below
                    result = type(error).__name__, str(error), getattr(error, "__notes__", None)
            results.append([result, [str(one.message) for one in caught]])
        assert same(*results), results
        result, self.warnings = results[0]
        return result

    def step(self, action=None):
        action = self.draw() if action is None else action

        def advance(envs):
            out = envs.new_obs()
            step = envs.advance(action, out)
            finished = [[*one[:-1], dict(one.info)] for one in step.finished]
            return [out, *step[:4], finished, list(envs.infos), [list(it) for it in envs.running_episodes], envs.restarted]

        return self.agree(advance)

    def steps(self, count):
        """The number of episodes that ended in this many steps."""
        results = [self.step() for _ in range(count)]
        return sum(len(result[5]) for result in results if isinstance(result, list))

    def draw(self):
        """Random actions, half of them with the velocity; floats also beyond their limits."""
        space, envs = self.plain.single_action_space, self.plain.num_envs
        if not isinstance(space, gymnasium.spaces.Discrete):
            force = self.generator.normal(size=(envs, 1)) * 1.5 + np.sign(self.plain.current[:, -1:])
            return force.astype(np.float32)
        if self.plain.current.ndim == 1:
            return self.generator.integers(space.n, size=envs)
        with_velocity = np.where(self.plain.current[:, -1] >= 0, space.n - 1, 0)
        action = np.where(self.generator.random(envs) < 0.5, with_velocity, self.generator.integers(space.n, size=envs))
        return action.astype(np.int64)

    def read(self):
        for name in ("state", "_elapsed_steps", "steps_beyond_terminated", "last_u"):
            self.agree(lambda envs, name=name: envs.get_attr(name))

    def was_batched(self):
        """Whether the next step leaves all environments behind, in whose place it was computed."""
        before = [start.env.unwrapped.state for start in self.batched.starts]
        ended = self.step()[2:4]
        after = [start.env.unwrapped.state for start in self.batched.starts]
        return all(now is then for now, then, reset in zip(after, before, np.any(ended, axis=0)) if not reset)
