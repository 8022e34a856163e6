"""Network states: what a run changes in networks besides their tensors goes on in a resumed run, or is named."""

import contextlib
import dataclasses
import functools
import warnings

import pytest
import torch
from states import same
from torch import nn

from ding_lite import Context, Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import RunStateError, load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler
from ding_lite.policy import DQNPolicy, StateDictError

MODES = pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag", "threads"])


@dataclasses.dataclass
class Sum(Context):
    total: float = dataclasses.field(default=0.0, metadata={"kept": True})


def learner(make_net, change, optimizer_freq=1):
    """A middleware that learns with a network, and calls `change(net, iteration)` first."""
    torch.manual_seed(0)
    net = make_net()
    optimizer = torch.optim.SGD([*net.parameters()] or [torch.zeros(1, requires_grad=True)], 0.05)

    @contract(reads=("total",), writes=("total",), uses=(net, optimizer), stage="learn")
    def learn(ctx):
        change(net, ctx.total_step)
        if ctx.total_step % optimizer_freq == 0:
            optimizer.zero_grad()
        loss = net(torch.arange(6.0).reshape(3, 2)).square().sum()
        if loss.requires_grad:
            loss.backward()
        if ctx.total_step % optimizer_freq == optimizer_freq - 1:
            optimizer.step()
        ctx.total += loss.item() + sum(param.sum().item() for param in net.parameters())

    return learn


def freezes(net, step):
    if step == 3:
        net[0].bias.requires_grad_(False)


def thaws(net, step):
    net[0].requires_grad_(step not in (0, 1))


def evaluates(net, step):
    if step == 2:
        net.eval()


def changes_dropout(net, step):
    if step == 3:
        net[1].p = 0.0


def changes_momentum(net, step):
    if step == 3:
        net[1].momentum = None


def nothing(net, step):
    pass


def linear():
    return nn.Sequential(nn.Linear(2, 2))


def dropout():
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))


def normalized():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def walked(folder, steps, middleware, resume=None, mode=None):
    """The context's total after the run, and the warnings."""
    loop = Task()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with loop.start(ctx=Sum(), resume=resume, **(mode or {})):
            loop.use(middleware).use(CkptSaver(nn.Linear(1, 1), str(folder), train_freq=2)).run(steps)
            return loop.ctx.total, [str(it.message) for it in told if "cannot overlap" not in str(it.message)]


CHANGES = {
    "freezing a layer": (linear, freezes, 1),
    "thawing a layer": (linear, thaws, 1),
    "the mode of modules": (dropout, evaluates, 1),
    "the rate of dropout": (dropout, changes_dropout, 1),
    "the momentum of a normalisation": (normalized, changes_momentum, 1),
    "gradients of several iterations": (linear, nothing, 4),
    "nothing": (normalized, nothing, 1),
}


@MODES
@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_run_goes_on_with_what_was_changed_in_a_network(name, mode, tmp_path):
    whole, told = walked(tmp_path / "whole", 12, learner(*CHANGES[name]), mode=mode)
    _, cut = walked(tmp_path / "cut", 6, learner(*CHANGES[name]), mode=mode)
    resumed, later = walked(tmp_path / "cut", 12, learner(*CHANGES[name]), tmp_path / "cut", mode)
    assert resumed == whole
    assert told == cut == later == []


def test_a_run_that_is_resumed_twice_keeps_the_changes(tmp_path):
    whole, _ = walked(tmp_path / "whole", 12, learner(linear, freezes))
    walked(tmp_path / "cut", 5, learner(linear, freezes))
    walked(tmp_path / "cut", 8, learner(linear, freezes), tmp_path / "cut")
    assert walked(tmp_path / "cut", 12, learner(linear, freezes), tmp_path / "cut")[0] == whole


def test_the_state_holds_only_what_has_changed(tmp_path):
    def state_of(change, optimizer_freq=1):
        with Task().start(ctx=Sum()) as loop:
            loop.use(learner(normalized, change, optimizer_freq)).run(6)
            return loop.state_dict()

    saved = state_of(freezes)["networks"]["Sequential"]
    assert saved["changed"] == {"0.bias.requires_grad": False}
    assert "networks" not in state_of(lambda net, step: net.zero_grad() if step == 5 else None, 7) or saved["gradients"]


def test_a_script_that_is_changed_decides_on_what_the_run_did_not_change(tmp_path):
    """A layer that the script freezes before the resumed run stays frozen."""
    walked(tmp_path, 4, learner(linear, nothing))
    made = []

    def frozen():
        made.append(linear().requires_grad_(False))
        return made[0]

    walked(tmp_path, 6, learner(frozen, nothing), tmp_path)
    assert not any(param.requires_grad for param in made[0].parameters())


