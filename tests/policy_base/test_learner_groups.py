"""Learners in other processes: like learning in the process of the script, with its state at hand when it is needed."""

import copy
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import rank_policies
import torch
from learner_policies import ACTIONS, OBS, SMALL, Apart, Several, dqn, learned, state_of, transitions, with_reward
from slow_cases import mostly_slow
from states import same, through_a_file

from ding_lite import Task
from ding_lite.config import DQNConfig, IMPALAConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import tree
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer
from ding_lite.policy import DQNPolicy, IMPALAPolicy, Policy, PPOPolicy
from ding_lite.policy_base import FixedSettingError, learner_groups
from ding_lite.policy_check import NonFiniteError
from ding_lite.processes import WorkerDied, WorkerHangs
from ding_lite.processes.pickles import dumps
from ding_lite.ranks import RankError


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(learner_groups, "_host_factory", lambda cfg, who: lambda: (Apart, lambda: "127.0.0.1"))


def batch_for(policy, step):
    """A batch of rows, sequences or a rollout, as the policy's pipeline has it."""
    batch, dim = rank_policies.rows_of(policy, step)
    batch = {name: column.float() if column.is_floating_point() else column for name, column in batch.items()}
    if policy.learns_from == "rollouts" and dim == 0:
        is_flat = batch["terminated"].ndim == 1
        for name, column in batch.items():
            if is_flat:
                batch[name] = column.reshape(2, 7, *column.shape[1:])
            else:  # sequences, whose first states stand for those of all steps
                steps = column.unsqueeze(1).expand(-1, 4, -1) if name.startswith("state_in") else column
                batch[name] = steps.transpose(0, 1).contiguous()
    return tree({name: column for name, column in batch.items() if name in (*policy.columns, "valid")})


@pytest.fixture
def released():
    """A list of policies whose learners are ended."""
    policies = []
    yield policies
    for policy in policies:
        policy.learn_mode.release()


class Summing(IMPALAPolicy):
    """Attaches the sum of the rewards that it has learned from."""

    def after_init(self):
        self.sums = Sums()
        self.attach("sums", self.sums)

    def after_learning(self, batch):
        self.sums.sum += float(batch.reward.sum())


class Sums:
    sum = 0.0

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]


def replaying(**settings):
    """IMPALA with two learners that replay rollouts."""
    learn = {"learn.replay_proportion": 1.0, "learn.replay_slots": 3, "learn.epoch_per_collect": 1}
    cfg = IMPALAConfig().policy.override({"seed": 3, **SMALL, **learn, "learners.num_learners": 2, **settings})
    return Summing(cfg, OBS, ACTIONS)


def rollout(step):
    """A rollout [7, 4]; the reward is `step` for the environments of the first learner, and `step` + 10 for the others."""
    g = torch.Generator().manual_seed(step)
    obs = torch.randn(8, 4, 4, generator=g)
    flags = torch.rand(2, 7, 4, generator=g) < 0.1
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": torch.randint(0, 2, (7, 4), generator=g)}
    columns |= {"log_prob": torch.full((7, 4), -0.7), "terminated": flags[0], "truncated": flags[1]}
    return tree({**columns, "reward": torch.tensor([0.0, 0, 10, 10]).expand(7, 4) + step})


@pytest.mark.few
@pytest.mark.parametrize("case", mostly_slow(rank_policies.CASES, "DQNPolicy", "PPOPolicy", "SACPolicy", "BCPolicy"))
def test_every_policy_learns_in_a_learner_as_in_the_script(in_this_process, case):
    here = rank_policies.made(case, is_double=False)
    there = rank_policies.made(case, {"learners.num_learners": 1}, is_double=False)
    for step in range(2):
        batch = batch_for(here, step)

        outputs = here.learn_mode.forward(batch), there.learn_mode.forward(batch)

        assert same(*outputs)
        assert here.num_steps == there.num_steps
        assert (here.train_iter, here.version) == (there.train_iter, there.version)
        assert all(map(torch.equal, here.weights, there.weights))  # without a look at the rest of the state
        assert here.hook_metrics.reduce(compile=True) == there.hook_metrics.reduce(compile=True)
    assert same(state_of(here), state_of(there))


