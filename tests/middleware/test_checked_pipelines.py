"""Pipelines of the library's own middleware that would learn nothing, or explore nothing: refused before they run."""

import ast
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import ding_lite.config
import ding_lite.middleware
from ding_lite import PipelineError, Task, contract
from ding_lite.config import DQNConfig, PPOConfig, R2D2Config, RainbowConfig, SACConfig
from ding_lite.contexts import MultiAgentContext, OfflineRLContext, OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.engine import contract_of
from ding_lite.envs import make_envs, make_multi_agent_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    MultiAgentCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    eps_greedy_masker,
    for_policy,
    gae_estimator,
    inferencer,
    interaction_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_data_fetcher,
    offpolicy_data_fetcher,
    online_logger,
    onpolicy_data_fetcher,
    sequence_pusher,
    termination_checker,
    trainer,
)
from ding_lite.policy import A2CPolicy, DQNPolicy, IMPALAPolicy, PPOPolicy, R2D2Policy, RainbowPolicy, SACPolicy

ROOT = Path(__file__).resolve().parent.parent.parent
NO_EPS = "needs ctx.collect_kwargs['eps'], and no earlier middleware sets it: "
ADD_EPS = NO_EPS + (
    "add task.use(eps_greedy_handler(cfg)) before it; or, to act without random actions, write "
    'StepCollector(..., collect_kwargs={"eps": 0.0}).'
)


def problems_of(*pipeline, ctx=None):
    """What is wrong with it, without the places; none where it runs."""
    with Task().start(ctx=ctx or OnlineRLContext()) as loop:
        for fn in pipeline:
            loop.use(fn)
        try:
            loop.run(max_step=1)
        except PipelineError as error:
            lines = str(error).split("\n")[1:]
            assert all(__file__ in line for line in lines)
            return [line.strip().rpartition(" (task.use at ")[0] for line in lines]
    return []


def made(kind=DQNPolicy, config=DQNConfig, env="CartPole-v1"):
    cfg = config().override({"policy.collect.n_sample": 8})
    envs = make_envs(env, 2, seed=0)
    return cfg, envs, kind(cfg.policy, envs.single_observation_space, envs.single_action_space)


class Replay:
    """DQN with its parts, as a script makes them."""

    def __init__(self):
        self.cfg, self.envs, self.policy = made()
        self.buffer = ReplayBuffer(2000)
        self.explore = eps_greedy_handler(self.cfg)
        self.collect = StepCollector(self.cfg, self.policy.collect_mode, self.envs)
        self.push = data_pusher(self.cfg, self.buffer)

    def learn(self, buffer=None):
        return OffPolicyLearner(self.cfg, self.policy.learn_mode, self.buffer if buffer is None else buffer)


@pytest.fixture
def dqn():
    return Replay()


