"""Scratch values: attributes that are set anew before each use are no memory, and all others are."""

import collections
import dataclasses
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from ding_lite import Context, OnlineRLContext, Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy


@dataclasses.dataclass
class Sum(Context):
    total: float = dataclasses.field(default=0.0, metadata={"kept": True})


def remembered(folder, *middleware):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=Sum()) as loop:
            for one in middleware:
                loop.use(one)
            loop.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=2)).run(6)
    return [str(it.message) for it in caught if "remembers" in str(it.message)]


class Printing:
    """Notes times and sizes for itself."""

    def __init__(self):
        self.begin, self.rows = None, 0

    def __call__(self, ctx):
        self.begin = time.perf_counter()
        self.rows = [ctx.total_step]
        self.rows.append(len(self.rows))
        self._show()

    def _show(self):
        self.text = f"{self.rows} in {time.perf_counter() - self.begin}"


class Around:
    """Measures the time of the rest of an iteration."""

    def __call__(self, ctx):
        self.begin = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - self.begin


class Timer:
    def __enter__(self):
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *error):
        self.seconds = time.perf_counter() - self.begin


class Timed:
    def __init__(self):
        self.timer = Timer()

    def __call__(self, ctx):
        with self.timer:
            ctx.total += 1


class Clearing:
    """Empties containers before it fills them."""

    def __init__(self):
        self.rows, self.latest, self.counts, self.is_done = [], collections.deque(), {}, threading.Event()

    def __call__(self, ctx):
        self.rows.clear()
        self.latest.clear()
        self.counts.clear()
        self.is_done.clear()
        self.rows.append(ctx.total_step)
        self.latest.append(ctx.total_step)
        self.counts[ctx.total_step] = 1
        self.is_done.set()
        ctx.total += sum(self.rows) + sum(self.latest) + sum(self.counts) + self.is_done.is_set()


class Overwriting:
    """Replaces the content of arrays and lists that are made once."""

    def __init__(self):
        self.array, self.other, self.rows = np.zeros(3), np.zeros(3), [0, 0]
        self.tensor, self.zeros = torch.zeros(3), torch.ones(3)

    def __call__(self, ctx):
        self.array[:] = ctx.total_step
        self.other.fill(0.5)
        self.rows[:] = [ctx.total_step, 1]
        self.tensor[...] = ctx.total_step
        self.zeros.zero_()
        self.other[0] += ctx.total_step
        self.zeros[0] += ctx.total_step
        ctx.total += self.array.sum() + self.other.sum() + sum(self.rows) + self.tensor.sum().item() + self.zeros.sum().item()


@pytest.mark.parametrize("kind", [Printing, Around, Timed, Clearing, Overwriting])
def test_what_a_middleware_sets_before_each_use_is_no_memory(kind, tmp_path):
    assert remembered(tmp_path, kind()) == []


class Previous:
    last = 0

    def __call__(self, ctx):
        ctx.total += self.last
        self.last = ctx.total_step


class Sometimes:
    last = 0

    def __call__(self, ctx):
        if ctx.total_step % 2 == 0:
            self.last = ctx.total_step
        ctx.total += self.last


class Best:
    """Sets for others, in some iterations."""

    last = 0

    def __call__(self, ctx):
        if ctx.total_step == 2:
            self.last = ctx.total_step


class AtTheEnd:
    """A resumed run may only do its end."""

    last = 0

    def __call__(self, ctx):
        self.last = ctx.total_step

    def end_run(self, ctx):
        ctx.total += self.last


class Calling:
    last = 0

    def __call__(self, ctx):
        self.last, self.call = ctx.total_step, getattr(self, "call", int)()
        self.call = lambda: self.last


class ClearingLate:
    def __init__(self):
        self.last = []

    def __call__(self, ctx):
        ctx.total += len(self.last)
        self.last.clear()
        self.last.append(ctx.total_step)


class ClearingSometimes:
    def __init__(self):
        self.last = []

    def __call__(self, ctx):
        if ctx.total_step % 2:
            self.last.clear()
        self.last.append(ctx.total_step)
        ctx.total += len(self.last)


class OverwritingInPart:
    def __init__(self):
        self.last = np.zeros(3)

    def __call__(self, ctx):
        self.last[1:] = ctx.total_step
        self.last[0] += 1
        ctx.total += self.last.sum()


class FillingFromItself:
    def __init__(self):
        self.last = np.zeros(3)

    def __call__(self, ctx):
        self.last.fill(self.last.sum() + 1)
        ctx.total += self.last.sum()


class AddingToAll:
    def __init__(self):
        self.last = np.zeros(3)

    def __call__(self, ctx):
        self.last[:] += 1
        ctx.total += self.last.sum()


class OwnContainer(list):
    """Its `clear` keeps something."""

    def clear(self):
        del self[1:]


class ClearingAnOwnContainer:
    def __init__(self):
        self.last = OwnContainer()

    def __call__(self, ctx):
        self.last.clear()
        self.last.append(ctx.total_step)
        ctx.total += sum(self.last)


