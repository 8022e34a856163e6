"""Every setting of every policy: changed in a run with the result that a new policy has, or refused by name."""

import copy
import functools
import inspect
import typing
from pathlib import Path

import pytest
import torch
from slow_cases import mostly_slow

import ding_lite.config as configs
import ding_lite.policy as policies
from ding_lite.basics import Config, ConfigError
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, nested, tree
from ding_lite.data.trees import map_leaves, merge_leading_dims
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    sequence_pusher,
)
from ding_lite.policy import Policy
from ding_lite.policy_base import FixedSettingError, settings_of
from ding_lite.policy_state import StateDictError
from ding_lite.rollout import make_worker

KINDS = {
    name.removesuffix("Policy"): kind
    for name in policies.__all__
    if inspect.isclass(kind := getattr(policies, name)) and issubclass(kind, Policy) and kind is not Policy
}
SMALL = {"model.encoder_hidden_size_list": [4], "model.head_hidden_size_list": [4], "model.size": 4, "context_length": 3}
MORE = {
    "learn.target_update_freq": 5,
    "learn.update_per_collect": 2,
    "learn.batch_size": 12,
    "learn.learning_starts": 4,
    "learn.epoch_per_collect": 2,
    "learn.kl_coeff": 0.2,
    "learn.burn_in": 2,
    "learn.unroll_len": 3,
    "model.lstm_size": 4,
    "model.n_atom": 5,
    "model.num_quantiles": 3,
    "learn.actor_update_freq": 2,
    "learn.alpha": 0.2,
    "learn.expectile": 0.1,
    "model.v_min": -5.0,
    "model.v_max": 5.0,
    "baseline": True,
}
OTHERS = {
    "learn.lr_schedule": [(0, 5e-4), (10, 1e-4)],
    "learn.entropy_schedule": [(0, 0.5), (10, 0.1)],
    "learn.batch_size": 20,
    "learn.learning_starts": 60,
    "learn.bc_steps": 1000,
    "learn.target_kl": 1e-9,
    "learn.value_clip": 1e-3,
    "learn.grad_clip_norm": 1e-3,
    "learn.optimizer_eps": 1e-3,
    "learn.max_weight": 1.0,
    "learn.clip_ratio": 1e-4,
    "learn.kl_target": 1e-9,
    "learn.rho_clip": 0.3,
    "learn.c_clip": 0.3,
    "learn.target_noise_clip": 0.01,
    "other.replay_buffer_size": 777,
    "other.eps.type": "exp",
    "device": "meta",
}
OWN_TEST = {"learn.rmsprop_decay", "learn.kl_coeff"}
SHARED = {"learn.learning_rate", "learn.lr_schedule", "learn.optimizer_eps", "learn.grad_clip_norm", "learn.on_nonfinite"}
SHARED |= {"learn.update_per_collect", "learn.learning_starts", "learn.target_update_freq", "learn.target_update_theta"}
"""Settings that only the base class of all policies, the learner or `TargetNetworkMixin` reads: some kinds try them."""
TRIES_SHARED = {"DQN", "R2D2", "PPO", "SAC", "DecisionTransformer"}
ELSEWHERE = {"eval_freq", "eval_freq_env_step", "type", "start", "end", "decay"}
"""Settings that other middleware read than those of a `Rig`: they have tests of their own below.

They are changed together, because they have no effect on a `Rig`.
"""


def config_of(kind, **changes):
    """A small configuration of a run with this kind of policy."""
    run = next(
        config for config in vars(configs).values()
        if inspect.isclass(config) and issubclass(config, Config) and config.__name__ == f"{kind.__name__[:-6]}Config"
    )  # fmt: skip
    cfg = run()
    has = {name for name, _, _ in settings_of(cfg.policy)}
    cfg.policy.override({name: value for name, value in {**SMALL, **MORE, "seed": 0, **changes}.items() if name in has})
    return cfg


