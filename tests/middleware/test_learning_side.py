"""Explorers, pushers, fetchers, estimators, learners and terminations."""

import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext, TrainOutput
from ding_lite.data import ReplayBuffer, Trajectories, tree
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
    offpolicy_data_fetcher,
    termination_checker,
    trainer,
)
from ding_lite.policy import DQNPolicy, NonFiniteError, PPOPolicy


def transitions(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.standard_normal((count, 4)).astype(np.float32),
        "action": rng.integers(0, 2, count),
        "reward": rng.standard_normal(count).astype(np.float32),
        "next_obs": rng.standard_normal((count, 4)).astype(np.float32),
        "terminated": rng.random(count) < 0.1,
        "truncated": np.zeros(count, np.bool_),
    }


def dqn(**learn):
    cfg = DQNConfig().override({"policy.learn": learn, "policy.model.encoder_hidden_size_list": [8]})
    envs = make_envs("CartPole-v1", 1)
    return cfg, DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)


@pytest.mark.parametrize(
    ("kind", "step", "eps"),
    [("linear", 0, 1.0), ("linear", 50, 0.55), ("linear", 1000, 0.1), ("exp", 0, 1.0), ("exp", 100, 0.1 + 0.9 * np.exp(-1))],
)
def test_epsilon_follows_its_schedule(kind, step, eps):
    cfg = DQNConfig().override({"policy.other.eps": {"type": kind, "start": 1.0, "end": 0.1, "decay": 100}})
    ctx = OnlineRLContext(env_step=step)
    eps_greedy_handler(cfg)(ctx)

    assert ctx.collect_kwargs["eps"] == pytest.approx(eps)


def test_epsilon_does_not_remain_in_the_next_iteration():
    ctx = OnlineRLContext()
    eps_greedy_handler(DQNConfig())(ctx)

    assert ctx.renew().collect_kwargs == {}


def test_the_pusher_stores_the_rollout_and_leaves_it_to_those_after_it():
    buffer, ctx = ReplayBuffer(100), OnlineRLContext()
    ctx.trajectories = Trajectories({name: column.reshape(3, 2, *column.shape[1:]) for name, column in transitions(6).items()})
    data_pusher(DQNConfig(), buffer)(ctx)

    assert len(buffer) == 6
    assert ctx.trajectories is not None


def test_the_fetcher_waits_until_there_is_enough():
    cfg, _ = dqn(learning_starts=10, batch_size=4)
    buffer, ctx = ReplayBuffer(100), OnlineRLContext()
    fetch = offpolicy_data_fetcher(cfg, buffer)
    buffer.push(transitions(9))
    fetch(ctx)
    assert ctx.train_data is None
    buffer.push(transitions(1))
    fetch(ctx)
    assert ctx.train_data.obs.shape == (4, 4)


def test_the_fetcher_gives_nothing_from_an_empty_buffer_even_where_learning_starts_at_zero():
    cfg, _ = dqn(learning_starts=0)
    ctx = OnlineRLContext()
    offpolicy_data_fetcher(cfg, ReplayBuffer(100))(ctx)

    assert ctx.train_data is None


def test_the_off_policy_learner_takes_its_gradient_steps_each_on_a_batch_of_its_own():
    cfg, policy = dqn(learning_starts=10, update_per_collect=5, batch_size=3)
    buffer, ctx, seen = ReplayBuffer(100), OnlineRLContext(), []
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: seen.append(batch.obs.clone()) or learn(batch)
    buffer.push(transitions(20))
    OffPolicyLearner(cfg, policy.learn_mode, buffer)(ctx)

    assert ctx.train_iter == policy.version == len(ctx.train_output) == len(seen) == 5
    assert type(ctx.train_output) is TrainOutput
    assert all(set(output) >= {"loss", "q_value"} for output in ctx.train_output)
    assert not torch.equal(seen[0], seen[1])