class SharedRows:
    last = []

    def __call__(self, ctx):
        self.last.clear()
        self.last.append(ctx.total_step)
        ctx.total += sum(self.last)


LATE = [ClearingLate, ClearingSometimes, OverwritingInPart, FillingFromItself, AddingToAll, ClearingAnOwnContainer, SharedRows]


@pytest.mark.parametrize("kind", [Previous, Sometimes, Best, AtTheEnd, Calling, *LATE])
def test_what_may_be_read_before_it_is_set_is_a_memory(kind, tmp_path):
    (found,) = remembered(tmp_path, kind())
    assert "last" in found


def test_what_another_function_reads_is_a_memory(tmp_path):
    around = Around()

    def before(ctx):
        ctx.total += getattr(around, "seconds", 0)

    found = remembered(tmp_path, before, around)
    assert any("Around remembers something from iteration to iteration (seconds)" in it for it in found)


class Measured(PPOPolicy):
    """Hands the divergence from the loss to the statistics."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.divergence = stats["kl"]
        return loss, stats

    def stats(self, batch):
        return {**super().stats(batch), "last_kl": self.divergence}


class StoppingEarly(PPOPolicy):
    limit, stopped = 1e-4, False

    def learn_on_batch(self, batch):
        self.stopped = False
        return super().learn_on_batch(batch)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        if float(stats["kl"]) > self.limit:
            self.stopped = True
        return loss * (0.0 if self.stopped else 1.0), stats


class AfterSteps(PPOPolicy):
    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.last_loss = loss.detach()
        return loss, stats

    def after_step(self):
        super().after_step()
        self.size = float(self.last_loss)


class HandingOver(PPOPolicy):
    """Acting hands values to the extra outputs, with a function that learning calls too."""

    def score(self, obs):
        self.scores = self.model.logits(obs).detach().sum(-1)
        return self.scores

    def compute_actions(self, obs, state=None, **kwargs):
        self.score(torch.as_tensor(obs))
        return super().compute_actions(obs, state, **kwargs)

    def extra_action_out(self, obs, state):
        return {"score": self.scores}

    def loss(self, batch):
        self.score(batch.obs)
        loss, stats = super().loss(batch)
        return loss + 0 * self.scores.sum(), stats


class ReadingFirst(PPOPolicy):
    divergence = 0.0

    def before_step(self):
        super().before_step()
        self.scale = 1 + self.divergence

    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.divergence = float(stats["kl"])
        return loss * self.scale, stats


class ReadingInStats(PPOPolicy):
    """Statistics are read before the next loss, in the next batch."""

    number = 0

    def postprocess(self, batch):
        self.begun = self.number
        return super().postprocess(batch)

    def stats(self, batch):
        self.number = self.begun + 1
        return super().stats(batch)


class ActingOn(PPOPolicy):
    count = 0

    def compute_actions(self, obs, state=None, **kwargs):
        found = super().compute_actions(obs, state, **kwargs)
        self.before, self.count = self.count, self.count + 1
        return found


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (Measured, None),
        (StoppingEarly, None),
        (AfterSteps, None),
        (HandingOver, None),
        (ReadingFirst, "divergence"),
        (ReadingInStats, "number"),
        (ActingOn, "count"),
    ],
)
def test_hooks_may_hand_values_to_hooks_that_are_called_later(kind, place, tmp_path):
    cfg = PPOConfig().override({"policy.collect.n_sample": 16, "policy.model.encoder_hidden_size_list": [8]})
    envs = make_envs("CartPole-v1", 2, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(StepCollector(cfg, policy.collect_mode, envs))
            loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))
            loop.use(CkptSaver(policy, tmp_path, train_freq=1000)).run(3)
    found = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert len(found) == (place is not None), found
    assert all(f"({place})" in it for it in found)


def test_a_middleware_of_the_library_in_a_function_without_a_contract_is_named(tmp_path):
    cfg = DQNConfig().override({"policy.learn.learning_starts": 8, "policy.collect.n_sample": 8})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer_ = ReplayBuffer(100, seed=0)
    collector, learner = StepCollector(cfg, policy.collect_mode, envs), OffPolicyLearner(cfg, policy.learn_mode, buffer_)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(eps_greedy_handler(cfg)).use(lambda ctx: collector(ctx)).use(data_pusher(cfg, buffer_))
            loop.use(lambda ctx: learner(ctx)).use(CkptSaver(policy, tmp_path, train_freq=1000)).run(3)
    found = [str(it.message) for it in caught if "Not saved with the run" in str(it.message) or "remembers" in str(it.message)]
    assert len(found) == 1, found  # not the learner: what it uses is saved
    assert "<lambda>" in found[0]
    assert "calls StepCollector, a middleware of the library" in found[0]
    assert "has no contract, so that what it uses is unknown. Not saved with the run: StepCollector, " in found[0]
    assert "a resumed run goes on with other data. Pass the middleware to task.use itself" in found[0]
    assert "functools.wraps" in found[0]
