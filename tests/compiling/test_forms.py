"""What a compiled step holds for: a step of other values, shapes or networks is never taken by it."""

import copy
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted_steps import (
    ACTIONS,
    OBSERVATIONS,
    assert_close,
    batch_of,
    compiled,
    forms,
    interpreting,
    learn,
    made,
    no_warning,
    pair,
    same,
    state_of,
    weights_of,
)
from pages import run_blocks
from torch import nn

from ding_lite.compiling import MAX_FORMS
from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.nn import Adam, make_q_network
from ding_lite.policy import DQNPolicy, NonFiniteError, build_policy


class Helper:
    """An object of a user's own."""

    def __init__(self):
        self.weight, self.inner = 1.0, {"bias": [0.0]}


class Term:
    """One in a list of them."""

    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


class Loss(DQNPolicy):
    """DQN with a loss that reads values from many places."""

    def after_init(self):
        super().after_init()
        self.scale, self.helper, self.levels = 1.0, Helper(), [1.0, 2.0]
        self.model.temperature = 1.0
        self.offset = torch.zeros(())
        self.terms, self.table = [Term(1.0), Term(1.0)], defaultdict(float, here=1.0)
        self.space, self.small = SimpleNamespace(weight=1.0), np.float32(1)
        self.config.extra["own"] = 1.0

    def loss(self, batch):
        loss, stats = super().loss(batch)
        scale = self.terms[1].weight * self.table["here"] * self.space.weight * float(self.small) * self.config["own"]
        scale *= self.config["gamma"]
        scale *= self.scale * self.helper.weight * self.levels[1] * self.model.temperature
        return scale * loss + self.offset + self.helper.inner["bias"][0] * self.model.layers[0].weight.mean(), stats


def on_helper(policy, step):
    policy.helper.weight = 1.0 + step // 3


