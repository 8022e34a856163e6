"""StepCollector, inferencer and rolloutor: what lands in the context, and what is counted."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig, PPOConfig, R2D2Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import SpaceError, make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    inferencer,
    rolloutor,
)
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy, R2D2Policy


def made(num_envs=3, n_sample=8, policy=DQNPolicy, config=DQNConfig, env="CartPole-v1"):
    cfg = config().override({"policy.collect.n_sample": n_sample})
    envs = make_envs(env, num_envs, seed=0)
    return cfg, envs, policy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def run(middleware, steps, ctx=None):
    task, seen = Task(), []
    with task.start(ctx=ctx or OnlineRLContext(collect_kwargs={"eps": 0.0})):
        for one in middleware:
            task.use(one)
        task.use(seen.append).run(max_step=steps)
    return seen


def test_a_rollout_has_at_least_n_sample_transitions_in_whole_steps_and_all_are_counted():
    cfg, envs, policy = made(num_envs=3, n_sample=8)
    contexts = run([StepCollector(cfg, policy.collect_mode, envs)], 4)

    assert [len(ctx.trajectories) for ctx in contexts] == [9] * 4
    assert [ctx.env_step for ctx in contexts] == [9, 18, 27, 36]
    assert [ctx.trajectory_end_idx for ctx in contexts] == [[2, 5, 8]] * 4


def test_finished_episodes_are_counted_and_agree_with_the_ends_in_the_rollouts():
    cfg, envs, policy = made(num_envs=4, n_sample=64)
    contexts = run([StepCollector(cfg, policy.collect_mode, envs)], 10)
    ends = [int((ctx.trajectories.batch.terminated | ctx.trajectories.batch.truncated).sum()) for ctx in contexts]

    assert [len(ctx.finished_episodes) for ctx in contexts] == ends
    assert contexts[-1].env_episode == sum(ends) > 0
    assert all(episode.return_ == episode.length for ctx in contexts for episode in ctx.finished_episodes)


def test_rollouts_follow_on_one_another():
    cfg, envs, policy = made()
    first, second = run([StepCollector(cfg, policy.collect_mode, envs)], 2)
    last, ended = first.trajectories.batch[-1], first.trajectories.batch.terminated[-1]

    torch.testing.assert_close(second.trajectories.batch.obs[0][~ended], last.next_obs[~ended], rtol=0, atol=0)


def test_random_actions_come_first_and_only_once():
    cfg, envs, policy = made(num_envs=2, n_sample=4)
    acted = []
    compute = policy.collect_mode.actor.compute_actions
    policy.collect_mode.actor.compute_actions = lambda *args, **kwargs: acted.append(1) or compute(*args, **kwargs)
    contexts = run([StepCollector(cfg, policy.collect_mode, envs, random_collect_size=50)], 3)

    assert [ctx.env_step for ctx in contexts] == [50, 54, 58]
    assert len(acted) == 4
    assert 0 < contexts[0].trajectories.batch.action.float().mean() < 1


def versions_of(contexts):
    return [ctx.policy_version for ctx in contexts]


class TestRandomActionsOnce:
    """Also if a random rollout counts fewer steps than it should have, or another collector has counted steps before."""

    def test_with_steps_that_are_only_resets(self):
        cfg = DQNConfig().override({"policy.collect.n_sample": 8})
        envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
        policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        contexts = run([StepCollector(cfg, policy.collect_mode, envs, random_collect_size=400)], 3)

        assert contexts[0].env_step < 400
        assert [ctx.trajectories.num_steps for ctx in contexts] == [100, 2, 2]
        assert [version < 0 for version in versions_of(contexts)] == [True, False, False]

    @pytest.mark.parametrize("backend", ["local", "process"])
    def test_beside_another_collector(self, backend):
        cfg, envs, policy = made(num_envs=2, n_sample=4)
        others = make_envs("CartPole-v1", 2, seed=1, backend=backend)
        collectors = StepCollector(cfg, policy.collect_mode, envs), StepCollector(cfg, policy.collect_mode, others, 50)

        assert [version < 0 for version in versions_of(run(collectors, 4))] == [True, False, False, False]

    def test_not_again_after_a_saved_state_is_loaded(self):
        cfg = DQNConfig().override({"policy.collect.n_sample": 8})
        envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
        policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)

        def collector():
            return StepCollector(cfg, policy.collect_mode, envs, random_collect_size=400)

        saved, fresh, resumed, resumed_from_older = (collector() for _ in range(4))
        (first,) = run([saved], 1)
        fresh.load_state_dict(fresh.state_dict())
        resumed.load_state_dict(saved.state_dict())
        resumed_from_older.load_state_dict({"memory": None, "random": saved.state_dict()["random"]})

        for one, version in (fresh, -1), (resumed, policy.version), (resumed_from_older, policy.version):
            kept = OnlineRLContext(collect_kwargs={"eps": 0.0}, env_step=first.env_step)
            assert versions_of(run([one], 1, kept)) == [version]

    def test_not_in_a_context_that_continues_training(self):
        cfg, envs, policy = made(num_envs=2, n_sample=4)
        kept = OnlineRLContext(collect_kwargs={"eps": 0.0}, env_step=50)

        assert versions_of(run([StepCollector(cfg, policy.collect_mode, envs, 50)], 2, kept)) == [policy.version] * 2


def test_an_environment_that_does_not_fit_the_policy_is_refused_at_once():
    cfg, _, policy = made()
    with pytest.raises(SpaceError, match="DQNPolicy was made for the spaces"):
        StepCollector(cfg, policy.collect_mode, make_envs("Acrobot-v1", 2))


def test_no_vector_environment_is_refused_by_name():
    cfg, _, policy = made()
    with pytest.raises((TypeError, AttributeError), match="num_envs|vector environment"):
        StepCollector(cfg, policy.collect_mode, gymnasium.make("CartPole-v1"))


def test_as_many_actions_as_environments_are_wanted():
    envs = make_envs("CartPole-v1", 3)
    policy = PPOPolicy(None, envs.single_observation_space, envs.single_action_space)

    def drop(ctx):
        ctx.action = ctx.action[:2]

    with pytest.raises(ValueError, match=r"rolloutor found 2 actions in ctx.action for 3 environments .*: write one for each"):
        run([inferencer(0, policy.collect_mode, envs), drop, rolloutor(policy.collect_mode, envs)], 1)


def test_inferencer_and_rolloutor_together_collect_step_by_step():
    cfg, envs, policy = made(num_envs=3)
    log = []
    contexts = run([inferencer(0, policy.collect_mode, envs), rolloutor(policy.collect_mode, envs, log)], 20)

    assert [ctx.env_step for ctx in contexts] == list(range(3, 63, 3))
    assert [step.columns["obs"].shape for step in log] == [(1, 3, 4)] * 20
    for ctx, step in zip(contexts, log):
        np.testing.assert_array_equal(ctx.obs.numpy(), step.columns["obs"][0])
        assert [int(action) for action in ctx.action] == step.columns["action"][0].tolist()
        assert sorted(ctx.inference_output) == [0, 1, 2]
        assert ctx.trajectory_end_idx == [0, 1, 2]
    for before, after in zip(log, log[1:]):
        going = ~(before.columns["terminated"][0] | before.columns["truncated"][0])
        np.testing.assert_array_equal(before.columns["next_obs"][0][going], after.columns["obs"][0][going])


def test_step_by_step_and_in_one_go_are_the_same_rollout():
    cfg, envs, policy = made(num_envs=2, n_sample=12, policy=PPOPolicy, config=PPOConfig)
    (whole,) = run([StepCollector(cfg, policy.collect_mode, envs)], 1)
    _, envs, policy = made(num_envs=2, n_sample=12, policy=PPOPolicy, config=PPOConfig)
    envs.reset()
    envs.reset(seed=0)
    steps = run([inferencer(0, policy.collect_mode, envs), rolloutor(policy.collect_mode, envs)], 6)

    for name, column in whole.trajectories.columns.items():
        stepwise = np.concatenate([ctx.trajectories.columns[name] for ctx in steps])
        np.testing.assert_allclose(stepwise, column, rtol=1e-6, err_msg=name)


def test_step_by_step_a_recurrent_policy_acts_as_in_one_go_without_a_warning():
    settings = {"policy": R2D2Policy, "config": R2D2Config}
    cfg, envs, policy = made(num_envs=2, n_sample=80, **settings)
    envs.reset(seed=5)
    (whole,) = run([StepCollector(cfg, policy.collect_mode, envs)], 1)
    _, envs, policy = made(num_envs=2, n_sample=80, **settings)
    envs.reset(seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = run([inferencer(0, policy.collect_mode, envs), rolloutor(policy.collect_mode, envs)], 40)

    for name, column in whole.trajectories.columns.items():
        stepwise = np.concatenate([ctx.trajectories.columns[name] for ctx in steps])
        np.testing.assert_allclose(stepwise, column, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_recurrent_state_that_lacks_a_step_between_inferencer_and_rolloutor_is_warned_of():
    cfg, envs, policy = made(num_envs=2, policy=R2D2Policy, config=R2D2Config)
    parts = [inferencer(0, policy.collect_mode, envs), rolloutor(policy.collect_mode, envs)]
    run(parts, 2)
    envs.step([0, 0])
    with pytest.warns(UserWarning, match="R2D2Policy has a recurrent state, but acts in episodes that it did not begin"):
        run(parts, 1)


def test_a_middleware_may_change_the_action_between_inferencer_and_rolloutor():
    _, envs, policy = made(num_envs=2)

    def always_left(ctx):
        ctx.action = [np.int64(0) for _ in ctx.action]

    contexts = run([inferencer(0, policy.collect_mode, envs), always_left, rolloutor(policy.collect_mode, envs)], 5)

    assert all((ctx.trajectories.columns["action"] == 0).all() for ctx in contexts)


def test_a_pipeline_of_single_steps_learns():
    cfg, envs, policy = made()
    cfg.override({"policy.learn": {"learning_starts": 30, "update_per_collect": 2}})
    buffer = ReplayBuffer(1000)
    parts = [inferencer(0, policy.collect_mode, envs), rolloutor(policy.collect_mode, envs), data_pusher(cfg, buffer)]
    contexts = run([eps_greedy_handler(cfg), *parts, OffPolicyLearner(cfg, policy.learn_mode, buffer)], 12)

    assert len(buffer) == 36
    assert contexts[-1].train_iter == policy.version == 6


def test_a_rolloutor_without_an_inferencer_is_refused_with_the_fix():
    _, envs, policy = made()
    task = Task()
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match="rolloutor reads ctx.action.*add an inferencer"):
        task.use(rolloutor(policy.collect_mode, envs)).run(max_step=1)


class Telling(Policy):
    """Tells in words and objects what it carries on from step to step."""

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def get_initial_state(self):
        return [torch.zeros(2), "begun", {"steps": [0]}]

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, prev_reward_batch=None, explore=True, **kwargs):
        count, words, things = state
        after = [count + 1, [f"step {int(one[0])}" for one in count], [{"steps": [*thing["steps"], 1]} for thing in things]]
        outputs = {"word": words, "pair": [(1, 2) for _ in words], "told": prev_reward_batch, "told_action": prev_action_batch}
        return (prev_action_batch + count[:, 0].long().numpy()) % 2, after, outputs


def test_states_objects_and_the_step_before_are_the_same_step_by_step_and_in_one_go():
    cfg = PPOConfig().override({"policy.collect.n_sample": 120})
    parts = []
    for _ in range(2):
        envs = make_envs("CartPole-v1", 2, seed=0, max_episode_steps=7)
        parts.append((envs, Telling(cfg.policy, envs.single_observation_space, envs.single_action_space).collect_mode))
    (envs, policy), (others, other) = parts
    (whole,) = run([StepCollector(cfg, policy, envs)], 1)
    steps = run([inferencer(0, other, others), rolloutor(other, others)], 60)

    assert set(whole.trajectories.columns) == set(steps[0].trajectories.columns)
    for name, column in whole.trajectories.columns.items():
        stepwise = np.concatenate([ctx.trajectories.columns[name] for ctx in steps])
        assert (stepwise.dtype, stepwise.tolist()) == (column.dtype, column.tolist()), name
    assert whole.trajectories.columns["told_action"].any()
    assert whole.trajectories.columns["pair"][0].tolist() == [(1, 2)] * 2
    assert whole.trajectories.columns["state_out_2"][6, 0] == {"steps": [0, *[1] * 7]}
    assert steps[1].inference_output[0]["word"] == "step 0"


@pytest.mark.parametrize(("workers", "is_named"), [((1, 1), False), ((2, 2), True), ((1, 2), True), ((2, 1), True)])
def test_collectors_in_pieces_that_share_a_mode_are_named_once(workers, is_named, recwarn):
    cfg = DQNConfig().override({"policy.collect.n_sample": 8})
    envs = [make_envs("CartPole-v1", 2, workers=count, backend="local", seed=count) for count in workers]
    policy = DQNPolicy(cfg.policy, envs[0].single_observation_space, envs[0].single_action_space)
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        for env in envs:
            task.use(StepCollector(cfg, policy.collect_mode, env, collect_kwargs={"eps": 0.5}))
        task.run(max_step=2)

    found = [str(one.message) for one in recwarn.list if "draw the same random numbers" in str(one.message)]
    assert len(found) == is_named
