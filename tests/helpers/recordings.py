"""Recorded episodes whose observations tell where they are from, as rollouts that cut them."""

import numpy as np
from gymnasium import spaces

from ding_lite.data import Episodes, Trajectories
from ding_lite.data.trees import map_leaves

SPACES = {
    "box": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "discrete": spaces.Discrete(1000),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "dict": spaces.Dict({"a b": spaces.Box(-9e9, 9e9, (2,), np.float64), "c": spaces.Dict({"d": spaces.MultiBinary(3)})}),
    "slash": spaces.Dict({"a/b": spaces.Discrete(1000), "a": spaces.Dict({"b": spaces.Discrete(1000)})}),
    "tuple": spaces.Tuple((spaces.Discrete(1000), spaces.Box(-1e9, 1e9, (), np.float32))),
}


def observation(kind, env, episode, step):
    """One observation, as nested arrays."""
    number = 100 * env + 10 * episode + step
    match kind:
        case "box":
            return np.array([env, episode, step], np.float32)
        case "discrete":
            return np.int64(number % 1000)
        case "image":
            return np.full((8, 8, 1), number % 256, np.uint8)
        case "dict":
            return {"a b": np.array([episode, step / 3]), "c": {"d": np.array([env % 2, episode % 2, step % 2], np.int8)}}
        case "slash":
            return {"a/b": np.int64(number % 1000), "a": {"b": np.int64(step)}}
        case "tuple":
            return {"0": np.int64(number % 1000), "1": np.float32(step / 7)}


def stacked(elements):
    """Elements as one array, or nested arrays."""
    return map_leaves(lambda *leaves: np.stack(leaves), *elements)


class Recording:
    """Endless episodes of several environments, of random lengths, with their true content.

    Args:
        kind: of the observations, see `SPACES`.
        num_envs: environments.
        seed: of lengths and rewards.
        longest: steps of the longest episode.
    """

    def __init__(self, kind="box", num_envs=3, seed=0, longest=9):
        self.kind, self.num_envs, self.longest = kind, num_envs, longest
        self.rng = np.random.default_rng(seed)
        self.at = [(0, 0) for _ in range(num_envs)]
        self.lengths = [self._length() for _ in range(num_envs)]
        self.episodes = [[[]] for _ in range(num_envs)]
        """For each environment its episodes, each a list of transitions; the last one is unfinished or empty."""

    def _length(self):
        return int(self.rng.integers(1, self.longest + 1))

    def _step(self, env):
        episode, step = self.at[env]
        is_last = step + 1 == self.lengths[env]
        is_cut = is_last and self.rng.random() < 0.5
        made = {
            "obs": observation(self.kind, env, episode, step),
            "action": np.int64(self.rng.integers(5)),
            "log_prob": np.float32(self.rng.normal()),
            "reward": np.float32(self.rng.normal()),
            "next_obs": observation(self.kind, env, episode, step + 1),
            "terminated": np.bool_(is_last and not is_cut),
            "truncated": np.bool_(is_cut),
        }
        self.at[env] = (episode + 1, 0) if is_last else (episode, step + 1)
        if is_last:
            self.lengths[env] = self._length()
        return made, is_last

    def rollout(self, steps, pauses=0.0):
        """The next steps of all environments; a share of the rows are only resets."""
        rows, valid = [], np.ones((steps, self.num_envs), np.bool_)
        begins = np.array([step == 0 for _, step in self.at])
        for t in range(steps):
            row = []
            for env in range(self.num_envs):
                if rows and self.rng.random() < pauses:
                    valid[t, env] = False
                    row.append({**rows[-1][env], "terminated": np.bool_(False), "truncated": np.bool_(False)})
                    continue
                made, is_last = self._step(env)
                self.episodes[env][-1].append(made)
                if is_last:
                    self.episodes[env].append([])
                row.append(made)
            rows.append(row)
        columns = stacked([stacked(row) for row in rows])
        made = Trajectories(columns, None if valid.all() else valid)
        made.begins = begins
        return made

    def true_episodes(self, unfinished=True):
        """Every episode as nested arrays [T, ...], in no particular order."""
        last = None if unfinished else -1
        return [stacked(episode) for env in self.episodes for episode in env[:last] if episode]

    def as_episodes(self):
        """The finished episodes."""
        true = self.true_episodes(unfinished=False)
        rows = map_leaves(lambda *leaves: np.concatenate(leaves), *true)
        return Episodes(rows, [len(episode["reward"]) for episode in true])


def fingerprint(episode):
    """The bytes of an episode's arrays, to compare sets of episodes."""
    from ding_lite.data import flatten, nested

    found = sorted((path, np.asarray(leaf)) for path, leaf in flatten(nested(episode)))
    return tuple((path, array.dtype.str, array.shape, array.tobytes()) for path, array in found)