def test_the_off_policy_learner_does_nothing_while_there_is_too_little():
    cfg, policy = dqn(learning_starts=10)
    ctx = OnlineRLContext()
    OffPolicyLearner(cfg, policy.learn_mode, ReplayBuffer(100))(ctx)

    assert (ctx.train_iter, ctx.train_data, ctx.train_output) == (0, None, None)


def test_fetcher_and_trainer_in_a_row_are_a_learner_too():
    cfg, policy = dqn(learning_starts=1)
    buffer, task = ReplayBuffer(100), Task()
    buffer.push(transitions(20))
    with task.start(ctx=OnlineRLContext()):
        task.use(offpolicy_data_fetcher(cfg, buffer)).use(trainer(cfg, policy.learn_mode)).run(max_step=3)

    assert task.ctx.train_iter == 3
    assert type(task.ctx.train_output) is TrainOutput
    assert set(task.ctx.train_output.keys()) >= {"loss"}


@pytest.mark.parametrize("make", [trainer, multistep_trainer])
def test_a_trainer_works_on_the_offline_context(make):
    cfg, policy = dqn()
    ctx = OfflineRLContext(train_data=tree(transitions(8)))
    make(cfg, policy.learn_mode)(ctx)

    assert ctx.train_iter == 1


@pytest.mark.parametrize(("make", "name"), [(trainer, "trainer"), (multistep_trainer, "multistep_trainer")])
def test_a_trainer_without_data_is_refused_with_the_fix(make, name):
    cfg, policy = dqn()
    task = Task()
    message = f"{name} reads ctx.train_data, but no earlier middleware writes it: add a fetcher such as offpolicy_data_fetcher"
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match=message):
        task.use(make(cfg, policy.learn_mode)).run(max_step=1)


def ppo(**collect):
    cfg = PPOConfig().override({"policy.collect": {"n_sample": 32, **collect}})
    envs = make_envs("CartPole-v1", 4)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    return cfg, envs, policy


def test_gae_estimator_puts_advantages_beside_the_rollout():
    cfg, envs, policy = ppo(discount_factor=0.9, gae_lambda=0.8)
    ctx = OnlineRLContext()
    StepCollector(cfg, policy.collect_mode, envs)(ctx)
    gae_estimator(cfg, policy.collect_mode)(ctx)
    batch = ctx.train_data
    with torch.no_grad():
        value, next_value = (policy.model.values(obs.flatten(0, 1)).reshape(8, 4) for obs in (batch.obs, batch.next_obs))

    expected = np.zeros((8, 4))
    for b in range(4):
        trace = 0.0
        for t in reversed(range(8)):
            over, cut = bool(batch.terminated[t, b]), bool(batch.truncated[t, b])
            delta = float(batch.reward[t, b]) + 0.9 * (0 if over else float(next_value[t, b])) - float(value[t, b])
            trace = delta + (0 if over or cut else 0.9 * 0.8 * trace)
            expected[t, b] = trace

    np.testing.assert_allclose(batch.advantage, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch.return_, batch.advantage + batch.value)
    assert len(ctx.trajectories) == 32


def test_multistep_trainer_counts_every_gradient_step_of_every_epoch():
    cfg, envs, policy = ppo()
    cfg.override({"policy.learn": {"epoch_per_collect": 3, "batch_size": 8}})
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode)).run(max_step=2)

    assert task.ctx.train_iter == policy.version == 2 * 3 * 4
    names = {"total_loss", "policy_loss", "vf_loss", "vf_explained_var", "kl", "entropy", "cur_lr", "clip_frac"}
    assert set(task.ctx.train_output.keys()) >= names


def test_an_estimator_before_the_collector_is_refused_with_the_fix():
    cfg, envs, policy = ppo()
    task = Task()
    with (
        task.start(ctx=OnlineRLContext()),
        pytest.raises(PipelineError, match="gae_estimator reads ctx.trajectories.*move StepCollector, which does, before it"),
    ):
        task.use(gae_estimator(cfg, policy.collect_mode)).use(StepCollector(cfg, policy.collect_mode, envs)).run(max_step=1)


