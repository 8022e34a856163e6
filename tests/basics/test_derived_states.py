"""One rule for `super().load_state_dict(...)`: a class of the library takes the entries of a derived class both left in and
left out."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import same

from ding_lite import Task
from ding_lite.basics import base_state
from ding_lite.basics.messages import with_article
from ding_lite.config import DQNConfig, GAILConfig, HERConfig, ICMConfig, RNDConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, HindsightSampler, PrioritizedReplayBuffer, ReplayBuffer, Trajectories, tree
from ding_lite.data.mixtures import JoinedSampler, NamedSampler, Sampler
from ding_lite.data.sequences import SequenceWindow
from ding_lite.datasets import DatasetWriter, EpochSampler, open_dataset
from ding_lite.engine import contract
from ding_lite.envs import LocalVectorEnv, SplitVectorEnv, goal_rewards, make_envs, make_multi_agent_envs
from ding_lite.envs.bit_flip import BIT_FLIP
from ding_lite.envs.multi_agent import MultiAgentVectorEnv
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    HERLearner,
    MultiAgentCollector,
    OffPolicyLearner,
    StepCollector,
    interaction_evaluator,
    offline_data_saver,
    online_logger,
)
from ding_lite.middleware.datasets import OfflineDataSaver
from ding_lite.middleware.evaluators import InteractionEvaluator
from ding_lite.middleware.fetchers import Replay
from ding_lite.middleware.loggers import RunLogger
from ding_lite.policy import DQNPolicy, PPOPolicy, R2D2Policy, SACPolicy
from ding_lite.policy_parts import RolloutReplay
from ding_lite.rewards import GAILRewardModel, ICMRewardModel, RNDRewardModel
from ding_lite.rollout import LocalWorker
from ding_lite.rollout.metrics_aggregators import MetricsAggregator

ROWS = {"obs": np.arange(12, dtype=np.float32).reshape(6, 2), "reward": np.arange(6, dtype=np.float32)}
ROLLOUT = {name: column.reshape(3, 2, *column.shape[1:]) for name, column in ROWS.items()}
ENDS = {"next_obs": ROLLOUT["obs"] + 1, **{name: np.zeros((3, 2), bool) for name in ("terminated", "truncated")}}


def cart_poles(workers=1):
    return make_envs("CartPole-v1", 2, seed=0, workers=workers, backend="local")


def spaces_of(envs):
    return envs.single_observation_space, envs.single_action_space


def policy(kind=DQNPolicy):
    return kind(None, *spaces_of(cart_poles()))


def expert():
    obs = np.arange(44, dtype=np.float32).reshape(11, 4)
    ends = {"terminated": np.arange(10) == 9, "truncated": np.zeros(10, bool)}
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.arange(10) % 2, "reward": np.zeros(10, np.float32), **ends}
    return open_dataset(rows, *spaces_of(cart_poles()))


def batch():
    obs = torch.arange(20.0).reshape(5, 4)
    return tree({"obs": obs, "next_obs": obs + 1, "action": torch.arange(5) % 2, "reward": torch.ones(5)})


def full(buffer, rows=ROWS):
    buffer.push(rows)
    return buffer


def pushed(kind):
    return kind(20, seed=1)


def step_envs(envs):
    envs.reset(seed=1)
    envs.step(np.zeros(2, int))


def agent_envs(kind):
    class Pair:
        possible_agents = agents = ("a",)

        def observation_space(self, agent):
            return spaces.Discrete(3)

        def action_space(self, agent):
            return spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return {"a": 0}, {"a": {}}

        def step(self, actions):
            return {"a": 1}, {"a": 1.0}, {"a": False}, {"a": False}, {"a": {}}

    envs = make_multi_agent_envs(Pair, 2, seed=0)
    return envs if kind is None else made_by(lambda: envs)(kind)


def agents_collector(kind):
    cfg, envs = DQNConfig(), agent_envs(None)
    return kind(cfg, {"p": DQNPolicy(cfg.policy, *spaces_of_agent(envs)).collect_mode}, envs, lambda agent: "p")


def spaces_of_agent(envs):
    return envs.observation_space("a"), envs.action_space("a")


def collector(kind):
    return kind(DQNConfig(), policy().collect_mode, cart_poles())


def learner(kind):
    return kind(DQNConfig(), policy().learn_mode, [(full(ReplayBuffer(200)), 0.5), (full(ReplayBuffer(200)), 0.5)])


def goals():
    return make_envs(BIT_FLIP, 2, seed=0, env_config={"n_bits": 3})


def hindsight_learner(kind):
    envs, cfg = goals(), HERConfig()
    its = DQNPolicy(cfg.policy, *spaces_of(envs))
    return kind(cfg, its.learn_mode, EpisodeReplayBuffer(2000), goal_rewards(envs))


def data_saver(folder):
    def make(kind):
        return made_by(lambda: offline_data_saver(DQNConfig(), folder))(kind)

    return make


def made_by(factory):
    """An instance of a class that users derive from, made by the factory of the library."""

    def make(kind):
        made = factory()
        made.__class__ = kind
        return made

    return make


def collect(thing):
    thing(OnlineRLContext())


CASES = {
    "ReplayBuffer": (ReplayBuffer, pushed, full),
    "PrioritizedReplayBuffer": (PrioritizedReplayBuffer, pushed, full),
    "EpisodeReplayBuffer": (EpisodeReplayBuffer, pushed, lambda it: it.push(Trajectories(ROLLOUT | ENDS))),
    "Sampler": (Sampler, lambda kind: kind([full(ReplayBuffer(20))]), None),
    "JoinedSampler": (
        JoinedSampler,
        lambda kind: kind([full(ReplayBuffer(20)) for _ in range(2)], [0.3, 0.7]),
        lambda it: it.sample(5),
    ),
    "NamedSampler": (NamedSampler, lambda kind: kind({"a": full(ReplayBuffer(20))}), None),
    "HindsightSampler": (HindsightSampler, lambda kind: kind(EpisodeReplayBuffer(20), goal_rewards(goals())), None),
    "SequenceWindow": (SequenceWindow, lambda kind: kind(2), lambda it: it.prepend(Trajectories(ROLLOUT))),
    "RolloutReplay": (RolloutReplay, lambda kind: kind(1.0, 3, 0), None),
    "EpochSampler": (EpochSampler, lambda kind: kind(10, 3, 0, "data"), lambda it: it.next()),
    "RNDRewardModel": (
        RNDRewardModel,
        lambda kind: kind(RNDConfig().reward_model, spaces_of(cart_poles())[0]),
        lambda it: it.learn(batch()),
    ),
    "ICMRewardModel": (
        ICMRewardModel,
        lambda kind: kind(ICMConfig().reward_model, *spaces_of(cart_poles())),
        lambda it: it.learn(batch()),
    ),
    "GAILRewardModel": (
        GAILRewardModel,
        lambda kind: kind(GAILConfig().reward_model, *spaces_of(cart_poles()), expert()),
        lambda it: it.learn(batch()),
    ),
    "DQNPolicy": (DQNPolicy, policy, lambda it: it.bump_version()),
    "PPOPolicy": (PPOPolicy, policy, lambda it: it.bump_version()),
    "R2D2Policy": (R2D2Policy, policy, lambda it: it.bump_version()),
    "SACPolicy": (
        SACPolicy,
        lambda kind: kind(None, *spaces_of(make_envs("Pendulum-v1", 1))),
        lambda it: it.bump_version(),
    ),
    "StepCollector": (StepCollector, collector, collect),
    "EpisodeCollector": (EpisodeCollector, collector, None),
    "MultiAgentCollector": (MultiAgentCollector, agents_collector, None),
    "LocalWorker": (LocalWorker, lambda kind: kind(cart_poles(), policy().collect_mode), None),
    "OffPolicyLearner": (OffPolicyLearner, learner, None),
    "HERLearner": (HERLearner, hindsight_learner, None),
    "Replay": (Replay, lambda kind: kind(DQNConfig(), full(ReplayBuffer(2000)), None, None), None),
    "RunLogger": (RunLogger, made_by(lambda: online_logger(DQNConfig())), None),
    "CkptSaver": (CkptSaver, lambda kind: kind(policy(), "unused", train_freq=1), None),
    "InteractionEvaluator": (
        InteractionEvaluator,
        made_by(lambda: interaction_evaluator(DQNConfig(), policy().eval_mode, cart_poles())),
        None,
    ),
    "MetricsAggregator": (MetricsAggregator, lambda kind: kind(), None),
    "LocalVectorEnv": (LocalVectorEnv, made_by(cart_poles), step_envs),
    "SplitVectorEnv": (SplitVectorEnv, made_by(lambda: cart_poles(2)), step_envs),
    "MultiAgentVectorEnv": (MultiAgentVectorEnv, agent_envs, None),
}
TORCHS = (torch.nn.Module, torch.optim.Optimizer)  # torch's own rules hold for them
EXEMPT = {
    "Task": "holds a run; its parts are derived, not it",
    "Member": "as Task",
    "Population": "as Task",
    "AgentSlots": "its load_state_dict has other arguments",
    "AtariPreprocessing": "a wrapper that reads its own entries alone",
    "EpisodeHistory": "reads its own entries alone",
    "DatasetWriter": "needs a folder: see the test of OfflineDataSaver",
    "ActMode": "a mode of a policy",
    "CollectMode": "a mode of a policy",
    "EvalMode": "a mode of a policy",
    "LearnMode": "a mode of a policy",
    "MultiAgentWorker": "as MultiAgentCollector, whose worker it is",
    "SplitMultiAgentWorker": "as MultiAgentCollector",
    "SplitWorker": "as StepCollector",
    "EpsilonGreedy": "the exploration of a policy",
}
MIXINS = ("ActorCriticMixin", "EntropyCoeffSchedule", "KLCoeffMixin", "LearningRateSchedule", "LearningRateScheduleMixin")


def derived(base, form):
    """A class with an entry of its own, left in or left out for `super()`; or one without."""

    class Derived(base):
        calls = 0

    class Counted(Derived):
        def state_dict(self):
            return {**super().state_dict(), "calls": self.calls}

        def load_state_dict(self, state):
            if form == "left out":
                state = dict(state)
                calls = state.pop("calls")
            else:
                calls = state["calls"]
            super().load_state_dict(state)
            self.calls = calls

    return Derived if form == "no entries" else Counted


def check(base, make, change, form):
    kind = derived(base, form)
    thing = make(kind)
    if change is not None:
        change(thing)
    thing.calls = 3
    state = thing.state_dict()
    again = make(kind)
    again.load_state_dict(state)

    assert same(again.state_dict(), state)
    assert again.calls == (3 if form != "no entries" else 0)


@pytest.mark.few
@pytest.mark.parametrize("form", ["left in", "left out", "no entries"])
@pytest.mark.parametrize("name", CASES)
def test_a_derived_class_may_leave_its_own_entries_in_the_state_for_super_or_take_them_out(name, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(*CASES[name], form)


@pytest.mark.parametrize("form", ["left in", "left out", "no entries"])
@pytest.mark.parametrize("kind", [DatasetWriter, OfflineDataSaver])
def test_so_may_one_that_writes_a_dataset(kind, form, tmp_path):
    make = data_saver(tmp_path) if kind is OfflineDataSaver else lambda derived: derived(tmp_path)
    check(kind, make, None, form)


STRICT = {
    "ReplayBuffer": r"replay buffer: the keys \['calls'\] are unknown",
    "PrioritizedReplayBuffer": r"of a prioritised replay buffer: the keys \['calls'\] are unknown",
    "EpisodeReplayBuffer": r"of an episode replay buffer: the keys \['calls'\] are unknown",
    "JoinedSampler": r"the keys \['calls'\] are unknown",
    "OffPolicyLearner": r"the keys \['calls'\] are unknown",
    "SequenceWindow": r"the keys \['calls'\] are unknown",
    "EpochSampler": r"of an EpochSampler: the keys \['calls'\] are unknown",
    "RNDRewardModel": r"this state of \w+ has 'calls', expected",
    "GAILRewardModel": r"this state of \w+ has 'calls', expected",
    "LocalVectorEnv": r"the keys \['calls'\] are unknown",
}


@pytest.mark.parametrize("without_methods", [False, True], ids=["the class itself", "derived without own methods"])
@pytest.mark.parametrize("name", STRICT)
def test_an_unknown_entry_is_an_error_if_no_derived_class_can_have_written_it(name, without_methods):
    base, make, change = CASES[name]
    thing = make(derived(base, "no entries") if without_methods else base)
    if change is not None:
        change(thing)
    before = thing.state_dict()
    with pytest.raises(ValueError, match=STRICT[name]):
        thing.load_state_dict({**before, "calls": 3})
    assert same(thing.state_dict(), before)


@pytest.mark.parametrize("form", ["left in", "left out"])
@pytest.mark.parametrize(
    ("name", "missing", "words"),
    [
        ("ReplayBuffer", "rng", r"the keys \['rng'\] are missing"),
        ("RNDRewardModel", "steps", "lacks 'steps'"),
        ("JoinedSampler", "given", r"the keys \['given'\] are missing"),
        ("DQNPolicy", "target_model", "lacks 'target_model'"),
    ],
)
def test_an_entry_of_the_librarys_class_that_is_missing_is_named(name, missing, words, form):
    base, make, _ = CASES[name]
    thing = make(derived(base, form))
    state = thing.state_dict()
    del state[missing]
    with pytest.raises(ValueError, match=words):
        thing.load_state_dict(state)


def test_a_mixin_and_a_middle_class_keep_to_the_rule():
    class Counts:
        calls = 0

        def state_dict(self):
            return {**super().state_dict(), "calls": self.calls}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.calls = state["calls"]

    class Middle(Counts, ReplayBuffer):
        pass

    class Lowest(Middle):
        def state_dict(self):
            return {**super().state_dict(), "names": ["a"]}

        def load_state_dict(self, state):
            super().load_state_dict({name: value for name, value in state.items() if name != "names"})

    buffer = full(Lowest(20))
    buffer.calls = 2
    again = Lowest(20)
    again.load_state_dict(buffer.state_dict())

    assert again.calls == 2
    assert same(again.state_dict(), buffer.state_dict())


def test_every_public_class_with_a_state_is_tested_here_or_says_why_not():
    found = set()
    for name in ("data", "datasets", "rewards", "policy", "middleware", "engine", "envs", "rollout", "distributed"):
        package = importlib.import_module(f"ding_lite.{name}")
        kinds = [getattr(package, one) for one in package.__all__]
        kinds = [kind for kind in kinds if inspect.isclass(kind) and hasattr(kind, "load_state_dict")]
        found |= {kind.__name__ for kind in kinds if not issubclass(kind, TORCHS) and not hasattr(kind, "make_model")}

    assert found - {"TargetNetworkMixin", *MIXINS} <= {*CASES, *EXEMPT}


def test_a_run_goes_on_as_if_unbroken_with_derived_parts(tmp_path):
    def run(folder, steps, resume=None):
        buffer = derived(ReplayBuffer, "left in")(20, seed=1)
        model = derived(RNDRewardModel, "left out")(RNDConfig().reward_model, spaces_of(cart_poles())[0])

        def work(ctx):
            buffer.push(ROWS)
            model.learn(batch())
            buffer.calls += 1
            model.calls += 2

        task = Task()
        with task.start(ctx=OnlineRLContext(), resume=resume):
            task.use(contract(uses=(buffer, model))(work))
            task.use(CkptSaver(policy(), str(folder), train_freq=1))
            task.run(max_step=steps)
        return buffer.state_dict(), model.state_dict()

    torch.manual_seed(0)
    unbroken = run(tmp_path / "unbroken", 4)
    torch.manual_seed(0)
    run(tmp_path / "broken", 2)
    resumed = run(tmp_path / "broken", 4, str(tmp_path / "broken"))

    assert same(resumed, unbroken)
    assert [part["calls"] for part in resumed] == [4, 8]


def test_entries_that_the_class_itself_saves_are_never_dropped():
    class Counted:
        def state_dict(self):
            return {}

    assert base_state(Counted(), {"size": 1, "calls": 2}, ("size",)) == {"size": 1}
    assert base_state(ReplayBuffer(2), {"size": 1, "calls": 2}, ("size",)) == {"size": 1, "calls": 2}
    assert base_state(Counted(), "a path", ("size",)) == "a path"


def test_articles_fit():
    assert [with_article(noun) for noun in ("episode", "EpochSampler", "replay buffer")] == [
        "an episode",
        "an EpochSampler",
        "a replay buffer",
    ]
