"""The example of behaviour cloning learns from all of a dataset, or from the best of its finished episodes."""

import numpy as np
import pytest
from example_runs import small
from gymnasium import spaces

from ding_lite import task
from ding_lite.datasets import open_dataset, write_dataset

OBS, ACTION = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)


@pytest.mark.parametrize(("share", "rows"), [(1.0, 30), (0.5, 12)])
def test_an_unfinished_episode_is_a_part_of_the_data_but_none_of_the_best(share, rows, tmp_path):
    ends = np.zeros(30, bool)
    ends[[9, 21]] = True  # the last 8 steps are unfinished
    states = np.linspace(-1, 1, 124, dtype=np.float32).reshape(31, 4)
    arrays = {"obs": states[:-1], "next_obs": states[1:], "action": np.arange(30) % 2, "reward": np.ones(30, np.float32)}
    data = open_dataset({**arrays, "terminated": ends, "truncated": ends & False}, OBS, ACTION)
    write_dataset(data, tmp_path / "data")
    settings = {"best_share": share, "max_step": 4, "policy.learn.batch_size": rows // 2}
    module, cfg = small("bc", tmp_path / "run", **settings)
    cfg.dataset = str(tmp_path / "data")
    module.main(cfg)

    assert task.ctx.train_epoch == 2


@pytest.mark.parametrize(("is_relative", "rows"), [(False, 30), (True, 36)])
def test_the_best_episodes_relative_to_their_start(is_relative, rows, tmp_path):
    starts, is_better = np.repeat([-1.0, 1.0], 12), np.tile([False, True], 12)
    lengths = np.where(is_better, 3, 2)
    obs = np.repeat(starts, lengths)[:, None].repeat(4, 1).astype(np.float32)
    last = np.isin(np.arange(60), lengths.cumsum() - 1)
    reward = np.zeros(60)
    reward[last] = 100 * starts + is_better  # the start matters more
    arrays = {"obs": obs, "next_obs": obs, "action": np.arange(60) % 2, "reward": reward}
    write_dataset(open_dataset({**arrays, "terminated": last, "truncated": last & False}, OBS, ACTION), tmp_path / "data")
    settings = {"best_share": 0.5, "best_relative_to_start": is_relative, "max_step": 30, "policy.learn.batch_size": 6}
    module, cfg = small("bc", tmp_path / "run", **settings)
    cfg.dataset = str(tmp_path / "data")
    module.main(cfg)

    assert task.ctx.train_epoch == 30 * 6 / rows
