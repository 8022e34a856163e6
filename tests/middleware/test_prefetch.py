"""Batches made ready beside training: the same run as on one thread, also where it fails, ends or is saved in the middle."""

import threading

import numpy as np
import pytest
import torch

from ding_lite import Task, contract
from ding_lite.config import DQNConfig, R2D2Config, RainbowConfig, SACConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    sequence_pusher,
)
from ding_lite.policy import DQNPolicy, R2D2Policy, RainbowPolicy, SACPolicy

STEPS = 4  # gradient steps an iteration
ALGORITHMS = {
    "dqn": (DQNConfig, DQNPolicy, "CartPole-v1"),
    "sac": (SACConfig, SACPolicy, "Pendulum-v1"),
    "r2d2": (R2D2Config, R2D2Policy, "CartPole-v1"),
    "rainbow": (RainbowConfig, RainbowPolicy, "CartPole-v1"),
}
SMALL = {"policy.collect.n_sample": 64, "policy.learn": {"learning_starts": 2, "update_per_collect": STEPS, "batch_size": 4}}
UNIFORM = ["one", "list", "dict"]


def buffers_of(form, lag):
    uniform, other = ReplayBuffer(500, seed=1), ReplayBuffer(300, seed=2)
    by_priority = PrioritizedReplayBuffer(400, seed=3, lag=lag)
    return {
        "one": uniform,
        "list": [(uniform, 0.5), (other, 0.5)],
        "priority": by_priority,
        "mixed": [(uniform, 0.5), (by_priority, 0.5)],
        "dict": {"own": uniform, "other": other},
    }[form]


def each_of(buffers):
    if isinstance(buffers, list):
        return [buffer for buffer, _ in buffers]
    return list(buffers.values()) if isinstance(buffers, dict) else [buffers]


class ByName(DQNPolicy):
    """Learns from the batch of its own, beside one of another buffer."""

    columns = None

    def learn_on_batch(self, batch):
        return {**super().learn_on_batch(batch.own), "other": batch.other.reward.mean()}


class Run:
    """A pipeline with a learner of several batches an iteration, and everything that it comes to."""

    def __init__(self, name="dqn", form="one", lag=0, prefetch=True, **changes):
        make_config, make_policy, env = ALGORITHMS[name]
        make_policy = ByName if form == "dict" else make_policy
        self.cfg = make_config(seed=3).override({**SMALL, "policy.nstep": 1, **changes})
        self.envs = make_envs(env, 4, seed=3)
        self.policy = make_policy(self.cfg.policy, self.envs.single_observation_space, self.envs.single_action_space)
        self.buffers = buffers_of(form, lag)
        self.learner = OffPolicyLearner(self.cfg, self.policy.learn_mode, self.buffers, prefetch=prefetch)
        self.explores = name in ("dqn", "r2d2")
        self.push = sequence_pusher if name == "r2d2" else data_pusher
        self.task, self.batches, self.threads = Task(), [], set()
        self.learn = self.policy.learn_on_batch
        self.policy.learn_on_batch = self.noted

    def noted(self, batch):
        """Learn, and note which rows and which threads there were."""
        self.threads.update(thread.name for thread in threading.enumerate())
        self.batches.append((batch.own if isinstance(self.buffers, dict) else batch).next_obs.clone())
        return self.learn(batch)

    def go(self, async_mode, iterations=4, max_lag=1, before=(), after=()):
        with self.task.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
            if self.explores:
                self.task.use(eps_greedy_handler(self.cfg))
            self.task.use(StepCollector(self.cfg, self.policy.collect_mode, self.envs))
            for buffer in each_of(self.buffers):
                self.task.use(self.push(self.cfg, buffer))
            for one in (*before, self.learner, *after):
                self.task.use(one)
            self.task.run(max_step=iterations)
        return self

    def state(self):
        return self.learned(), self.policy.state_dict(), self.task.ctx.train_iter, self.task.ctx.total_step

    def learned(self):
        """The learner's side of it: where a run breaks off, others have gone on as far as they had come."""
        state = {name: it for name, it in self.policy.state_dict().items() if name not in ("collect", "evaluate")}
        return state, [buffer.state_dict() for buffer in each_of(self.buffers)], self.batches

    @property
    def had_help(self):
        return any(name.startswith("task.batches") for name in self.threads)


