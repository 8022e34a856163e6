"""Memory of CUDA graphs: no step goes on with tensors, numbers or addresses of an earlier one. Without a GPU, graphs are only
pretended."""

import warnings

import pytest
import torch
from interpreted_steps import assert_close, interpreting, weights_of
from pretended_graphs import made, recording, rows
from torch import nn

from ding_lite.compiling import cuda_graphs
from ding_lite.policy import DQNPolicy

STEPS = 8


@pytest.fixture
def graphs():
    """What was recorded."""
    with recording() as recordings:
        yield recordings


def both(kind, before=lambda policy, batch, step: None, steps=STEPS, warns="", **settings):
    """A policy whose steps are graphs and one without, after some steps, and their losses."""
    found, losses = [], []
    for mode in ("on", "off"):
        policy = made(kind, mode, **settings)
        own = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore" if warns and mode == "on" else "error", message=f".*{warns}")
            for step in range(steps):
                policy.num_steps = {}
                batch = rows(step)
                before(policy, batch, step)
                own.append(policy.gradient_step(batch)["loss"].item())
        found.append(policy)
        losses.append(own)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert_close(*found)
    one, two = found
    assert torch.equal(one.generator.get_state(), two.generator.get_state())
    return one


def move(policy, at, step):
    """Replace the memory of all parameters, before a step."""
    if step == at:
        for param in policy.model.parameters():
            param.data = param.data.clone()


class Drawing(DQNPolicy):
    """Changes a part of the numbers that it draws."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        noise = torch.rand(4, generator=self.generator, device=self.device)
        noise[0] *= 3
        torch.rand(2, generator=self.generator, device=self.device)
        return loss * noise.sum(), stats


@pytest.mark.parametrize("at", [STEPS, 4])
def test_recording_does_not_change_the_numbers_that_a_loss_draws(graphs, at):
    policy = both(Drawing, lambda policy, batch, step: move(policy, at, step))
    assert policy.compiled_steps.taken == STEPS
    assert len(graphs) == 1 + (at < STEPS)


def test_numbers_are_drawn_once_if_recording_is_given_up(graphs, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_MOST_RECORDINGS", 3)
    policy = both(Drawing, lambda policy, batch, step: move(policy, step, step), warns="Drawing with learn.compile")
    assert policy.compiled_steps.taken == 3


class Columns(DQNPolicy):
    """Reads all columns that the batch has."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        more = [batch[name].sum() * (1 + place) for place, name in enumerate(sorted(batch)) if name.startswith("more")]
        return loss * (1 + sum(more)), stats


SCALE = {}


def scalar(policy, batch, step):
    if step == 0:
        SCALE["more"] = torch.ones((), device=policy.device)
    batch["more"] = SCALE["more"].fill_(1.0 + step)


def expanded(policy, batch, step):
    batch["more"] = (batch.reward[:1] + step).expand(12)
    batch["more_rows"] = (batch.reward[:, None] + step).expand(12, 3)


def empty(policy, batch, step):
    batch["more"] = batch.reward[:0]
    batch["more_rows"] = batch.obs[:, :0]


def overlapping(policy, batch, step):
    batch["more"] = batch.reward.unfold(0, 3, 1)
    batch["more_later"] = batch.reward[1:]


def one_memory(policy, batch, step):
    table = torch.cat([batch.obs, batch.next_obs])
    batch["obs"], batch["next_obs"] = table[:12], table[6:18]


def weights(policy, batch, step):
    batch["more"] = policy.model.layers[0].weight.detach()


def strided(policy, batch, step):
    batch["more"] = batch.obs.T[1:4]


@pytest.mark.parametrize("before", [scalar, expanded, empty, overlapping, one_memory, weights, strided])
def test_columns_are_those_of_the_step(graphs, before):
    policy = both(Columns, before)
    assert policy.compiled_steps.taken == STEPS
    assert len(graphs) == 1


