"""Networks of users in whole runs: those that keep tensors of the graph of a loss, and those with an extra state."""

import warnings

import numpy as np
import pytest
import torch
from slow_cases import mostly_slow
from states import same
from torch import nn

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    offline_data_saver,
)
from ding_lite.policy import DQNPolicy, PPOPolicy, StateDictError, export_policy, load_policy

SMALL = {
    "policy.collect.n_sample": 16,
    "policy.learn": {"learning_starts": 32, "batch_size": 16, "update_per_collect": 2, "target_update_freq": 3},
    "policy.eval.evaluator.eval_freq": 4,
    "env": {"n_evaluator_episode": 2, "stop_value": None},
}


class Keeping(nn.Module):
    """A network in the style of RLlib, which keeps its features for another method."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, obs):
        self._features = torch.tanh(self.body(obs))
        self.several, self.named = [self._features, (self._features,)], {"a": self._features}
        return self.head(self._features)


class KeepingActorCritic(Keeping):
    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(8, 1)

    def forward(self, obs):
        return self.logits(obs), self.critic(self._features).squeeze(-1)

    def logits(self, obs):
        return super().forward(obs)

    def values(self, obs):
        self.logits(obs)
        return self.critic(self._features).squeeze(-1)


class Counting(nn.Module):
    """A network whose output depends on the number of batches that it has learned from, which is its extra state."""

    def __init__(self):
        super().__init__()
        self.body, self.log = nn.Linear(4, 2), {"calls": 0, "last": [], "kind": "counting"}

    def forward(self, obs):
        if torch.is_grad_enabled() and len(obs) == 16:
            self.log["calls"] += 1
            self.log["last"] = [*self.log["last"][-2:], self.log["calls"]]
        return self.body(obs) * (1 + 0.01 * self.log["calls"])

    def get_extra_state(self):
        return self.log

    def set_extra_state(self, state):
        self.log = state


def used_before(kind):
    """A network that the script has called before, so that it keeps features of a graph."""

    def make():
        network = kind()
        network(torch.ones(3, 4))
        return network

    return make


def spaces_of(envs):
    return envs.single_observation_space, envs.single_action_space


def run(make, folder, steps=6, resume=False, workers=1, policy_type=DQNPolicy, start=(), **changes):
    """The policy of a run with this network, and the middleware of all kinds."""
    torch.manual_seed(0)
    cfg = DQNConfig(exp_name=str(folder), seed=0).override({**SMALL, **changes})
    envs = make_envs("CartPole-v1", 2, seed=0, workers=workers)
    policy, buffer, loop = policy_type(cfg.policy, *spaces_of(envs), model=make()), ReplayBuffer(500, seed=0), Task()
    with loop.start(ctx=OnlineRLContext(), resume=str(folder) if resume else None, **dict(start)):
        loop.use(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 2, seed=1)))
        loop.use(eps_greedy_handler(cfg))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(data_pusher(cfg, buffer))
        loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        loop.use(CkptSaver(policy, str(folder), train_freq=2))
        loop.run(max_step=steps)
    return policy


def quiet(*args, **kwargs):
    """A run without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


def learned(policy):
    return {"model": policy.get_weights(), "target": policy.target_model.state_dict()}


WAYS = {
    "sync": {},
    "lag": {"start": {"max_lag": 1}},
    "async": {"start": {"async_mode": True, "max_lag": 1}},
    "workers": {"workers": 2},
    "async with workers": {"start": {"async_mode": True, "max_lag": 1}, "workers": 2},
    "learners": {"policy.learners.num_learners": 1},
    "compile": {"policy.learn.compile": True},
    "skip": {"policy.learn.on_nonfinite": "skip"},
    "restore": {"policy.learn.on_nonfinite": "restore"},
}
ways = pytest.mark.parametrize("way", mostly_slow(WAYS, "sync", "async"))
networks = pytest.mark.parametrize("make", [used_before(Keeping), Counting], ids=["kept tensors", "extra state"])