class TestHooks:
    def test_a_hook_that_the_run_adds_is_named(self, tmp_path):
        def adds(net, step):
            if step == 3:
                net[0].register_forward_hook(lambda module, inputs, output: output * 0.5)

        _, told = walked(tmp_path, 6, learner(linear, adds))
        assert [it[:65] for it in told] == ["a hook was added to the module 0 of Sequential during the run, an"]

    def test_hooks_from_before_the_run_and_hooks_that_are_removed_are_not_named(self, tmp_path):
        def make():
            net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
            net[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
            return net

        def watches(net, step):
            handle = net[0].register_forward_hook(lambda module, inputs, output: None)
            net(torch.zeros(3, 2))
            handle.remove()

        assert walked(tmp_path, 6, learner(make, watches))[1] == []


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: s.update(networks=3), r"\['networks'\] is 3, expected a dict"),
            (lambda s: s["networks"].update(Sequential=[]), r"\['Sequential'\] is \[\], expected a dict with 'changed'"),
            (lambda s: s["networks"]["Sequential"]["changed"].update({"9.bias.requires_grad": True}), r"'9\.bias\.requires_"),
            (lambda s: s["networks"]["Sequential"]["changed"].update({"0.bias.requires_grad": 1}), r"is 1, expected a value"),
            (lambda s: s["networks"]["Sequential"]["changed"].update({"1.momentum": "x"}), r"is 'x', expected a value"),
            (lambda s: s["networks"]["Sequential"]["gradients"].update({"0.bias": torch.ones(9)}), r"fits no parameter"),
        ],
    )
    def test_a_damaged_entry_is_refused_before_anything_changes(self, change, message):
        with Task().start(ctx=Sum()) as loop:
            loop.use(learner(normalized, freezes)).run(6)
            state = loop.state_dict()
        change(state)
        with Task().start(ctx=Sum()) as loop:
            loop.use(learner(normalized, freezes))
            with pytest.raises(RunStateError, match=message):
                loop.load_state_dict(state)
            assert loop.ctx.total_step == 0


SMALL = {
    "policy.model.encoder_hidden_size_list": [8],
    "policy.collect.n_sample": 16,
    "policy.learn": {"learning_starts": 16, "batch_size": 8, "update_per_collect": 2},
}


class Changing(DQNPolicy):
    """Thaws its first layer, and freezes its last one, in gradient step 6."""

    def after_init(self):
        super().after_init()
        self.first, *_, self.last = self.model.parameters()
        self.first.requires_grad_(False)

    def before_step(self):
        super().before_step()
        if self.train_iter == 6:
            self.first.requires_grad_(True)
            self.last.requires_grad_(False)


class Accumulating(DQNPolicy):
    """Takes a step of the optimizer with the gradients of three batches."""

    def learn_on_batch(self, batch):
        loss, stats = self.loss(batch)
        loss.backward()
        if self.train_iter % 3 == 2:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"loss": loss.detach()}


def trained(kind, folder, steps, resume=None, mode=None, **settings):
    """The policy after a run, and the warnings."""
    cfg = DQNConfig(exp_name=str(folder)).override({**SMALL, **settings})
    with contextlib.closing(make_envs("CartPole-v1", 2, seed=0)) as envs, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
        buffer_, loop = ReplayBuffer(200, seed=0), Task()
        with loop.start(ctx=OnlineRLContext(), resume=resume, **(mode or {})):
            loop.use(eps_greedy_handler(cfg))
            loop.use(StepCollector(cfg, policy.collect_mode, envs))
            loop.use(data_pusher(cfg, buffer_))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
            loop.use(CkptSaver(policy, cfg.exp_name, train_freq=4))
            loop.run(steps)
    return policy, [str(it.message) for it in told]


class Replacing(DQNPolicy):
    """Replaces its optimizer in gradient step 4."""

    def before_step(self):
        super().before_step()
        if self.train_iter == 4:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


class Lazy(DQNPolicy):
    """Makes another network when it is first used, in the dry run, and learns with it."""

    @functools.cached_property
    def extra(self):
        return torch.nn.Linear(4, 1)

    @functools.cached_property
    def extra_optimizer(self):
        return torch.optim.SGD(self.extra.parameters(), lr=0.01)

    def loss(self, batch):
        self.extra_optimizer.zero_grad()
        self.extra(batch.obs).square().mean().backward()
        self.extra_optimizer.step()
        return super().loss(batch)


class TestPolicies:
    def test_a_network_that_is_made_on_first_use_is_refused_with_the_fix_and_not_for_its_gradients(self, tmp_path):
        trained(Lazy, tmp_path, 5)
        with pytest.raises(StateDictError, match=r"make self\.extra in after_init"):
            trained(Lazy, tmp_path, 9, tmp_path)

    def test_an_optimizer_of_another_class_is_named_once(self, tmp_path):
        (words,) = trained(Replacing, tmp_path, 9)[1]
        assert "Replacing.optimizer was replaced during the run, Adam by SGD: a resumed run makes Adam again" in words

    @MODES
    @pytest.mark.parametrize("kind", [Changing, Accumulating])
    def test_a_resumed_run_equals_the_unbroken_one(self, kind, mode, tmp_path):
        whole, told = trained(kind, tmp_path / "whole", 9, mode=mode)
        _, cut = trained(kind, tmp_path / "cut", 5, mode=mode)
        resumed, later = trained(kind, tmp_path / "cut", 9, tmp_path / "cut", mode)
        assert same(resumed.get_weights(), whole.get_weights())
        assert told == cut == later == []

    def test_compiled_steps_follow(self, tmp_path):
        settings = {"policy.learn.compile": "auto"}
        whole, _ = trained(Changing, tmp_path / "whole", 9, **settings)
        trained(Changing, tmp_path / "cut", 5, **settings)
        resumed, _ = trained(Changing, tmp_path / "cut", 9, tmp_path / "cut", **settings)
        assert same(resumed.get_weights(), whole.get_weights())

    def test_a_checkpoint_does_not_freeze_the_policy_that_loads_it(self, tmp_path):
        """Only a resumed run does the same again: a policy that is trained on decides by itself."""
        saved, _ = trained(Changing, tmp_path, 5)
        assert not saved.last.requires_grad
        loaded = Changing(saved.cfg, saved.observation_space, saved.action_space)
        loaded.load_state_dict(load_checkpoint(tmp_path / "ckpt" / "final.pt"))
        assert [param.requires_grad for param in loaded.params] == [False, *[True] * (len(loaded.params) - 1)]
