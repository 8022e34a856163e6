"""GAIL: its rewards and its loss against their equations, what the discriminator learns, and what it saves."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import check_continuation, check_refusal

from ding_lite.data import nested, tree
from ding_lite.data.trees import map_leaves, with_leaves
from ding_lite.datasets import open_dataset
from ding_lite.envs import SpaceError
from ding_lite.policy import NonFiniteError
from ding_lite.rewards import GAILRewardConfig, GAILRewardModel

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
OBS = {
    "a vector": VECTOR,
    "a category": spaces.Discrete(5, start=1),
    "an image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "parts and a mask": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4), "action_mask": spaces.MultiBinary(3)}),
}
ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "Discrete from 2 on": spaces.Discrete(3, start=2),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "parts": spaces.Dict({"kind": spaces.Discrete(2, start=-1), "force": spaces.Box(-2.0, 2.0, (1,), np.float32)}),
}
SMALL = {"hidden_size_list": [5], "batch_size": 8, "update_per_collect": 1}


def sampled(space, count, seed):
    """Samples of a space, as arrays nested like it."""
    space.seed(seed)
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([row[name] for row in rows]) for name in space.spaces}
    return np.stack(rows)


def columns(obs=VECTOR, action=ACTIONS["Discrete"], count=12, seed=0):
    done = np.arange(count) == count - 1
    found = {"obs": sampled(obs, count, seed), "action": sampled(action, count, seed), "terminated": done}
    found["next_obs"] = map_leaves(lambda leaf: np.roll(leaf, -1, 0), found["obs"])
    return {**found, "reward": np.full(count, np.nan, np.float32), "truncated": np.zeros(count, np.bool_)}


def made(obs=VECTOR, action=ACTIONS["Discrete"], expert=None, seed=0, **settings):
    cfg = GAILRewardConfig(**{**SMALL, **settings})
    return GAILRewardModel(cfg, obs, action, columns(obs, action) if expert is None else expert, seed=seed)


def batch(seed=1, count=12, **of):
    given = columns(count=count, seed=seed, **of)
    return tree({**given, "reward": np.arange(count, dtype=np.float32)})


def in_time(batch, lead):
    """The rows of a batch as [*lead, ...]."""
    return tree(map_leaves(lambda leaf: leaf.unflatten(0, lead), nested(batch)))


class Oracle:
    """The discriminator of vectors and actions in float64, from the equations: a network of one hidden layer, a sigmoid."""

    def __init__(self, model, action):
        expert = model.expert.rows(("obs", "action"))
        self.action, self.obs = action, np.asarray(expert["obs"], np.float64)
        self.acted = None if isinstance(action, spaces.Discrete) else np.asarray(expert["action"], np.float64)
        self.weights = [param.detach().double().clone() for param in model.discriminator[1].parameters()]

    def features(self, obs, action):
        def normal(x, of):
            return np.clip((np.asarray(x, np.float64) - of.mean(0)) / np.sqrt(of.var(0) + 1e-8), -10, 10)

        if self.acted is None:
            action = np.eye(int(self.action.n))[np.asarray(action) - int(self.action.start)]
        else:
            action = normal(np.clip(action, self.action.low, self.action.high), self.acted)
        # the parts of a Dict are in the order of their names
        return torch.from_numpy(np.concatenate([action, normal(obs, self.obs)], 1))

    def logit(self, x):
        w1, b1, w2, b2 = self.weights
        return ((x @ w1.T + b1).relu() @ w2.T + b2).squeeze(-1)

    def slope(self, x):
        """The norm of the gradient of the logit, written out."""
        w1, b1, w2, _ = self.weights
        return ((x @ w1.T + b1 > 0).double() * w2 @ w1).norm(dim=-1)


@pytest.mark.parametrize("action", [it for it in ACTIONS.values() if not isinstance(it, spaces.Dict)], ids=str)
def test_the_reward_is_a_function_of_the_probability_of_the_expert(action):
    given = batch(action=action)
    if isinstance(action, spaces.Box):
        given = with_leaves(given, action=given.action * 3)  # which the environment clips
    models = {kind: made(action=action, reward=kind) for kind in ("positive", "log_ratio", "negative")}
    oracle = Oracle(models["positive"], action)
    d = torch.sigmoid(oracle.logit(oracle.features(given.obs.numpy(), given.action.numpy())))
    expected = {"positive": -torch.log(1 - d), "log_ratio": torch.log(d) - torch.log(1 - d), "negative": torch.log(d)}

    for kind, model in models.items():
        estimated = model.estimate(given)
        np.testing.assert_allclose(estimated.reward, expected[kind], rtol=1e-4, atol=1e-5)
        assert torch.equal(estimated.raw_reward, given.reward)
        assert torch.equal(model.estimate(estimated).raw_reward, given.reward)
        assert estimated.reward.dtype == given.reward.dtype
    assert "raw_reward" not in given.keys()  # noqa: SIM118  a tree's `in` asks its leaves


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("penalty", [0.0, 10.0])
def test_the_loss_and_its_gradient_are_those_of_the_paper(penalty, smoothing):
    action = ACTIONS["Discrete from 2 on"]
    model = made(action=action, gradient_penalty=penalty, label_smoothing=smoothing)
    expert, policy = tree(columns(action=action, count=6, seed=5)), batch(action=action, count=6)
    share = torch.rand(6, 1, generator=torch.Generator().manual_seed(0))
    oracle = Oracle(model, action)
    for weight in oracle.weights:
        weight.requires_grad_()
    theirs, mine = (oracle.features(it.obs.numpy(), it.action.numpy()) for it in (expert, policy))
    d_expert, d_policy = torch.sigmoid(oracle.logit(theirs)), torch.sigmoid(oracle.logit(mine))
    loss = -((1 - smoothing) * d_expert.log() + smoothing * (1 - d_expert).log()).mean()
    loss = loss - (smoothing * d_policy.log() + (1 - smoothing) * (1 - d_policy).log()).mean()
    slope = oracle.slope(share * theirs + (1 - share) * mine)
    expected = torch.autograd.grad(loss + penalty * (slope - 1).square().mean(), oracle.weights, allow_unused=True)
    logged = model._step(model._inputs(expert), model._inputs(policy), share)

    np.testing.assert_allclose(logged["gail_loss"], loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(logged["gail_expert_prob"], d_expert.detach().mean(), rtol=1e-5)
    np.testing.assert_allclose(logged["gail_policy_prob"], d_policy.detach().mean(), rtol=1e-5)
    for param, gradient in zip(model.discriminator[1].parameters(), expected):
        torch.testing.assert_close(param.grad.double(), gradient, rtol=1e-3, atol=1e-5)


def test_the_discriminator_tells_who_acted_and_rewards_what_the_expert_does():
    expert = columns(count=64)
    expert["action"] = (expert["obs"][:, 0] > 0).astype(np.int64)
    model, given = (
        made(expert=expert, batch_size=64, hidden_size_list=[32], learning_rate=1e-2, gradient_penalty=1.0),
        batch(count=64),
    )
    for _ in range(60):
        logged = model.learn(given)
    like, unlike = (model.estimate(with_leaves(given, action=wanted)).reward for wanted in
                    ((given.obs[:, 0] > 0).long(), (given.obs[:, 0] <= 0).long()))  # fmt: skip

    assert logged["gail_expert_prob"] > logged["gail_policy_prob"] + 0.1
    assert like.mean() > unlike.mean() + 0.1
    assert model.steps == 60


def normal(mean, std, seed, count=20_000):
    """Transitions with observations from a normal distribution, and one action."""
    obs, ends = np.random.default_rng(seed).normal(mean, std, (count, 1)).astype(np.float32), np.arange(count) == count - 1
    found = {"obs": obs, "next_obs": np.roll(obs, -1, 0), "action": np.zeros(count, np.int64), "terminated": ends}
    return {**found, "reward": np.zeros(count, np.float32), "truncated": ends & False}


@pytest.mark.parametrize(("expert", "policy"), [((0.5, 1.0), (-0.5, 1.0)), ((0.5, 0.7), (-0.5, 1.2))])
def test_the_optimum_is_the_ratio_of_the_densities(expert, policy):
    """D = p / (p + q) for the densities p of the expert and q of the policy, so that its logit is log(p / q)."""
    settings = {"hidden_size_list": [32], "batch_size": 1000, "update_per_collect": 300, "learning_rate": 3e-3}
    cfg = GAILRewardConfig(**settings, gradient_penalty=0.0, reward="log_ratio")
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    model = GAILRewardModel(cfg, space, ACTIONS["Discrete"], normal(*expert, seed=0))
    model.learn(tree(normal(*policy, seed=1)))
    x = np.linspace(-1.5, 1.5, 31)
    rows = {"obs": x[:, None].astype(np.float32), "action": np.zeros(31, np.int64), "reward": np.zeros(31, np.float32)}
    found = model.estimate(tree(rows)).reward.numpy()
    p, q = (np.exp(-(((x - mean) / std) ** 2) / 2) / std for mean, std in (expert, policy))

    assert np.abs(np.log(p / q)).max() > 1.4
    np.testing.assert_allclose(found, np.log(p / q), atol=0.3)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS.keys())
@pytest.mark.parametrize("obs", OBS.values(), ids=OBS.keys())
@pytest.mark.parametrize("lead", [(6,), (1, 3)])
def test_spaces_of_every_kind_and_rollouts_as_well_as_rows(obs, action, lead):
    count = int(np.prod(lead))
    given, model = batch(obs=obs, action=action, count=count), made(obs, action, update_per_collect=2)
    given = in_time(given, lead)
    logged = model.learn(given)

    assert set(logged) == {"gail_loss", "gail_expert_prob", "gail_policy_prob"}
    assert all(value.isfinite() and value.ndim == 0 for value in logged.values())
    assert model.estimate(given).reward.shape == lead
    assert (model.estimate(given).reward > 0).all()
    assert model.steps == 2


def test_it_goes_on_from_a_saved_state_bit_for_bit():
    one, other = made(update_per_collect=3), made(update_per_collect=3)
    check_continuation(one, other, map(batch, range(3)), map(batch, range(3, 6)))
    assert one.steps == 18


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("discriminator",), None, "this state of GAILRewardModel lacks 'discriminator', it has"),
        (("steps",), -1, r"state\['steps'\] is -1, expected an integer from 0 to"),
        (("discriminator", "1.layers.0.weight"), torch.zeros(2), r"\['1.layers.0.weight'\] is float32 \[2\]"),
        (("norm", "parts.1.var"), -torch.ones(3).double(), r"state\['norm'\]\['parts.1.var'\] holds -1.0, .* at least 0"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_key_and_changes_nothing(path, value, words):
    model = made()
    model.learn(batch())
    check_refusal(model, path, value, words)


def test_its_numbers_come_from_its_seed_alone():
    def learned(seed, everywhere):
        torch.manual_seed(everywhere)
        model = made(seed=seed)
        return model.learn(batch())["gail_loss"]

    assert torch.equal(learned(0, 1), learned(0, 2))
    assert not torch.equal(learned(0, 1), learned(3, 1))


def test_rows_that_are_no_steps_do_not_count():
    given, valid = batch(), torch.arange(12) % 3 > 0
    steps = tree({name: given[name][valid] for name in ("obs", "action", "reward")})
    junk = in_time(with_leaves(given, obs=given.obs.masked_fill(~valid[:, None], float("nan")), valid=valid), (4, 3))
    one, other = made(), made()

    assert torch.equal(one.learn(junk)["gail_loss"], other.learn(steps)["gail_loss"])
    assert torch.equal(one.estimate(given).reward, other.estimate(given).reward)
    assert one.learn(with_leaves(junk, valid=torch.zeros(4, 3, dtype=torch.bool))) == {}
    assert one.steps == 1


def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing():
    model, given = made(), batch()
    before = str(model.state_dict())
    with pytest.raises(NonFiniteError, match=r"GAILRewardModel.learn\(\) got NaN or infinity in obs: find out"):
        model.learn(with_leaves(given, obs=given.obs * float("nan")))

    assert str(model.state_dict()) == before


def test_statistics_are_those_of_the_whole_expert_however_many_transitions_are_read_at_once(monkeypatch):
    whole = made()
    monkeypatch.setattr("ding_lite.rewards.gail._AT_ONCE", 5)
    pieces = made()

    torch.testing.assert_close(pieces.norm.state_dict(), whole.norm.state_dict())
    obs = columns()["obs"].astype(np.float64)
    np.testing.assert_allclose(whole.norm.state_dict()["parts.1.mean"], obs.mean(0))


def test_an_expert_of_another_environment_or_without_a_step_is_refused():
    other = spaces.Box(-1.0, 1.0, (4,), np.float32)
    for words, expert in (
        (r"obs has elements float32 \(4,\)", columns(obs=other)),
        (r"action has elements float32 \(2,\)", columns(action=ACTIONS["Box"])),
        ("obs has the parts", columns(obs=OBS["parts and a mask"])),
        (
            r"action has elements float32 \(\), and Discrete\(3\) wants int64",
            {**(it := columns()), "action": np.float32(it["action"])},
        ),
        ("action has the number 3, which is outside", {**it, "action": it["action"] + 1}),
    ):
        with pytest.raises(SpaceError, match=f"does not fit the environment: the column {words}"):
            made(expert=expert)
    wider = spaces.Box(-2.0, 2.0, (2,), np.float32)  # actions are clipped to the bounds of the environment
    recorded = open_dataset(columns(action=wider) | {"reward": np.zeros(12, np.float32)}, VECTOR, wider)
    assert made(action=ACTIONS["Box"], expert=recorded).expert is recorded
    three = open_dataset(columns(action=spaces.Discrete(3)), VECTOR, spaces.Discrete(3))
    with pytest.raises(SpaceError, match="recorded with .* Discrete\\(3\\), and the environment has Discrete\\(4"):
        made(action=spaces.Discrete(4), expert=three)
    nothing = {name: leaf[:0] for name, leaf in columns().items()}
    with pytest.raises(ValueError, match="no transitions|no episodes|is empty"):
        made(expert=nothing)


def test_a_state_that_has_learned_from_another_expert_is_loaded_with_a_warning():
    state, other = made().state_dict(), made(expert=columns(seed=3))
    with pytest.warns(UserWarning, match="goes on with the expert of the dataset .* has learned from other data"):
        other.load_state_dict(state)
    del state["expert"]  # of an earlier version
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
        made().load_state_dict(made().state_dict())