class TestReplay:
    def test_a_whole_pipeline_runs(self, dqn):
        assert problems_of(dqn.explore, dqn.collect, dqn.push, dqn.learn()) == []

    def test_a_forgotten_pusher_is_refused_with_the_line_to_add(self, dqn):
        fix = (
            "draws from the ReplayBuffer, which is empty, and no middleware fills it: "
            "add task.use(data_pusher(cfg, buffer_)) before it."
        )
        fetch = offpolicy_data_fetcher(dqn.cfg, dqn.buffer), trainer(dqn.cfg, dqn.policy.learn_mode)

        assert problems_of(dqn.explore, dqn.collect, dqn.learn()) == ["OffPolicyLearner " + fix]
        assert problems_of(dqn.explore, dqn.collect, *fetch) == ["offpolicy_data_fetcher " + fix]

    def test_of_two_collectors_before_one_pusher_the_first_collects_for_nothing(self, dqn):
        again = StepCollector(dqn.cfg, dqn.policy.collect_mode, make_envs("CartPole-v1", 2, seed=5))
        with pytest.warns(UserWarning, match=r"StepCollector .* sets ctx.trajectories, and StepCollector .* is lost"):
            problems_of(dqn.explore, dqn.collect, again, dqn.push, dqn.learn())

    @pytest.mark.filterwarnings("error:.* is lost")
    def test_a_pusher_behind_each_loses_nothing(self, dqn):
        again = StepCollector(dqn.cfg, dqn.policy.collect_mode, make_envs("CartPole-v1", 2, seed=5))
        both = dqn.collect, dqn.push, again, data_pusher(dqn.cfg, dqn.buffer)
        assert problems_of(dqn.explore, *both, dqn.learn()) == []

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    def test_values_to_log_that_a_learner_sets_anew_are_lost(self, dqn, place):
        @contract(writes=("train_output",), stage="learn")
        def mine(ctx):
            ctx.train_output = {"mine": 1.0}

        assert problems_of(dqn.explore, dqn.collect, dqn.push) == []  # the buffer holds something
        pipeline = [mine, termination_checker(max_env_step=10**6), dqn.learn()]
        pipeline.insert(place, online_logger(None, show_every_s=1e9))
        with pytest.warns(UserWarning, match=r"mine .* sets ctx.train_output, and OffPolicyLearner .* is lost"):
            problems_of(*pipeline)

    @pytest.mark.filterwarnings("error:.* is lost")
    def test_of_two_learners_nothing_is_lost(self, dqn):
        assert problems_of(dqn.explore, dqn.collect, dqn.push, dqn.learn(), dqn.learn(), online_logger(None)) == []

    def test_for_sequences_it_is_their_pusher(self):
        cfg, envs, policy = made(R2D2Policy, R2D2Config)
        cfg.policy.collect.n_sample = 32
        learn = OffPolicyLearner(cfg, policy.learn_mode, PrioritizedReplayBuffer(1000, **cfg.policy.other.priorities()))
        (problem,) = problems_of(eps_greedy_handler(cfg), StepCollector(cfg, policy.collect_mode, envs), learn)

        assert problem.endswith("no middleware fills it: add task.use(sequence_pusher(cfg, buffer_)) before it.")

    def test_a_buffer_that_holds_something_may_be_learned_from_alone(self, dqn):
        assert problems_of(dqn.explore, dqn.collect, dqn.push) == []
        assert problems_of(dqn.learn()) == []

    def test_a_pusher_and_a_learner_of_two_buffers_are_both_named(self, dqn):
        assert problems_of(dqn.explore, dqn.collect, dqn.push, dqn.learn(ReplayBuffer(2000))) == [
            "OffPolicyLearner draws from the ReplayBuffer 2, which is empty, and no middleware fills it: data_pusher fills "
            "another, the ReplayBuffer 1. Pass the same object to both."
        ]

    def test_a_learner_before_its_pusher_is_refused(self, dqn):
        assert problems_of(dqn.explore, dqn.collect, dqn.learn(), dqn.push) == [
            "OffPolicyLearner draws from the ReplayBuffer, which is empty, and no earlier middleware fills it: "
            "move data_pusher, which does, before it."
        ]

    def test_a_learner_that_is_used_twice_is_refused_with_the_setting_for_more_steps(self, dqn):
        learn = dqn.learn()
        (problem,) = problems_of(dqn.explore, dqn.collect, dqn.push, learn, learn)
        assert problem.startswith("OffPolicyLearner is the same object as OffPolicyLearner (task.use at ")
        assert problem.endswith("such as policy.learn.update_per_collect or policy.learn.epoch_per_collect.")
        fetch, train = offpolicy_data_fetcher(dqn.cfg, dqn.buffer), trainer(dqn.cfg, dqn.policy.learn_mode)
        (problem,) = problems_of(dqn.explore, dqn.collect, dqn.push, fetch, train, train)
        assert "would take its gradient steps twice on the same ctx.train_data" in problem
        assert problems_of(dqn.explore, dqn.collect, dqn.push, fetch, train, fetch, train) == []
        again = StepCollector(dqn.cfg, dqn.policy.collect_mode, make_envs("CartPole-v1", 2, seed=1))
        assert problems_of(dqn.explore, dqn.collect, dqn.push, learn, again, dqn.push, learn) == []
        relabel = contract(draws=(dqn.buffer,), fills=(dqn.buffer,), stage="process")(lambda ctx: None)
        assert problems_of(dqn.explore, dqn.collect, dqn.push, learn, relabel, learn) == []

    def test_a_pusher_twice_is_refused(self, dqn):
        again = data_pusher(DQNConfig(), dqn.buffer)
        (problem,) = problems_of(dqn.explore, dqn.collect, dqn.push, again, dqn.learn())

        assert problem.startswith(
            "data_pusher fills the ReplayBuffer with ctx.trajectories again, which data_pusher (task.use at"
        )
        assert problem.endswith("has done before it, so all data would be stored twice: leave one of them out.")

    def test_a_pusher_of_sequences_twice_is_refused(self):
        cfg, envs, policy = made(R2D2Policy, R2D2Config)
        buffer = ReplayBuffer(100)
        collect = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5})
        (problem,) = problems_of(collect, sequence_pusher(cfg, buffer), sequence_pusher(cfg, buffer))

        assert problem.startswith("sequence_pusher fills the ReplayBuffer with ctx.trajectories again")

    def test_before_and_after_an_enhancer_what_is_pushed_differs(self, dqn):
        later = data_pusher(dqn.cfg, dqn.buffer)
        (problem,) = problems_of(dqn.explore, dqn.collect, dqn.push, later)
        assert "again" in problem
        dqn.cfg.policy.nstep = 3
        with Task().start(ctx=OnlineRLContext()) as loop:
            for fn in (dqn.explore, dqn.collect, dqn.push, nstep_reward_enhancer(dqn.cfg), later):
                loop.use(fn)
            with pytest.raises(ValueError, match="discount"):  # which is a matter of the columns, in the first iteration
                loop.run(max_step=1)

    def test_each_buffer_of_several_has_to_be_filled(self, dqn):
        other = ReplayBuffer(2000)
        (problem,) = problems_of(dqn.explore, dqn.collect, dqn.push, dqn.learn({"own": dqn.buffer, "demos": other}))

        assert "draws from the ReplayBuffer 2, which is empty, and no middleware fills it" in problem

    def test_the_table_shows_the_flow(self, dqn):
        with Task().start(ctx=OnlineRLContext()) as loop:
            for fn in (dqn.explore, dqn.collect, dqn.push, dqn.learn()):
                loop.use(fn)
            table = loop.describe()

        assert "fills ReplayBuffer" in table
        assert "draws ReplayBuffer" in table


