"""Fetching by priority, from several buffers, with reward models, and the rollout as it is."""

import warnings

import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Episodes, PrioritizedReplayBuffer, ReplayBuffer, Trajectories, tree
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    eps_greedy_masker,
    nstep_reward_enhancer,
    offpolicy_data_fetcher,
    onpolicy_data_fetcher,
    priority_calculator,
    reward_estimator,
    trainer,
)
from ding_lite.pipeline import contract_of
from ding_lite.policy import DQNPolicy
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

EPS = 1e-6


def transitions(count, seed=0, **more):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.standard_normal((count, 4)).astype(np.float32),
        "action": rng.integers(0, 2, count),
        "reward": rng.standard_normal(count).astype(np.float32),
        "next_obs": rng.standard_normal((count, 4)).astype(np.float32),
        "terminated": rng.random(count) < 0.1,
        "truncated": np.zeros(count, np.bool_),
        **more,
    }


def dqn(nstep=1, **learn):
    learn = {"learning_starts": 1, "batch_size": 8, "update_per_collect": 3, **learn}
    cfg = DQNConfig().override({"policy.learn": learn, "policy.model.encoder_hidden_size_list": [8], "policy.nstep": nstep})
    envs = make_envs("CartPole-v1", 2, seed=0)
    return cfg, DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space), envs


def prioritized(count=50, capacity=100, seed=0, **more):
    buffer = PrioritizedReplayBuffer(capacity, seed=seed, alpha=1.0)
    buffer.push(transitions(count, seed, **more))
    return buffer


def uniform(count=50, capacity=100, seed=0, **more):
    buffer = ReplayBuffer(capacity, seed=seed)
    if count:
        buffer.push(transitions(count, seed, **more))
    return buffer


def priorities_of(buffer):
    return buffer.state_dict()["scaled"].numpy() - EPS


