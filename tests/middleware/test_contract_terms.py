"""Every term of every contract of ours is needed: without any one field of it, a pipeline that uses it is refused by name.

The pipelines of the examples, and a few more for middleware that no example uses, run under enforcement as they are: with lag,
and those that no other test runs so, plain and on threads too; then again for each field of each contract, without that field.
"""

import dataclasses
import tempfile
import warnings
from pathlib import Path

import pytest
from example_runs import ALIKE, ASYNC_NAMES, EXAMPLES, OFFLINE, config_of, load_example, override_known
from slow_cases import mostly_slow

import ding_lite.middleware
from ding_lite import PipelineError, Task, task
from ding_lite.basics.messages import name_of
from ding_lite.config import A2CConfig, DQNConfig, HERConfig, PPOConfig, REINFORCEConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.datasets import OfflineDataset
from ding_lite.engine import ContractError, contract_of, load_checkpoint
from ding_lite.envs import goal_rewards, make_envs
from ding_lite.envs.bit_flip import BIT_FLIP
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    eps_greedy_masker,
    gae_estimator,
    her_data_enhancer,
    inferencer,
    interaction_evaluator,
    metric_evaluator,
    montecarlo_return_estimator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_data_fetcher,
    offline_data_saver,
    offline_logger,
    offpolicy_data_fetcher,
    online_logger,
    priority_calculator,
    reward_estimator,
    reward_normalizer,
    rolloutor,
    termination_checker,
    trainer,
)
from ding_lite.policy import A2CPolicy, DQNPolicy, PPOPolicy, REINFORCEPolicy
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

NOT_MIDDLEWARE = {"for_policy"}  # only puts others together
OF_POPULATIONS = {"population_trainer", "population_exploiter"}  # tested in tests/distributed, since members have tasks too
TERMS = ("reads", "writes", "may_read", "may_write", "reads_after", "writes_after", "writes_late")
ITERATIONS = 4
SMALL = {
    "env.collector_env_num": 2,
    "env.evaluator_env_num": 1,
    "env.n_evaluator_episode": 1,
    "env.max_episode_steps": 8,
    "env.stop_value": None,
    "policy.eval.evaluator.eval_freq": 2,
    "policy.collect.n_sample": 32,
    "policy.collect.n_episode": 2,
    "policy.learn.batch_size": 4,
    "policy.learn.update_per_collect": 1,
    "policy.learn.learning_starts": 4,
    "policy.learn.epoch_per_collect": 1,
    "policy.random_collect_size": 16,
    "policy.model.encoder_hidden_size_list": [8],
    "policy.model.actor_hidden_size_list": [8],
    "policy.model.critic_hidden_size_list": [8],
}

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:where iterations overlap"),  # what a middleware holds, it names
]


@pytest.fixture(autouse=True)
def _global_task_as_it_was():
    """The examples run on the global task, which keeps the mode of its last start."""
    yield
    if task.running:
        task.stop()
    task.start().stop()


def shrink(cfg, folder, **settings):
    override_known(cfg, {**SMALL, "exp_name": str(folder), "seed": 3, "max_step": ITERATIONS, **settings})
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    return cfg


def example(name):
    def run(folder, **mode):
        module = load_example(name)
        settings = {"async_mode": mode.get("async_mode", False)}
        if "max_lag" in mode:
            settings["max_lag"] = mode["max_lag"]
        module.main(shrink(config_of(module), folder, **settings))

    return run


class Parts:
    """What a pipeline of CartPole is made of."""

    def __init__(self, folder, make_config, make_policy, workers=1, **settings):
        self.cfg = shrink(make_config(), folder, **settings)
        short = {"max_episode_steps": SMALL["env.max_episode_steps"]}
        backend = "process" if workers > 1 else "local"
        self.env = make_envs("CartPole-v1", 2, seed=0, workers=workers, backend=backend, **short)
        self.eval_env = make_envs("CartPole-v1", 1, seed=1, **short)
        self.policy = make_policy(self.cfg.policy, self.env.single_observation_space, self.env.single_action_space)
        self.buffer = ReplayBuffer(500, seed=0)

    def run(self, *middleware, ctx=None, **mode):
        with task.start(ctx=OnlineRLContext() if ctx is None else ctx, **mode):
            for one in middleware:
                task.use(one)
            task.run(ITERATIONS)