class Rig:
    """A policy, the data that it learns from, and the middleware that do it."""

    data: typing.ClassVar[dict] = {}

    def __init__(self, kind, **changes):
        self.cfg = config_of(kind, **changes)
        is_box = any("Box" in base.__name__ for base in kind.__mro__)
        env = make_envs("Pendulum-v1" if is_box else "CartPole-v1", 4, seed=0)
        self.policy = kind(self.cfg.policy, env.single_observation_space, env.single_action_space)
        if hasattr(self.policy, "target_model"):  # far from the online network, so that each setting of targets counts
            g = torch.Generator().manual_seed(3)
            for param in self.policy.target_model.parameters():
                param += torch.randn(param.shape, generator=g)
        if kind not in self.data:
            self.data[kind] = make_worker(env, self.policy.collect_mode).collect(6).trajectories
        env.close()
        self.rollout, self.learner = self.data[kind], None
        if kind.learns_from == "transitions" and hasattr(self.cfg.policy.learn, "update_per_collect"):
            self.fill()

    def fill(self):
        policy, ctx = self.policy, OnlineRLContext(trajectories=self.rollout)
        has_priorities = hasattr(self.cfg.policy.other, "priority_alpha")
        buffer = PrioritizedReplayBuffer(100, seed=0) if has_priorities else ReplayBuffer(100, seed=0)
        if hasattr(self.cfg.policy.learn, "burn_in"):
            sequence_pusher(self.cfg, buffer)(ctx)
        else:
            nstep_reward_enhancer(self.cfg)(ctx)
            columns = {**nested(ctx.trajectories.batch)}
            columns.pop("discount", None)  # so that the policy's own discount factor counts
            buffer.push(
                {name: map_leaves(lambda leaf: merge_leading_dims(leaf).numpy(), leaf) for name, leaf in columns.items()}
            )
        self.buffer = buffer
        self.learner = OffPolicyLearner(self.cfg, policy.learn_mode, buffer)

    def learn(self, times=2):
        """Iterations of learning. Returns what they log."""
        found = []
        for _ in range(times):
            ctx = OnlineRLContext(trajectories=self.rollout)
            if self.learner is not None:
                self.learner(ctx)
                output = ctx.train_output
            elif self.policy.learns_from == "rollouts":
                gae_estimator(self.cfg, self.policy.collect_mode)(ctx)
                multistep_trainer(self.cfg, self.policy.learn_mode)(ctx)
                output = ctx.train_output
            else:
                batch = tree(map_leaves(merge_leading_dims, nested(self.rollout.batch)))
                output = self.policy.learn_mode.forward(self.policy.dummy_batch(batch))
            found += output if isinstance(output, list) else [output or {}]
        return [{name: torch.as_tensor(value) for name, value in one.items()} for one in found]

    def state(self):
        """All that later learning depends on, except the settings."""
        state = self.policy.state_dict()
        state["optimizer"]["kept"].sort()
        if self.policy.cfg.learn.lr_schedule is not None:  # each step sets the rate
            state["optimizer"]["param_groups"] = [{**it, "lr": None} for it in state["optimizer"]["param_groups"]]
        return {name: part for name, part in state.items() if name not in ("made_with", "settings", "metrics")}

    @property
    def is_offline(self):
        return self.learner is None and self.policy.learns_from == "transitions"

    def saved(self):
        parts = [self.policy] + ([] if self.learner is None else [self.buffer, self.learner])
        return copy.deepcopy([part.state_dict() for part in parts])

    def load(self, saved):
        parts = [self.policy] + ([] if self.learner is None else [self.buffer, self.learner])
        for part, state in zip(parts, saved):
            part.load_state_dict(state)

    def take_from(self, other, saved):
        """Continue from the state of another rig, which was saved, but with the settings of this one."""
        old, own = saved[0], self.policy.state_dict()
        by_param = {
            name: other.policy.optimizer.state[param]
            for name, param in other.policy.model.named_parameters()
            if param in other.policy.optimizer.state
        }
        names = {id(param): name for name, param in self.policy.model.named_parameters()}
        order = [names[id(param)] for group in self.policy.optimizer.param_groups for param in group["params"]]
        moments = {index: copy.deepcopy(by_param[name]) for index, name in enumerate(order) if name in by_param}
        optimizer = {**own["optimizer"], "state": moments, "kept": list(moments)}
        kept = {name: own[name] for name in ("entropy_coeff",) if name in own}
        self.policy.load_state_dict({**old, **kept, "made_with": own["made_with"], "optimizer": optimizer})
        for part, state in zip([] if self.learner is None else [self.buffer, self.learner], saved[1:]):
            part.load_state_dict(state)