def silently(fn, *args):
    """Call it; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fn(*args)


class FewColumns:
    """In the place of a policy that says what it reads."""

    columns = ("obs", "reward")


def test_a_policy_that_says_what_it_reads_gets_no_more():
    cfg, policy, _ = dqn()
    ctx = OnlineRLContext()
    for reader, names in ((FewColumns(), {"obs", "reward"}), (None, set(transitions(1))), (object(), set(transitions(1)))):
        offpolicy_data_fetcher(cfg, uniform(), reader)(ctx)
        assert set(ctx.train_data.keys()) == names
    offpolicy_data_fetcher(cfg, uniform(extra=np.zeros(50), discount=np.ones(50)), policy.learn_mode)(ctx)

    assert set(ctx.train_data.keys()) == {"obs", "action", "reward", "next_obs", "terminated", "discount"}


def test_columns_of_a_reward_model_are_fetched_too_and_all_where_it_does_not_say():
    class Says:
        columns = ("truncated",)

    cfg, _, _ = dqn()
    ctx = OnlineRLContext()
    offpolicy_data_fetcher(cfg, uniform(), FewColumns(), Says())(ctx)
    assert set(ctx.train_data.keys()) == {"obs", "reward", "truncated"}
    offpolicy_data_fetcher(cfg, uniform(), FewColumns(), object())(ctx)

    assert set(ctx.train_data.keys()) == set(transitions(1))


def test_the_reward_of_the_environment_is_fetched_from_one_buffer_for_a_reward_model_to_keep():
    cfg, policy, _ = dqn()
    ctx, raw_reward = OnlineRLContext(), np.full(50, 7.0, np.float32)
    model = RNDRewardModel(RNDRewardConfig(), policy.observation_space)
    offpolicy_data_fetcher(cfg, uniform(raw_reward=raw_reward), policy.learn_mode, model)(ctx)
    reward_estimator(cfg, model)(ctx)
    assert (ctx.train_data.raw_reward == 7).all()
    offpolicy_data_fetcher(cfg, uniform(raw_reward=raw_reward), policy.learn_mode)(ctx)
    assert "raw_reward" not in set(ctx.train_data.keys())
    offpolicy_data_fetcher(cfg, [(uniform(raw_reward=raw_reward), 0.5), (uniform(), 0.5)], policy.learn_mode, model)(ctx)
    assert "raw_reward" not in set(ctx.train_data.keys())


def test_the_learner_fetches_what_its_policy_and_reward_model_read():
    cfg, policy, _ = dqn()
    read = {"obs", "action", "reward", "next_obs", "terminated"}
    for model, names in ((None, read), (Doubling(), set(transitions(1)))):
        ctx = OnlineRLContext()
        OffPolicyLearner(cfg, policy.learn_mode, uniform(), model)(ctx)
        assert set(ctx.train_data.keys()) == names


def test_the_buffer_gets_the_priorities_that_the_loss_gave_after_learning():
    cfg, policy, _ = dqn()
    buffer, task, seen = prioritized(), Task(), []

    def look(ctx):
        seen.append((ctx.train_data, ctx.train_output["priority"], priorities_of(buffer)))

    with task.start(ctx=OnlineRLContext()):
        task.use(offpolicy_data_fetcher(cfg, buffer, policy.learn_mode)).use(trainer(cfg, policy.learn_mode)).use(look)
        task.run(max_step=1)
    batch, priority, before = seen[0]
    expected = before.copy()
    for place, new in zip(batch.index.tolist(), priority.tolist()):
        expected[place] = new

    assert before == pytest.approx([1] * 50)
    assert priorities_of(buffer) == pytest.approx(expected)
    assert len(set(batch.index.tolist())) > 4


def test_the_learner_draws_each_batch_with_the_priorities_of_the_one_before():
    cfg, policy, _ = dqn(update_per_collect=4)
    buffer, found = prioritized(), []
    sample = buffer.sample
    buffer.sample = lambda size, columns: (found.append(priorities_of(buffer)), sample(size, columns))[1]
    ctx = OnlineRLContext()
    OffPolicyLearner(cfg, policy.learn_mode, buffer)(ctx)
    found.append(priorities_of(buffer))

    assert found[0] == pytest.approx([1] * 50)
    for output, before, after in zip(ctx.train_output, found, found[1:], strict=False):
        changed = np.flatnonzero(after != before)
        assert 0 < len(changed) <= 8
        assert {round(float(p), 4) for p in after[changed]} <= {round(p, 4) for p in output["priority"].tolist()}
    assert [output["priority"].shape for output in ctx.train_output] == [(8,)] * 4


def test_learning_by_priority_is_logged_as_the_mean_priority():
    cfg, policy, _ = dqn()
    ctx = OnlineRLContext()
    OffPolicyLearner(cfg, policy.learn_mode, prioritized())(ctx)
    logged = MetricsLogger()
    logged.aggregate(ctx.learn_metrics)
    expected = np.mean([output["priority"].mean().item() for output in ctx.train_output])

    assert logged.reduce(compile=True)["priority"] == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_gives_no_priorities_to_a_buffer_that_goes_by_them_is_an_error():
    cfg, policy, _ = dqn()
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: {name: it for name, it in learn(batch).items() if name != "priority"}
    message = r"is prioritised, and the output of learning has no 'priority': \['cur_lr', 'loss', .*Return it, \[B\], from the"
    with pytest.raises(ValueError, match=message):
        OffPolicyLearner(cfg, policy.learn_mode, prioritized())(OnlineRLContext())


def test_nothing_is_asked_of_learning_while_there_is_too_little_to_learn_from():
    cfg, policy, _ = dqn(learning_starts=60)
    buffer, task = prioritized(), Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(offpolicy_data_fetcher(cfg, buffer, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
        task.run(max_step=2)
    ctx = OnlineRLContext()
    OffPolicyLearner(cfg, policy.learn_mode, buffer)(ctx)

    assert (task.ctx.train_iter, ctx.train_iter, ctx.train_data) == (0, 0, None)


def test_a_fetcher_by_priority_without_a_learner_is_refused_with_the_fix():
    cfg, policy, _ = dqn()
    task = Task()
    message = r"reads ctx.train_output, but no earlier middleware writes it: add a learner such as OffPolicyLearner, trainer"
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match=message):
        task.use(offpolicy_data_fetcher(cfg, prioritized(), policy.learn_mode)).run(max_step=1)


@pytest.mark.parametrize("form", ["list", "dict"])
def test_several_buffers_stand_in_the_contract_and_together_need_enough(form):
    cfg, policy, _ = dqn(learning_starts=20)
    old, new = uniform(10, seed=1), prioritized(9, capacity=100, seed=2)
    buffers = [(old, 0.25), (new, 0.75)] if form == "list" else {"old": old, "new": new}
    fetch = offpolicy_data_fetcher(cfg, buffers)
    ctx = OnlineRLContext()
    next(fetch(ctx))
    assert ctx.train_data is None
    new.push(transitions(1))
    next(fetch(ctx))

    assert contract_of(fetch).uses == (old, new)
    assert contract_of(OffPolicyLearner(cfg, policy.learn_mode, buffers)).uses == (old, new, policy.learn_mode)
    parts = [ctx.train_data] if form == "list" else [ctx.train_data.old, ctx.train_data.new]
    assert [part.obs.shape for part in parts] == [(8, 4)] * len(parts)


@pytest.mark.parametrize(("form", "name"), [("list", "buffer 1 of the list"), ("dict", "the buffer 'new'")])
def test_an_empty_buffer_among_several_that_learning_waits_for_is_named_once(form, name):
    cfg, _, _ = dqn(learning_starts=20)
    old, new, ctx = uniform(19, seed=1), uniform(0, seed=2), OnlineRLContext()
    fetch = offpolicy_data_fetcher(cfg, [(old, 0.25), (new, 0.75)] if form == "list" else {"old": old, "new": new})
    silently(fetch, ctx)
    old.push(transitions(1))
    with pytest.warns(UserWarning, match=f"learning waits for transitions in {name}, a ReplayBuffer: push some"):
        fetch(ctx)
    silently(fetch, ctx)
    assert ctx.train_data is None
    new.push(transitions(1))
    silently(fetch, ctx)

    assert ctx.train_data is not None


@pytest.mark.parametrize("form", ["one", "list", "dict"])
def test_rewards_of_one_step_where_several_are_wanted_are_told_once(form):
    cfg, policy, _ = dqn(nstep=3)
    one, other, ctx = uniform(), uniform(seed=1), OnlineRLContext()
    buffers = {"one": one, "list": [(one, 0.5), (other, 0.5)], "dict": {"one": one, "other": other}}[form]
    fetch = offpolicy_data_fetcher(cfg, buffers, policy.learn_mode)
    message = (
        "policy.nstep = 3, and the replayed transitions have no discount: .* Put nstep_reward_enhancer before the pusher, or"
    )
    with pytest.warns(UserWarning, match=message):
        fetch(ctx)

    silently(fetch, ctx)


class ReadsNoDiscount:
    """In the place of a policy, such as R2D2's, that sums up rewards itself."""

    columns = ("reward", "obs")