def from_one_step_at_a_time(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    it.run(
        eps_greedy_masker(),
        inferencer(0, it.policy.collect_mode, it.env),
        rolloutor(it.policy.collect_mode, it.env),
        data_pusher(it.cfg, it.buffer),
        offpolicy_data_fetcher(it.cfg, it.buffer, it.policy.learn_mode),
        trainer(it.cfg, it.policy.learn_mode),
        termination_checker(max_env_step=10**6, max_train_iter=10**6),
        **mode,
    )


def from_whole_episodes(folder, workers=1, **mode):
    it = Parts(folder, REINFORCEConfig, REINFORCEPolicy, workers)
    it.run(
        interaction_evaluator(it.cfg, it.policy.eval_mode, it.eval_env),
        EpisodeCollector(it.cfg, it.policy.collect_mode, it.env),
        montecarlo_return_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        CkptSaver(it.policy, it.cfg.exp_name, train_freq=1),
        online_logger(it.cfg),
        **mode,
    )


def from_episodes_into_a_buffer(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 2})
    it.run(
        eps_greedy_handler(it.cfg),
        EpisodeCollector(it.cfg, it.policy.collect_mode, it.env),
        nstep_reward_enhancer(it.cfg),
        data_pusher(it.cfg, it.buffer),
        OffPolicyLearner(it.cfg, it.policy.learn_mode, it.buffer),
        **mode,
    )