class TestDataWithoutWhatIsLearnedFrom:
    @pytest.fixture
    def ppo(self):
        cfg = PPOConfig().override({"policy.collect.n_sample": 64, "policy.learn.batch_size": 32})
        envs = make_envs("CartPole-v1", 2, seed=0)
        return cfg, envs, PPOPolicy

    @staticmethod
    def pipeline(cfg, envs, kind, *between):
        policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
        collector = StepCollector(cfg, policy.collect_mode, envs)
        return collector, *(it(cfg, policy) for it in between), multistep_trainer(cfg, policy.learn_mode)

    def test_a_fetcher_in_place_of_an_estimator_is_refused_before_the_run(self, ppo):
        (problem,) = problems_of(*self.pipeline(*ppo, lambda cfg, policy: onpolicy_data_fetcher(cfg)))

        assert re.fullmatch(
            r"multistep_trainer learns from advantage and return_, which the data that onpolicy_data_fetcher \(.*\) gives does "
            r"not have: replace it by gae_estimator\(cfg, policy.collect_mode\) or montecarlo_return_estimator.",
            problem,
        )
        assert problems_of(*self.pipeline(*ppo, lambda cfg, policy: gae_estimator(cfg, policy.collect_mode))) == []

    def test_where_a_users_code_adds_it_nothing_is_refused(self, ppo):
        def with_advantage(policy, batch, other_agent_batches=None, episode=None):
            for name in ("value", "advantage", "return_"):
                batch[name] = batch.reward
            return batch

        def adds(cfg, policy):
            @contract(reads=("trajectories",), writes=("trajectories",), stage="process")
            def add(ctx):
                rewards = ctx.trajectories.columns["reward"]
                ctx.trajectories = ctx.trajectories.with_columns(value=rewards, advantage=rewards, return_=rewards)

            return add

        cfg, envs, kind = ppo
        fetcher = lambda cfg, policy: onpolicy_data_fetcher(cfg)  # noqa: E731
        assert problems_of(*self.pipeline(*ppo, adds, fetcher)) == []
        assert problems_of(*self.pipeline(cfg, envs, kind.with_updates(postprocess_fn=with_advantage), fetcher)) == []

    def of_a_dataset(self, kind, columns=(), **settings):
        cfg = getattr(ding_lite.config, kind.__name__.replace("Policy", "Config"))().override(settings)
        ends, obs = np.arange(32) % 8 == 7, np.zeros((33, 4), np.float32)
        rows = {"obs": obs[1:], "next_obs": obs[1:], "action": np.zeros(32, np.int64), "reward": np.ones(32, np.float32)}
        rows.update(terminated=ends, truncated=ends & False, **{name: np.ones(32, np.float32) for name in columns})
        policy = kind(cfg.policy, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        return cfg, rows, policy

    @pytest.mark.parametrize(
        ("kind", "columns", "wanted"),
        [
            (PPOPolicy, (), "rollouts, advantage and return_"),
            (PPOPolicy, ("advantage", "return_"), "rollouts"),
            (IMPALAPolicy, ("log_prob",), "rollouts"),
            (A2CPolicy, ("return_",), "advantage"),
            (R2D2Policy, (), "sequences"),
            (type("MyPPO", (PPOPolicy,), {"__module__": "script"}), (), "rollouts"),
        ],
    )
    def test_a_dataset_for_an_algorithm_that_learns_from_rollouts_is_refused_before_the_run(self, kind, columns, wanted):
        shipped = kind if kind.__name__ != "MyPPO" else PPOPolicy
        cfg, rows, _ = self.of_a_dataset(shipped, columns, **({"policy.nstep": 1} if kind is R2D2Policy else {}))
        policy = kind(cfg.policy, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        for one in (policy.learn_mode, None):
            task = Task()
            with task.start(ctx=OfflineRLContext()):
                task.use(offline_data_fetcher(cfg, rows, one)).use(trainer(cfg, policy.learn_mode))
                words = rf"trainer learns from {wanted}, which .* offline_data_fetcher .* does not have: use an algorithm"
                with pytest.raises(PipelineError, match=words):
                    task.run(1)

    def test_behind_an_unknown_middleware_it_is_named_where_it_fails(self):
        cfg, rows, policy = self.of_a_dataset(PPOPolicy)
        task = Task()
        with task.start(ctx=OfflineRLContext()):
            task.use(offline_data_fetcher(cfg, rows, policy.learn_mode)).use(lambda ctx: None)
            task.use(trainer(cfg, policy.learn_mode))
            with pytest.raises(ValueError, match=r"PPOPolicy learns from rollouts .* and got rows, obs"):
                task.run(1)

    def test_a_dataset_with_advantages_is_data_for_a2c(self):
        cfg, rows, policy = self.of_a_dataset(A2CPolicy, ("advantage", "return_"))
        task = Task()
        with task.start(ctx=OfflineRLContext()):
            task.use(offline_data_fetcher(cfg, rows, policy.learn_mode)).use(trainer(cfg, policy.learn_mode)).run(2)
            assert task.ctx.train_iter == 2

    def test_rollouts_from_replay_are_refused_before_the_run(self):
        cfg, buffer_ = PPOConfig(), ReplayBuffer(2000, seed=0)
        envs = make_envs("CartPole-v1", 2, seed=0)
        policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        fetcher = offpolicy_data_fetcher(DQNConfig(), buffer_)
        steps = StepCollector(cfg, policy.collect_mode, envs), data_pusher(cfg, buffer_), fetcher
        (problem,) = problems_of(*steps, trainer(cfg, policy.learn_mode))

        assert problem.startswith("trainer learns from rollouts, which the data that offpolicy_data_fetcher")

    def test_single_steps_in_place_of_sequences_are_refused_before_the_run(self):
        cfg, buffer_ = R2D2Config(), ReplayBuffer(100, seed=0)
        envs = make_envs("CartPole-v1", 2, seed=0)
        policy = R2D2Policy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        start = eps_greedy_handler(cfg), StepCollector(cfg, policy.collect_mode, envs)
        learner = OffPolicyLearner(cfg, policy.learn_mode, buffer_)
        (problem,) = problems_of(*start, data_pusher(cfg, buffer_), learner)

        assert re.fullmatch(
            r"OffPolicyLearner learns from sequences, which the data that data_pusher \(.*\) gives does not have: "
            r"replace it by sequence_pusher\(cfg, buffer_\).",
            problem,
        )


class TestActing:
    def test_a_forgotten_handler_is_refused_with_the_line_to_add_and_the_way_to_do_without(self, dqn):
        assert problems_of(dqn.collect, dqn.push, dqn.learn()) == ["StepCollector " + ADD_EPS]

    def test_a_handler_behind_the_collector_is_the_one_to_move(self, dqn):
        assert problems_of(dqn.collect, dqn.explore) == [
            "StepCollector " + NO_EPS + "move eps_greedy_handler, which does, before it."
        ]

    @pytest.mark.parametrize("kind", [EpisodeCollector, inferencer])
    def test_others_that_act_need_it_too(self, kind, dqn):
        first = 0 if kind is inferencer else dqn.cfg
        (problem,) = problems_of(kind(first, dqn.policy.collect_mode, dqn.envs))

        assert problem.startswith(f"{kind.__name__} {NO_EPS}")
        assert problem.endswith(f'write {kind.__name__}(..., collect_kwargs={{"eps": 0.0}}).')

    def test_the_masker_a_plain_function_and_the_context_provide_it(self, dqn):
        def plain(ctx):
            ctx.collect_kwargs["eps"] = 0.5

        @contract(reads=("collect_kwargs",), writes=("collect_kwargs",), stage="explore")
        def mine(ctx):
            ctx.collect_kwargs["eps"] = 0.5

        for one in (eps_greedy_masker(), plain, mine):
            assert problems_of(one, dqn.collect) == []
        assert problems_of(dqn.collect, ctx=OnlineRLContext(collect_kwargs={"eps": 0.5})) == []

    @pytest.mark.parametrize("kind", [StepCollector, EpisodeCollector, inferencer])
    def test_what_the_script_gives_to_the_collector_reaches_the_policy(self, kind):
        told = []

        class Told(DQNPolicy):
            def compute_actions(self, obs, state=(), *, explore=True, eps=None, **kwargs):
                told.append(eps)
                return super().compute_actions(obs, state, explore=explore, eps=eps or 0.0, **kwargs)

        cfg, envs, policy = made(Told)
        collect = kind(0 if kind is inferencer else cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.25})
        told.clear()

        assert problems_of(collect) == []
        assert set(told) == {0.25}
        told.clear()
        assert problems_of(eps_greedy_handler(cfg), collect) == []
        assert set(told) == {cfg.policy.other.eps.start}

    @pytest.mark.parametrize("given", ["eps", 0.1, {1: 0.1}])
    def test_settings_that_have_no_names_are_refused(self, given, dqn):
        with pytest.raises(TypeError, match=r"StepCollector\(collect_kwargs=.*\) wants settings by name, such as {'eps': 0.1}"):
            StepCollector(dqn.cfg, dqn.policy.collect_mode, dqn.envs, collect_kwargs=given)

    @pytest.mark.parametrize(
        ("kind", "config", "env"),
        [
            (RainbowPolicy, RainbowConfig, "CartPole-v1"),
            (SACPolicy, SACConfig, "Pendulum-v1"),
            (PPOPolicy, PPOConfig, "CartPole-v1"),
        ],
    )
    def test_policies_that_explore_by_themselves_need_nothing(self, kind, config, env):
        cfg, envs, policy = made(kind, config, env)

        assert contract_of(StepCollector(cfg, policy.collect_mode, envs)).needs == ()

    def test_a_policy_of_ones_own_says_what_it_needs(self):
        class Boltzmann(DQNPolicy):
            acting_settings = ("temperature",)

        cfg, envs, policy = made(Boltzmann)
        (problem,) = problems_of(StepCollector(cfg, policy.collect_mode, envs))

        assert problem == (
            "StepCollector needs ctx.collect_kwargs['temperature'], and no earlier middleware sets it: "
            "add a middleware that sets ctx.collect_kwargs['temperature'] before it; or, for a fixed value, write "
            'StepCollector(..., collect_kwargs={"temperature": ...}).'
        )


class Meet:
    """Two agents, one step an episode."""

    possible_agents = ("left", "right")

    def __init__(self):
        self.space = make_envs("CartPole-v1", 1)

    def observation_space(self, agent):
        return self.space.single_observation_space

    def action_space(self, agent):
        return self.space.single_action_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        return {agent: self.space.single_observation_space.sample() * 0 for agent in self.possible_agents}

    def step(self, actions):
        yes, self.agents = dict.fromkeys(self.possible_agents, True), []
        no = dict.fromkeys(self.possible_agents, False)
        return self.seen(), dict.fromkeys(self.possible_agents, 1.0), yes, no, {agent: {} for agent in self.possible_agents}


class TestSeveralAgents:
    def pipeline(self, kind=PPOPolicy, config=PPOConfig):
        cfg, _, policy = made(kind, config)
        env = make_multi_agent_envs(Meet, 2, seed=0)
        policies = {"left": policy, "right": kind(cfg.policy, *policy_spaces(policy))}
        modes = {name: it.collect_mode for name, it in policies.items()}
        return cfg, policies, MultiAgentCollector(cfg, modes, env, lambda agent: agent)

    def test_a_forgotten_estimator_of_one_of_them_is_refused_before_the_run(self):
        cfg, policies, collect = self.pipeline()
        estimate = for_policy("left", gae_estimator(cfg, policies["left"].collect_mode))
        learn = [for_policy(name, multistep_trainer(cfg, it.learn_mode)) for name, it in policies.items()]

        assert problems_of(collect, estimate, *learn, ctx=MultiAgentContext()) == [
            "for_policy('right', multistep_trainer) reads ctx.parts['right'].train_data, but no earlier middleware writes it: "
            "add a fetcher such as offpolicy_data_fetcher or onpolicy_data_fetcher, or an estimator such as gae_estimator "
            "before it, inside "
            "for_policy('right', ...)."
        ]

    def test_what_belongs_to_another_policy_is_refused_in_a_part(self):
        cfg, policies, collect = self.pipeline()
        swapped = for_policy("left", gae_estimator(cfg, policies["right"].collect_mode))

        assert problems_of(collect, swapped, ctx=MultiAgentContext()) == [
            "for_policy('left', gae_estimator) uses an object of 'right', and works on the context of 'left': give it the "
            "object of 'left', or write for_policy('right', gae_estimator(...))."
        ]

    def test_a_part_of_nobody_is_refused(self):
        cfg, policies, collect = self.pipeline()
        estimate = for_policy("rihgt", gae_estimator(cfg, policies["left"].collect_mode))

        assert problems_of(collect, estimate, ctx=MultiAgentContext()) == [
            "for_policy('rihgt', gae_estimator) finds no 'rihgt' in ctx.parts: did you mean 'right'? "
            "MultiAgentCollector makes left, right."
        ]

    def test_a_forgotten_part_is_refused_with_the_call(self):
        cfg, policies, collect = self.pipeline()

        assert problems_of(collect, gae_estimator(cfg, policies["left"].collect_mode), ctx=MultiAgentContext()) == [
            "gae_estimator reads ctx.trajectories, but no earlier middleware writes it: MultiAgentCollector writes it in "
            "ctx.parts['left']; write for_policy('left', gae_estimator(...))."
        ]

    def test_a_learner_of_one_of_them_without_its_pusher_is_refused(self):
        cfg, policies, collect = self.pipeline(DQNPolicy, DQNConfig)
        buffers = {name: ReplayBuffer(2000) for name in policies}
        learn = [for_policy(name, OffPolicyLearner(cfg, it.learn_mode, buffers[name])) for name, it in policies.items()]
        push = for_policy("left", data_pusher(cfg, buffers["left"]))

        assert problems_of(eps_greedy_handler(cfg), collect, push, *learn, ctx=MultiAgentContext()) == [
            "for_policy('right', OffPolicyLearner) draws from the ReplayBuffer 2, which is empty, and no middleware fills it: "
            "add task.use(for_policy('right', data_pusher(cfg, buffer_))) before it."
        ]

    def test_their_collector_needs_what_their_acting_needs(self):
        cfg, _, collect = self.pipeline(DQNPolicy, DQNConfig)
        (problem,) = problems_of(collect, ctx=MultiAgentContext())

        assert problem.startswith("MultiAgentCollector " + NO_EPS)
        assert problems_of(eps_greedy_handler(cfg), collect, ctx=MultiAgentContext()) == []

    def test_on_the_context_of_one_agent_the_other_one_is_named(self):
        cfg, policies, _ = self.pipeline()
        (problem,) = problems_of(for_policy("left", multistep_trainer(cfg, policies["left"].learn_mode)))

        assert problem.endswith(
            "ctx.parts, but OnlineRLContext declares no such field, MultiAgentContext does: pass ctx=MultiAgentContext() to "
            "task.start(), or a subclass of your own."
        )


def policy_spaces(policy):
    return policy.observation_space, policy.action_space


def test_a_forgotten_context_is_one_message(dqn, tmp_path):
    evaluate = interaction_evaluator(dqn.cfg, dqn.policy.eval_mode, make_envs("CartPole-v1", 2))
    with Task().start() as loop:
        for fn in (evaluate, dqn.explore, dqn.collect, dqn.push, dqn.learn(), CkptSaver(dqn.policy, tmp_path)):
            loop.use(fn)
        with pytest.raises(PipelineError) as caught:
            loop.run(max_step=1)

    headline, line = str(caught.value).split("\n")
    assert headline == "this pipeline cannot run, it has one problem:"
    assert line.startswith(
        "  interaction_evaluator reads ctx.train_iter, but Context declares no such field: "
        f"pass ctx=OnlineRLContext() to task.start(). (task.use at {__file__}:"
    )


@pytest.mark.parametrize("kind", [OnlineRLContext, OfflineRLContext, MultiAgentContext])
def test_what_a_context_says_of_providers_names_only_middleware_that_exist(kind):
    for field in dataclasses.fields(kind):
        for name in re.findall(r"\b\w*[a-z](?:_|[A-Z])\w+\b", field.metadata.get("provider", "")):
            assert name in ding_lite.middleware.__all__


NAME = re.compile(
    r"\b((?!make_)[a-z]\w*_(?:handler|masker|pusher|fetcher|estimator|enhancer|trainer|collector|evaluator|checker|normalizer|calculator)"
    r"|[A-Z]\w+(?:Collector|Learner|Saver)|rolloutor|inferencer)\("
)


def test_messages_name_only_middleware_that_exist():
    files = [path for room in ("middleware", "contexts", "ding_lite") for path in sorted((ROOT / room).rglob("*.py"))]
    told = {
        name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in NAME.findall(node.value)
    }

    assert {"eps_greedy_handler", "reward_estimator"} <= told
    assert told <= set(ding_lite.middleware.__all__)


def test_one_environment_to_collect_and_to_evaluate_in_is_refused(tmp_path):
    cfg, envs, policy = made()
    collect = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0})
    (problem,) = problems_of(interaction_evaluator(cfg, policy.eval_mode, envs), collect)

    assert "StepCollector has the same LocalVectorEnv as interaction_evaluator (task.use at " in problem
    assert "so each would continue where the other stopped: make one for each of them." in problem
    assert problems_of(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 1, seed=1)), collect) == []