def leftover():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("task.batches")]


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "form", "lag", "max_lag"),
    [
        ("dqn", "one", 0, 0),
        ("dqn", "one", 0, 1),
        ("sac", "one", 0, 0),
        ("r2d2", "one", 0, 1),
        ("dqn", "list", 0, 0),
        ("dqn", "dict", 0, 1),
        ("dqn", "priority", 1, 0),
        ("dqn", "mixed", 1, 1),
        ("r2d2", "priority", 1, 0),
        ("rainbow", "priority", 1, 1),
    ],
)
def test_a_run_whose_next_batch_is_made_ready_meanwhile_is_the_run_on_one_thread(name, form, lag, max_lag, digest):
    one = Run(name, form, lag).go(False, max_lag=max_lag)
    two = Run(name, form, lag).go(True, max_lag=max_lag)

    assert digest(*two.state()) == digest(*one.state())
    assert (one.had_help, two.had_help, leftover()) == (False, True, [])
    assert one.task.ctx.train_iter >= 3 * STEPS


@pytest.mark.parametrize("form", ["priority", "mixed"])
def test_a_buffer_that_goes_by_priority_has_no_help_without_a_lag(form, digest):
    one, two = Run(form=form).go(False), Run(form=form).go(True)

    assert digest(*two.state()) == digest(*one.state())
    assert not two.had_help


def test_with_a_lag_each_batch_is_drawn_by_the_priorities_that_the_one_before_the_last_left():
    cfg, noted = Run().cfg, []
    policy = Run().policy
    buffer = PrioritizedReplayBuffer(50, alpha=1.0, lag=1)
    rng = np.random.default_rng(0)
    rows = {"obs": rng.random((50, 4), np.float32), "next_obs": rng.random((50, 4), np.float32)}
    buffer.push({**rows, "action": np.zeros(50, int), "reward": rng.random(50, np.float32), "terminated": np.zeros(50, bool)})
    draw, put = buffer.draw, buffer.update_priority
    buffer.draw = lambda size: (noted.append("draw"), draw(size))[1]
    buffer.update_priority = lambda index, priority: (noted.append("priorities"), put(index, priority))[1]
    OffPolicyLearner(cfg, policy.learn_mode, buffer)(OnlineRLContext())

    assert noted == ["draw", "draw", "priorities", "draw", "priorities", "draw", "priorities", "priorities"]


def test_the_lag_of_priorities_is_a_setting_and_changes_the_run(digest):
    cfg = RainbowConfig()
    assert cfg.policy.other.priorities()["lag"] == 0
    cfg.policy.other.priority_lag = 1
    assert PrioritizedReplayBuffer(10, **cfg.policy.other.priorities()).lag == 1
    late, prompt = Run(form="priority", lag=1).go(False), Run(form="priority", lag=0).go(False)

    assert digest(late.batches) != digest(prompt.batches)


class Failing:
    """Fails in one gradient step, once."""

    def __init__(self, run, step):
        self.run, self.step, self.learn = run, step, run.policy.learn_on_batch
        run.policy.learn_on_batch = self.fail

    def fail(self, batch):
        output = self.learn(batch)
        self.step -= 1
        if self.step == 0:
            raise OSError("no power")
        return output


@contract(stage="learn")
def recovers(ctx):
    try:
        yield
    except OSError:
        return


@pytest.mark.few
@pytest.mark.parametrize(
    ("form", "lag", "step", "handled"),
    [
        ("one", 0, 1, False),
        ("one", 0, 2 * STEPS, True),
        ("list", 0, STEPS + 2, False),
        ("list", 0, 1, True),
        ("priority", 0, 2 * STEPS, False),
        ("priority", 0, STEPS + 2, True),
        ("priority", 1, 1, True),
        ("priority", 1, STEPS + 2, False),
        ("priority", 1, 2 * STEPS, True),
    ],
)
def test_after_a_failed_gradient_step_all_is_as_on_one_thread(form, lag, step, handled, digest):
    found = []
    for async_mode in (False, True):
        run = Run(form=form, lag=lag)
        Failing(run, step)
        if handled:
            run.go(async_mode, before=[recovers])
        else:
            with pytest.raises(OSError, match="no power"):
                run.go(async_mode)
        found.append(digest(*(run.state() if handled else run.learned())))
        assert leftover() == []

    assert found[0] == found[1]


