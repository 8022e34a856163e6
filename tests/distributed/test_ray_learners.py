"""Learners on a Ray cluster: whole runs like those of this process, also after a death; and what the cluster cannot hold."""

import os
import signal
import time

import pytest
import torch
from example_runs import small
from gymnasium import spaces
from states import same

from ding_lite.policy import DQNPolicy, PPOPolicy

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]
OBS, ACTIONS = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)
ON_RAY = {"policy.learners.num_learners": 1, "policy.learners.backend": "ray"}


def checkpoints(name, folder, **settings):
    """The checkpoints of a run, without how the policy was made."""
    module, cfg = small(name, folder, **settings)
    module.main(cfg)
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    return [{key: it for key, it in file.items() if key not in ("made_with", "metrics")} for file in files]


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_with_its_learner_and_its_environments_on_the_cluster_is_the_run_of_one_thread(name, tmp_path):
    envs = {"env.workers": 2, "max_lag": 1}
    expected = checkpoints(name, tmp_path / "here", **envs)
    found = checkpoints(name, tmp_path / "ray", **envs, **ON_RAY, **{"env.backend": "ray", "async_mode": True})

    assert expected
    assert same(found, expected)


def learned(policy, kill=lambda policy, step: None):
    g = torch.Generator().manual_seed(1)
    for step in range(5):
        rows = {
            "obs": torch.rand(8, 4, generator=g),
            "next_obs": torch.rand(8, 4, generator=g),
            "action": torch.randint(0, 2, (8,), generator=g),
            "reward": torch.randn(8, generator=g),
            "terminated": torch.rand(8, generator=g) < 0.2,
            "discount": torch.full((8,), 0.9),
        }
        kill(policy, step)
        policy.learn_mode.forward(rows)
    state = policy.state_dict()
    policy.learn_mode.release()
    return {key: it for key, it in state.items() if key not in ("made_with", "metrics")}


def dqn(**settings):
    base = {"learners.num_learners": 1, "model.encoder_hidden_size_list": [8], "learn.batch_size": 8}
    return DQNPolicy(base | settings, OBS, ACTIONS)


@pytest.mark.parametrize("learners", [1, 2])
def test_learners_that_die_are_restarted_in_the_same_state(learners):
    def kill(policy, step):
        if step % 2:
            os.kill(policy.learners._hosts[-1].pid, signal.SIGKILL)

    settings = {"learners.num_learners": learners}
    expected = learned(dqn(**settings))
    found = learned(dqn(**settings, **{"learners.backend": "ray", "learners.restart": True}), kill)

    assert same(found, expected)


def test_what_the_cluster_does_not_have_is_said_before_the_run():
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"the policy.learners of PPOPolicy\(\) asks for 512 CPU.*num_cpus_per_learner"):
        PPOPolicy({"learners.num_learners": 1, "learners.backend": "ray", "learners.num_cpus_per_learner": 512.0}, OBS, ACTIONS)
    assert time.monotonic() - begun < 5
