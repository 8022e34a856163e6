"""Settings without effect, of which a policy warns."""

import functools
import operator
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite import Task, contract
from ding_lite.config import A2CConfig, DQNConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    StepCollector,
    data_pusher,
    offline_data_fetcher,
    offpolicy_data_fetcher,
    onpolicy_data_fetcher,
    trainer,
)
from ding_lite.nn import MLP
from ding_lite.policy import (
    A2CPolicy,
    DQNPolicy,
    DQNPolicyConfig,
    IMPALAPolicy,
    Policy,
    PPOPolicy,
    PPOPolicyConfig,
    REINFORCEPolicy,
)
from ding_lite.policy_base import FixedSettingError, build_policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"model.normalize_obs": True},
        {"model.layer_norm": True},
        {"learn.rmsprop_decay": 0.5},
        {"gama": 0.5},
    ],
)
def test_a_warning_of_a_setting_is_at_the_line_that_makes_the_policy(settings):
    class Own(DQNPolicy):
        def make_model(self):
            return nn.Linear(4, 3)

    def main():
        return Own(settings, BOX, DISCRETE)  # here

    with pytest.warns(UserWarning, match="no effect|did you mean") as caught:
        main()
    places = [(it.filename, Path(it.filename).read_text().splitlines()[it.lineno - 1].rpartition("# ")[2]) for it in caught]
    assert places == [(__file__, "here")]


def reward_loss(policy, model, dist_class, batch):
    logit, _ = model.from_batch(batch)
    return -(dist_class(logit, model).logp(batch["action"]) * batch["reward"]).mean()


@pytest.mark.parametrize(("kind", "name"), [(A2CPolicy, "A2CPolicy"), (REINFORCEPolicy, "REINFORCEPolicy")])
def test_a_batch_size_of_a_policy_that_takes_one_step_per_rollout_is_a_warning(kind, name, recwarn):
    kind({"learn.batch_size": 64}, BOX, DISCRETE)  # the default
    assert not recwarn.list
    words = f"learn.batch_size = 16 has no effect: {name} takes one gradient step on the whole rollout. Leave it out; or use"
    with pytest.warns(UserWarning, match=words):
        kind({"learn.batch_size": 16}, BOX, DISCRETE)


class OnRollouts(Policy):
    def loss(self, batch):
        logit = self.model.logits(batch.obs)
        return -(self.model.distribution.evaluate(logit, batch.action)[0] * batch.reward).mean(), {}