def deep_inside(policy, step):
    policy.helper.inner["bias"][0] = float(step // 3)


def in_a_list(policy, step):
    policy.levels[1] = 2.0 + step // 3


def on_a_network(policy, step):
    policy.model.temperature = 1.0 + step // 3


def in_a_list_of_objects(policy, step):
    policy.terms[1].weight = 1.0 + step // 3


def other_objects(policy, step):
    policy.terms = [Term(1.0), Term(1.0 + step // 3)]


def other_helper(policy, step):
    if step == 3:
        policy.helper = Helper()
        policy.helper.weight = 3.0


def in_a_defaultdict(policy, step):
    policy.table["here"] = 1.0 + step // 3


def in_a_namespace(policy, step):
    policy.space.weight = 1.0 + step // 3


def of_numpy(policy, step):
    policy.small = np.float32(1 + step // 3)


def in_the_extra_settings(policy, step):
    policy.config.extra["own"] = 1.0 + step // 3


def in_another_configuration(policy, step):
    if step == 2:
        policy.cfg = copy.deepcopy(policy.cfg)
    if step == 3:
        policy.cfg.discount_factor = 0.5


def on_the_policy(policy, step):
    policy.scale = 1.0 + step // 3


def in_the_configuration(policy, step):
    if step == 3:
        policy.reset_config({"discount_factor": 0.5})


def clipping(policy, step):
    if step == 3:
        policy.reset_config({"learn.grad_clip_norm": 0.01})


def of_the_optimizer(policy, step):
    policy.optimizer.param_groups[0]["eps"] = 1e-8 * (1 + step // 3)


def frozen(policy, step):
    policy.params[0].requires_grad_(step < 3)


@pytest.mark.few
@pytest.mark.parametrize(
    "change",
    [
        *(on_helper, deep_inside, in_a_list, on_a_network, on_the_policy, in_the_configuration, clipping, of_the_optimizer),
        *(frozen, in_a_list_of_objects, other_helper, in_a_defaultdict, in_a_namespace, of_numpy, in_the_extra_settings),
    ],
)
def test_a_value_that_the_loss_reads_makes_another_form(change):
    with no_warning():
        policy, plain = pair(change, Loss)
    assert (compiled(policy), forms(policy)) == (6, 2)
    assert_close(policy, plain)


def rates(policy, step):
    for group in policy.optimizer.param_groups:
        group["lr"] = 1e-3 * (step + 1)


def tensors(policy, step):
    policy.offset = torch.tensor(float(step))


def loaded(policy, step):
    policy.optimizer.load_state_dict(copy.deepcopy(policy.optimizer.state_dict()))


def forgotten(policy, step):
    if step == 3:
        policy.optimizer.state.clear()


def one_forgotten(policy, step):
    if step == 3:
        policy.optimizer.state[policy.params[0]] = {}


def moved(policy, step):
    for param in policy.params:
        param.data = param.data.clone()


def whole_state(policy, step):
    policy.load_state_dict(copy.deepcopy(policy.state_dict()))


@pytest.mark.few
@pytest.mark.parametrize("change", [rates, tensors, loaded, forgotten, one_forgotten, moved, whole_state])
def test_tensors_and_learning_rates_are_inputs(change):
    with no_warning():
        policy, plain = pair(change, Loss)
    assert (compiled(policy), forms(policy)) == (6, 1)
    assert_close(policy, plain)


def copied_target(policy, step):
    if step % 2:
        policy.target_model = copy.deepcopy(policy.model).requires_grad_(False)


def copied_part(policy, step):
    if step % 2:
        policy.target_model.layers[0] = copy.deepcopy(policy.model.layers[0]).requires_grad_(False)


def other_optimizer(policy, step):
    if step == 3:
        policy.optimizer = Adam(policy.params, lr=1e-2, fused=True)


@pytest.mark.few
@pytest.mark.parametrize("change", [copied_target, copied_part, other_optimizer])
def test_networks_and_optimizers_may_be_replaced(change):
    with no_warning():
        policy, plain = pair(change, Loss)
    assert (compiled(policy), forms(policy)) == (6, 1)
    assert_close(policy, plain)


@pytest.mark.parametrize("change", [other_objects, in_another_configuration])
def test_objects_that_the_loss_reads_may_be_replaced(change):
    with no_warning():
        policy, plain = pair(change, Loss)
    assert compiled(policy) == 6
    assert len(policy.compiled_steps._known) == 2
    assert_close(policy, plain)


class Listed(DQNPolicy):
    """With target networks in a list."""

    def after_init(self):
        super().after_init()
        self.targets = [copy.deepcopy(self.model).requires_grad_(False)]

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss + (self.model(batch.obs) - self.targets[0](batch.obs)).square().mean(), stats


def test_a_network_in_a_list_may_be_replaced():
    def change(policy, step):
        if step % 2:
            policy.targets[0] = copy.deepcopy(policy.model).requires_grad_(False)

    with no_warning():
        policy, plain = pair(change, Listed)
    assert compiled(policy) == 6
    assert_close(policy, plain)


class Reading(DQNPolicy):
    """With a setting that the loss reads, and that does not change it."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return (loss * 1 if self.cfg.learn.learning_rate else loss), stats


def test_changes_of_values_without_effect_compile_nothing_more():
    def change(policy, step):
        policy.cfg.learn.learning_rate = 1e-3 * (step + 1)

    with no_warning():
        policy, plain = pair(change, Reading, steps=20)
    assert compiled(policy) == 20
    assert len(policy.compiled_steps._known) == 1
    assert_close(policy, plain)


def test_a_parameter_that_is_replaced_ends_compilation():
    def replaced(policy, step):
        if step == 3:
            layer = policy.model.layers[0]
            layer.weight = nn.Parameter(layer.weight.detach().clone())

    with pytest.warns(UserWarning, match="the parameter weight is another object than before"):
        policy, plain = pair(replaced, Loss)
    assert compiled(policy) == 3
    assert_close(policy, plain)


def test_a_value_that_always_changes_ends_with_steps_that_are_not_compiled():
    def change(policy, step):
        policy.scale = 1.0 + step

    with pytest.warns(UserWarning, match=r"6 forms of its gradient step.*Loss.scale is 7.0, and was 6.0") as found:
        policy, plain = pair(change, Loss, steps=3 * MAX_FORMS)
    assert (compiled(policy), len(found)) == (MAX_FORMS, 1)
    assert_close(policy, plain)


@pytest.mark.parametrize("rows", [lambda step: 7 if step % 3 == 2 else 12, lambda step: 12 if step < 3 else 1])
def test_each_shape_has_a_step_of_its_own(rows):
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Loss, rows=rows)
    assert (compiled(policy), forms(policy)) == (6, 2)
    assert_close(policy, plain)


@pytest.mark.few
@pytest.mark.parametrize(
    "columns",
    [
        {"reward": torch.ones(12, dtype=torch.float64)},
        {"weight": torch.linspace(0, 1, 12)},
        {"obs": torch.ones(5, 12).T},
        {"discount": torch.full((12,), 0.5)},
    ],
    ids=["another dtype", "a column more", "other strides", "another column"],
)
def test_each_kind_of_batch_has_a_step_of_its_own(columns):
    found = []
    with interpreting(), no_warning():
        for mode in ("on", "off"):
            policy = made(compiles=mode)
            for step in range(4):
                policy.gradient_step(batch_of(step, **(columns if step % 2 else {})))
            found.append(policy)
    assert (compiled(found[0]), forms(found[0])) == (4, 2)
    assert_close(*found)


class Variant(DQNPolicy):
    def step_variant(self):
        return self.train_iter % 3

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss * (1 + self.step_variant()), stats


def test_each_variant_has_a_step_of_its_own():
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Variant)
    assert (compiled(policy), forms(policy)) == (6, 3)
    assert_close(policy, plain)


class Coefficient(DQNPolicy):
    step_inputs = ("bonus",)

    def before_step(self):
        super().before_step()
        self.bonus = 0.1 * self.train_iter + 0.1

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss + self.bonus * self.model(batch.obs).square().mean(), stats


class Condition(Coefficient):
    def loss(self, batch):
        return super().loss(batch) if self.bonus > 0 else DQNPolicy.loss(self, batch)


def test_a_declared_number_may_change_in_each_step():
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Coefficient, steps=9)
    assert (compiled(policy), forms(policy)) == (9, 1)
    assert_close(policy, plain)


def test_a_declared_number_with_a_condition_is_one_like_others():
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Condition, steps=4)
    assert (compiled(policy), forms(policy)) == (4, 4)
    assert_close(policy, plain)


DRAWS = {
    "randn": lambda g, like: torch.randn(like.shape, generator=g),
    "rand": lambda g, like: torch.rand(like.shape[0], like.shape[1], generator=g, dtype=torch.float64).float(),
    "randint": lambda g, like: torch.randint(-3, 9, like.shape, generator=g).float(),
    "randperm": lambda g, like: like[torch.randperm(len(like), generator=g)],
    "normal": lambda g, like: torch.normal(1.0, 2.0, like.shape, generator=g),
    "in place": lambda g, like: torch.empty_like(like).exponential_(generator=g).log_(),
    "in place, transposed": lambda g, like: torch.empty(like.shape[::-1]).T.uniform_(generator=g),
    "like, from torch's generator": lambda g, like: torch.rand_like(like) + torch.randn_like(like),
    "dropout": lambda g, like: nn.functional.dropout(like, 0.3),
    "unused": lambda g, like: (torch.randn(3, generator=g), torch.randn(like.shape, generator=g))[1],
}


@pytest.mark.few
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.filterwarnings("ignore:.*draws from the global random generator")
def test_random_numbers_are_those_of_a_step_that_is_not_compiled(name):
    class Noisy(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            noise = DRAWS[name](self.generator, batch.obs)
            return loss + (self.model(batch.obs + noise)).mean(), {**stats, "noise": noise.mean()}

    found = []
    for mode in ("on", "off"):
        torch.manual_seed(7)
        with interpreting(), no_warning():
            policy = made(Noisy, mode)
            stats = learn(policy)
        found.append((policy, stats, torch.get_rng_state(), policy.generator.get_state()))
    (policy, stats, state, own), (plain, plain_stats, plain_state, plain_own) = found
    assert compiled(policy) == 4
    assert torch.equal(state, plain_state)
    assert torch.equal(own, plain_own)
    assert stats["noise"] == pytest.approx(plain_stats["noise"], rel=1e-6)
    assert_close(policy, plain)


class Normed(DQNPolicy):
    """With running statistics, which each call of the network updates."""

    def make_model(self):
        network = make_q_network(
            self.observation_space, self.num_actions, [8, *self.cfg.model.encoder_hidden_size_list], "relu", None
        )
        return nn.Sequential(nn.BatchNorm1d(5), network)


def test_buffers_that_a_loss_updates_are_updated():
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Normed)
    assert compiled(policy) == 6
    assert policy.model[0].num_batches_tracked == plain.model[0].num_batches_tracked == 12
    assert_close(policy, plain)


def broken(step):
    return with_leaves(batch_of(step), reward=torch.full((12,), float("nan")))


@pytest.mark.few
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", [DQNPolicy, Normed])
def test_a_step_that_is_not_finite_changes_nothing(kind, clip):
    with interpreting():
        policy, plain = (made(kind, mode, **{"learn.grad_clip_norm": clip}) for mode in ("on", "off"))
        for one in (policy, plain):
            learn(one)
        before = state_of(policy)
        with pytest.raises(NonFiniteError) as error:
            policy.gradient_step(broken(9))
        with pytest.raises(NonFiniteError) as wanted:
            plain.gradient_step(broken(9))
        assert str(error.value) == str(wanted.value)
        assert same(state_of(policy), before)
        learn(policy, 2, 4)
    assert compiled(policy) == 7  # the broken one was taken too


@pytest.mark.few
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("on_nonfinite", ["skip", "restore"])
def test_steps_that_are_not_finite_are_skipped_as_without_compilation(on_nonfinite, first):
    found = []
    for mode in ("on", "off"):
        policy = made(compiles=mode, **{"learn.on_nonfinite": on_nonfinite})
        with interpreting(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the run continues")
            for step in range(6):
                policy.gradient_step(broken(step) if step in (first, 4) else batch_of(step))
        found.append(policy)
    policy, plain = found
    assert compiled(policy) >= 4
    assert policy.train_iter == plain.train_iter == 4
    assert np.isfinite(weights_of(policy).numpy()).all()
    assert_close(policy, plain)


class Decay(DQNPolicy):
    kind = torch.optim.AdamW

    def make_optimizer(self, params):
        return self.kind(params, lr=1e-2, weight_decay=0.1)


class DecayAdam(Decay):
    kind = torch.optim.Adam


class DecayRMSprop(Decay):
    kind = torch.optim.RMSprop


class Unaveraged(DQNPolicy):
    def make_optimizer(self, params):
        return torch.optim.Adam(params, lr=1e-2, betas=(0.0, 0.9))


class WithoutBetas(DQNPolicy):
    def make_optimizer(self, params):
        return Adam(params, lr=1e-2, betas=(0.0, 0.0))


@pytest.mark.parametrize("kind", [Unaveraged, WithoutBetas])
def test_betas_of_0(kind):
    policy, plain = pair(lambda policy, step: None, kind)
    assert compiled(policy) == 6
    assert_close(policy, plain)


def test_schedulers_of_torch_do_not_warn():
    class Scheduled(DQNPolicy):
        def after_init(self):
            super().after_init()
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

        def after_step(self):
            super().after_step()
            self.scheduler.step()

    with no_warning():
        policy, plain = pair(lambda policy, step: None, Scheduled)
    assert compiled(policy) == 6
    assert_close(policy, plain)


@pytest.mark.parametrize("kind", [Decay, DecayAdam, DecayRMSprop])
def test_weight_decay(kind):
    with no_warning():
        policy, plain = pair(lambda policy, step: None, kind)
    assert compiled(policy) == 6
    assert_close(policy, plain)


class Late(DQNPolicy):
    """With a column that it reads in later steps, and one that it only looks for."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        weight = self.model.layers[0].weight.mean()
        if self.train_iter_is_late:
            loss = loss + batch.bonus.mean() * weight
        if "other" in batch.keys():  # noqa: SIM118
            loss = loss + batch.other.mean() * weight
        return loss, stats

    train_iter_is_late = False

    def before_step(self):
        super().before_step()
        self.train_iter_is_late = self.train_iter >= 2


def test_a_loss_sees_all_columns_of_the_batch():
    policy, plain = made(Late), made(Late, "off")
    infos = np.array([{"lives": row} for row in range(12)])  # no hook reads it
    for step in range(4):
        batch = batch_of(step, bonus=torch.full((12,), 5.0), other=torch.ones(12), infos=infos)
        plain.learn_mode.forward(batch)
        with interpreting(), no_warning():
            policy.learn_mode.forward(batch)
    assert compiled(policy) == 4
    assert_close(policy, plain)


def test_columns_that_are_not_read_do_not_change_the_program():
    policy = made()
    with interpreting():
        for step in range(4):
            policy.learn_mode.forward(batch_of(step, **({"unread": torch.zeros(12)} if step % 2 else {})))
    assert (compiled(policy), len(policy.compiled_steps.state_dict()["forms"])) == (4, 1)


def test_nested_columns():
    class Nested(DQNPolicy):
        def loss(self, batch):
            return super().loss(with_leaves(batch, obs=batch.parts.obs))

    found = []
    with interpreting(), no_warning():
        for mode in ("on", "off"):
            policy = made(Nested, mode)
            for step in range(3):
                columns = dict(batch_of(step).items())
                policy.gradient_step(tree({**columns, "parts": {"obs": columns["obs"], "more": {"x": columns["reward"]}}}))
            found.append(policy)
    assert compiled(found[0]) == 3
    assert_close(*found)


def test_the_example_of_the_page_has_two_forms():
    kind = run_blocks(Path(__file__).parents[2] / "docs/compile.md")["SometimesRegularized"]
    with no_warning():
        policy, plain = pair(lambda policy, step: None, kind)
    assert (compiled(policy), forms(policy)) == (6, 2)
    assert_close(policy, plain)


def policy_gradient_loss(policy, model, dist_class, train_batch):
    logit, _ = model.from_batch(train_batch)
    value_loss = (model.value_function() - train_batch["reward"]).square().mean()
    surprise = dist_class(logit, model).logp(train_batch["action"])
    return value_loss * policy.config["vf_weight"] - (surprise * train_batch["reward"]).mean()


def test_a_policy_from_functions():
    kind = build_policy("FromFunctions", loss_fn=policy_gradient_loss)
    found = []
    with interpreting(), no_warning():
        for mode in ("on", "off"):
            settings = {"seed": 0, "vf_weight": 0.5, "learn.compile": mode, "model.encoder_hidden_size_list": [8]}
            policy = kind(settings, OBSERVATIONS, ACTIONS)
            learn(policy)
            policy.config.extra["vf_weight"] = 2.0
            learn(policy, 2, 4)
            found.append(policy)
    assert (compiled(found[0]), forms(found[0])) == (6, 2)
    assert_close(*found)


class Constants(DQNPolicy):
    """With tensors made of Python numbers, one of them changed in place, and another by an index."""

    def loss(self, batch):
        loss, stats = super().loss(batch)
        weight = torch.tensor([1.0, 2.0, 3.0], dtype=batch.obs.dtype)
        weight.mul_(2.0)
        mask = torch.ones(len(batch.obs), dtype=torch.bool)
        mask[-1] = False
        masked = torch.where(mask, batch.reward, torch.tensor(0.5))
        return loss + (self.model(batch.obs) * weight).mean() * masked.sum(), stats


def test_tensors_that_a_loss_makes():
    with no_warning():
        policy, plain = pair(lambda policy, step: None, Constants)
    assert (compiled(policy), forms(policy)) == (6, 1)
    assert_close(policy, plain)