@pytest.mark.few
@ways
@networks
def test_a_resumed_run_is_the_same_as_an_unbroken_one(make, way, tmp_path):
    unbroken = quiet(make, tmp_path / "unbroken", **WAYS[way])
    quiet(make, tmp_path / "broken", steps=3, **WAYS[way])
    resumed = quiet(make, tmp_path / "broken", resume=True, **WAYS[way])

    assert same(learned(resumed), learned(unbroken))


@networks
def test_an_asynchronous_run_is_the_same_as_one_with_the_lag_on_one_thread(make, tmp_path):
    one, other = (quiet(make, tmp_path / way, **WAYS[way]) for way in ("lag", "async"))

    assert same(learned(one), learned(other))


@pytest.mark.slow
@networks
def test_a_learner_in_another_process_learns_as_this_one_does(make, tmp_path):
    one, other = (quiet(make, tmp_path / way, **WAYS[way]) for way in ("sync", "learners"))

    assert same(learned(one), learned(other))


class TestKeptTensors:
    def test_the_users_own_network_keeps_what_it_has(self):
        network = used_before(Keeping)()
        kept = network._features
        policy = DQNPolicy(None, *spaces_of(make_envs("CartPole-v1", 1)), model=network)
        actor = policy.collect_mode.actor

        assert policy.model._features is kept
        assert kept.requires_grad
        for copied in (actor.model, policy.target_model):
            held = [copied._features, copied.several[0], copied.several[1][0], copied.named["a"]]
            assert not any(tensor.requires_grad for tensor in held)
            assert all(torch.equal(tensor, kept) for tensor in held)

    def test_a_network_can_be_called_by_the_script_at_any_time(self, tmp_path):
        envs = make_envs("CartPole-v1", 2)
        policy = DQNPolicy(None, *spaces_of(envs), model=Keeping())
        policy.model(torch.ones(3, 4))
        policy.collect_mode.forward(envs.reset(seed=0)[0])
        policy.model(torch.ones(3, 4))
        policy.dry_run()
        policy.set_weights(policy.get_weights())
        policy.load_state_dict(policy.state_dict())

        assert export_policy(policy, tmp_path / "policy.pt2").exists()
        assert policy.predict(np.zeros((2, 4), np.float32)) is not None

    def test_actor_critics_keep_them_too(self, tmp_path):
        cfg = PPOConfig(exp_name=str(tmp_path), seed=0).override(
            {"policy.collect.n_sample": 32, "policy.learn": {"epoch_per_collect": 1, "batch_size": 16}}
        )
        envs, loop = make_envs("CartPole-v1", 2, seed=0), Task()
        policy = PPOPolicy(cfg.policy, *spaces_of(envs), model=used_before(KeepingActorCritic)())
        with loop.start(ctx=OnlineRLContext(), async_mode=True, max_lag=1):
            loop.use(StepCollector(cfg, policy.collect_mode, envs))
            loop.use(gae_estimator(cfg, policy.collect_mode))
            loop.use(multistep_trainer(cfg, policy.learn_mode))
            loop.run(max_step=2)

        assert policy.train_iter > 0

    def test_so_may_hooks_of_a_policy(self, tmp_path):
        class Remembers(DQNPolicy):
            def loss(self, batch):
                loss, stats = super().loss(batch)
                self.last, self.all = loss, [loss, {"a": (loss,)}]
                return loss, stats

        policy = quiet(Keeping, tmp_path, policy_type=Remembers, workers=2)

        assert policy.last.requires_grad

    def test_compiled_steps_say_which_line_keeps_them(self, tmp_path):
        with pytest.warns(UserWarning, match=r"in forward, sets Keeping\._features, which a compiled step would not do"):
            run(Keeping, tmp_path, steps=3, **WAYS["compile"])