def another(value, hint):
    """A value unlike this one, for a setting with this type."""
    options = typing.get_args(hint)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return type(value)(value + 1) if isinstance(value, int) else (value * 0.5 if value else 0.3)
    if isinstance(value, str):
        return next((one for one in options if one != value), value + "x")
    if isinstance(value, list):
        return [7, *value[1:]]
    if isinstance(value, dict):
        return {**value, "other": 0.5}
    wanted = next((one for one in options if one is not type(None)), None)
    return {int: 3, float: 0.5, str: "x"}.get(wanted, [(4, 2, 1)])


def hint_of(cfg, name):
    *way, last = name.split(".")
    for section in way:
        cfg = getattr(cfg, section)
    return typing.get_type_hints(type(cfg))[last], getattr(cfg, last)


EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@functools.cache
def first_config(kind):
    return config_of(kind).policy


def changed(kind, name):
    hint, value = hint_of(first_config(kind), name)
    return OTHERS[name] if name in OTHERS else another(value, hint)


def changes_of(kind, tries_shared):
    """The changes to try with a kind of policy: lists of names."""
    left_out = OWN_TEST if tries_shared else OWN_TEST | SHARED
    names = [name for name, is_live, _ in settings_of(first_config(kind)) if is_live and name not in left_out]
    elsewhere = [name for name in names if name.rpartition(".")[2] in ELSEWHERE]
    return [*([name] for name in names if name not in elsewhere), elsewhere]


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other or (one != one and other != other))


@pytest.mark.few
@pytest.mark.parametrize("kind", mostly_slow(KINDS.values(), *map(KINDS.get, ["A2C", "BC", "DQN", "TD3"])), ids=KINDS)
def test_a_live_change_is_as_a_new_policy_with_the_value(kind):
    live = Rig(kind)
    live.learn()
    saved = live.saved()
    as_it_was = copy.deepcopy(saved)
    unchanged = live.learn(2), live.state()
    for names in changes_of(kind, kind.__name__.removesuffix("Policy") in TRIES_SHARED):
        values = {name: changed(kind, name) for name in names}
        live.load(saved)
        new = Rig(kind, **values)
        new.take_from(live, saved)
        before = live.policy.reset_config(values)
        assert list(before) == names
        assert {name: hint_of(live.policy.cfg, name)[1] for name in names} == values
        found, wanted = ((rig.learn(2), rig.state()) for rig in (live, new))
        assert same(found[0], wanted[0]), names
        assert same(found[1], wanted[1]), names
        is_elsewhere = names[0].rpartition(".")[2] in ELSEWHERE or (live.is_offline and names == ["learn.batch_size"])
        assert is_elsewhere or not same(found, unchanged), f"{names} has no effect"
    live.load(saved)
    assert same((live.learn(2), live.state()), unchanged), "a loaded state takes back the settings"
    assert same(saved, as_it_was), "learning changed a state that was loaded"


