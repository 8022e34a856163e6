"""Reward models: before an estimator and after a fetcher, and refused where what they give would be learned from wrongly."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import PipelineError, Task
from ding_lite.config import BCConfig, DQNConfig, PPOConfig, REINFORCEConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer, Trajectories, tree
from ding_lite.data.trees import with_leaves
from ding_lite.engine import contract_of
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    gae_estimator,
    montecarlo_return_estimator,
    multistep_trainer,
    offline_data_fetcher,
    onpolicy_data_fetcher,
    reward_estimator,
    trainer,
)
from ding_lite.policy import BCPolicy, DQNPolicy, PPOPolicy, REINFORCEPolicy
from ding_lite.policy_check import ColumnError
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

GAMMA, LAMBDA = 0.9, 0.8


class Model:
    """Gives what the test says of each batch, and what it says of learning."""

    def __init__(self, estimated, learned=None):
        self.estimate, self.learned = estimated, learned
        self.batches = []

    def learn(self, batch):
        self.batches.append(batch)
        return self.learned


class Bonus(Model):
    """Adds one to each reward, and a column of its own."""

    def __init__(self):
        super().__init__(
            lambda batch: with_leaves(batch, reward=batch.reward + 1, bonus=torch.ones_like(batch.reward)), {"n": 1}
        )


def ppo(async_mode=False, max_lag=None, seen=None):
    """A run of PPO whose rewards RND adds to; the context of each iteration goes to `seen`."""
    settings = {"n_sample": 32, "discount_factor": GAMMA, "gae_lambda": LAMBDA}
    cfg = PPOConfig(seed=3).override({"policy.collect": settings, "policy.learn": {"epoch_per_collect": 2, "batch_size": 16}})
    envs = make_envs("CartPole-v1", 4, seed=3)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    model = RNDRewardModel(RNDRewardConfig(bonus_steps=None), envs.single_observation_space, seed=3)
    policy.attach("reward_model", model)
    task = Task()
    with task.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(reward_estimator(cfg, model, of="trajectories"))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        if seen is not None:
            task.use(seen.append)
        task.run(max_step=3)
    return policy, model


def test_ppo_learns_from_advantages_of_the_rewards_that_the_model_gives():
    seen = []
    policy, model = ppo(seen=seen)

    for ctx in seen:
        batch, columns = ctx.train_data, ctx.trajectories.columns
        assert (columns["raw_reward"] == 1).all()  # CartPole's
        assert (columns["reward"] > 1).all()
        np.testing.assert_array_equal(batch.reward, columns["reward"])
        reward, value, next_value = (batch[name].double().numpy() for name in ("reward", "value", "next_value"))
        over, cut = batch.terminated.numpy(), batch.truncated.numpy()
        trace = np.zeros(4)
        for t in reversed(range(8)):
            trace = reward[t] + GAMMA * next_value[t] * ~over[t] - value[t] + GAMMA * LAMBDA * trace * ~(over[t] | cut[t])
            np.testing.assert_allclose(batch.advantage[t], trace, rtol=1e-4, atol=1e-4)
        assert any("rnd_loss" in logged for logged in ctx.learn_metrics)
    assert (model.steps, policy.train_iter) == (3, 12)


@pytest.mark.parametrize("max_lag", [0, 1])
def test_an_asynchronous_run_whose_rewards_are_estimated_first_is_the_one_on_one_thread(max_lag, digest):
    expected = digest(ppo(False, max_lag)[0].state_dict())

    assert {digest(ppo(True, max_lag)[0].state_dict()) for _ in range(2)} == {expected}


def test_returns_of_whole_episodes_are_those_of_the_rewards_that_the_model_gives():
    cfg = REINFORCEConfig().override({"policy.collect": {"n_episode": 5, "discount_factor": GAMMA}})
    envs = make_envs("CartPole-v1", 3, seed=0, max_episode_steps=20)
    policy = REINFORCEPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    model, task = Bonus(), Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(EpisodeCollector(cfg, policy.collect_mode, envs))
        task.use(reward_estimator(cfg, model, of="trajectories"))
        task.use(montecarlo_return_estimator(cfg, policy.collect_mode))
        task.use(trainer(cfg, policy.learn_mode))
        task.run(max_step=1)
    data, episodes = task.ctx.train_data, task.ctx.episodes

    assert len(episodes) == 5
    assert model.batches[0].reward.shape == (episodes.lengths.sum(), 1)
    for number, length in enumerate(episodes.lengths):
        expected = [2 * (1 - GAMMA ** (length - t)) / (1 - GAMMA) for t in range(length)]
        np.testing.assert_allclose(data.return_[:length, number], expected, rtol=1e-5)
        assert not data.return_[length:, number].any()
        assert (episodes[number].bonus == 1).all()
    assert task.ctx.train_iter == 1


VALID = np.array([[True, True], [False, True], [True, True]])


def rollout(valid=None):
    reward = np.array([[1, 2], [0, 4], [5, 6]], np.float32)
    done = np.zeros((3, 2), bool)
    return Trajectories({"obs": {"x": np.zeros((3, 2, 4))}, "reward": reward, "terminated": done, "truncated": done}, valid)


def test_steps_that_were_only_resets_keep_their_reward_and_what_was_collected_stays_as_it_was():
    before = rollout(VALID)
    ctx, model = OnlineRLContext(trajectories=before), Bonus()
    reward_estimator(None, model, of="trajectories")(ctx)
    after = ctx.trajectories

    assert after.columns["reward"].tolist() == [[2, 3], [0, 5], [6, 7]]
    assert before.columns["reward"].tolist() == [[1, 2], [0, 4], [5, 6]]
    assert after.columns["bonus"].shape == (3, 2)
    assert np.shares_memory(after.columns["obs"]["x"], before.columns["obs"]["x"])
    assert (after.valid is VALID, "valid" in after.columns) == (True, False)
    assert model.batches[0].valid.tolist() == VALID.tolist()


def test_rewards_that_a_network_gives_are_taken_without_its_gradients_and_in_the_units_of_memory_of_before():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    ctx = OnlineRLContext(trajectories=rollout())
    reward_estimator(None, Model(lambda batch: with_leaves(batch, reward=batch.reward * weight)), of="trajectories")(ctx)

    assert ctx.trajectories.columns["reward"].dtype == np.float32
    assert ctx.trajectories.columns["reward"].tolist() == rollout().columns["reward"].tolist()


@pytest.mark.parametrize("valid", [None, VALID])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_rewards_that_a_model_gives_for_integers_keep_their_fractions(dtype, valid):
    before = rollout(valid)
    ints = before.columns["reward"].astype(dtype)
    ctx = OnlineRLContext(trajectories=before.with_columns(reward=ints))
    reward_estimator(None, Model(lambda batch: with_leaves(batch, reward=batch.reward + 0.25)), of="trajectories")(ctx)
    columns = ctx.trajectories.columns

    assert columns["reward"].dtype == np.float32
    np.testing.assert_array_equal(columns["reward"], np.where(valid if valid is not None else True, ints + 0.25, ints))
    assert columns["raw_reward"].dtype == dtype


def test_what_it_touches_is_in_the_contract():
    model = Bonus()
    late, early = (contract_of(reward_estimator(None, model, **of)) for of in ({}, {"of": "trajectories"}))

    assert (late.stage, late.reads, late.writes, late.uses) == ("learn", ("train_data",), ("train_data",), (model,))
    assert (early.stage, early.reads, early.writes, early.uses) == ("learn", ("trajectories",), ("trajectories",), (model,))
    assert ("episodes" in early.may_read, "episodes" in early.may_write) == (True, True)


def test_without_a_collector_before_it_the_pipeline_is_refused():
    for ctx, words in ((OnlineRLContext(), "reads ctx.trajectories, but no"), (OfflineRLContext(), "declares no such field")):
        task = Task()
        with task.start(ctx=ctx), pytest.raises(PipelineError, match=words):
            task.use(reward_estimator(None, Bonus(), of="trajectories")).run(max_step=1)
    with pytest.raises(RuntimeError, match="reward_estimator found neither ctx.trajectories nor ctx.episodes: put a collector"):
        reward_estimator(None, Bonus(), of="trajectories")(OnlineRLContext())


def test_another_of_is_refused():
    with pytest.raises(ValueError, match=r"reward_estimator\(of='episodes'\) wants 'train_data', or 'trajectories'"):
        reward_estimator(None, Bonus(), of="episodes")


# Where it would change nothing.


@pytest.mark.parametrize("estimator", [gae_estimator, montecarlo_return_estimator])
def test_behind_an_estimator_it_is_refused_with_the_fix(estimator):
    cfg = PPOConfig().override({"policy.collect.n_sample": 8})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    words = {
        "train_data": r"found '(advantage|return_)' in ctx.train_data.*of=\"trajectories\"\) before the middleware",
        "trajectories": r"reward_estimator\(of=\"trajectories\"\) found ctx.train_data.*put it before the middleware",
    }
    for of, message in words.items():
        task = Task()
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs))
            task.use(estimator(cfg, policy.collect_mode))
            task.use(reward_estimator(cfg, Bonus(), of=of))
            task.use(multistep_trainer(cfg, policy.learn_mode))
            with pytest.raises(RuntimeError, match=message):
                task.run(max_step=1)


def test_behind_a_fetcher_of_rollouts_it_may_stand_for_policies_that_estimate_returns_themselves():
    ctx = OnlineRLContext(trajectories=rollout())
    onpolicy_data_fetcher(None)(ctx)
    reward_estimator(None, Bonus())(ctx)

    assert ctx.train_data.reward.tolist() == [[2, 3], [1, 5], [6, 7]]


# Models that give something else.


def batch(rows=6):
    rng = np.random.default_rng(0)
    obs, flags = rng.standard_normal((2, rows, 4)).astype(np.float32), np.zeros((2, rows), bool)
    columns = {"obs": obs[0], "next_obs": obs[1], "terminated": flags[0], "truncated": flags[1]}
    return {**columns, "action": rng.integers(0, 2, rows), "reward": np.ones(rows, np.float32)}


def by_estimator(model):
    reward_estimator(None, model)(OnlineRLContext(train_data=tree(batch())))


def by_estimator_of_rollouts(model):
    reward_estimator(None, model, of="trajectories")(OnlineRLContext(trajectories=rollout()))


def by_learner(model):
    cfg = DQNConfig().override({"policy.learn": {"batch_size": 6, "learning_starts": 1}})
    envs = make_envs("CartPole-v1", 1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = ReplayBuffer(10)
    buffer.push(batch())
    OffPolicyLearner(cfg, policy.learn_mode, buffer, model)(OnlineRLContext())


WRONG = {
    "no return": (lambda batch: None, TypeError, r"estimate\(\) of Model gave a NoneType: return a batch, such as with_leaves"),
    "rewards alone": (lambda batch: batch.reward, TypeError, r"estimate\(\) of Model gave a Tensor: return a batch"),
    "a dict": (lambda batch: {"reward": batch.reward}, TypeError, r"estimate\(\) of Model gave a dict: return a batch"),
    "a network's output": (
        lambda batch: with_leaves(batch, reward=batch.reward.unsqueeze(-1)),
        ValueError,
        r"of Model gave reward of shape \((6|3, 2), 1\), and the batch has shape \((6,|3, 2)\).*squeeze\(-1\)",
    ),
    "no reward": (
        lambda batch: tree({"bonus": batch.reward}),
        ValueError,
        r"estimate\(\) of Model gave a batch without reward: return with_leaves",
    ),
}


@pytest.mark.parametrize("call", [by_estimator, by_estimator_of_rollouts, by_learner])
@pytest.mark.parametrize(("estimated", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_model_that_gives_no_batch_with_a_reward_for_each_step_is_refused_by_name(estimated, error, words, call):
    with pytest.raises(error, match=words):
        call(Model(estimated))


@pytest.mark.parametrize("call", [by_estimator, by_estimator_of_rollouts, by_learner])
def test_learning_gives_what_to_log_by_name_or_nothing(call):
    call(Model(lambda batch: batch, None))
    call(Model(lambda batch: batch, {"model_loss": 0.5}))
    with pytest.raises(TypeError, match=r"learn\(\) of Model gave a Tensor: return a dict of what to log by name, or nothing"):
        call(Model(lambda batch: batch, torch.zeros(())))


def test_of_batches_by_name_each_keeps_the_shape_of_its_rewards():
    def ctx():
        return OnlineRLContext(train_data=tree({"own": batch(6), "demos": batch(4)}))

    def of_own(change):
        return Model(lambda both: tree({"own": with_leaves(both.own, reward=change(both.own.reward)), "demos": both.demos}))

    good = ctx()
    reward_estimator(None, of_own(lambda reward: 3 * reward))(good)

    assert (good.train_data.own.reward.tolist(), good.train_data.demos.reward.tolist()) == ([3.0] * 6, [1.0] * 4)
    with pytest.raises(ValueError, match=r"gave own.reward of shape \(6, 1\), and the batch has shape \(6,\)"):
        reward_estimator(None, of_own(lambda reward: reward[:, None]))(ctx())


class Doubled:
    """Reads the rewards and does not say so."""

    def estimate(self, batch):
        return with_leaves(batch, reward=2 * batch.reward)


class DoubledByName(Doubled):
    columns = ("obs",)


class Bootstrapped(Doubled):
    def learn(self, batch):
        return {"mean": batch["reward"].mean()}


@pytest.mark.parametrize(("kind", "method"), [(Doubled, "estimate"), (DoubledByName, "estimate"), (Bootstrapped, "learn")])
def test_a_column_that_was_not_fetched_for_the_model_is_named_with_the_fix(kind, method):
    def run(*given):
        ends, obs = np.arange(16) % 8 == 7, np.zeros((16, 3), np.float32)
        rows = {"obs": obs, "next_obs": obs, "action": np.zeros(16, np.int64), "reward": np.ones(16, np.float32)}
        rows.update(terminated=ends, truncated=ends & False)
        cfg, task = BCConfig().override({"policy.learn.batch_size": 8}), Task()
        policy = BCPolicy(cfg.policy, spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
        with task.start(ctx=OfflineRLContext()):
            task.use(offline_data_fetcher(cfg, rows, policy.learn_mode, *given)).use(reward_estimator(cfg, model))
            task.use(trainer(cfg, policy.learn_mode)).run(2)
            return task.ctx.train_data.reward.tolist()

    model = kind()
    words = rf"{method}\(\) of {kind.__name__} reads the column 'reward', .* It has obs \[8, 3\], .*learn_mode, reward_model\)"
    with pytest.raises(ColumnError, match=words):
        run()
    if kind is not DoubledByName:
        assert run(model) == [2.0] * 8


def test_an_error_of_the_model_itself_stays_as_it_is():
    class Broken:
        def estimate(self, batch):
            return self.missing

    with pytest.raises(AttributeError, match="object has no attribute 'missing'") as caught:
        reward_estimator(DQNConfig(), Broken())(OfflineRLContext(train_data=tree({"reward": torch.ones(2)})))
    assert not isinstance(caught.value, ColumnError)