def test_learning_goes_on_with_each_change_of_the_policy(in_this_process):
    policies = [dqn(0), dqn(1)]
    source = dqn(0)
    learned(source, range(5, 8))
    for policy in policies:
        learned(policy)
        policy.set_weights(source.get_weights())
        learned(policy)
        policy.reset_config({"learn.learning_rate": 0.02, "learn.batch_size": 16})
        learned(policy)
        policy.load_learned_state(source.learned_state())
        learned(policy)
        kept = policy.state_dict()
        learned(policy, range(9, 12))
        policy.load_state_dict(kept)
        learned(policy, range(2))

    assert same(state_of(policies[0]), state_of(policies[1]))
    assert policies[1].cfg.learn.learning_rate == 0.02


def test_a_state_goes_on_with_and_without_learners(in_this_process):
    here, there = dqn(0), dqn(1)
    learned(here), learned(there)

    other, back = dqn(1), dqn(0)
    other.load_state_dict(here.state_dict())
    back.load_state_dict(there.state_dict())

    assert same(learned(other), learned(back))
    assert same(state_of(other), state_of(back))


def test_released_learners_start_again_in_the_same_state(in_this_process):
    policy, whole = dqn(1), dqn(0)

    for steps in (range(2), range(2, 4)):
        learned(policy, steps)
        policy.learn_mode.release()
    learned(whole, range(4))

    assert same(state_of(policy), state_of(whole))


def test_objects_that_the_script_attaches_stay_there(in_this_process):
    class Counter:
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    policy, counter = dqn(1), Counter()
    policy.attach("counter", counter)
    for number in range(3):
        counter.count = number
        learned(policy)

        assert policy.state_dict()["attached"]["counter"] == {"count": number}
        assert counter.count == number