@pytest.mark.parametrize("kind", mostly_slow(["PPO", "CQL", "TD3BC"], "TD3BC"))
def test_a_change_without_reset_config_is_followed_or_known_not_to_be(kind):
    rig = Rig(KINDS[kind])
    rig.learn()
    saved = rig.saved()
    for names in changes_of(KINDS[kind], kind != "TD3BC"):
        values = {name: changed(KINDS[kind], name) for name in names}
        rig.load(saved)
        before = {name: hint_of(rig.policy.cfg, name)[1] for name in names}
        rig.policy.cfg.override(values)
        if unfollowed := rig.policy.learn_mode.unfollowed_settings:
            assert unfollowed == {name: (values[name], before[name]) for name in names}
            assert rig.policy.reset_config(values) == before
        found = rig.learn(2)
        assert not rig.policy.learn_mode.unfollowed_settings
        rig.load(saved)
        rig.policy.cfg.override(before)
        rig.policy.reset_config(values)
        assert same(found, rig.learn(2)), names


@pytest.mark.parametrize(("kind", "is_live"), [("DQN", False), ("SAC", False), ("Rainbow", False), ("R2D2", True)])
def test_the_discount_factor_of_stored_sums_of_rewards_stays(kind, is_live):
    policy = Rig(KINDS[kind], nstep=3).policy
    if is_live:
        policy.reset_config({"gamma": 0.5})
    else:
        with pytest.raises(FixedSettingError, match=r"discount_factor cannot be changed in a run: .* policy.nstep is above 1"):
            policy.reset_config({"gamma": 0.5})
    assert policy.cfg.discount_factor == (0.5 if is_live else Rig(KINDS[kind]).policy.cfg.discount_factor)


def test_a_discount_factor_that_an_earlier_version_has_changed_is_loaded():
    saved, policy = Rig(KINDS["DQN"]).policy, Rig(KINDS["DQN"], nstep=3).policy
    saved.reset_config({"discount_factor": 0.5})
    policy.load_state_dict(saved.state_dict())
    assert policy.cfg.discount_factor == 0.5


@pytest.mark.few
@EACH
def test_any_other_change_is_refused_by_name_and_changes_nothing(kind):
    policy = Rig(kind).policy
    before, state = policy.cfg.to_dict(), policy.state_dict()
    for name, is_live, words in settings_of(policy.cfg):
        if is_live:
            continue
        with pytest.raises(FixedSettingError) as caught:
            policy.reset_config({"learn.learning_rate": 0.123, name: changed(kind, name)})
        assert str(caught.value) == f"{name} cannot be changed in a run: {words}"
        assert "does not declare" not in words
        assert words.endswith(".")
    assert policy.cfg.to_dict() == before
    assert same(policy.state_dict(), state)


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "base", "name", "value"),
    [
        (KINDS["DQN"], {"learn.optimizer": "rmsprop"}, "learn.rmsprop_decay", 0.5),
        (KINDS["PPO"], {"learn.kl_coeff": 0.0}, "learn.kl_coeff", 0.5),
        (KINDS["SAC"], {"learn.lr_schedule": [(0, 1e-3), (20, 1e-4)]}, "learn.learning_rate_actor", 2e-4),
        (KINDS["SAC"], {"learn.lr_schedule": [(0, 1e-3), (20, 1e-4)]}, "learn.lr_schedule", None),
        (KINDS["TD3"], {"learn.learning_rate_actor": 2e-4}, "learn.learning_rate_actor", None),
    ],
)
def test_changes_beside_other_settings(kind, base, name, value):
    live, new = Rig(kind, **base), Rig(kind, **{**base, name: value})
    live.learn()
    new.take_from(live, live.saved())
    if name == "learn.kl_coeff":
        new.policy.kl_coeff = value
    live.policy.reset_config({name: value})
    assert same(live.learn(2), new.learn(2))
    assert same(live.state(), new.state())


