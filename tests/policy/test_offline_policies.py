"""What the policies that learn from datasets share: edge cases of batches, errors, saved states, and learning on online."""

import re

import numpy as np
import pytest
import torch
from dataset_rows import box_rows
from gymnasium import spaces

import ding_lite.config
from ding_lite import Task
from ding_lite import policy as policy_package
from ding_lite.config import OfflineRunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer, tree
from ding_lite.envs import SpaceError, make_envs
from ding_lite.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler, trainer
from ding_lite.policy import (
    AWACPolicy,
    BCPolicy,
    CQLPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    IQLPolicy,
    NonFiniteError,
    SACPolicy,
    StateDictError,
    TD3BCPolicy,
    TD3Policy,
)

OBS, BOX, DISCRETE = spaces.Box(-1, 1, (3,)), spaces.Box(np.float32([-2, -1]), np.float32([2, 3])), spaces.Discrete(3, start=2)
KINDS = {
    "BC": (BCPolicy, DISCRETE),
    "BC, Box": (BCPolicy, BOX),
    "DiscreteCQL": (DiscreteCQLPolicy, DISCRETE),
    "DiscreteIQL": (DiscreteIQLPolicy, DISCRETE),
    "CQL": (CQLPolicy, BOX),
    "TD3BC": (TD3BCPolicy, BOX),
    "IQL": (IQLPolicy, BOX),
    "AWAC": (AWACPolicy, BOX),
}
CONFIGS = {name: it for name, it in vars(ding_lite.config).items() if isinstance(it, type) and issubclass(it, OfflineRunConfig)}
del CONFIGS["OfflineRunConfig"]


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


def made(name, observation_space=OBS, action_space=None, **settings):
    kind, space = KINDS[name]
    small = {"seed": 0, "model.encoder_hidden_size_list": [8], **({"learn.num_actions": 2} if kind is CQLPolicy else {})}
    return kind({**small, **settings}, observation_space, action_space or space)


def rows(name, kind="mixed", seed=0, **options):
    batch = box_rows(kind, seed, dtype=torch.float32, **options)
    if KINDS[name][1] is DISCRETE:
        batch["action"] = torch.arange(len(batch["reward"])) % 3 + 2
    return batch


def learned(policy, name, steps, first=0):
    return [policy.learn_mode.forward(tree(rows(name, seed=first + step))) for step in range(steps)]


# Batches.


@pytest.mark.few
@pytest.mark.parametrize("kind", ["one row", "all terminated", "none terminated", "several steps"])
def test_batches_of_each_kind_give_finite_losses_and_weights(name, kind):
    policy = made(name, **({"learn.bc_steps": 2} if name == "CQL" else {}))
    for seed in range(4):
        stats = policy.learn_mode.forward(tree(rows(name, kind, seed)))

    assert all(value.isfinite() and value.ndim == 0 for value in stats.values())
    assert all(weight.isfinite().all() for weight in policy.get_weights().values())


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("BC, Box", {}),
        ("BC, Box", {"model.mixture_components": 3}),
        ("CQL", {"learn.bc_steps": 100, "learn.learning_rate_actor": 0.02}),
        ("TD3BC", {"learn.bc_alpha": 0.0}),
        ("IQL", {}),
        ("AWAC", {}),
    ],
)
def test_actions_that_are_all_at_the_bounds_give_finite_losses_and_are_learned(name, settings):
    policy, batch = made(name, **settings, **{"learn.learning_rate": 0.02}), rows(name, n=32)
    batch["action"] = torch.tensor([2.0, -1.0]).repeat(32, 1)  # a bound of each number
    for _ in range(100):
        stats = policy.learn_mode.forward(tree(batch))
    found = policy.eval_mode.forward(batch["obs"].numpy())[0]

    assert all(value.isfinite() for value in stats.values())
    np.testing.assert_allclose(found, batch["action"], atol=0.6)


@pytest.mark.parametrize("bc_steps", [0, 5])
def test_transitions_of_weight_zero_teach_no_network_anything(name, bc_steps):
    policy = made(name, **{"model.normalize_obs": False, **({"learn.bc_steps": bc_steps} if name == "CQL" else {})})
    before = {path: leaf.clone() for path, leaf in policy.get_weights().items()}
    batch = rows(name)
    for weight, learns in ((0.0, False), (1.0, True)):
        for _ in range(2):
            policy.learn_mode.forward(tree({**batch, "weight": torch.full((len(batch["reward"]),), weight)}))
        after = policy.get_weights()
        learned_parts = {path for path in before if path != "log_alpha" and not torch.equal(before[path], after[path])}
        assert bool(learned_parts) == learns