class TestBatchSizesOfPoliciesOfUsers:
    WORDS = "learn.batch_size = 16 has no effect: Own takes one gradient step on the whole rollout. Leave it out; or use"

    def policy_and_cfg(self, kind):
        cfg = A2CConfig().override({"policy.learn.batch_size": 16})
        envs = make_envs("CartPole-v1", 2, seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            policy = kind({"learn.batch_size": 16}, envs.single_observation_space, envs.single_action_space)
        return policy, cfg, envs

    @pytest.fixture(params=["hooks", "class"])
    def kind(self, request):
        return build_policy("Own", loss_fn=reward_loss) if request.param == "hooks" else type("Own", (OnRollouts,), {})

    @staticmethod
    def trained(cfg, policy, envs, *between):
        task = Task()
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs)).use(onpolicy_data_fetcher(cfg))
            for one in between:
                task.use(one)
            task.use(trainer(cfg, policy.learn_mode)).run(1)

    @pytest.mark.parametrize("between", [(), (lambda ctx: None,)])
    def test_they_are_a_warning_before_a_run_that_learns_from_rollouts(self, kind, between):
        policy, cfg, envs = self.policy_and_cfg(kind)
        with pytest.warns(UserWarning, match=self.WORDS):
            self.trained(cfg, policy, envs, *between)

    def test_they_are_none_where_a_middleware_of_the_script_reads_them(self, kind):
        policy, cfg, envs = self.policy_and_cfg(kind)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="learn.batch_size")
            self.trained(cfg, policy, envs, lambda ctx: print(cfg.policy.learn.batch_size))

    def test_they_are_none_in_a_run_that_learns_from_a_dataset_in_batches_of_this_size(self, kind):
        policy, cfg, envs = self.policy_and_cfg(kind)
        rows = {"obs": np.zeros((32, 4), np.float32), "action": np.zeros(32, np.int64), "reward": np.ones(32, np.float32)}
        rows.update(terminated=np.arange(32) == 31, truncated=np.zeros(32, bool), next_obs=np.zeros((32, 4), np.float32))
        task, sizes = Task(), []
        with warnings.catch_warnings(), task.start(ctx=OfflineRLContext()):
            warnings.simplefilter("error")
            task.use(offline_data_fetcher(cfg, rows, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
            task.use(contract(reads=("train_data",), stage="record")(lambda ctx: sizes.append(len(ctx.train_data.action)))).run(
                2
            )
        assert sizes == [16, 16]

    def test_they_are_none_in_a_run_that_learns_from_replay(self, kind):
        policy, cfg, envs = self.policy_and_cfg(kind)
        replayed, buffer_, task = (
            DQNConfig().override({"policy.learn": {"batch_size": 16, "learning_starts": 9}}),
            ReplayBuffer(99),
            Task(),
        )
        with warnings.catch_warnings(), task.start(ctx=OnlineRLContext()):
            warnings.filterwarnings("error", message="learn.batch_size")
            task.use(StepCollector(cfg, policy.collect_mode, envs)).use(data_pusher(cfg, buffer_))
            task.use(offpolicy_data_fetcher(replayed, buffer_, policy.learn_mode)).use(trainer(cfg, policy.learn_mode)).run(1)


@pytest.mark.parametrize("given", ["settings", "typed", "default"])
def test_its_epochs_are_a_warning_if_its_configuration_has_them(given):
    def changed():
        return PPOPolicyConfig().override({"learn.epoch_per_collect": 5, "learn.batch_size": 16})

    default = changed if given == "default" else PPOPolicyConfig
    kind = build_policy("Own", loss_fn=reward_loss, get_default_config=default)
    settings = {"settings": {"learn.epoch_per_collect": 5, "learn.batch_size": 16}, "typed": changed(), "default": None}
    with pytest.warns(UserWarning, match="learn.epoch_per_collect = 5 has no effect: Own takes one"):
        kind(settings[given], BOX, DISCRETE)


def test_there_is_no_warning_if_something_reads_them():
    class InParts(A2CPolicy):
        def learn_on_batch(self, batch):
            return {}

    class PartOfRows(A2CPolicy):
        def loss(self, batch):
            return super().loss(batch[: self.cfg.learn.batch_size])

    def part_of_rows(policy, model, dist_class, batch):
        return reward_loss(policy, model, dist_class, batch[: policy.config["learn.batch_size"]])

    class Learning:
        def learn_on_batch(self, batch):
            return {}

    kinds = [PPOPolicy, IMPALAPolicy, DQNPolicy, InParts, PartOfRows, build_policy("Part", loss_fn=part_of_rows)]
    kinds += [
        A2CPolicy.with_updates("Mixed", mixins=[Learning]),
        type("FromReplay", (A2CPolicy,), {"learns_from": "transitions"}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in kinds:
            kind({"learn.batch_size": 16}, BOX, DISCRETE)


KEYS = {"eps": "optimizer_eps"}


def settings_of(policy):
    return {"lr": policy.cfg.learn.learning_rate, "eps": policy.cfg.learn.optimizer_eps}


def own_adam(policy, params):
    return torch.optim.Adam(params, **settings_of(policy))


class Settings:
    def of(self, policy):
        return settings_of(policy)


class ByFunction(PPOPolicy):
    def make_optimizer(self, params):
        return own_adam(self, params)


class ByMethod(PPOPolicy):
    def make_optimizer(self, params):
        return torch.optim.Adam(params, **self.adam_settings())

    def adam_settings(self):
        return {"lr": self.cfg.learn.learning_rate, "eps": self.cfg.learn.optimizer_eps}


class ByProperty(PPOPolicy):
    adam_settings = property(settings_of)

    def make_optimizer(self, params):
        return torch.optim.Adam(params, **self.adam_settings)


class ByPartial(PPOPolicy):
    make_optimizer = functools.partialmethod(lambda self, params, of: torch.optim.Adam(params, **of(self)), of=settings_of)


class ByObject(PPOPolicy):
    def before_init(self):
        self.settings = Settings()

    def make_optimizer(self, params):
        return torch.optim.Adam(params, **self.settings.of(self))


class ByDefault(PPOPolicy):
    def make_optimizer(self, params, of=settings_of):
        return torch.optim.Adam(params, **of(self))


class ByName(PPOPolicy):
    rate = "learning_rate"

    def make_optimizer(self, params):
        rate = getattr(self.cfg.learn, self.rate)
        return torch.optim.Adam(params, lr=rate, **{to: getattr(self.cfg.learn, name) for to, name in KEYS.items()})


@pytest.mark.parametrize("kind", [ByFunction, ByMethod, ByProperty, ByPartial, ByObject, ByDefault, ByName])
def test_settings_that_make_optimizer_reads_by_others_have_an_effect(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = kind({"learn.optimizer_eps": 1e-3}, BOX, DISCRETE)
    policy.reset_config({"learn.learning_rate": 0.5, "learn.optimizer_eps": 0.25})
    (group,) = policy.optimizer.param_groups
    assert (group["lr"], group["eps"]) == (0.5, 0.25)


def test_settings_that_it_does_not_read_have_none():
    class Own(PPOPolicy):
        def make_optimizer(self, params):
            return torch.optim.Adam(params, lr=self.rate())

        def rate(self):
            return 0.1

    with pytest.warns(UserWarning, match="learn.optimizer_eps = 0.001 has no effect: Own makes its own optimizer"):
        policy = Own({"learn.optimizer_eps": 1e-3}, BOX, DISCRETE)
    with pytest.raises(FixedSettingError, match="learn.learning_rate has no effect: Own makes its own optimizer"):
        policy.reset_config({"learn.learning_rate": 0.5})


def own_loss(policy, batch):
    return A2CPolicy.loss(policy, batch[: policy.cfg.learn.batch_size])


def sizes_of(policy):
    return policy.cfg.model.encoder_hidden_size_list


def margin_of(policy, key):
    return policy.config[key]


def test_there_is_no_warning_if_a_global_function_reads_them():
    class Loss(A2CPolicy):
        def loss(self, batch):
            return own_loss(self, batch)

    class PartialLoss(A2CPolicy):
        own = functools.partialmethod(own_loss)

        def loss(self, batch):
            return self.own(batch)

    class Sizes(DQNPolicy):
        def before_init(self):
            self.sizes = sizes_of(self)

        def make_model(self):
            return MLP([4, *self.sizes, 3])

    class Margin(PPOPolicy):
        def after_init(self):
            self.margin = margin_of(self, "value_norm")

    built = build_policy("Built", loss_fn=lambda policy, model, dist_class, batch: own_loss(policy, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (Loss, PartialLoss, built):
            kind({"learn.batch_size": 16}, BOX, DISCRETE)
        Sizes({"model.encoder_hidden_size_list": [5]}, BOX, DISCRETE)
        Margin({"value_norm": True}, BOX, DISCRETE)


class ByGetter(PPOPolicy):
    eps = property(operator.attrgetter("cfg.learn.optimizer_eps"))

    def make_optimizer(self, params):
        return torch.optim.Adam(params, eps=self.eps)


class ByComputedName(PPOPolicy):
    def make_optimizer(self, params):
        learn = self.cfg.learn
        return torch.optim.Adam(params, **{name: getattr(learn, "optimizer_" + name) for name in ("eps",)})


class ByComputedKey(PPOPolicy):
    def make_optimizer(self, params):
        return torch.optim.Adam(params, **{name: self.config[f"learn.optimizer_{name}"] for name in ("eps",)})


class SizesByGetter(DQNPolicy):
    sizes = property(operator.attrgetter("cfg.model.encoder_hidden_size_list"))

    def make_model(self):
        return MLP([4, *self.sizes, 3])


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ByGetter, "learn.optimizer_eps", 1e-3),
        (ByComputedName, "learn.optimizer_eps", 1e-3),
        (ByComputedKey, "learn.optimizer_eps", 1e-3),
        (SizesByGetter, "model.encoder_hidden_size_list", [5]),
    ],
)
def test_settings_that_are_read_by_getters_and_by_computed_names_have_an_effect(kind, name, value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind({name: value}, BOX, DISCRETE)


def net_of(model):
    return MLP([4, *model.encoder_hidden_size_list, 3])


def net_by_parts(model):
    return MLP([4, *getattr(model, "_".join(["encoder", "hidden_size", "list"])), 3])


class Net(nn.Module):
    def __init__(self, section):
        super().__init__()
        self.inner = nn.Linear(4, section.encoder_hidden_size_list[0])
        self.head = nn.Linear(section.encoder_hidden_size_list[0], 3)

    def forward(self, obs):
        return self.head(self.inner(obs).relu())


def wide(cfg):
    return DQNPolicy(cfg, BOX, DISCRETE, model=MLP([4, cfg.model.encoder_hidden_size_list[0], 3]))


def whole(cfg):
    return DQNPolicy(cfg, BOX, DISCRETE, model=net_of(cfg.model))


def as_a_dict(cfg):
    sizes = cfg.model.to_dict()
    return DQNPolicy(cfg, BOX, DISCRETE, model=MLP([4, *sizes["encoder_hidden_size_list"], 3]))


def computed(cfg):
    return DQNPolicy(cfg, BOX, DISCRETE, model=net_by_parts(cfg.model))


def elsewhere(cfg):
    return giving(cfg, Net(cfg.model))


def giving(cfg, net):
    return DQNPolicy(cfg, BOX, DISCRETE, model=net)


@pytest.mark.parametrize("make", [wide, whole, as_a_dict, computed, elsewhere])
def test_settings_of_which_the_script_makes_the_network_that_it_gives_have_an_effect(make):
    cfg = DQNPolicyConfig()
    cfg.model.encoder_hidden_size_list = [24]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(cfg)


def test_settings_of_a_network_that_the_script_makes_without_them_have_none():
    def typed(cfg):
        cfg.model.encoder_hidden_size_list = [24]
        return giving(cfg, MLP([4, 8, 3]))

    def by_name(cfg):
        cfg.override({"model.encoder_hidden_size_list": [24]})
        return giving(cfg, MLP([4, 8, 3]))

    def as_settings(_):
        return giving({"model.encoder_hidden_size_list": [24]}, MLP([4, 8, 3]))

    def with_another(cfg):
        cfg.model.encoder_hidden_size_list = [24]
        return giving(cfg, MLP([4, 8, 3], activation=cfg.model.activation))

    for make in (typed, by_name, as_settings, with_another):
        with pytest.warns(UserWarning, match=r"encoder_hidden_size_list = \[24\] has no effect: .* a network of your own"):
            make(DQNPolicyConfig())


def test_code_of_an_installed_launcher_that_runs_the_script_does_not_count(monkeypatch):
    """Such as a test runner, which executes a module of its own, whose name is in no package, that reads computed names."""

    def make(cfg):
        cfg.model.encoder_hidden_size_list = [24]
        return giving(cfg, MLP([4, 8, 3]))

    code = "def launch(make, cfg, name='__name__'):\n    getattr(make, name)\n    return make(cfg)\n"
    for file, warns in (("/usr/lib/python3/site-packages/launcher/remote.py", True), ("/home/user/remote.py", False)):
        names = {"__name__": "__channel__"}
        exec(compile(code, file, "exec"), names)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names["launch"](make, DQNPolicyConfig())
        assert any("encoder_hidden_size_list = [24] has no effect" in str(one.message) for one in caught) == warns