@pytest.mark.parametrize(
    ("kind", "base", "values", "words"),
    [
        ("DQN", {"learn.lr_schedule": [(0, 1e-3)]}, {"lr": 0.1}, "learn.learning_rate has no effect, because"),
        ("PPO", {"learn.entropy_schedule": [(0, 0.1)]}, {"entropy_coeff": 0.2}, r"learn.entropy_weight has no effect, because"),
        ("DQN", {}, {"learn.lr_schedule": [(5, 1e-3), (1, 1e-3)]}, "sorted by step"),
        ("DQN", {}, {"learn.bach_size": 3}, "did you mean 'batch_size'"),
        ("DQN", {}, {"learn.batch_size": 0}, "at least 1"),
        ("DQN", {}, {"gama": 0.5}, "has no 'gama'"),
    ],
)  # fmt: skip
def test_a_change_that_is_wrong_or_has_no_effect_changes_nothing(kind, base, values, words):
    policy = Rig(KINDS[kind], **base).policy
    cfg, state, groups = policy.cfg.to_dict(), policy.state_dict(), policy.optimizer.param_groups
    with pytest.raises(ConfigError, match=words):
        policy.reset_config({"grad_clip": 0.25, **values})
    assert policy.cfg.to_dict() == cfg
    assert same(policy.state_dict(), state)
    assert policy.optimizer.param_groups is groups


class OwnOptimizer(KINDS["DQN"]):
    def make_optimizer(self, params):
        return torch.optim.SGD(params, lr=0.1)


def test_a_setting_that_an_own_optimizer_does_not_read_is_refused():
    env = make_envs("CartPole-v1", 1, seed=0)
    policy = OwnOptimizer(config_of(KINDS["DQN"]).policy, env.single_observation_space, env.single_action_space)
    with pytest.raises(FixedSettingError, match="learn.learning_rate has no effect: OwnOptimizer makes its own optimizer"):
        policy.reset_config({"lr": 0.5})
    assert policy.reset_config({"learn.batch_size": 3}) == {"learn.batch_size": 12}


def test_a_policy_of_a_loss_alone_refuses_minibatches():
    loss = policies.build_policy("Plain", loss_fn=lambda policy, model, dist, batch: model.from_batch(batch)[0].mean())
    env = make_envs("CartPole-v1", 1, seed=0)
    policy = loss(None, env.single_observation_space, env.single_action_space)
    with pytest.raises(FixedSettingError, match="learn.batch_size has no effect: Plain takes one gradient step per"):
        policy.reset_config({"learn.batch_size": 3})
    with pytest.raises(FixedSettingError, match=r"learn.lr_schedule has no effect on a Plain: .*LearningRateSchedule"):
        policy.reset_config({"learn.lr_schedule": [(0, 0.1)]})


@pytest.mark.few
@pytest.mark.parametrize("kind", [KINDS["PPO"], KINDS["SAC"], KINDS["IMPALA"]])
def test_a_resumed_policy_goes_on_with_the_changed_settings(kind):
    live = Rig(kind)
    live.learn()
    changes = {"learn.learning_rate": 3e-4, "learn.grad_clip_norm": 0.1}
    if kind is KINDS["SAC"]:
        changes["learn.learning_rate_actor"] = 1e-4  # which splits a group of the optimizer
    live.policy.reset_config(changes)
    live.learn(1)
    again = Rig(kind)
    again.load(live.saved())
    assert {name: hint_of(again.policy.cfg, name)[1] for name in changes} == changes
    assert same(live.learn(2), again.learn(2))
    assert same(live.state(), again.state())
    first = Rig(kind)
    again.load(first.saved())
    assert again.policy.cfg.to_dict() == first.policy.cfg.to_dict()


def test_a_state_whose_settings_do_not_fit_changes_nothing():
    live = Rig(KINDS["SAC"])
    live.policy.reset_config({"learn.batch_size": 5})
    state = live.policy.state_dict()
    before, cfg = live.policy.state_dict(), live.policy.cfg.to_dict()
    for wrong in ({"learn.gone": 3}, {"learn.batch_size": -1}, {"model.activation": "tanh"}, 3):
        with pytest.raises(StateDictError, match=r"state\[\"settings\"\]"):
            live.policy.load_state_dict({**state, "settings": wrong})
    with pytest.raises(StateDictError, match="train_iter"):
        live.policy.load_state_dict({**state, "settings": {"learn.batch_size": 7}, "train_iter": -1})
    assert live.policy.cfg.to_dict() == cfg
    assert same(live.policy.state_dict(), before)


