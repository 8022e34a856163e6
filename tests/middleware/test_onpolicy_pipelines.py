"""The pipelines of A2C, IMPALA and REINFORCE: overlapped they are the run on one thread, and the lag is in what is logged."""

import pytest

from ding_lite import Task, contract
from ding_lite.config import A2CConfig, IMPALAConfig, REINFORCEConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    StepCollector,
    gae_estimator,
    montecarlo_return_estimator,
    multistep_trainer,
    onpolicy_data_fetcher,
)
from ding_lite.policy import A2CPolicy, IMPALAPolicy, REINFORCEPolicy

ITERATIONS = 6
PIPELINES = {
    "a2c": (A2CConfig, A2CPolicy, StepCollector, lambda cfg, policy: gae_estimator(cfg, policy.collect_mode)),
    "impala": (IMPALAConfig, IMPALAPolicy, StepCollector, lambda cfg, policy: onpolicy_data_fetcher(cfg)),
    "reinforce": (
        REINFORCEConfig,
        REINFORCEPolicy,
        EpisodeCollector,
        lambda cfg, policy: montecarlo_return_estimator(cfg, policy.collect_mode),
    ),
}


def run(name, async_mode, max_lag, **env_options):
    """What a run comes to, and what it logged."""
    make_config, kind, collector, processed = PIPELINES[name]
    cfg = make_config(seed=3).override({"policy.collect": {"n_sample": 32, "n_episode": 4}, "policy.model.normalize_obs": True})
    if name == "impala":
        cfg.override({"policy.learn": {"batch_size": 16, "epoch_per_collect": 2}})  # two parts, so that chance has a part in it
    envs = make_envs("CartPole-v1", 4, seed=3, **env_options)
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
    outputs = []

    @contract(reads=("train_output",), stage="record")
    def record(ctx):
        outputs.append({key: float(value) for key, value in ctx.train_output.items()})

    loop = Task()
    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(collector(cfg, policy.collect_mode, envs))
        loop.use(processed(cfg, policy))
        loop.use(multistep_trainer(cfg, policy.learn_mode))
        loop.use(record)
        loop.run(max_step=ITERATIONS)
    envs.close()
    return policy.state_dict(), outputs, loop.ctx.train_iter


@pytest.mark.few
@pytest.mark.parametrize(("name", "max_lag"), [*((name, 1) for name in PIPELINES), ("a2c", 0), ("impala", 4), ("reinforce", 4)])
def test_an_asynchronous_run_is_the_run_on_one_thread(name, max_lag, digest):
    assert digest(*run(name, True, max_lag)) == digest(*run(name, False, max_lag))


@pytest.mark.parametrize("name", ["impala", "reinforce"])
def test_with_worker_processes_it_is_the_run_with_as_many_workers_here(name, digest):
    expected = digest(*run(name, False, 1, workers=2))

    assert digest(*run(name, True, 1, workers=2, backend="process")) == expected


def test_the_lag_is_logged_and_v_trace_sees_it():
    _, newest, _ = run("impala", False, 0)
    _, late, train_iter = run("impala", False, 4)
    steps = 4  # two epochs of two parts

    assert train_iter == steps * ITERATIONS
    assert [row["policy_lag"] for row in newest] == [0] * ITERATIONS
    assert [row["policy_lag"] for row in late] == [steps * min(k, 4) for k in range(ITERATIONS)]
    assert late[-1]["kl"] > newest[-1]["kl"] > 0
    assert late[-1]["rho_mean"] < 1