class TestExtraStates:
    def made(self, **changes):
        cfg = DQNConfig().override({**SMALL, **changes})
        return DQNPolicy(cfg.policy, *spaces_of(make_envs("CartPole-v1", 1)), model=Counting())

    def test_weights_have_a_copy_of_it(self):
        policy = self.made()
        policy.model.log["calls"] = 5
        weights = policy.get_weights()
        other = self.made()
        other.set_weights(weights)
        weights["_extra_state"]["calls"] = 7
        policy.model.log["last"].append(1)

        assert other.model.log == {"calls": 5, "last": [], "kind": "counting"}
        assert other.target_model.log == other.model.log
        assert other.target_model.log is not other.model.log

    def test_acting_copies_have_that_of_the_weights_that_they_act_with(self):
        policy = self.made()
        mode = policy.collect_mode
        before = policy.snapshot()
        policy.model.log["calls"] = 5
        policy.bump_version()
        obs = np.ones((1, 4), np.float32)
        mode.forward(obs)
        assert mode.actor.model.log["calls"] == 5
        mode.load_snapshot(before)
        mode.forward(obs)
        assert mode.actor.model.log["calls"] == 0
        assert before.extra == {"_extra_state": {"calls": 0, "last": [], "kind": "counting"}}
        assert same(before.as_arrays().as_tensors().extra, before.extra)

    @pytest.mark.parametrize("workers", [1, 2])
    def test_workers_act_with_it(self, workers):
        class Fixed(nn.Module):
            """A network that prefers the action that is its extra state."""

            def __init__(self):
                super().__init__()
                self.layer, self.choice = nn.Linear(4, 2), 0

            def forward(self, obs):
                return 0 * self.layer(obs) + torch.eye(2)[self.choice]

            def get_extra_state(self):
                return self.choice

            def set_extra_state(self, state):
                self.choice = state

        cfg, envs = DQNConfig().override(SMALL), make_envs("CartPole-v1", 2, seed=0, workers=workers)
        policy, ctx = DQNPolicy(cfg.policy, *spaces_of(envs), model=Fixed()), OnlineRLContext()
        collect = StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0})
        found = []
        for choice in (0, 1):
            policy.set_weights({**policy.get_weights(), "_extra_state": choice})
            collect(ctx)
            found.append(np.unique(ctx.trajectories.columns["action"]).tolist())
        envs.close()

        assert found == [[0], [1]]

    def test_target_networks_get_a_copy_with_every_update_and_no_average(self, tmp_path):
        policy = quiet(Counting, tmp_path, **{"policy.learn.target_update_theta": 0.5})
        updated_at = policy.train_iter // 3 * 3

        assert policy.model.log["calls"] == policy.train_iter
        assert policy.target_model.log["calls"] == updated_at
        assert policy.target_model.log is not policy.model.log

    @pytest.mark.parametrize("name", ["best", "final"])
    def test_checkpoints_have_it(self, name, tmp_path):
        policy = quiet(Counting, tmp_path)
        state = load_checkpoint(f"{tmp_path}/ckpt/{name}.pt")
        loaded, other = load_policy(str(tmp_path), name, model=Counting()), self.made()
        other.load_state_dict(state)

        assert 0 <= state["model"]["_extra_state"]["calls"] <= policy.train_iter
        assert loaded.model.log == other.model.log == state["model"]["_extra_state"]
        if name == "final":
            assert loaded.model.log == policy.model.log

    def test_a_skipped_step_leaves_it_as_it_was(self):
        class Broken(DQNPolicy):
            def loss(self, batch):
                loss, stats = super().loss(batch)
                return loss * float("nan"), stats

        cfg = DQNConfig().override({**SMALL, "policy.learn.on_nonfinite": "skip"})
        policy = Broken(cfg.policy, *spaces_of(make_envs("CartPole-v1", 1)), model=Counting())
        obs = torch.ones(16, 4)
        rows = {"obs": obs, "next_obs": obs, "action": torch.zeros(16, dtype=torch.int64), "reward": torch.ones(16)}
        rows["terminated"] = torch.zeros(16, dtype=torch.bool)
        with pytest.warns(UserWarning, match="the step is skipped"):
            policy.learn_mode.forward(rows)

        assert policy.model.log == {"calls": 0, "last": [], "kind": "counting"}

    def test_one_that_cannot_be_loaded_changes_nothing_and_is_named(self):
        class Refusing(Counting):
            def set_extra_state(self, state):
                if state["calls"] == 9:
                    raise ValueError("nine calls are too many")
                super().set_extra_state(state)

        cfg = DQNConfig().override(SMALL)
        policy = DQNPolicy(cfg.policy, *spaces_of(make_envs("CartPole-v1", 1)), model=Refusing())
        before = policy.get_weights()
        for load in (policy.set_weights, lambda weights: policy.load_state_dict({"model": weights})):
            weights = {name: it + 1 if isinstance(it, torch.Tensor) else {**it, "calls": 9} for name, it in before.items()}
            with pytest.raises(ValueError, match="nine calls are too many"):
                load(weights)
            assert same(policy.get_weights(), before)

    def test_weights_without_it_are_refused_by_name(self):
        policy = self.made()
        weights = policy.get_weights()
        del weights["_extra_state"]
        with pytest.raises(StateDictError, match="_extra_state"):
            policy.set_weights(weights)

    def test_one_that_is_a_tensor_may_change_its_shape(self):
        class Growing(Counting):
            def get_extra_state(self):
                return torch.arange(self.log["calls"])

            def set_extra_state(self, state):
                self.log["calls"] = len(state)

        cfg = DQNConfig().override(SMALL)
        one, other = (DQNPolicy(cfg.policy, *spaces_of(make_envs("CartPole-v1", 1)), model=Growing()) for _ in range(2))
        one.model.log["calls"] = 4
        other.load_state_dict(one.state_dict())

        assert other.model.log["calls"] == 4

    def test_an_object_that_is_no_plain_data_is_named_when_it_is_saved(self, tmp_path):
        class Locked(Counting):
            def get_extra_state(self):
                return {"range": range(3)}

            def set_extra_state(self, state):
                pass

        with pytest.raises(Exception, match=r"_extra_state.*range"):
            quiet(Locked, tmp_path, steps=2)

    def test_it_is_not_named_as_unsaved_and_other_attributes_are(self, tmp_path):
        class Forgets(Counting):
            def forward(self, obs):
                self.forgotten = getattr(self, "forgotten", 0) + 1
                return super().forward(obs)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(Counting, tmp_path / "saved")
        assert not [one for one in caught if "remembers" in str(one.message)]
        with pytest.warns(UserWarning, match=r"Forgets remembers something .*\(forgotten\)"):
            run(Forgets, tmp_path / "forgotten")

    def test_compiled_steps_say_which_line_changes_it(self, tmp_path):
        with pytest.warns(UserWarning, match=r"in forward, reads Counting\.log, whose contents the loss changes"):
            policy = run(Counting, tmp_path, **WAYS["compile"])

        assert policy.model.log["calls"] == policy.train_iter

    def test_an_exported_policy_acts_with_it(self, tmp_path):
        policy = self.made()
        policy.model.log["calls"] = 30

        assert export_policy(policy, tmp_path / "policy.pt2").exists()  # it compares the actions

    def test_it_is_a_part_of_the_source_of_a_dataset(self, tmp_path):
        def folder(calls):
            cfg, envs, loop = DQNConfig().override(SMALL), make_envs("CartPole-v1", 2, seed=0), Task()
            torch.manual_seed(0)
            policy = DQNPolicy(cfg.policy, *spaces_of(envs), model=Counting())
            policy.model.log["calls"] = calls
            with loop.start(ctx=OnlineRLContext()):
                loop.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.0}))
                loop.use(saver := offline_data_saver(cfg, tmp_path / str(calls)))
                loop.run(max_step=1)
            return saver.state_dict()["sources"][0]["weights"]

        assert folder(1) != folder(2)