@pytest.mark.parametrize(
    ("nstep", "more", "reads"),
    [(1, {}, True), (3, {"discount": np.ones(50, np.float32)}, True), (3, {}, False)],
    ids=["one step", "a discount", "no use for it"],
)
@pytest.mark.parametrize("form", ["one", "dict"])
def test_rewards_that_are_as_they_are_wanted_need_no_warning(form, nstep, more, reads):
    cfg, policy, _ = dqn(nstep=nstep)
    buffer = uniform(**more)
    fetch = offpolicy_data_fetcher(
        cfg, buffer if form == "one" else {"a": buffer}, policy.learn_mode if reads else ReadsNoDiscount()
    )

    silently(fetch, OnlineRLContext())


def test_a_policy_that_reads_batches_by_name_gets_all_of_each():
    class ReadsByName:
        columns = ("own", "demos")

    ctx = OnlineRLContext()
    next(offpolicy_data_fetcher(dqn()[0], {"own": uniform(), "demos": prioritized()}, ReadsByName())(ctx))

    assert set(ctx.train_data.own.keys()) == set(transitions(1))
    assert set(ctx.train_data.demos.keys()) == {*transitions(1), "weight", "index"}


def test_a_learner_on_joined_buffers_gives_each_its_priorities():
    cfg, policy, _ = dqn(update_per_collect=1)
    plain, buffer = uniform(seed=1), prioritized(seed=2)
    ctx = OnlineRLContext()
    OffPolicyLearner(cfg, policy.learn_mode, [(plain, 0.5), (buffer, 0.5)])(ctx)
    expected = np.ones(50)
    for place, new in zip(ctx.train_data.index.tolist(), ctx.train_output[0]["priority"].tolist()):
        if place >= 0:
            expected[place] = new

    assert ctx.train_data.index[:4].tolist() == [-1] * 4
    assert priorities_of(buffer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "who"),
    [
        (offpolicy_data_fetcher, "offpolicy_data_fetcher"),
        (lambda cfg, it: OffPolicyLearner(cfg, dqn()[1].learn_mode, it), "OffPolicyLearner"),
    ],
)
def test_wrong_forms_of_several_buffers_are_refused(make, who):
    cfg = dqn()[0]
    with pytest.raises(ValueError, match=rf"{who} got buffers with the fractions \[0.5, 0.4\]"):
        make(cfg, [(uniform(), 0.5), (uniform(), 0.4)])
    with pytest.raises(TypeError, match=f"{who} wants a ReplayBuffer as the buffer 'expert', got None"):
        make(cfg, {"agent": uniform(), "expert": None})