def test_weights_of_one_give_the_losses_without_weights(name):
    losses = []
    for weight in ({}, {"weight": torch.ones(6)}):
        policy = made(name, **({"learn.bc_steps": 1} if name == "CQL" else {}))
        stats = [policy.learn_mode.forward(tree({**rows(name, seed=step), **weight})) for step in range(3)]
        losses.append([float(one[key]) for one in stats for key in sorted(one) if key.endswith("loss")])

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_terminated_steps_have_no_next_value(name):
    batch = rows(name, "all terminated")
    losses = []
    for next_obs in (batch["next_obs"], batch["next_obs"] + 1):
        policy = made(name, **({"learn.min_q_weight": 0.0} if name == "CQL" else {}))  # the penalty uses actions at next_obs
        losses.append(policy.loss(tree({**batch, "next_obs": next_obs}))[0])

    assert torch.equal(*losses)


def test_nothing_is_learned_from_the_next_observation_of_a_terminated_step(name):
    batch = rows(name, "all terminated")
    batch["terminated"][1::2] = False
    batch["next_obs"][::2] = float("nan")
    policy = made(name)
    stats = policy.learn_mode.forward(tree(batch))

    assert all(value.isfinite() for value in stats.values())
    assert all(weight.isfinite().all() for weight in policy.get_weights().values())


def test_weights_of_one_change_nothing_and_of_zero_leave_rows_out(name):
    batch = rows(name, n=8)
    plain = made(name).loss(tree(batch))[1]
    ones = made(name).loss(tree({**batch, "weight": torch.ones(8)}))[1]
    for key in plain:
        torch.testing.assert_close(ones[key], plain[key])
    if name == "BC":
        half = made(name).loss(tree({**batch, "weight": torch.tensor([2.0] * 4 + [0.0] * 4)}))[0]
        torch.testing.assert_close(half, made(name).loss(tree({key: leaf[:4] for key, leaf in batch.items()}))[0])


# Errors.


@pytest.mark.parametrize("reward", [float("nan"), 1e30])
def test_a_reward_that_makes_the_loss_infinite_is_refused_and_leaves_the_weights(name, reward, same):
    if name.startswith("BC"):
        return
    policy, batch = made(name), rows(name)
    batch["reward"][2] = reward
    before = {key: weight.clone() for key, weight in policy.get_weights().items()}
    if name == "DiscreteCQL" and reward == 1e30:  # its loss is linear in large errors
        policy.learn_mode.forward(tree(batch))
        return
    words = "reward of the batch it learns from holds NaN" if np.isnan(reward) else "is inf in gradient step 0"
    with pytest.raises(NonFiniteError, match=words):
        policy.learn_mode.forward(tree(batch))

    assert same(policy.get_weights(), before)


def test_a_column_of_another_shape_or_kind_is_refused_by_name(name):
    policy = made(name)
    wrong = {"obs": torch.zeros(6, 4)}
    if KINDS[name][1] is DISCRETE:
        wrong["action"] = torch.zeros(6)
    else:
        wrong["action"] = torch.zeros(6, 5)
    for column, leaf in wrong.items():
        with pytest.raises((TypeError, ValueError, RuntimeError), match=column) as raised:
            policy.learn_mode.forward(tree({**rows(name), column: leaf}))
        assert "batch" in str(raised.value) or "learning" in "".join(raised.value.__notes__)


def test_a_missing_column_is_named(name):
    batch = rows(name)
    del batch["action"]
    with pytest.raises((KeyError, AttributeError), match="action"):
        made(name).learn_mode.forward(tree(batch))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Box(0, 9, (2,), np.int64)])
def test_actions_of_spaces_without_support_are_refused(name, space):
    with pytest.raises(SpaceError):
        made(name, action_space=space)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("IQL", "learn.expectile", 1.1),
        ("IQL", "learn.beta", -1.0),
        ("IQL", "learn.max_weight", 0.0),
        ("AWAC", "learn.awac_lambda", 0.0),
        ("TD3BC", "learn.bc_alpha", -0.1),
        ("CQL", "learn.num_actions", 0),
        ("CQL", "learn.min_q_weight", -1.0),
        ("CQL", "learn.bc_steps", -1),
        ("DiscreteCQL", "learn.min_q_weight", -1.0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, key, value):
    with pytest.raises(ValueError, match=rf"{key.rpartition('.')[2]} = {value}"):
        made(name, **{key: value})


@pytest.mark.parametrize(
    ("setting", "words"),
    [("min_q_version", "version 3"), ("with_lagrange", "lagrange_thresh"), ("with_q_entropy", "deterministic_backup")],
)
def test_settings_of_di_engine_lead_to_what_is_meant(setting, words):
    with pytest.raises(ValueError, match=words):
        CQLPolicy.config_type().override({f"learn.{setting}": 1})


# States.


@pytest.mark.few
def test_a_saved_policy_learns_on_bit_for_bit(name, same):
    policy, other = made(name), made(name, seed=7)
    learned(policy, name, 3)
    other.load_state_dict(policy.state_dict())

    assert same(learned(policy, name, 4, first=3), learned(other, name, 4, first=3))
    assert same(policy.state_dict(), other.state_dict())


