"""What middleware share with the code of objects that others use: hooks of a policy, networks, environments, models."""

import dataclasses
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from contract_runs import OVERLAPPING, run

from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import Task, contract
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, interaction_evaluator, multistep_trainer
from ding_lite.pipeline.code_in_use import code_in_use
from ding_lite.pipeline.contracts import contract_of
from ding_lite.pipeline.entries import Entry
from ding_lite.policy import PPOPolicy

CFG = PPOConfig().override(
    {
        "policy.collect.n_sample": 16,
        "policy.learn.batch_size": 8,
        "policy.learn.epoch_per_collect": 1,
        "policy.eval.evaluator.eval_freq": 1,
        "env.n_evaluator_episode": 1,
    }
)
WEIGHT = 0.0


def pipeline_with(changes, kind=PPOPolicy, wrappers=(), place="process", evaluates=False, name=None, cfg=CFG):
    """The warnings about sharing of a run on one thread with lag, in which `changes` is a middleware on this lane.

    Args:
        changes: a function of an iteration's number.
        kind: class of the policy.
        wrappers: of the environments.
        place: its stage.
        evaluates: whether the policy is evaluated too.
        name: a function of policy and environments that returns what the contract names.
        cfg: configuration.
    """
    envs = make_envs("CartPole-v1", 4, seed=0, wrappers=wrappers)
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)

    @contract(reads=("total_step",), uses=() if name is None else name(policy, envs), stage=place)
    def changing(ctx):
        changes(ctx.total_step)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext(), max_lag=1) as loop:
            if evaluates:
                loop.use(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 1, seed=1)))
            loop.use(StepCollector(cfg, policy.collect_mode, envs)).use(changing)
            loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode)).run(3)
    envs.close()
    return [str(it.message) for it in caught if "Nothing orders" in str(it.message)]


@dataclasses.dataclass
class Settings:
    weight: float = 0.0