class Doubling:
    """A reward model that says twice what the environment says, and counts what it learned from."""

    def __init__(self):
        self.rows = 0

    def learn(self, batch):
        self.rows += len(batch.reward)
        return {"rows_seen": self.rows, "bonus": torch.tensor([1.0, 3.0])}

    def estimate(self, batch):
        assert self.rows > 0  # it learns first
        return with_leaves(batch, reward=2 * batch.reward)


def test_the_reward_model_learns_from_each_batch_and_the_policy_from_its_rewards():
    cfg, policy, _ = dqn()
    plain_ctx, ctx, model = OnlineRLContext(), OnlineRLContext(), Doubling()
    seen = []
    learn = policy.learn_on_batch
    policy.learn_on_batch = lambda batch: seen.append(batch.reward.clone()) or learn(batch)
    OffPolicyLearner(cfg, policy.learn_mode, uniform())(plain_ctx)
    OffPolicyLearner(cfg, policy.learn_mode, uniform(), model)(ctx)
    metrics = MetricsLogger()
    metrics.aggregate(ctx.learn_metrics)
    logged = metrics.reduce(compile=True)

    for plain, doubled in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(doubled, 2 * plain)
    assert model.rows == 24
    assert (logged["rows_seen"], logged["bonus"]) == (16, 2)
    assert "loss" in logged
    assert contract_of(OffPolicyLearner(cfg, policy.learn_mode, uniform(), model)).uses[-1] is model


def test_the_reward_estimator_stands_between_fetcher_and_trainer():
    cfg, policy, _ = dqn()
    buffer, task, model, found = prioritized(), Task(), Doubling(), []
    with task.start(ctx=OnlineRLContext()):
        task.use(offpolicy_data_fetcher(cfg, buffer, policy.learn_mode, model))
        task.use(lambda ctx: found.append(ctx.train_data))
        task.use(reward_estimator(cfg, model))
        task.use(lambda ctx: found.append(ctx.train_data))
        task.use(trainer(cfg, policy.learn_mode)).run(max_step=1)

    assert torch.equal(found[1].reward, 2 * found[0].reward)
    assert torch.equal(found[1].obs, found[0].obs)
    assert [one for one in task.ctx.learn_metrics if "rows_seen" in one]


def test_the_reward_estimator_does_without_data_without_learning_and_on_the_offline_context():
    class OnlyEstimates:
        def estimate(self, batch):
            return with_leaves(batch, reward=-batch.reward)

    estimate = reward_estimator(None, OnlyEstimates())
    empty, ctx = OnlineRLContext(), OfflineRLContext(train_data=tree(transitions(3)))
    estimate(empty)
    estimate(ctx)

    assert (empty.train_data, ctx.learn_metrics) == (None, [])
    np.testing.assert_array_equal(ctx.train_data.reward, -transitions(3)["reward"])


def test_what_cannot_estimate_rewards_is_refused():
    cfg, policy, _ = dqn()
    with pytest.raises(TypeError, match=r"reward_estimator wants a reward model, with estimate\(batch\) -> batch, got 3"):
        reward_estimator(cfg, 3)
    with pytest.raises(TypeError, match="OffPolicyLearner wants a reward model"):
        OffPolicyLearner(cfg, policy.learn_mode, uniform(), 3)


def rollout():
    return Trajectories({name: column.reshape(3, 2, *column.shape[1:]) for name, column in transitions(6).items()})


def episodes():
    return Episodes(transitions(5), [2, 3])