@pytest.mark.few
@pytest.mark.parametrize("kind", [KINDS["PPO"], KINDS["SAC"], KINDS["C51"], KINDS["R2D2"], KINDS["CQL"]])
def test_what_another_policy_has_learned_comes_without_its_settings(kind):
    own = {"learn.learning_rate": 2e-4, "learn.learning_rate_actor": 7e-4, "learn.entropy_weight": 0.3}
    source, target = Rig(kind, seed=1), Rig(kind, **own)
    source.learn(2)
    target.learn(1)
    before = target.policy.state_dict()
    target.policy.load_learned_state(source.policy.learned_state())
    assert all(map(torch.equal, target.policy.weights, source.policy.weights))
    if hasattr(target.policy, "target_model"):
        assert same(target.policy.target_model.state_dict(), source.policy.target_model.state_dict())
    theirs = dict(source.policy.model.named_parameters())
    for name, param in target.policy.model.named_parameters():
        found, wanted = (rig.policy.optimizer.state.get(one, {}) for rig, one in ((target, param), (source, theirs[name])))
        assert same(dict(found), dict(wanted)), name
    after = target.policy.state_dict()
    for name in ("train_iter", "learn", "collect", "evaluate", "made_with", "entropy_coeff"):
        assert same(after.get(name), before.get(name)), name
    assert same(after["optimizer"]["param_groups"], before["optimizer"]["param_groups"])
    assert after["version"] > before["version"]
    assert all(map(torch.equal, target.policy.collect_mode.current().weights, source.policy.weights))


def test_what_does_not_fit_is_not_taken():
    small, large = Rig(KINDS["DQN"]), Rig(KINDS["DQN"], **{"model.encoder_hidden_size_list": [5]})
    before = small.policy.state_dict()
    with pytest.raises(StateDictError, match="encoder_hidden_size_list"):
        small.policy.load_learned_state(large.policy.learned_state())
    with pytest.raises(StateDictError, match="wants a result of learned_state"):
        small.policy.load_learned_state(large.policy.state_dict())
    assert same(small.policy.state_dict(), before)


def test_epsilon_and_evaluations_follow():
    cfg = config_of(KINDS["DQN"])
    env = make_envs("CartPole-v1", 2, seed=0)
    policy = KINDS["DQN"](cfg.policy, env.single_observation_space, env.single_action_space)
    handler, evaluator = eps_greedy_handler(cfg), interaction_evaluator(cfg, policy.eval_mode, env)
    ctx = OnlineRLContext(env_step=100_000, train_iter=10, last_eval_iter=4)
    handler(ctx)
    assert ctx.collect_kwargs["eps"] == pytest.approx(0.04)
    policy.reset_config({"other.eps.end": 0.5, "other.eps.decay": 10})
    handler(ctx)
    assert ctx.collect_kwargs["eps"] == 0.5
    evaluator(ctx)
    assert ctx.eval_value == -float("inf")
    policy.reset_config({"eval.evaluator.eval_freq": 6})
    evaluator(ctx)
    assert ctx.eval_value > 0


def table():
    """The rows of the table of settings in docs/populations.md, made from the declarations."""
    found: dict = {}
    for short, kind in KINDS.items():
        for name, is_live, words in settings_of(kind.config_type()):
            section = name.partition(".")[0] if name.startswith(("model.", "learners.")) and not is_live else name
            found.setdefault((not is_live, section, words.rstrip(".")), {})[short] = None
    names = [name for _, name, _ in found]
    rows = []
    for (_, name, words), shorts in sorted(found.items()):
        of = f" of {', '.join(shorts)}" if names.count(name) > 1 else ""
        rows.append(f"| `{name}`{of} | {words} |")
    return rows


def test_the_page_has_the_table_of_settings():
    page = (Path(__file__).parents[2] / "docs/populations.md").read_text(encoding="utf-8")
    rows = table()
    assert [line for line in page.splitlines() if line in set(rows)] == rows
