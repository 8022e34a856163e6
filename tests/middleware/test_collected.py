"""What a user's middleware makes of ctx.trajectories and ctx.episodes: changes in place, lists and slices in their place."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig, R2D2Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, ReplayBuffer, Trajectories, nested, tree
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    EpisodeCollector,
    StepCollector,
    data_pusher,
    gae_estimator,
    montecarlo_return_estimator,
    multistep_trainer,
    nstep_reward_enhancer,
    onpolicy_data_fetcher,
    priority_calculator,
    reward_estimator,
    reward_normalizer,
    sequence_pusher,
    trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy, R2D2Policy

GAMMA, LAMBDA = 0.9, 0.8


class Doubling:
    """A reward model."""

    def estimate(self, batch):
        batch.reward = batch.reward * 2  # on its own tree, which is no view of what was collected
        return batch


def ppo():
    cfg = PPOConfig(seed=1).override(
        {
            "policy.collect": {"n_sample": 24, "n_episode": 4, "discount_factor": GAMMA, "gae_lambda": LAMBDA},
            "policy.learn": {"epoch_per_collect": 1, "batch_size": 8},
            "policy.model.encoder_hidden_size_list": [8],
        }
    )
    envs = make_envs("CartPole-v1", 4, seed=1, max_episode_steps=9)
    return cfg, envs, PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def with_rollout(collector=StepCollector):
    cfg, envs, policy = ppo()
    ctx = OnlineRLContext()
    collector(cfg, policy.collect_mode, envs)(ctx)
    return cfg, policy, ctx


MIDDLEWARE = {
    "data_pusher": lambda cfg, policy, buffer: data_pusher(cfg, buffer),
    "onpolicy_data_fetcher": lambda cfg, policy, buffer: onpolicy_data_fetcher(cfg),
    "gae_estimator": lambda cfg, policy, buffer: gae_estimator(cfg, policy.collect_mode),
    "montecarlo_return_estimator": lambda cfg, policy, buffer: montecarlo_return_estimator(cfg, policy.collect_mode),
    "nstep_reward_enhancer": lambda cfg, policy, buffer: nstep_reward_enhancer(
        DQNConfig().override({"policy.nstep": 3, "policy.discount_factor": GAMMA})
    ),
    "reward_normalizer": lambda cfg, policy, buffer: reward_normalizer(cfg, policy.learn_mode),
    "reward_estimator": lambda cfg, policy, buffer: reward_estimator(cfg, Doubling(), of="trajectories"),
    "priority_calculator": lambda cfg, policy, buffer: priority_calculator(lambda rollout: np.arange(len(rollout))),
}
each = pytest.mark.parametrize("name", MIDDLEWARE)
OF_STEPS = {"data_pusher", "reward_estimator", "priority_calculator"}  # of single ones, whatever stands beside them
OF_ALL = {"reward_normalizer"}


def after(name, cfg, policy, ctx) -> dict:
    """Every step that the middleware left, by its first observation, which no two steps share: the leaves that it made."""
    buffer = ReplayBuffer(1000)
    MIDDLEWARE[name](cfg, policy, buffer)(ctx)
    if name == "data_pusher":
        rows = buffer.state_dict()["columns"]
    elif ctx.train_data is not None:
        batch = nested(ctx.train_data)
        valid = batch.pop("valid", torch.ones_like(batch["terminated"]))
        rows = {leaf: column[valid] for leaf, column in batch.items()}
    else:
        found = ctx.trajectories if isinstance(ctx.trajectories, Trajectories) else ctx.episodes
        rows = {leaf: torch.as_tensor(column) for leaf, column in found.rows().items()}
    rows.pop("priority", None)
    keys = [tuple(obs) for obs in rows["obs"].tolist()]
    assert len(set(keys)) == len(keys)
    return {key: {leaf: column[row] for leaf, column in rows.items()} for row, key in enumerate(keys)}


def assert_same(found: dict, expected: dict):
    assert found.keys() == expected.keys()
    for key, leaves in expected.items():
        for leaf, value in leaves.items():
            torch.testing.assert_close(found[key][leaf], value, rtol=1e-5, atol=1e-6)


@functools.cache
def after_of_the_rollout(name):
    return after(name, *with_rollout())


@functools.cache
def after_of_episodes(name):
    cfg, policy, ctx = with_rollout(EpisodeCollector)
    ctx.episodes = Episodes(ctx.episodes.rows(), ctx.episodes.lengths)
    return after(name, cfg, policy, ctx)


LISTS = {
    "all as a list": list,
    "all as a slice": lambda one: one[:],
    "all backwards": lambda one: one[::-1],
    "all as new trees": lambda one: [with_leaves(t, reward=t.reward) for t in one],
}


@pytest.mark.few
@each
@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS.keys())
def test_a_list_of_all_transitions_does_what_the_rollout_does(name, listed):
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = listed(ctx.trajectories)

    assert_same(after(name, cfg, policy, ctx), after_of_the_rollout(name))


@pytest.mark.few
@each
def test_of_a_slice_each_environment_is_a_rollout_of_its_own_that_ends_earlier(name):
    cfg, policy, ctx = with_rollout()
    whole = ctx.trajectories
    ctx.trajectories = whole[:15]  # six steps of each of four environments: two of them, and half of the third
    if name in OF_ALL:
        with pytest.raises(ValueError, match=rf"{name} found a list of 15 transitions.*needs each step of all environments"):
            after(name, cfg, policy, ctx)
        return
    found = after(name, cfg, policy, ctx)
    parts = {}
    for env, steps in ((0, 6), (1, 6), (2, 3)):
        ctx = OnlineRLContext(trajectories=Trajectories({n: leaf[:steps, env : env + 1] for n, leaf in whole.columns.items()}))
        parts |= after(name, cfg, policy, ctx)

    assert_same(found, parts)


@each
def test_transitions_from_elsewhere_are_taken_where_each_stands_alone_and_refused_elsewhere(name):
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = [nested(t) for t in ctx.trajectories][:10]
    if name in OF_STEPS:
        assert len(after(name, cfg, policy, ctx)) == 10
        return
    with pytest.raises(ValueError, match=rf"{name} found a list of 10 transitions.*needs the order of steps"):
        after(name, cfg, policy, ctx)


def test_what_was_made_of_transitions_from_elsewhere_is_still_no_rollout():
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = [nested(t) for t in ctx.trajectories]
    reward_estimator(cfg, Doubling(), of="trajectories")(ctx)
    with pytest.raises(ValueError, match="gae_estimator found a list of 24 transitions in ctx.trajectories, and needs"):
        gae_estimator(cfg, policy.collect_mode)(ctx)


def as_lists(episodes):
    return [[tree(nested(episode[t])) for t in range(len(episode.reward))] for episode in episodes]


@pytest.mark.few
@each
@pytest.mark.parametrize("listed", [list, lambda one: one[:], lambda one: list(map(nested, one)), as_lists])
def test_a_list_of_episodes_does_what_episodes_do(name, listed):
    if name == "reward_normalizer":
        return
    cfg, policy, ctx = with_rollout(EpisodeCollector)
    ctx.episodes = listed(ctx.episodes)

    assert_same(after(name, cfg, policy, ctx), after_of_episodes(name))


@each
def test_a_rollout_and_episodes_together_are_refused(name):
    cfg, policy, ctx = with_rollout()
    ctx.episodes = [ctx.trajectories[:6]]
    if name in OF_ALL:
        return
    with pytest.raises(
        RuntimeError, match=rf"{name} found both ctx.trajectories and ctx.episodes: set ctx.trajectories = None"
    ):
        after(name, cfg, policy, ctx)


@each
@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_a_column_that_is_missing_is_named(name, collector):
    cfg, policy, ctx = with_rollout(collector)
    if name in {"data_pusher", "onpolicy_data_fetcher", "priority_calculator"} or (name in OF_ALL and ctx.episodes):
        return
    if ctx.episodes is None:
        ctx.trajectories = Trajectories({key: column for key, column in ctx.trajectories.columns.items() if key != "reward"})
    else:
        rows = {key: column for key, column in ctx.episodes.rows().items() if key != "reward"}
        ctx.episodes = Episodes(rows, ctx.episodes.lengths)
    with pytest.raises(ValueError, match=f"{name} needs the columns reward.*: add reward"):
        after(name, cfg, policy, ctx)


NUMBERS = ("reward", "discount", "advantage", "return_", "value", "next_value")


@pytest.mark.few
@pytest.mark.parametrize("name", ["gae_estimator", "montecarlo_return_estimator", "nstep_reward_enhancer"])
@pytest.mark.parametrize("keep", [lambda one: one[1::2], lambda one: [*one[:3], *one[4:9]], list])
def test_in_a_list_of_episodes_gaps_are_those_of_a_list_of_transitions(name, keep):
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = keep(ctx.trajectories)
    expected = after(name, cfg, policy, ctx)
    cfg, policy, ctx = with_rollout()
    ctx.episodes, ctx.trajectories = [keep(ctx.trajectories)], None
    found = after(name, cfg, policy, ctx)

    numbers = [
        {key: {leaf: row[leaf] for leaf in NUMBERS if leaf in row} for key, row in it.items()} for it in (found, expected)
    ]
    assert_same(*numbers)


@pytest.mark.parametrize("name", ["gae_estimator", "montecarlo_return_estimator", "nstep_reward_enhancer", "data_pusher"])
def test_episodes_without_an_end_do_what_a_list_of_them_does(name):
    results = []
    for form in (lambda one: one, list):
        cfg, policy, ctx = with_rollout(EpisodeCollector)
        rows, lengths = ctx.episodes.rows(), ctx.episodes.lengths
        rows |= {flag: np.zeros(len(rows["reward"]), bool) for flag in ("terminated", "truncated")}
        ctx.episodes = form(Episodes(rows, lengths))
        results.append(after(name, cfg, policy, ctx))
        assert not rows["truncated"].any()

    assert_same(*results)
    assert any(row["truncated"] for row in results[0].values())


@pytest.mark.parametrize("change", [{"obs": np.zeros(4)}, {"reward": 1}, {"terminated": 0}])
def test_changed_transitions_have_the_dtypes_of_the_rollout(change):
    cfg, policy, ctx = with_rollout()
    dtypes = {name: column.dtype for name, column in ctx.trajectories.columns.items()}
    buffer = ReplayBuffer(100)
    buffer.push(ctx.trajectories)
    first, *others = ctx.trajectories
    ctx.trajectories = [with_leaves(first, **change), *others]
    gae_estimator(cfg, policy.collect_mode)(ctx)
    MIDDLEWARE["data_pusher"](cfg, policy, buffer)(ctx)
    batch = nested(ctx.train_data)

    assert {name: batch[name].numpy().dtype for name in dtypes} == dtypes
    assert len(buffer) == 48


@pytest.mark.few
@each
@pytest.mark.parametrize("form", [list, tuple])
def test_an_empty_list_is_nothing_to_learn_from(name, form):
    cfg, policy, ctx = with_rollout()
    buffer = ReplayBuffer(10)
    ctx.trajectories = form()
    if name in OF_ALL:
        with pytest.raises(ValueError, match=f"{name} found an empty list in ctx.trajectories, and needs each step"):
            MIDDLEWARE[name](cfg, policy, buffer)(ctx)
        return
    MIDDLEWARE[name](cfg, policy, buffer)(ctx)

    assert (len(buffer), ctx.train_data, len(ctx.trajectories)) == (0, None, 0)


@pytest.mark.few
@each
@pytest.mark.parametrize("wrong", [7, "text", [1, 2], {"reward": [1.0]}])
def test_what_is_neither_is_refused_by_name(name, wrong):
    cfg, _, policy = ppo()
    with pytest.raises(TypeError, match=rf"{name}.*ctx.trajectories.*"):
        after(name, cfg, policy, OnlineRLContext(trajectories=wrong))
    cfg, _, policy = ppo()
    words = "reward_normalizer found no ctx.trajectories" if name in OF_ALL else rf"{name}.*ctx.episodes"
    with pytest.raises(RuntimeError if name in OF_ALL else TypeError, match=words):
        after(name, cfg, policy, OnlineRLContext(episodes=wrong))


@pytest.mark.few
@each
@pytest.mark.parametrize("form", [lambda one: one, list])
def test_a_change_in_place_reaches_each_middleware(name, form):
    cfg, policy, ctx = with_rollout()
    reward = ctx.trajectories.columns["reward"] * np.arange(1, 7, dtype=np.float32)[:, None]
    ctx.trajectories = ctx.trajectories.with_columns(reward=reward)
    expected = after(name, cfg, policy, ctx)
    cfg, policy, ctx = with_rollout()
    assert ctx.trajectories.batch.reward.shape == (6, 4)
    ctx.trajectories = form(ctx.trajectories)
    for place, transition in enumerate(ctx.trajectories):
        transition.reward *= place % 6 + 1

    assert_same(after(name, cfg, policy, ctx), expected)


def test_sequences_are_cut_from_all_transitions_of_a_rollout_and_not_from_some():
    cfg = R2D2Config().override({"policy.learn": {"burn_in": 0, "unroll_len": 3}})
    buffer, ctx = ReplayBuffer(100), OnlineRLContext()
    push = sequence_pusher(cfg, buffer)
    no = np.zeros((6, 2), bool)
    one = Trajectories({"reward": np.arange(12.0).reshape(6, 2), "terminated": no, "truncated": no})
    ctx.trajectories = list(one)
    push(ctx)
    assert sorted(buffer.state_dict()["columns"]["reward"].tolist()) == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    ctx.trajectories = one[:6]
    with pytest.raises(ValueError, match="sequence_pusher found a list of 6 transitions.*needs each step of all environments"):
        push(ctx)


def foreign_envs(mode=AutoresetMode.NEXT_STEP, limits=(3, 3, 30)):
    """Environments of gymnasium: in NEXT_STEP mode, a step between two episodes is only a reset."""
    makers = [lambda limit=limit: gymnasium.make("CartPole-v1", max_episode_steps=limit) for limit in limits]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def recurrent_ppo(envs):
    learn = {"policy.learn": {"epoch_per_collect": 2, "batch_size": 8, "unroll_len": 3}}
    cfg = PPOConfig(seed=1).override({"policy.collect.n_sample": 24, "policy.model.lstm_size": 8, **learn})
    return cfg, PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def learned_by_recurrent_ppo(change, envs):
    cfg, policy = recurrent_ppo(envs)
    task, batches = Task(), []
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(change)
        task.use(reward_normalizer(cfg, policy.learn_mode))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(lambda ctx: batches.append(nested(ctx.train_data)))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.run(max_step=4)
    return batches, policy.state_dict()


def pushed_sequences(change, envs):
    learn = {"burn_in": 2, "unroll_len": 4}
    cfg = R2D2Config(seed=1).override({"policy.learn": learn, "policy.collect.n_sample": 12})
    policy = R2D2Policy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    collector, buffer, ctx = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}), ReplayBuffer(99), None
    push = sequence_pusher(cfg, buffer)
    for _ in range(6):
        ctx = OnlineRLContext()
        collector(ctx)
        change(ctx)
        push(ctx)
    return buffer.state_dict()["columns"]


def with_nstep_rewards(change, envs):
    cfg = DQNConfig(seed=1).override({"policy.nstep": 3, "policy.collect.n_sample": 24})
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    collector, found = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}), []
    for _ in range(3):
        ctx = OnlineRLContext()
        collector(ctx)
        change(ctx)
        nstep_reward_enhancer(cfg)(ctx)
        found.append(ctx.trajectories.rows())
    return found


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("result", [learned_by_recurrent_ppo, pushed_sequences, with_nstep_rewards])
def test_in_each_autoreset_mode_a_list_of_all_transitions_gives_the_numbers_of_the_rollout(result, mode, digest):
    def listed(ctx):
        ctx.trajectories = list(ctx.trajectories)

    expected = result(lambda ctx: None, foreign_envs(mode))

    assert digest(result(listed, foreign_envs(mode))) == digest(expected)


def test_of_rows_that_are_only_a_reset_in_each_environment_a_list_keeps_the_place():
    envs = foreign_envs(limits=(3, 7))
    cfg, policy = recurrent_ppo(envs)
    cfg.policy.collect.n_sample = 2
    collector, normalize = StepCollector(cfg, policy.collect_mode, envs), reward_normalizer(cfg, policy.learn_mode)
    for _ in range(6):
        ctx = OnlineRLContext()
        collector(ctx)
        ctx.trajectories = list(ctx.trajectories)
        normalize(ctx)
        assert ctx.trajectories.columns["reward"].shape == (1, 2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_after_a_gap_begin_with_the_recurrent_state_of_acting(mode):
    envs = foreign_envs(mode)
    cfg, policy = recurrent_ppo(envs)
    with torch.no_grad():  # so that the recurrent state has a large effect
        for parameter in policy.model.parameters():
            parameter.mul_(3)
    policy.bump_version()
    collector, ctx = StepCollector(cfg, policy.collect_mode, envs), OnlineRLContext()
    collector(ctx)
    collector(ctx)
    whole = ctx.trajectories
    found = []
    for chosen in (whole, [t for place, t in enumerate(whole) if place % 5 != 1]):
        ctx.trajectories = chosen
        gae_estimator(cfg, policy.collect_mode)(ctx)
        batch = nested(ctx.train_data)
        valid = batch.pop("valid", torch.ones_like(batch["terminated"]))
        keys = map(tuple, batch["obs"][valid].tolist())
        found.append(dict(zip(keys, zip(batch["value"][valid].tolist(), batch["next_value"][valid].tolist()), strict=True)))
    multistep_trainer(cfg.override({"policy.learn": {"epoch_per_collect": 1, "batch_size": 999}}), policy.learn_mode)(ctx)

    assert 0 < len(found[1]) < len(found[0])
    for key, values in found[1].items():
        assert values == pytest.approx(found[0][key], rel=1e-4, abs=1e-5)
    assert float(ctx.train_output["kl"]) == pytest.approx(0, abs=1e-9)


def chosen_of(ctx):
    ctx.trajectories = [t for t in ctx.trajectories if t.obs[0] > 0]


def first_of(ctx):
    ctx.trajectories = ctx.trajectories[:16]


def shaped(ctx):
    ctx.trajectories = [with_leaves(t, reward=t.reward - t.obs[0].abs()) for t in ctx.trajectories]


@pytest.mark.few
@pytest.mark.filterwarnings("ignore:asynchronous mode cannot overlap")
@pytest.mark.parametrize("change", [chosen_of, first_of, shaped])
@pytest.mark.parametrize("async_mode", [False, True])
def test_a_pipeline_learns_from_what_the_user_left(change, async_mode):
    cfg, envs, policy = ppo()
    task = Task()
    with task.start(async_mode=async_mode, ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        task.use(change)
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.run(max_step=2)

    assert policy.learn_mode.train_iter > 0


def test_a_pipeline_learns_from_the_episodes_that_the_user_chose():
    cfg, envs, policy = ppo()
    task, lengths = Task(), []

    def choose(ctx):
        ctx.episodes = [e for e in ctx.episodes if len(e.reward) == 9]

    with task.start(ctx=OnlineRLContext()):
        task.use(EpisodeCollector(cfg, policy.collect_mode, envs))
        task.use(choose)
        task.use(montecarlo_return_estimator(cfg, policy.collect_mode))
        task.use(lambda ctx: lengths.append(None if ctx.train_data is None else ctx.train_data.reward.shape[0]))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.run(max_step=3)

    assert set(lengths) <= {9, None}


def as_rows(rollout):
    return tree({name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in rollout.columns.items()})


@pytest.mark.parametrize("form", [list, lambda one: one[:5], lambda one: list(map(nested, one)), as_rows])
def test_a_trainer_takes_a_list_of_transitions_as_a_batch(form):
    cfg = DQNConfig().override({"policy.model.encoder_hidden_size_list": [8]})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    ctx = OnlineRLContext()
    StepCollector(cfg, policy.collect_mode, envs)(ctx)
    ctx.train_data = form(ctx.trajectories)
    trainer(cfg, policy.learn_mode)(ctx)

    assert ctx.train_iter == 1
    ctx.train_data = [3]
    with pytest.raises(TypeError, match=r"ctx.train_data: transition 0 of a list is 3"):
        trainer(cfg, policy.learn_mode)(ctx)


def test_rollouts_shorter_than_nstep_are_warned_of_by_name_once_also_after_a_longer_one():
    no = np.zeros((2, 4), bool)
    one = Trajectories({"reward": np.ones((2, 4), np.float32), "next_obs": np.ones((2, 4)), "terminated": no, "truncated": no})
    enhance = nstep_reward_enhancer(DQNConfig().override({"policy.nstep": 3}))
    words = r"policy.nstep = 3 is longer than a rollout, which has 2 steps .*: set policy.collect.n_sample = 12 or more, or"
    enhance(OnlineRLContext(trajectories=Trajectories({name: np.repeat(it, 2, 0) for name, it in one.columns.items()})))
    with pytest.warns(UserWarning, match=words):
        enhance(OnlineRLContext(trajectories=one))
    enhance(OnlineRLContext(trajectories=one))
    nstep_reward_enhancer(DQNConfig().override({"policy.nstep": 2}))(OnlineRLContext(trajectories=one))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_an_action_that_is_not_of_its_space_is_refused_where_it_is_set(collector, workers):
    cfg, _, _ = ppo()
    envs = make_envs("CartPole-v1", 4, seed=1, max_episode_steps=9, workers=workers)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    ctx = OnlineRLContext()
    left = collector(cfg, policy.collect_mode, envs)(ctx)
    if left is not None:
        left.take(ctx)
    with pytest.raises(ValueError, match="action of .* cannot be 9: its space allows 0 to 1 there"):
        (ctx.trajectories or ctx.episodes)[0].action = 9
    (ctx.trajectories or ctx.episodes).batch.action[0, 0] = 9  # changes of a tensor in place are not checked
    envs.close()


def doubled(cfg, ctx):
    reward_estimator(cfg, Doubling(), of="trajectories")(ctx)


def doubled_twice_as_a_list(cfg, ctx):
    for _ in range(2):
        field = "episodes" if ctx.trajectories is None else "trajectories"
        setattr(ctx, field, list(getattr(ctx, field)))
        doubled(cfg, ctx)


def doubled_in_part(cfg, ctx):
    field = "episodes" if ctx.trajectories is None else "trajectories"
    setattr(ctx, field, getattr(ctx, field)[1:3])
    doubled(cfg, ctx)


@pytest.mark.parametrize("change", [doubled, doubled_twice_as_a_list, doubled_in_part])
@pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
def test_an_action_that_is_not_of_its_space_is_refused_also_after_a_middleware_has_rewritten_the_data(collector, change):
    cfg, _, ctx = with_rollout(collector)
    change(cfg, ctx)
    with pytest.raises(ValueError, match="action of .* cannot be 9: its space allows 0 to 1 there"):
        (ctx.trajectories or ctx.episodes)[0].action = 9


def test_an_action_that_is_not_of_its_space_is_named_where_it_is_learned_from():
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = [with_leaves(one, action=torch.tensor(9)) for one in ctx.trajectories]
    gae_estimator(cfg, policy.collect_mode)(ctx)
    words = r"PPOPolicy cannot learn from this batch: batch.action\[.*\] is 9, and Discrete\(2\) has 0 to 1 there"
    with pytest.raises(ValueError, match=words):
        multistep_trainer(cfg, policy.learn_mode)(ctx)


def test_an_action_that_its_dtype_cannot_hold_is_named_where_the_list_is_read():
    cfg, policy, ctx = with_rollout()
    ctx.trajectories = [with_leaves(one, action=torch.tensor(0.5)) for one in ctx.trajectories]
    with pytest.raises(ValueError, match="action of a list of transitions is int64 in the rollout, which cannot hold 0.5"):
        gae_estimator(cfg, policy.collect_mode)(ctx)