def test_the_rollout_as_it_is_becomes_what_is_learned_from():
    fetch, ctx = onpolicy_data_fetcher(None), OnlineRLContext()
    with pytest.raises(RuntimeError, match="found neither ctx.trajectories nor ctx.episodes: put a collector"):
        fetch(ctx)
    ctx.trajectories = rollout()
    fetch(ctx)
    assert ctx.train_data.reward.tolist() == ctx.trajectories.batch.reward.tolist()
    assert ctx.train_data.reward.data_ptr() != ctx.trajectories.batch.reward.data_ptr()
    assert set(ctx.train_data.keys()) == set(ctx.trajectories.batch.keys())
    ctx.trajectories, ctx.episodes = None, episodes()
    fetch(ctx)

    assert ctx.train_data.reward.tolist() == ctx.episodes.batch.reward.tolist()
    assert set(ctx.train_data.keys()) == set(ctx.episodes.batch.keys())
    ctx.train_data.advantage = ctx.train_data.reward  # a batch of its own
    assert ctx.train_data.reward.shape == (3, 2)
    assert (contract_of(fetch).reads, contract_of(fetch).stage) == (("trajectories",), "process")


def test_whole_episodes_are_pushed_where_there_is_no_rollout():
    buffer, ctx = ReplayBuffer(100), OnlineRLContext()
    push = data_pusher(None, buffer)
    with pytest.raises(RuntimeError, match="found neither ctx.trajectories nor ctx.episodes: put a collector"):
        push(ctx)
    ctx.episodes = episodes()
    push(ctx)

    assert len(buffer) == 5
    assert set(buffer.sample(100).reward.tolist()) == set(transitions(5)["reward"].tolist())


def test_the_masker_turns_random_actions_off():
    cfg, policy, envs = dqn()
    ctx = OnlineRLContext()
    eps_greedy_masker()(ctx)
    obs = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    greedy = policy.eval_mode.forward(obs)[0]

    assert ctx.collect_kwargs == {"eps": -1.0}
    np.testing.assert_array_equal(policy.collect_mode.forward(obs, **ctx.collect_kwargs)[0], greedy)
    assert (policy.collect_mode.forward(obs, eps=1.0)[0] != greedy).any()
    handled, masked = contract_of(eps_greedy_handler(cfg)), contract_of(eps_greedy_masker())
    assert (masked.writes, masked.stage) == (handled.writes, handled.stage)


def run_by_priority(async_mode, max_lag, form):
    """Everything that a run comes to whose priorities, rewards and windows come from every part of the off-policy side."""
    cfg, policy, envs = dqn(nstep=2 if form == "one" else 1, batch_size=16, learning_starts=32)
    buffer, other, model = PrioritizedReplayBuffer(200, seed=3), ReplayBuffer(150, seed=4), Doubling()
    buffers = {"one": buffer, "list": [(buffer, 0.7), (other, 0.3)]}[form]
    task = Task()
    with task.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        task.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs))
        if form == "one":
            task.use(reward_estimator(cfg, model, of="trajectories")).use(nstep_reward_enhancer(cfg))
        task.use(priority_calculator(lambda rollout: np.abs(rollout.columns["obs"]).sum(-1)))
        task.use(data_pusher(cfg, buffer)).use(data_pusher(cfg, other))
        if form == "one":
            task.use(offpolicy_data_fetcher(cfg, buffers, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
        else:
            task.use(OffPolicyLearner(cfg, policy.learn_mode, buffers, model))
        task.run(max_step=8)
    return policy.state_dict(), buffer.state_dict(), other.state_dict(), model.rows, task.ctx.train_iter


@pytest.mark.few
@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_asynchronous_runs_by_priority_are_the_run_on_one_thread(max_lag, form, digest):
    expected = run_by_priority(False, max_lag, form)
    found = {digest(*run_by_priority(True, max_lag, form)) for _ in range(2)}

    assert found == {digest(*expected)}
    assert expected[-1] > 0


@pytest.mark.parametrize("kind", [OffPolicyLearner, offpolicy_data_fetcher])
@pytest.mark.parametrize(("starts", "waits"), [(21, True), (16, False)])
def test_a_run_in_which_learning_never_begins_says_so_at_its_end(kind, starts, waits):
    cfg, policy, envs = dqn(learning_starts=starts)
    cfg.policy.collect.n_sample, buffer_ = 4, ReplayBuffer(100, seed=0)
    mode = (policy.learn_mode,) if kind is OffPolicyLearner else ()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
            loop.use(kind(cfg, *mode, buffer_))
            loop.use(lambda ctx: None).run(max_step=5)
    found = [str(it.message) for it in caught if "has not begun to learn" in str(it.message)]
    words = (
        "has not begun to learn in this run: its replay holds 20 transitions, and policy.learn.learning_starts = 21. If no "
        "run follows, lower it"
    )
    assert len(found) == waits
    assert all(text.startswith(f"{kind.__name__} {words}") for text in found)