def closure():
    box = {"w": 0.0}

    class Own(PPOPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * (1 + box["w"]), stats

    return Own, lambda step: box.update(w=step)


def global_number():
    class Own(PPOPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * (1 + WEIGHT), stats

    def change(step):
        global WEIGHT
        WEIGHT = 0.1 * step

    return Own, change


def attribute_of_policy():
    box = {"w": 0.0}

    class Own(PPOPolicy):
        def after_init(self):
            self.box = box

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * (1 + self.weight()), stats

        def weight(self):
            return self.box["w"]

    return Own, lambda step: box.update(w=step)


def object_of_own():
    settings = Settings()

    class Own(PPOPolicy):
        def postprocess(self, batch):
            batch = super().postprocess(batch)
            batch["advantage"] = batch["advantage"] * (1 + settings.weight)
            return batch

    return Own, lambda step: setattr(settings, "weight", float(step))


def attribute_of_class():
    class Own(PPOPolicy):
        weight = 0.0

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * (1 + self.weight), stats

    def change(step):
        Own.weight = 0.1 * step

    return Own, change


def from_functions():
    box = {"w": 0.0}

    def loss(policy, model, dist_class, batch):
        value, stats = PPOPolicy.loss(policy, batch)
        return value * (1 + box["w"]), stats

    return PPOPolicy.with_updates(name="Own", loss_fn=loss), lambda step: box.update(w=step)


def generator_of_own():
    rng = np.random.default_rng(0)

    class Own(PPOPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * (1 + rng.random()), stats

    return Own, lambda step: rng.random()


MAKERS = pytest.mark.parametrize(
    "make",
    [closure, global_number, attribute_of_policy, object_of_own, attribute_of_class, from_functions, generator_of_own],
    ids=lambda it: it.__name__,
)


class TestHooksThatLearn:
    @MAKERS
    def test_what_they_read_and_another_lane_changes_is_warned_of_with_the_fix(self, make):
        kind, change = make()
        (message,) = pipeline_with(change, kind)
        assert "changing" in message
        assert "multistep_trainer" in message
        assert "uses=(policy.learn_mode,)" in message
        assert "give it the stage 'learn'" in message

    @MAKERS
    def test_it_is_not_where_the_contract_names_the_policy_or_the_lane_is_the_same(self, make):
        kind, change = make()
        assert pipeline_with(change, kind, name=lambda policy, envs: (policy,)) == []
        assert pipeline_with(change, kind, name=lambda policy, envs: (policy.learn_mode,)) == []
        assert pipeline_with(change, kind, place="learn") == []

    def test_what_nothing_changes_and_what_other_hooks_read_is_fine(self):
        kind, _ = closure()
        table = {"w": 0.0}

        class Own(PPOPolicy):
            def loss(self, batch):
                loss, stats = super().loss(batch)
                return loss * (1 + table["w"]), stats

        assert pipeline_with(lambda step: table["w"], Own) == []
        assert pipeline_with(lambda step: None, kind) == []

    def test_what_two_hooks_share_is_no_matter_of_contracts(self):
        seen = []

        class Own(PPOPolicy):
            def loss(self, batch):
                seen.append(1)
                return super().loss(batch)

            def stats(self, batch):
                return {**super().stats(batch), "seen": float(len(seen))}

        assert pipeline_with(lambda step: None, Own) == []


def acting(asks=False):
    box = {"t": 1.0}

    class Own(PPOPolicy):
        def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
            return super().compute_actions(obs * box["t"], state, explore=explore, **kwargs)

    class Asking(PPOPolicy):
        def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
            obs = obs * box["t"] if explore else obs
            return super().compute_actions(obs, state, explore=explore, **kwargs)

    return Asking if asks else Own, lambda step: box.update(t=0.5 + step)


class TestHooksThatAct:
    def test_what_they_read_and_another_lane_changes_is_warned_of_with_the_fix(self):
        kind, change = acting()
        (message,) = pipeline_with(change, kind)
        assert "StepCollector" in message
        assert "box (through compute_actions)" in message
        assert "uses=(policy.collect_mode,)" in message
        assert "stage" not in message.rpartition("Nothing orders")[2]

    def test_the_fix_ends_the_warning_and_so_does_the_lane_that_collects(self):
        kind, change = acting()
        assert pipeline_with(change, kind, name=lambda policy, envs: (policy.collect_mode,)) == []
        assert pipeline_with(change, kind, place="explore") == []

    def test_the_evaluator_acts_too_unless_the_hook_asks_whether_it_explores(self):
        kind, change = acting()
        (message,) = pipeline_with(change, kind, place="explore", evaluates=True)
        assert "interaction_evaluator" in message
        assert "policy.eval_mode" in message
        kind, change = acting(asks=True)
        assert pipeline_with(change, kind, place="explore", evaluates=True) == []

    def test_hooks_that_learn_do_not_run_where_a_policy_acts(self):
        kind, change = closure()
        assert pipeline_with(change, kind, place="learn", evaluates=True) == []

    def test_networks_of_the_script_run_where_it_learns_and_acts(self):
        box = {"t": 1.0}

        class Scaled(torch.nn.Module):
            def forward(self, hidden):
                return hidden * box["t"]

        class Own(PPOPolicy):
            def make_model(self):
                model = super().make_model()
                model.scaled = Scaled()
                return model

        (message,) = pipeline_with(lambda step: box.update(t=1.0 + step), Own)
        assert "box (through forward)" in message


class TestEnvironments:
    @staticmethod
    def wrapper():
        level = {"n": 0}

        class Raised(gymnasium.Wrapper):
            def step(self, action):
                obs, reward, *ends = self.env.step(action)
                return obs, reward + level["n"], *ends

        return Raised, lambda step: level.update(n=step)

    def test_what_a_wrapper_reads_and_another_lane_changes_is_warned_of(self):
        wrapper, change = self.wrapper()
        (message,) = pipeline_with(change, wrappers=[wrapper])
        assert "the LocalVectorEnv that StepCollector" in message
        assert "level (through step)" in message

    def test_it_is_not_where_the_contract_names_them_or_the_lane_is_the_same(self):
        wrapper, change = self.wrapper()
        assert pipeline_with(change, wrappers=[wrapper], name=lambda policy, envs: (envs,)) == []
        assert pipeline_with(change, wrappers=[wrapper], place="explore") == []

    def test_who_names_them_and_changes_nothing_is_no_reader(self):
        wrapper, change = self.wrapper()

        @contract(uses=(envs := make_envs("CartPole-v1", 1, wrappers=[wrapper]),), stage="collect")
        def steps(ctx):
            pass

        @contract(uses=(envs,), stage="process")
        def asks(ctx):
            return envs.num_envs

        @contract(reads=("total_step",), stage="collect")
        def changes(ctx):
            change(ctx.total_step)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(steps, changes, asks, mode={"max_lag": 1})

    def test_the_code_of_environments_in_worker_processes_does_not_run_here(self):
        @contract(uses=(envs := make_envs("CartPole-v1", 2, wrappers=[Doubled], workers=2),), stage="collect")
        def steps(ctx):
            pass

        assert list(code_in_use(entry_of(steps), [entry_of(steps)])) == []
        envs.close()


def entry_of(fn):
    return Entry(fn, fn, fn.__name__, "", contract_of(fn))


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


class TestSettingsOfThePolicy:
    """A policy reads many settings in each gradient step."""

    @staticmethod
    def changing(cfg):
        def change(step):
            cfg.policy.learn.clip_ratio = 0.1 + 0.01 * step

        return change

    def test_one_that_another_lane_sets_is_warned_of(self):
        cfg = PPOConfig().override(CFG.to_dict())
        (message,) = pipeline_with(self.changing(cfg), cfg=cfg)
        assert "cfg.policy.learn.clip_ratio" in message
        assert "uses=(policy.learn_mode,)" in message

    def test_it_is_not_where_the_contract_names_the_policy_or_the_lane_is_the_same(self):
        cfg = PPOConfig().override(CFG.to_dict())
        assert pipeline_with(self.changing(cfg), cfg=cfg, name=lambda policy, envs: (policy,)) == []
        assert pipeline_with(self.changing(cfg), cfg=cfg, place="learn") == []


TABLE = {"w": 0.1}
HISTORY = []


def history():
    """A function with the name of an attribute below."""
    return len(HISTORY)


class Counted(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.history = []

    def step(self, action):
        self.history.append(TABLE["w"])
        return self.env.step(action)


class Remembering(PPOPolicy):
    def after_init(self):
        self.seen = 0

    def loss(self, batch):
        self.seen += 1
        HISTORY.append(self.seen)
        loss, stats = super().loss(batch)
        return loss * (1 + TABLE["w"]), stats


@pytest.mark.parametrize("place", ["explore", "process", "learn"])
def test_what_is_only_read_and_what_one_lane_alone_changes_is_fine(place):
    def reads(step):
        return TABLE["w"] * step

    def reads_more(step):
        return history() + reads(step)

    change = reads_more if place == "learn" else reads
    assert pipeline_with(change, Remembering, wrappers=[Counted], place=place, evaluates=True) == []


class Model:
    """An object of the script in place of a model of rewards."""

    def __init__(self, box):
        self.box = box

    def value(self):
        return self.box["w"]


@OVERLAPPING
def test_the_code_of_an_object_counts_where_only_a_library_calls_it(mode):
    box = {"w": 0.0}
    model = Model(box)

    @contract(reads=("total_step",), stage="collect")
    def changes(ctx):
        box["w"] += 1.0

    for is_of_library in (False, True):
        uses = contract(uses=(model,), stage="learn")(lambda ctx: None)
        uses.__module__ = "ding_lite.middleware.rewards" if is_of_library else __name__
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(changes, uses, mode=mode)
        assert ["the Model that" in str(it.message) for it in caught] == [True] * is_of_library


def test_objects_of_libraries_have_no_code_of_the_script():
    @contract(uses=(torch.nn.Linear(1, 1), [], {}), stage="learn")
    def uses(ctx):
        pass

    assert list(code_in_use(entry_of(uses), [entry_of(uses)])) == []