def test_a_policy_without_a_critic_says_so():
    cfg, policy = dqn()
    ctx = OnlineRLContext()
    ctx.trajectories = Trajectories({name: column.reshape(3, 2, *column.shape[1:]) for name, column in transitions(6).items()})
    with pytest.raises(TypeError, match="DQNPolicy has no critic"):
        gae_estimator(PPOConfig(), policy.collect_mode)(ctx)


@pytest.mark.parametrize(
    ("limits", "iterations"),
    [({"max_env_step": 30}, 3), ({"max_train_iter": 5}, 5), ({"max_env_step": 30, "max_train_iter": 2}, 2)],
)
def test_the_run_ends_with_the_iteration_that_reaches_a_limit(limits, iterations):
    task, after = Task(), []

    def go_on(ctx):
        ctx.env_step += 10
        ctx.train_iter += 1

    with task.start(ctx=OnlineRLContext()):
        task.use(go_on).use(termination_checker(**limits)).use(lambda ctx: after.append(ctx.total_step)).run(max_step=100)

    assert after == list(range(iterations))


def test_a_termination_checker_without_a_limit_is_refused():
    with pytest.raises(ValueError, match="without a limit never ends anything"):
        termination_checker()


class Astray(DQNPolicy):
    """From its third gradient step on, a loss that is finite has a gradient that is not."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return (loss + (0 * loss).abs().sqrt() if self.train_iter >= 2 else loss), stats


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_gradient_that_is_not_finite_is_noticed_before_its_iteration_is_saved(times, max_lag, tmp_path):
    cfg, policy = dqn(learning_starts=1, batch_size=4, update_per_collect=times)
    policy = Astray(cfg.policy, policy.observation_space, policy.action_space)
    buffer = ReplayBuffer(100)
    buffer.push(transitions(20))
    words = (
        "the weights of Astray are not finite after 3 gradient steps, because a gradient was not finite although the loss was"
    )
    with Task().start(ctx=OnlineRLContext(), max_lag=max_lag) as task:
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        task.use(CkptSaver(policy, tmp_path, train_freq=1))
        with pytest.raises(NonFiniteError, match=words) as raised:
            task.run(max_step=3 // times)

    assert any("OffPolicyLearner" in note for note in raised.value.__notes__)
    files = {path.name for path in (tmp_path / "ckpt").iterdir()} if (tmp_path / "ckpt").exists() else set()
    assert files == ({"iteration_1.pt", "iteration_2.pt"} if times == 1 else set())


@pytest.mark.parametrize("make", [trainer, multistep_trainer])
def test_both_trainers_notice_it_too(make):
    cfg, policy = dqn()
    policy = Astray(cfg.policy, policy.observation_space, policy.action_space)
    train, ctx = make(cfg, policy.learn_mode), OnlineRLContext()
    for _ in range(2):
        ctx.train_data = tree(transitions(4))
        train(ctx)
    with pytest.raises(NonFiniteError, match="the weights of Astray are not finite after 3 gradient steps"):
        train(ctx)


def test_nothing_is_made_of_weights_that_are_no_numbers():
    cfg, policy = dqn()
    policy = Astray(cfg.policy, policy.observation_space, policy.action_space)
    policy.collect_mode.forward(np.zeros((1, 4), np.float32))
    state = policy.state_dict()
    for _ in range(3):
        policy.learn_mode.forward(tree(transitions(4)))
    for make in (policy.state_dict, policy.snapshot, lambda: policy.collect_mode.forward(np.zeros((1, 4), np.float32))):
        with pytest.raises(
            NonFiniteError, match="clip gradients with learn.grad_clip_norm.*and continue from an earlier checkpoint"
        ):
            make()
    policy.load_state_dict(state)

    assert policy.snapshot().train_iter == 0


def test_weights_so_large_that_their_sum_overflows_are_numbers():
    _, policy = dqn()
    policy.set_weights({name: torch.full_like(leaf, 3e38) for name, leaf in policy.get_weights().items()})
    policy.require_finite()

    assert policy.snapshot().version == policy.version