@pytest.mark.few
@pytest.mark.parametrize("step", [1, STEPS + 2])
@pytest.mark.parametrize("how", ["finish", "stop"])
def test_a_run_that_is_ended_in_a_gradient_step_ends_as_on_one_thread(how, step, digest):
    found = []
    for async_mode in (False, True):
        run = Run()

        def end(batch, run=run, learn=run.policy.learn_on_batch):
            output = learn(batch)
            if run.policy.train_iter == step:
                if how == "finish":
                    run.task.finish = True
                else:
                    run.task.stop()
            return output

        run.policy.learn_on_batch = end
        run.go(async_mode, 8)
        found.append(digest(*(run.state() if how == "finish" else run.learned())))
        assert leftover() == []

    assert found[0] == found[1]
    assert run.policy.train_iter == -(-step // STEPS) * STEPS  # the iteration completes


@pytest.mark.parametrize(("form", "lag"), [("one", 0), ("priority", 1)])
def test_what_is_saved_in_the_middle_of_an_iteration_is_what_one_thread_saves(form, lag, digest):
    found = []
    for async_mode in (False, True):
        run, saved = Run(form=form, lag=lag), []

        def save(batch, run=run, saved=saved, learn=run.policy.learn_on_batch):
            saved.append([buffer.state_dict() for buffer in each_of(run.buffers)])
            return learn(batch)

        run.policy.learn_on_batch = save
        run.go(async_mode)
        found.append(digest(saved))

    assert found[0] == found[1]


def test_checkpoints_are_those_of_one_thread(tmp_path, digest):
    found = []
    for async_mode in (False, True):
        run, saved = Run(), []
        folder = tmp_path / str(async_mode)

        @contract(uses=(run.buffers, saved), stage="record")
        def save(ctx, run=run, saved=saved):
            saved.append(digest(run.buffers.state_dict()))

        run.go(async_mode, after=[CkptSaver(run.policy, folder, train_freq=STEPS), save])
        saved += [path.name for path in sorted((folder / "ckpt").glob("*.pt"))]
        files = [torch.load(folder / "ckpt" / name, weights_only=True) for name in saved[4:]]
        found.append((saved, [digest(file["model"], file["optimizer"], file["learn"]) for file in files]))

    assert found[0] == found[1]
    assert len(found[0][1]) > 2


def test_rows_that_learning_itself_writes_are_in_the_next_batch_as_on_one_thread(digest):
    found = []
    for async_mode in (False, True):
        run = Run()

        def write(batch, run=run, learn=run.policy.learn_on_batch):
            state = run.buffers.state_dict()
            columns = {**state["columns"], "next_obs": torch.full_like(state["columns"]["next_obs"], run.policy.train_iter)}
            run.buffers.load_state_dict({**state, "columns": columns})
            return learn(batch)

        run.policy.learn_on_batch = write
        run.go(async_mode, 3)
        found.append(digest(*run.state()))

    assert found[0] == found[1]
    assert [set(rows.flatten().tolist()) for rows in run.batches[1:STEPS]] == [{0.0}, {1.0}, {2.0}]


class Torn(ReplayBuffer):
    """Cannot give its rows the third time."""

    asked = 0

    def take(self, draw, columns=None):
        self.asked += 1
        if self.asked == 3:
            raise MemoryError("no room for a batch")
        return super().take(draw, columns)


def test_an_error_of_copying_leaves_the_learner_as_on_one_thread(digest):
    found = []
    for async_mode in (False, True):
        run = Run()
        run.buffers = Torn(500, seed=1)
        run.learner = OffPolicyLearner(run.cfg, run.policy.learn_mode, run.buffers, prefetch=True)
        with pytest.raises(MemoryError, match="no room for a batch") as raised:
            run.go(async_mode)
        found.append((digest(*run.learned()), raised.value.args, raised.value.__notes__))
        assert leftover() == []

    assert found[0] == found[1]
    assert found[0][2][0].startswith("in middleware OffPolicyLearner")


@pytest.mark.few
@pytest.mark.parametrize(("prefetch", "helps"), [(True, True), (None, False), (False, False)])
def test_on_a_cpu_there_is_help_only_where_it_is_asked_for(prefetch, helps):
    assert Run(prefetch=prefetch).go(True).had_help == helps


class Whole(ReplayBuffer):
    """Draws and copies in one."""

    def sample(self, size, columns=None):
        return super().sample(size, columns)


def test_a_buffer_with_a_sample_of_its_own_is_sampled_when_its_batch_is_due(digest):
    found = []
    for async_mode in (False, True):
        run = Run()
        run.buffers = Whole(500, seed=1)
        run.learner = OffPolicyLearner(run.cfg, run.policy.learn_mode, run.buffers, prefetch=True)
        found.append(digest(*run.go(async_mode).state()))

    assert found == [digest(*Run().go(False).state())] * 2
    assert not run.had_help


def test_prefetch_is_yes_or_no_or_by_device():
    run = Run()
    message = r"OffPolicyLearner\(prefetch='yes'\) wants True, False, or None for True if the policy learns on a GPU\."
    with pytest.raises(TypeError, match=message):
        OffPolicyLearner(run.cfg, run.policy.learn_mode, run.buffers, prefetch="yes")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_on_a_gpu_too(name, digest):
    one, two = (Run(name, **{"policy.device": "cuda"}).go(async_mode) for async_mode in (False, True))

    assert digest(*two.state()) == digest(*one.state())
    assert two.task.ctx.train_data.reward.device.type == "cpu"