class Dropping(DQNPolicy):
    """A policy whose loss draws from torch's global generator."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * torch.rand(()), stats


@pytest.mark.filterwarnings("ignore:.*global random generator")
def test_global_random_numbers_are_those_of_the_script(in_this_process):
    found = []
    for learners in (0, 1):
        policy = dqn(learners, Dropping)
        torch.manual_seed(5)
        found.append((learned(policy), torch.rand(3), state_of(policy)))
        torch.manual_seed(6)  # as it were another process

    assert same(*found)


class Scaled(DQNPolicy):
    """A policy with an argument of its own."""

    def __init__(self, scale, cfg, obs, act, *, shift=1.0):
        self.scale, self.shift = scale, shift
        super().__init__(cfg, obs, act)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return self.scale * loss + self.shift, stats


def test_learners_are_made_with_the_arguments_of_the_script(in_this_process):
    cfg = DQNConfig().policy.override({"learners.num_learners": 1, **SMALL})
    settings = {"learners.num_learners": 1, **SMALL, "my_setting": 3}
    for given in (cfg, settings):
        policy = Scaled(5.0, given, OBS, ACTIONS, shift=2.0)
        learned(policy)

        learner = policy.learners._hosts[0].objects["learner"].policy
        assert (learner.scale, learner.shift, learner.cfg.learners.num_learners) == (5.0, 2.0, 0)
        assert learner.config.get("my_setting") == (None if given is cfg else 3)


def test_a_copy_has_learners_of_its_own(in_this_process):
    policy = dqn(1)
    learned(policy)
    copied = copy.deepcopy(policy)

    assert same(learned(policy, range(3, 6)), learned(copied, range(3, 6)))
    assert same(state_of(policy), state_of(copied))
    assert policy.learners._hosts[0] is not copied.learners._hosts[0]
    with pytest.raises(TypeError, match="send its state_dict"):
        dumps(policy)


class Logging(DQNPolicy):
    """A policy that logs."""

    def loss(self, batch):
        self.metrics.log_value("rows", len(batch.reward), reduce="sum")
        return super().loss(batch)


def test_a_run_that_logs_goes_on_with_and_without_learners(in_this_process):
    here, there = dqn(0, Logging), dqn(1, Logging)
    learned(here), learned(there)
    assert same(here.state_dict()["metrics"], there.state_dict()["metrics"])

    other, back = dqn(1, Logging), dqn(0, Logging)
    other.load_state_dict(here.state_dict())
    back.load_state_dict(there.state_dict())
    assert same(learned(other), learned(back))
    assert other.hook_metrics.reduce(compile=True) == back.hook_metrics.reduce(compile=True)


class Noted(DQNPolicy):
    """A policy whose hooks log, and look where they run."""

    def loss(self, batch):
        self.metrics.log_value("rows", len(batch.reward), reduce="sum")
        if bool((batch.reward == 17).any()):
            raise ZeroDivisionError("a mistake in loss")
        if bool((batch.reward == 18).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        if bool((batch.reward == 19).any()):
            time.sleep(60)
        return super().loss(batch)


class Counting(DQNPolicy):
    """A policy that logs means and sums of rewards as numbers of all types, also of another type where there are none."""

    def numbers(self, reward):
        total, mean = int(reward.sum()), float(reward.mean())
        numbers = {"sum": total, "sum_np": np.int64(total), "sum_tensor": torch.tensor(total, dtype=torch.int32)}
        numbers |= {"mean": mean, "mean_32": np.float32(mean), "mean_64": np.float64(mean), "mean_array": np.array(mean)}
        numbers |= {"mean_half": torch.tensor(mean, dtype=torch.bfloat16), "mean_else_0": mean or 0, "mean_else_10": mean}
        numbers["mean_else_tensor"] = torch.tensor(mean) if mean else torch.tensor(0)
        if mean == 10:
            numbers["mean_else_10"] = 10
        return numbers

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss, stats | {f"loss_{name}": value for name, value in self.numbers(batch.reward).items()}

    def learn_on_batch(self, batch):
        own = {"large": torch.tensor(200, dtype=torch.uint8), "columns": np.full(3, batch.reward.mean())}
        return {**super().learn_on_batch(batch), **self.numbers(batch.reward), **own}


class UntoldError(Exception):
    """An error whose text raises one."""

    def __str__(self):
        raise RuntimeError("no text")


class Untold(DQNPolicy):
    """A policy whose loss fails for some rewards."""

    def loss(self, batch):
        if bool((batch.reward == 17).any()):
            raise UntoldError
        return super().loss(batch)


class Odd(DQNPolicy):
    """A policy that logs values of several kinds, and other names for some rewards."""

    def loss(self, batch):
        loss, _ = super().loss(batch)
        rows, mean = len(batch.reward), loss.detach()
        stats = {"count": torch.tensor(rows), "number": rows, "matrix": torch.full((2, 3), float(rows)), "word": "one"}
        stats |= {"rows": batch.reward * 2, "pairs": torch.stack([batch.reward, batch.reward], 1)}
        stats |= {"loss": mean, "seen": batch.reward > 0, "cases": torch.tensor([rows, 1, 0])}
        if bool((batch.reward == 17).any()):
            stats["x"] = stats.pop("count")
        if bool((batch.reward == 18).any()):
            stats["u"] = stats.pop("loss")
        if bool((batch.reward == 19).any()):
            stats["matrix"] = torch.ones(3, 3)
        return loss, stats


class TestProcesses:
    def test_one_is_as_good_as_none_and_an_error_leaves_the_state(self, released):
        here, there = dqn(0, Noted), dqn(1, Noted)
        released.append(there)
        for policy in (here, there):
            learned(policy)
            with pytest.raises(ZeroDivisionError, match="a mistake in loss"):
                policy.learn_mode.forward(with_reward(17))
            with pytest.raises(NonFiniteError, match="NaN"):
                policy.learn_mode.forward(with_reward(np.nan))
            learned(policy)

        assert same(state_of(here), state_of(there))
        assert here.hook_metrics.reduce(compile=True) == there.hook_metrics.reduce(compile=True)

    @pytest.mark.parametrize("restart", [False, True])
    def test_steps_before_an_error_count_as_in_the_script(self, restart, released):
        here, there = dqn(0, Several), dqn(1, Several, **{"learners.restart": restart})
        released.append(there)
        for policy in (here, there):
            learned(policy)
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    policy.learn_mode.forward(with_reward(17))

        assert all(map(torch.equal, here.weights, there.weights))
        assert same(state_of(here), state_of(there))
        if restart:
            os.kill(there.learners._hosts[0].pid, signal.SIGKILL)
        assert same(learned(here), learned(there))

    def test_two_learn_as_one_with_the_whole_batch(self, released):
        here, there = dqn(0, Noted), dqn(2, Noted)
        released.append(there)

        for step in range(4):
            batch = transitions(step, rows=9)  # 4 and 5
            one, both = here.learn_mode.forward(batch), there.learn_mode.forward(batch)
            torch.testing.assert_close(both, one, rtol=1e-4, atol=1e-6)
            assert both["priority"].shape == (9,)

        torch.testing.assert_close(there.get_weights(), here.get_weights(), rtol=1e-4, atol=1e-6)
        assert there.hook_metrics.reduce(compile=True) == here.hook_metrics.reduce(compile=True) == {"rows": 36}
        with pytest.raises(ValueError, match=r"1 rows of a batch cannot be divided between policy.learners.num_learners=2"):
            there.learn_mode.forward(transitions(rows=1))
        with pytest.raises(FixedSettingError, match=r"learn.batch_size=7 cannot be divided"):
            there.reset_config({"learn.batch_size": 7})
        kept = there.state_dict()
        after = learned(there, range(4, 6))
        with pytest.raises(ZeroDivisionError, match="a mistake in loss"):  # of the second one only
            there.learn_mode.forward(with_reward(17))
        there.load_state_dict(kept)
        assert same(learned(there, range(4, 6)), after)

    @pytest.mark.parametrize("change", ["none", "restart", "reset_config", "load", "load_learned"])
    def test_each_of_two_keeps_its_attached_objects(self, released, change):
        """The second one has other rollouts to replay, and another sum of rewards, than the first one."""
        one, other = (replaying(**{"learners.restart": change == "restart"}) for _ in range(2))
        released.extend((one, other))
        for policy in (one, other):
            for step in range(3):
                policy.learn_mode.forward(rollout(step))
        if change == "restart":
            os.kill(other.learners._hosts[1].pid, signal.SIGKILL)
        if change == "reset_config":
            other.reset_config({"learn.value_weight": 0.7})
            other.reset_config({"learn.value_weight": one.cfg.learn.value_weight})
        if change == "load":
            state = through_a_file(other.state_dict())
            other.learn_mode.release()
            other = replaying()
            released.append(other)
            other.load_state_dict(state)
        if change == "load_learned":
            other.load_learned_state(one.learned_state())  # has the sum of the first learner, and no rollouts
        outputs = [[policy.learn_mode.forward(rollout(step)) for step in range(3, 6)] for policy in (one, other)]
        one.learn_mode.release()
        first, second = (it.state_dict()["learners"][0]["attached"] for it in (one, other))

        assert [len(part["reward"][0]) for part in first["rollout_replay"]["rollouts"]] == [2, 2, 2]
        assert {float(part["reward"].mean()) for part in first["rollout_replay"]["rollouts"]} == {13.0, 14.0, 15.0}
        if change == "load_learned":
            assert second["sums"]["sum"] == first["sums"]["sum"] - sum(range(10, 13)) * 14 + sum(range(3)) * 14
            assert same(second["rollout_replay"], first["rollout_replay"])
        else:
            assert first["sums"]["sum"] == sum(range(10, 16)) * 14
            assert same(second, first)
            assert same(*outputs)
            assert same(one.get_weights(), other.get_weights())

    def test_an_error_in_one_of_two_after_its_last_exchange_comes_at_once(self, released):
        policy = dqn(2, Several, **{"learners.timeout_s": 60.0})
        released.append(policy)
        learned(policy)
        began = time.monotonic()

        with pytest.raises(ZeroDivisionError, match="after three steps"):  # of the second one only
            policy.learn_mode.forward(with_reward(17))

        assert time.monotonic() - began < 30  # and not after timeout_s
        assert policy.train_iter == 12
        assert policy.state_dict()["train_iter"] == 12
        policy.reset_config({"learn.batch_size": 16})
        learned(policy)
        assert policy.state_dict()["settings"] == {"learn.batch_size": 16}
        with pytest.raises(RuntimeError, match="hooks of Several have changed settings, not to the same values"):
            policy.learn_mode.forward(with_reward(15))  # the second one only
        with pytest.raises(RuntimeError, match="is lost"):
            learned(policy)

    def test_a_dead_one_ends_the_run_and_its_state_is_never_a_silent_mixture(self, released):
        policy = dqn(1, Noted)
        released.append(policy)
        kept = policy.state_dict()
        learned(policy)

        with pytest.raises(WorkerDied, match="learner 0 of Noted"):
            policy.learn_mode.forward(with_reward(18))
        for call in (policy.state_dict, lambda: learned(policy), lambda: policy.reset_config({"lr": 0.1})):
            with pytest.raises(RuntimeError, match=r"state of the learners of Noted is lost.*policy.learners.restart=True"):
                call()
        policy.load_state_dict(kept)
        learned(policy)

        again = dqn(0, Noted)
        learned(again)
        assert same(state_of(policy), state_of(again))

    @pytest.mark.parametrize(
        "use",
        [
            lambda policy: policy.state_dict(),
            lambda policy: policy.reset_config({"lr": 1e-4}),
            lambda policy: policy.set_weights(policy.get_weights()),
            copy.deepcopy,
            lambda policy: learned(policy, [7]),
        ],
        ids=["state_dict", "reset_config", "set_weights", "deepcopy", "learn"],
    )
    def test_one_that_dies_between_two_batches_does_not_begin_anew(self, use, released):
        policy = dqn(1)
        released.append(policy)
        kept = policy.state_dict()
        learned(policy)
        os.kill(policy.learners._hosts[0].pid, signal.SIGKILL)

        with pytest.raises(WorkerDied, match="learner 0 of DQNPolicy"):
            use(policy)
        for again in (use, lambda policy: policy.state_dict()):
            with pytest.raises(RuntimeError, match=r"state of the learners of DQNPolicy is lost"):
                again(policy)
        policy.load_state_dict(kept)
        learned(policy)
        whole = dqn(0)
        learned(whole)
        assert same(state_of(policy), state_of(whole))

    def test_a_state_can_be_loaded_when_one_has_died_unnoticed(self, released):
        policy = dqn(1)
        released.append(policy)
        kept = policy.state_dict()
        learned(policy)
        os.kill(policy.learners._hosts[0].pid, signal.SIGKILL)
        policy.load_state_dict(kept)
        assert same(policy.state_dict(), kept)

    @pytest.mark.slow
    @pytest.mark.parametrize("killed", [slice(1, 2), slice(None)], ids=["the second", "both"])
    def test_if_one_of_two_dies_between_two_batches_the_state_is_lost_at_once(self, killed, released):
        policy = dqn(2, **{"learners.timeout_s": 60.0})
        released.append(policy)
        learned(policy)
        for host in policy.learners._hosts[killed]:
            os.kill(host.pid, signal.SIGKILL)
        began = time.monotonic()

        with pytest.raises(WorkerDied, match="was killed by signal 9"):
            policy.state_dict()
        for call in (policy.state_dict, lambda: learned(policy)):
            with pytest.raises(RuntimeError, match="is lost"):
                call()
        assert time.monotonic() - began < 20  # without a wait for timeout_s

    @pytest.mark.parametrize("learners", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_an_error_whose_text_raises_one_leaves_the_state(self, learners, released):
        here, there = dqn(0, Untold), dqn(learners, Untold)
        released.append(there)
        for policy in (here, there):
            learned(policy)
            with pytest.raises(UntoldError):
                policy.learn_mode.forward(with_reward(17))
            learned(policy)

        torch.testing.assert_close(there.get_weights(), here.get_weights(), rtol=1e-4, atol=1e-6)
        assert here.train_iter == there.train_iter == 6

    def test_two_log_as_one_and_what_does_not_fit_is_refused(self, released):
        here, there = dqn(1, Odd), dqn(2, Odd)
        released += [here, there]
        batch = transitions(rows=9)  # 4 and 5
        one, both = here.learn_mode.forward(batch), there.learn_mode.forward(batch)

        assert one.pop("matrix").tolist() == [[9.0] * 3] * 2
        torch.testing.assert_close(both.pop("matrix"), torch.full((2, 3), (4 * 4 + 5 * 5) / 9))
        assert (one.pop("cases").tolist(), both.pop("cases").tolist()) == ([9, 1, 0], [9, 2, 0])
        assert one.keys() == both.keys()
        for name, value in one.items():
            assert type(both[name]) is type(value)
            if torch.is_tensor(value):
                torch.testing.assert_close(both[name], value, rtol=1e-4, atol=1e-6)
            else:
                assert both[name] == value

        with pytest.raises(RankError, match="learner 0 and learner 1 have not logged the same: only one of them has count, x"):
            there.learn_mode.forward(with_reward(17))
        with pytest.raises(RankError, match=r"logged 'matrix' with the shapes \(2, 3\), \(3, 3\), for 4, 4 rows"):
            there.learn_mode.forward(with_reward(19))
        assert there.state_dict()["train_iter"] == 3  # they have learned
        with pytest.raises(RankError, match=r"the statistics \[loss\].*the statistics \[u\]"):
            there.learn_mode.forward(with_reward(18))

    def test_two_log_numbers_of_every_type_as_one(self, released):
        here, there = dqn(0, Counting), dqn(2, Counting)
        released += [there]
        batch = transitions()
        batch.reward[:] = torch.arange(8.0) // 4 * 10  # 0 in the part of one learner, 10 in that of the other
        one, both = (policy.learn_mode.forward(batch) for policy in (here, there))

        assert both.keys() == one.keys()
        for name, value in one.items():
            if name.startswith(("mean", "loss_mean")):
                assert float(both[name]) == pytest.approx(float(value)) == 5.0, name
            elif name.startswith(("sum", "loss_sum")):
                assert int(both[name]) == int(value) == 40, name
        assert both["large"].item() == 2 * one["large"].item()
        assert both["columns"].tolist() == one["columns"].tolist() == [5.0, 5.0, 5.0]

    @pytest.mark.slow
    @pytest.mark.parametrize("learners", [1, 2])
    def test_one_that_is_killed_is_restarted_in_the_same_state(self, learners, released):
        settings = {"learners.restart": True}
        policy, undisturbed = (dqn(learners, Noted, **settings) for _ in range(2))
        released += [policy, undisturbed]
        for step in range(4):
            for one in (policy, undisturbed):
                learned(one, [step])
            os.kill(policy.learners._hosts[-1].pid, signal.SIGKILL)

        assert same(state_of(policy), state_of(undisturbed))
        learned(policy, [9])
        assert policy.hook_metrics.reduce(compile=True)["learners_restarted"] == 4

    def test_one_that_hangs_is_killed(self, released):
        policy = dqn(1, Noted, **{"learners.timeout_s": 1.0})
        released.append(policy)
        learned(policy)

        with pytest.raises(WorkerHangs, match="made no progress for 1.0 s"):
            policy.learn_mode.forward(with_reward(19))

    def test_a_whole_run_is_the_same_and_ends_its_processes(self):
        states = []
        for learners in (0, 1):
            cfg = PPOConfig().override({f"policy.{name}": value for name, value in SMALL.items()})
            cfg.override({"policy.collect.n_sample": 32, "policy.learners.num_learners": learners})
            env = make_envs("CartPole-v1", 4, seed=0)
            policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
            task = Task()
            with task.start(ctx=OnlineRLContext(), async_mode=True):
                task.use(StepCollector(cfg, policy.collect_mode, env))
                task.use(gae_estimator(cfg, policy.collect_mode))
                task.use(multistep_trainer(cfg, policy.learn_mode))
                task.run(max_step=3)
                states.append(state_of(policy))
                pids = [host.pid for host in policy.learners._hosts] if learners else []

        assert same(*states)
        assert pids
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


class TestMistakes:
    def test_settings_that_do_not_fit(self):
        for settings, words in [
            ({"learners.num_learners": 3}, r"batch_size=8 cannot be divided between policy.learners.num_learners=3"),
            ({"learners.num_cpus_per_learner": 1.0}, r"num_cpus_per_learner=1.0 is a setting of backend='ray'"),
        ]:
            with pytest.raises(ValueError, match=words):
                dqn(1, **settings)

    def test_a_constructor_that_makes_its_configuration(self):
        class Own(DQNPolicy):
            def __init__(self, *spaces):
                super().__init__(DQNConfig().policy.override({"learners.num_learners": 1}), *spaces)

        with pytest.raises(ValueError, match=r"constructor of Own does not get its configuration .* pass cfg to it"):
            Own(OBS, ACTIONS)

    def test_a_process_that_cannot_have_processes(self, monkeypatch):
        monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
        with pytest.raises(ValueError, match="cannot start processes in a worker process, such as a member of a population"):
            dqn(1)

    def test_a_policy_without_a_loss_cannot_have_several(self, released):
        class Tabular(Policy):
            def learn_on_batch(self, batch):
                return {}

            def get_weights(self):
                return {}

            def set_weights(self, weights):
                pass

            def compute_actions(self, obs, **kwargs):
                return {"action": torch.zeros(len(obs), dtype=torch.int64)}

        policy = Tabular({"learners.num_learners": 2}, OBS, ACTIONS)
        released.append(policy)
        with pytest.raises(RuntimeError, match="has no loss, so several processes cannot average its gradients"):
            learned(policy)
