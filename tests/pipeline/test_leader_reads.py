"""with_leaders(): a contract that names a mode also names the learner, if the middleware reads the newest critic."""

import functools

import pytest

from ding_lite import OnlineRLContext, Task, contract
from ding_lite.config import PPOConfig
from ding_lite.data import with_leaves
from ding_lite.engine import ContractError, current_task
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, for_policy, multistep_trainer
from ding_lite.policy import PPOPolicy

TERMS = {"reads": ("trajectories",), "writes": ("train_data",), "stage": "process"}


def estimated(who, ctx):
    estimated_by(who.with_values, ctx)


def estimated_by(values, ctx):
    batch = values(ctx.trajectories.batch)
    target = batch.reward + 0.99 * batch.next_value * ~batch.terminated
    ctx.train_data = with_leaves(batch, advantage=target - batch.value, return_=target)


def direct(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        batch = mode.with_values(ctx.trajectories.batch)
        target = batch.reward + 0.99 * batch.next_value * ~batch.terminated
        ctx.train_data = with_leaves(batch, advantage=target - batch.value, return_=target)

    return estimate


def by_a_helper(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        estimated(mode, ctx)

    return estimate


def of_the_policy(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        estimated(policy, ctx)

    return estimate


def partial(mode, policy):
    return contract(**TERMS, uses=(mode,))(functools.partial(estimated, mode))


class Estimator:
    def __init__(self, mode):
        self.mode = mode
        contract(**TERMS, uses=(mode,))(self)

    def __call__(self, ctx):
        self.estimate(ctx)

    def estimate(self, ctx):
        estimated(self.mode, ctx)


def an_object(mode, policy):
    return Estimator(mode)


class Targets:
    def __init__(self, mode):
        self.mode = mode

    def of(self, ctx):
        estimated(self.mode, ctx)


def by_an_object(mode, policy):
    targets = Targets(mode)

    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        targets.of(ctx)

    return estimate


def by_a_default(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx, values=mode.with_values):
        estimated_by(values, ctx)

    return estimate


def trained(make, async_mode, wrap=lambda task, fn: task.use(fn), max_lag=1):
    cfg = PPOConfig().override({"policy.collect.n_sample": 32, "policy.model.encoder_hidden_size_list": [8]})
    envs = make_envs("CartPole-v1", 4, seed=0)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with Task().start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()) as task:
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        wrap(task, make(policy.collect_mode, policy))
        task.use(multistep_trainer(cfg, policy.learn_mode)).run(max_step=6)
        uses = [entry.contract.uses for entry in task._entries]
    return policy, uses


@pytest.mark.few
@pytest.mark.parametrize("make", [direct, by_a_helper, of_the_policy, partial, an_object, by_an_object, by_a_default])
def test_it_waits_for_the_learner(make, digest):
    policy, uses = trained(make, async_mode=False)
    assert policy.learn_mode in uses[1]
    expected = digest(policy.get_weights())
    assert {digest(trained(make, async_mode=True)[0].get_weights()) for _ in range(2)} == {expected}


def test_so_does_one_inside_another():
    policy, uses = trained(
        direct, False, lambda task, fn: task.use(task.serial(fn, contract(stage="process")(lambda ctx: None)))
    )
    assert policy.learn_mode in uses[1]


def test_so_does_one_for_a_policy():
    policy = trained(direct, False)[0]
    with Task().start(ctx=OnlineRLContext()) as task:
        task.use(for_policy("a", direct(policy.collect_mode, policy)))
        assert policy.learn_mode in task._entries[0].contract.uses


def test_one_that_only_acts_does_not():
    def acts(mode, policy):
        @contract(**TERMS, uses=(mode,))
        def estimate(ctx):
            mode.forward(ctx.trajectories.batch.obs[0].numpy())
            reward = ctx.trajectories.batch.reward
            ctx.train_data = with_leaves(ctx.trajectories.batch, advantage=reward, return_=reward, value=reward)

        return estimate

    policy, uses = trained(acts, async_mode=False)
    assert [type(one).__name__ for one in uses[1]] == ["CollectMode"]


def by_a_name_in_text(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        estimated_by(getattr(mode, "with_values"), ctx)  # noqa: B009  as a script may

    return estimate


def in_deferred_work(mode, policy):
    @contract(**TERMS, uses=(mode,))
    def estimate(ctx):
        work = current_task().defer(mode.with_values, ctx.trajectories.batch)
        estimated_by(lambda _: work.result(), ctx)

    return estimate


HIDDEN = [by_a_name_in_text, in_deferred_work]


@pytest.mark.parametrize("async_mode", [True, False], ids=["threads", "one thread"])
@pytest.mark.parametrize("make", HIDDEN)
def test_a_call_that_was_not_found_is_refused_where_iterations_overlap(make, async_mode):
    words = "reads weights that the learner changes" if make is in_deferred_work else "its contract does not name what changes"
    with pytest.raises(ContractError, match=rf"PPOPolicy.collect_mode.with_values\(\).*{words}"):
        trained(make, async_mode)


@pytest.mark.parametrize("make", HIDDEN)
def test_in_a_plain_loop_it_is_called(make, digest):
    found, expected = (trained(it, False, max_lag=0)[0].get_weights() for it in (make, direct))
    assert digest(found) == digest(expected)


def test_it_is_called_too_if_the_contract_names_the_policy(digest):
    def named(mode, policy):
        @contract(**TERMS, uses=(mode, policy))
        def estimate(ctx):
            estimated_by(getattr(mode, "with_values"), ctx)  # noqa: B009

        return estimate

    assert digest(trained(named, True)[0].get_weights()) == digest(trained(direct, False)[0].get_weights())