class Groups(DQNPolicy):
    """With two groups of parameters, whose learning rates are tensors."""

    def after_init(self):
        super().after_init()
        first, *others = self.params
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": others, "betas": [0.9, 0.99]}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)


def lower_rates(policy, batch, step):
    for place, group in enumerate(policy.optimizer.param_groups):
        if step == 0:
            group["lr"] = torch.tensor(1e-3 * (1 + place), device=policy.device)
        group["lr"].mul_(0.5)


def other_decay(policy, batch, step):
    policy.optimizer.param_groups[0]["weight_decay"] = 0.1 if step < 4 else 0.7


def other_betas(policy, batch, step):
    policy.optimizer.param_groups[1]["betas"][0] = 0.9 if step < 4 else 0.1


@pytest.mark.parametrize(("before", "forms"), [(lower_rates, 1), (other_decay, 2), (other_betas, 2)])
def test_settings_of_the_optimizer_are_those_of_the_step(graphs, before, forms):
    policy = both(Groups, before)
    assert policy.compiled_steps.taken == STEPS
    assert len(graphs) == forms


class Counting(DQNPolicy):
    """Changes a buffer of the model in place, then reads a part of it."""

    def after_init(self):
        super().after_init()
        self.model.register_buffer("table", torch.arange(12.0, device=self.device))
        self.model.register_buffer("mean", torch.zeros(3, device=self.device))
        self.window = self.model.table[2:5]

    def loss(self, batch):
        loss, stats = super().loss(batch)
        with torch.no_grad():
            self.model.table[3] += 1
            self.model.mean.lerp_(batch.obs.mean(0)[:3], 0.1)
        return loss * (1 + self.window.sum() + self.model.mean.sum()), stats


def still(policy, batch, step):
    pass


def replaced(policy, batch, step):
    if step == 4:
        policy.model.mean = policy.model.mean.clone()


def not_finite(policy, batch, step):
    if step == 4:
        batch.reward[0] = torch.nan


@pytest.mark.parametrize("before", [still, replaced])
def test_buffers_that_a_loss_changes(graphs, before):
    policy = both(Counting, before)
    assert policy.compiled_steps.taken == STEPS
    assert len(graphs) == 1 + (before is replaced)


@pytest.mark.parametrize("interprets", [False, True])
def test_a_part_of_a_buffer_that_a_loss_changes_is_not_taken_for_a_copy(interprets, monkeypatch):
    """Neither in graphs nor in compiled steps."""

    def slides(policy, batch, step):
        policy.window = policy.model.table[2:5] if step < 4 else policy.model.table[step - 2 : step + 1]

    with interpreting() if interprets else recording():
        policy = both(Counting, slides, warns="Counting with learn.compile: tensors of the policy share memory")
    assert policy.compiled_steps.taken == 5


def test_a_buffer_is_not_changed_by_a_step_that_is_not_finite(graphs):
    policy = made(Counting, **{"learn.on_nonfinite": "skip"})
    for step in range(3):
        policy.gradient_step(rows(step))
    before, batch = weights_of(policy), rows(3)
    batch.reward[0] = torch.nan
    with pytest.warns(UserWarning, match="is nan"):
        policy.gradient_step(batch)
    assert torch.equal(weights_of(policy), before)
    assert policy.compiled_steps.taken == 4


class Square(DQNPolicy):
    """With a square weight."""

    def after_init(self):
        super().after_init()
        self.model.square = nn.Linear(5, 5, device=self.device)
        self.target_model.square = nn.Linear(5, 5, device=self.device)
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=1e-3)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss + (self.model.square(batch.obs) * torch.arange(5.0, device=self.device)).mean(), stats


@pytest.mark.parametrize("interprets", [False, True])
def test_a_weight_that_is_transposed_where_it_is(interprets):
    def transposes(policy, batch, step):
        if step == 4:
            param = policy.model.square.weight
            param.data = param.data.T

    with interpreting() if interprets else recording():
        policy = both(Square, transposes, warns="Square with learn.compile")
    assert policy.compiled_steps.taken >= 4