def from_workers(folder, **mode):
    it = Parts(folder, PPOConfig, PPOPolicy, 2)
    it.run(
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        reward_normalizer(it.cfg, it.policy.learn_mode),
        gae_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def from_episodes_of_workers(folder, **mode):
    from_whole_episodes(folder, workers=2, **mode)


def from_estimated_rewards(folder, **mode):
    it = Parts(folder, A2CConfig, A2CPolicy)
    model = RNDRewardModel(RNDRewardConfig(), it.env.single_observation_space, seed=0)
    it.run(
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        reward_estimator(it.cfg, model, of="trajectories"),
        gae_estimator(it.cfg, it.policy.collect_mode),
        trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def from_estimated_rewards_of_episodes(folder, **mode):
    it = Parts(folder, REINFORCEConfig, REINFORCEPolicy)
    model = RNDRewardModel(RNDRewardConfig(), it.env.single_observation_space, seed=0)
    it.run(
        EpisodeCollector(it.cfg, it.policy.collect_mode, it.env),
        reward_estimator(it.cfg, model, of="trajectories"),
        montecarlo_return_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def with_priorities(folder, collector=StepCollector, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    buffer = PrioritizedReplayBuffer(500, seed=0)
    it.run(
        eps_greedy_handler(it.cfg),
        collector(it.cfg, it.policy.collect_mode, it.env),
        nstep_reward_enhancer(it.cfg),
        priority_calculator(lambda rollout: rollout.batch.reward.abs() + 1),
        data_pusher(it.cfg, buffer),
        OffPolicyLearner(it.cfg, it.policy.learn_mode, buffer),
        **mode,
    )


def with_priorities_of_episodes(folder, **mode):
    with_priorities(folder, EpisodeCollector, **mode)


def from_estimated_rewards_of_a_batch(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    model = RNDRewardModel(RNDRewardConfig(), it.env.single_observation_space, seed=0)
    it.run(
        eps_greedy_handler(it.cfg),
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        data_pusher(it.cfg, it.buffer),
        offpolicy_data_fetcher(it.cfg, it.buffer, it.policy.learn_mode, model),
        reward_estimator(it.cfg, model),
        trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


@dataclasses.dataclass
class Everything(OnlineRLContext):
    """A context that has whatever a logger looks for."""

    train_epoch: int = 0


def with_both_loggers(folder, **mode):
    it = Parts(folder, PPOConfig, PPOPolicy)
    it.run(
        interaction_evaluator(it.cfg, it.policy.eval_mode, it.eval_env),
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        gae_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        CkptSaver(it.policy, it.cfg.exp_name, train_freq=1),
        online_logger(it.cfg),
        offline_logger(),
        ctx=Everything(),
        **mode,
    )


def from_other_goals(folder, **mode):
    cfg = shrink(HERConfig(), folder)
    env = make_envs(BIT_FLIP, 2, seed=0, env_config={"n_bits": 4})
    policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    buffer = EpisodeReplayBuffer(500, seed=0)
    with task.start(ctx=OnlineRLContext(), **mode):
        task.use(eps_greedy_handler(cfg))
        task.use(EpisodeCollector(cfg, policy.collect_mode, env))
        task.use(data_pusher(cfg, buffer))
        task.use(her_data_enhancer(cfg, buffer, goal_rewards(env)))
        task.use(trainer(cfg, policy.learn_mode))
        task.run(ITERATIONS)


def from_a_dataset(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    with tempfile.TemporaryDirectory() as name:
        it.run(
            StepCollector(it.cfg, it.policy.collect_mode, it.env, collect_kwargs={"eps": 1.0}),
            offline_data_saver(it.cfg, Path(name) / "data"),
            **mode,
        )
        dataset = OfflineDataset(Path(name) / "data")
        dataset.rows()
    it.run(
        metric_evaluator(it.cfg, it.policy.eval_mode, dataset, lambda policy, data: policy.current().train_iter),
        offline_data_fetcher(it.cfg, dataset, it.policy.learn_mode),
        trainer(it.cfg, it.policy.learn_mode),
        CkptSaver(it.policy, it.cfg.exp_name, train_freq=1),
        offline_logger(it.cfg),
        ctx=OfflineRLContext(),
        **mode,
    )


NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OFFLINE | ALIKE | {"pbt"})
OTHERS = (
    from_one_step_at_a_time,
    from_whole_episodes,
    from_episodes_into_a_buffer,
    from_workers,
    from_episodes_of_workers,
    from_estimated_rewards,
    from_estimated_rewards_of_episodes,
    from_estimated_rewards_of_a_batch,
    with_priorities,
    with_priorities_of_episodes,
    with_both_loggers,
    from_other_goals,
    from_a_dataset,
)
LAST = ("ippo",)  # expensive, so that other pipelines try the terms of the middleware that they share
PIPELINES = {
    **{run.__name__: run for run in OTHERS},
    **{name: example(name) for name in sorted(NAMES, key=lambda name: (name in LAST, name))},
}
IN_PLAIN = [run.__name__ for run in OTHERS]  # tests/examples runs the examples, also on threads those in ASYNC_NAMES
ON_THREADS = [*IN_PLAIN, *(name for name in NAMES if name not in {*ASYNC_NAMES, "dqn_async"})]


class Used:
    """Watches the middleware that a pipeline uses, and changes the contract of one of them."""

    def __init__(self, patch, position=-1, change=None):
        self.middleware, self._runs = [], []
        use = Task.use

        def watching(loop, fn, *args, **kwargs):
            if len(self.middleware) == position:
                fn.__contract__ = change(contract_of(fn))
            self.middleware.append(fn)
            self._runs.append((loop.ctx, args, kwargs))
            return use(loop, fn, *args, **kwargs)

        patch.setattr(Task, "use", watching)

    def refusal_without(self, position, change):
        """What the run with this middleware is refused with if its contract is changed, or an empty string.

        The same middleware runs again, on a new context, because making policies and environments takes longer than a run. What
        a middleware remembers may keep it from the field, such as the best value of a CkptSaver: see `refused`.
        """
        first, changed = self._runs[position][0], self.middleware[position]
        terms = contract_of(changed)
        changed.__contract__ = change(terms)
        try:
            with task.start(ctx=type(first)(), max_lag=1):
                for fn, (ctx, args, kwargs) in zip(self.middleware, self._runs, strict=True):
                    if ctx is first:
                        task.use(fn, *args, **kwargs)
                task.run(ITERATIONS)
        except (ContractError, PipelineError) as error:
            return str(error)
        finally:
            changed.__contract__ = terms
        return ""


def refused(name, folder, position, change):
    """What a new pipeline is refused with if the contract of one middleware is changed, or an empty string."""
    with pytest.MonkeyPatch.context() as patch:
        Used(patch, position, change)
        try:
            PIPELINES[name](folder, max_lag=1)
        except (ContractError, PipelineError) as error:
            return str(error)
    return ""


RUNS = [*((it, "plain") for it in IN_PLAIN), *((it, "threads") for it in ON_THREADS)]


@pytest.mark.few
@pytest.mark.parametrize(("name", "mode"), mostly_slow(RUNS, *RUNS[::4]))
def test_each_pipeline_of_ours_keeps_its_contracts(name, mode, tmp_path):
    PIPELINES[name](tmp_path, async_mode=mode == "threads")
    assert task.ctx.total_step + 1 == ITERATIONS


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # some two hundred short runs
def test_with_lag_each_pipeline_keeps_its_contracts_and_without_any_one_field_it_is_refused_by_name(tmp_path):
    noticed, missed, reached = set(), set(), set()
    for name in PIPELINES:
        with pytest.MonkeyPatch.context() as patch:
            used = Used(patch)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", ".* lost")
                PIPELINES[name](tmp_path / name, max_lag=1)
        assert task.ctx.total_step + 1 == ITERATIONS
        fields = task.ctx
        for position, fn in enumerate(used.middleware):
            reached.update(name_of(one).split(".")[0] for one in (fn, *getattr(fn, "inner_middleware", ())))
            terms = contract_of(fn)
            for term in TERMS if terms is not None else ():
                for field in getattr(terms, term):
                    key = name_of(fn), term, field
                    if key in noticed or not hasattr(fields, field):  # what this context has not, nobody can miss
                        continue

                    def lacking(terms, term=term, field=field):
                        settings = {"needs": (), "provides": ()} if field == "collect_kwargs" else {}
                        left = tuple(one for one in getattr(terms, term) if one != field)
                        return dataclasses.replace(terms, **{term: left}, **settings)

                    is_noticed = f"ctx.{field}" in used.refusal_without(position, lacking) or f"ctx.{field}" in refused(
                        name, tmp_path / "lacking", position, lacking
                    )
                    (noticed if is_noticed else missed).add(key)
    assert missed - noticed == set()
    assert len(noticed) > 150
    exported = set(ding_lite.middleware.__all__)
    assert exported - reached == NOT_MIDDLEWARE | OF_POPULATIONS, "a middleware is left out here"


def plain_of(value):
    """Tensors and arrays as lists, so that states can be compared."""
    if isinstance(value, dict):
        return {name: plain_of(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_of(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def learned(name, folder):
    """What a pipeline with lag ends with, in its last checkpoint; or what it is refused with, or warned of."""
    try:
        PIPELINES[name](folder, max_lag=1)
    except (ContractError, PipelineError, UserWarning) as error:
        return type(error).__name__
    return plain_of(load_checkpoint(folder / "ckpt" / "final.pt"))


OBJECTS = ("uses", "fills", "draws", "exclusive")


@pytest.mark.few
@pytest.mark.parametrize("name", ["dqn", "ppo", "r2d2", "rnd"])
def test_without_an_object_that_two_lanes_share_the_run_is_refused_or_another(name, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        used = Used(patch)
        whole = learned(name, tmp_path / "whole")
    # Nobody can miss an object whose users are all on one lane, which works in the order of the pipeline anyway: learners and
    # savers, the logger itself, an environment that has one user.
    needed = {("interaction_evaluator", "EvalMode"), ("StepCollector", "CollectMode")}
    needed |= {(name_of(fn), type(it).__name__) for fn in used.middleware for it in contract_of(fn).fills}
    noticed = set()
    for position, fn in enumerate(used.middleware):
        for kind in {type(thing).__name__ for thing in contract_of(fn).uses}:
            if (name_of(fn), kind) not in needed:
                continue

            def lacking(terms, kind=kind):
                left = {term: tuple(it for it in getattr(terms, term) if type(it).__name__ != kind) for term in OBJECTS}
                return dataclasses.replace(terms, **left)

            with pytest.MonkeyPatch.context() as patch:
                Used(patch, position, lacking)
                if learned(name, tmp_path / f"lacking-{position}") != whole:
                    noticed.add((name_of(fn), kind))
    assert noticed == needed