@pytest.mark.few
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name, same):
    weights = []
    for seed in (0, 0, 1):
        policy = made(name, seed=seed)
        learned(policy, name, 2)
        weights.append(policy.get_weights())

    assert same(weights[0], weights[1])
    assert not same(weights[0], weights[2])


@pytest.mark.few
@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4), spaces.Dict(x=OBS, y=spaces.MultiBinary(2)), spaces.Box(0, 255, (12, 12, 3), np.uint8)],
    ids=str,
)
def test_observations_of_other_spaces_are_learned_from(name, space, elements):
    obs, next_obs = (elements(space, 6, seed=seed) for seed in (0, 1))
    policy = made(name, observation_space=space)
    stats = policy.learn_mode.forward(tree({**rows(name), "obs": obs, "next_obs": next_obs}))

    assert all(value.isfinite() for value in stats.values())
    assert len(policy.eval_mode.forward(obs)[0]) == 6


# Runs.


@pytest.mark.parametrize("config", CONFIGS)
def test_each_configuration_is_plain_data_with_the_batch_size_of_the_papers(config):
    cfg = CONFIGS[config]()

    assert type(cfg).from_dict(cfg.to_dict()) == cfg
    assert cfg.policy.learn.batch_size == (64 if config.startswith("DecisionTransformer") else 256)


def test_each_configuration_has_a_folder_of_its_own():
    assert len({config().exp_name for config in CONFIGS.values()}) == len(CONFIGS) == 9


@pytest.mark.few
def test_a_trainer_learns_from_the_batches_of_a_middleware(name):
    cfg = OfflineRunConfig()
    policy = made(name)

    def fetch(ctx):
        ctx.train_data = tree(rows(name, seed=ctx.total_step))

    task = Task()
    with task.start(ctx=OfflineRLContext()):
        task.use(fetch)
        task.use(trainer(cfg, policy.learn_mode))
        task.run(max_step=3)

    assert task.ctx.train_iter == policy.train_iter == 3


@pytest.mark.few
@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("BC")])
def test_a_policy_learns_on_online_with_a_collector(name):
    kind, space = KINDS[name]
    env = make_envs("CartPole-v1" if space is DISCRETE else "Pendulum-v1", 2, seed=0)
    config = next(it for it in CONFIGS.values() if type(it().policy) is kind.config_type)
    learn = {"batch_size": 4, "learning_starts": 4, "update_per_collect": 2}
    cfg = config().override({"policy": {"learn": learn, "collect.n_sample": 8, "model.encoder_hidden_size_list": [8]}})
    policy, buffer = kind(cfg.policy, env.single_observation_space, env.single_action_space), ReplayBuffer(64, seed=0)
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        if kind is DiscreteCQLPolicy:
            task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, env))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        task.run(max_step=2)

    assert policy.train_iter == 4


@pytest.mark.parametrize(
    ("offline", "online", "more"),
    [(TD3BCPolicy, TD3Policy, {"model.normalize_obs": True}), (CQLPolicy, SACPolicy, {})],
)
def test_the_online_algorithm_goes_on_with_the_weights_of_the_offline_one(offline, online, more):
    settings = {"model.encoder_hidden_size_list": [8]}
    learned = offline(offline.config_type().override({**settings, "seed": 1}), OBS, BOX)
    policy = online(online.config_type().override({**settings, **more}), OBS, BOX)
    policy.set_weights(learned.get_weights())
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(obs)[0], learned.predict(obs)[0])
    source, target = policy.target_source().state_dict(), policy.target_model.state_dict()
    assert all(torch.equal(target[name], source[name]) for name in target)
    if more:
        with pytest.raises(StateDictError, match="these weights do not fit the network of this TD3Policy"):
            online(online.config_type().override(settings), OBS, BOX).set_weights(learned.get_weights())


@pytest.mark.few
@pytest.mark.parametrize("kind", [TD3BCPolicy, IQLPolicy, CQLPolicy, AWACPolicy, DiscreteIQLPolicy, DiscreteCQLPolicy])
def test_other_actions_are_refused_with_policies_that_learn_from_datasets_and_take_them(kind):
    is_discrete = kind.__name__.startswith("Discrete")
    for refused in (BOX if is_discrete else DISCRETE, spaces.MultiDiscrete([2, 2])):
        with pytest.raises(SpaceError, match=f"^{kind.__name__} wants ") as caught:
            kind(None, OBS, refused)
        named = re.findall(r"[A-Za-z0-9]+Policy", str(caught.value).partition(": use ")[2])
        assert len(named) >= 4
        for name in named[:2]:
            getattr(policy_package, name)(None, OBS, spaces.MultiDiscrete([2, 2]))
        for name in named:
            made = getattr(policy_package, name)(None, OBS, BOX if is_discrete else DISCRETE)
            assert made.learns_from == "transitions"
