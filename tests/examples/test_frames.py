"""How many frames are between a script and its loss: a traceback from a loss is short enough to read."""

import sys

import pytest
from example_runs import config_of, load_example, override_known

from ding_lite import task
from ding_lite.policy import DQNPolicy, PPOPolicy, SACPolicy

SMALL = {
    "env.collector_env_num": 2,
    "env.evaluator_env_num": 1,
    "env.n_evaluator_episode": 1,
    "env.stop_value": None,
    "policy.collect.n_sample": 16,
    "policy.learn.batch_size": 8,
    "policy.learn.update_per_collect": 1,
    "policy.learn.learning_starts": 8,
    "policy.learn.epoch_per_collect": 1,
    "policy.random_collect_size": 16,
}
CHECKED = 5  # iterations in which contracts are enforced in a plain loop, which adds frames


@pytest.mark.few
@pytest.mark.parametrize(("name", "policy", "most"), [("dqn", DQNPolicy, 10), ("sac", SACPolicy, 10), ("ppo", PPOPolicy, 14)])
def test_a_loss_is_few_frames_below_its_script(name, policy, most, tmp_path, monkeypatch):
    frames, loss = [], policy.loss

    def counting(self, batch):
        if task.ctx.total_step > CHECKED:
            frame, names = sys._getframe(), []
            while names[-1:] != ["main"]:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            frames.append(names)
        return loss(self, batch)

    monkeypatch.setattr(policy, "loss", counting)
    module = load_example(name)
    cfg = config_of(module)
    override_known(cfg, {**SMALL, "exp_name": str(tmp_path), "max_step": CHECKED + 3})
    module.main(cfg)

    assert frames
    assert max(map(len, frames)) <= most, max(frames, key=len)[::-1]
