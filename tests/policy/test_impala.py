"""IMPALA against V-trace's sums written out, its minibatches of environments, and what padding and lag do to it."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.policy import ColumnError, IMPALAPolicy, IMPALAPolicyConfig

OBS, BOX = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
GAMMA = 0.9


def made(action_space=None, double_precision: bool = False, observation_space=OBS, **settings) -> IMPALAPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    cfg = IMPALAPolicyConfig().override(
        {"collect.discount_factor": GAMMA, "learn.entropy_weight": 0.0, "learn.lr_schedule": None, **settings}
    )
    policy = IMPALAPolicy(cfg, observation_space, action_space or spaces.Discrete(3))
    if double_precision:
        policy.model.double()
    return policy


def rollout(t: int = 7, b: int = 4, p_end: tuple[float, float] = (0.15, 0.15), start: int = 0, dtype=torch.float64, seed=0):
    """Random episodes, [t, b]: next_obs is the next row's obs, but at the end of an episode something of its own."""
    g = torch.Generator().manual_seed(seed)
    obs, final = torch.randn(2, t + 1, b, 5, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = (torch.rand(t, b, generator=g) < p for p in p_end)
    return {
        "obs": obs[:-1],
        "next_obs": torch.where((terminated | truncated).unsqueeze(-1), final[1:], obs[1:]),
        "action": torch.randint(3, (t, b), generator=g) + start,
        "log_prob": (torch.randn(t, b, generator=g, dtype=torch.float64) - 1.1).to(dtype),
        "reward": torch.randn(t, b, generator=g, dtype=torch.float64).to(dtype),
        "terminated": terminated,
        "truncated": truncated,
    }


def loss_by_definition(policy, batch, start=0, vtrace=True, rho_clip=1.0, c_clip=1.0, lambda_=0.95, entropy_weight=0.0):
    """Equation 1 of the paper as the sum that it is, for every step of every environment by itself."""
    shape = tuple(batch["reward"].shape)
    names = ("log_prob", "entropy", "ratio", "value", "next_value")
    found = {name: np.zeros(shape) for name in names}
    for place in np.ndindex(shape):
        logit, value = (x[0].tolist() for x in policy.model(batch["obs"][place].unsqueeze(0)))
        total = math.fsum(map(math.exp, logit))
        probability = [math.exp(x) / total for x in logit]
        found["log_prob"][place] = math.log(probability[batch["action"][place] - start])
        found["entropy"][place] = -math.fsum(p * math.log(p) for p in probability)
        found["ratio"][place] = math.exp(found["log_prob"][place] - batch["log_prob"][place].item())
        found["value"][place] = value
        following = policy.model.values(batch["next_obs"][place].unsqueeze(0)).item()
        found["next_value"][place] = 0.0 if batch["terminated"][place] else following
    reward, done = batch["reward"].numpy(), (batch["terminated"] | batch["truncated"]).numpy()
    ratio = found["ratio"] if vtrace else np.ones(shape)
    target, advantage = np.zeros(shape), np.zeros(shape)
    for t, b in np.ndindex(shape):
        target[t, b], weight = found["value"][t, b], 1.0
        for k in range(t, shape[0]):
            delta = reward[k, b] + GAMMA * found["next_value"][k, b] - found["value"][k, b]
            target[t, b] += weight * min(rho_clip, ratio[k, b]) * delta
            weight *= GAMMA * lambda_ * min(c_clip, ratio[k, b])
            if done[k, b]:
                break
    for t, b in np.ndindex(shape):
        is_cut = done[t, b] or t + 1 == shape[0]
        after = found["next_value"][t, b] if is_cut else target[t + 1, b]
        advantage[t, b] = min(rho_clip, ratio[t, b]) * (reward[t, b] + GAMMA * after - found["value"][t, b])
    parts = {
        "policy_loss": -(found["log_prob"] * advantage).mean(),
        "vf_loss": ((found["value"] - target) ** 2).mean() / 2,
        "entropy": found["entropy"].mean(),
        "rho_mean": np.minimum(rho_clip, found["ratio"]).mean(),
        "kl": (found["ratio"] - 1 - np.log(found["ratio"])).mean(),
    }
    return {**parts, "total_loss": parts["policy_loss"] + 0.5 * parts["vf_loss"] - entropy_weight * parts["entropy"]}


ENDINGS = {"none": (0.0, 0.0), "terminated": (1.0, 0.0), "truncated": (0.0, 1.0), "some": (0.2, 0.2)}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("t", "b", "start"), [(7, 3, 0), (1, 1, 0), (1, 3, 2), (6, 1, 0)])
def test_the_loss_matches_the_papers_sums(t, b, start, ending):
    policy = made(spaces.Discrete(3, start=start), double_precision=True, learn__adv_norm=False)
    batch = rollout(t, b, ENDINGS[ending], start)
    loss, stats = policy.loss(tree(batch))
    expected = loss_by_definition(policy, batch, start)

    np.testing.assert_allclose(loss.item(), expected["total_loss"], rtol=1e-10)
    assert stats.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [(True, 2.0, 1.0, 1.0, 0.1), (True, 0.5, 3.0, 0.8, 0.0), (False, 1.0, 1.0, 0.9, 0.01)])
def test_each_setting_is_in_the_loss(options):
    options = dict(zip(("vtrace", "rho_clip", "c_clip", "lambda_", "entropy_weight"), options))
    settings = {f"learn__{name}": x for name, x in options.items() if name != "lambda_"}
    policy = made(double_precision=True, learn__adv_norm=False, collect__gae_lambda=options["lambda_"], **settings)
    batch = rollout()
    expected = loss_by_definition(policy, batch, **options)

    np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), expected["total_loss"], rtol=1e-10)


def test_neither_targets_nor_importance_weights_have_a_gradient():
    policy = made(double_precision=True, learn__adv_norm=False, learn__value_weight=0.0)
    batch = rollout(p_end=(1.0, 0.0))
    policy.loss(tree(batch))[0].backward()
    found = [param.grad.clone() for param in policy.model.actor.parameters()]
    policy.model.zero_grad()
    log_prob = policy.model.logits(batch["obs"]).log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    rho = (log_prob.detach() - batch["log_prob"]).exp().clamp(max=1)
    error = batch["reward"] - policy.model.values(batch["obs"]).detach()  # of episodes of one step
    (-(log_prob * rho * error).mean()).backward()

    for grad, param in zip(found, policy.model.actor.parameters(), strict=True):
        torch.testing.assert_close(grad, param.grad, rtol=1e-10, atol=1e-12)
    assert all(param.grad is None for param in policy.model.critic.parameters())


def padded(space, elements, junk: float) -> dict:
    """A batch in which some rows are no steps, and hold junk."""
    batch, valid = rollout(dtype=torch.float32), torch.rand(7, 4, generator=torch.Generator().manual_seed(1)) < 0.7
    valid[0] = True
    batch["truncated"][:-1] |= ~valid[1:]  # what is followed by padding ends an episode
    obs, next_obs = (elements(space, 7, 4, seed=seed) for seed in range(2))
    floats = (obs["x"] if isinstance(obs, dict) else obs, batch["log_prob"], batch["reward"])
    for leaf in floats:
        leaf[~valid.numpy() if isinstance(leaf, np.ndarray) else ~valid] = junk
    return {**batch, "obs": obs, "next_obs": next_obs, "valid": valid}


@pytest.mark.parametrize("adv_norm", [False, True])
@pytest.mark.parametrize("space", [OBS, spaces.Dict({"keys": spaces.Discrete(4, start=1), "x": spaces.Box(-1, 1, (2, 2))})])
def test_padding_is_not_learned_from_nor_looked_at(space, adv_norm, elements, same):
    policies, outputs = [made(observation_space=space, learn__adv_norm=adv_norm) for _ in range(3)], []
    for policy, junk in zip(policies, (0.0, 1e6, torch.nan), strict=True):
        outputs.append(policy.learn_mode.forward(tree(padded(space, elements, junk))))

    assert same(policies[0].get_weights(), policies[1].get_weights())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(outputs[2], outputs[0])


def test_a_batch_without_padding_is_the_same_with_and_without_a_mask():
    policy, batch = made(double_precision=True), rollout()
    masked = {**batch, "valid": torch.ones(7, 4, dtype=torch.bool)}

    torch.testing.assert_close(policy.loss(tree(batch))[0], policy.loss(tree(masked))[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("batch_size", "parts"), [(28, 1), (1000, 1), (14, 2), (7, 4), (1, 4)])
def test_each_epoch_takes_a_gradient_step_for_some_environments_whole_columns(batch_size, parts):
    policy = made(learn__batch_size=batch_size, learn__epoch_per_collect=3)
    policy.learn_mode.forward(tree(rollout(dtype=torch.float32)))

    assert policy.train_iter == 3 * parts


def test_over_an_epoch_each_environment_is_learned_from_once():
    policy = made(learn__batch_size=7, learn__learning_rate=0.0, learn__adv_norm=False)
    batch = rollout(dtype=torch.float32)
    output = policy.learn_mode.forward(tree(batch))
    _, whole = policy.loss(tree(batch))

    torch.testing.assert_close({name: output[name] for name in whole}, whole)  # equal parts, no step: as one batch


@pytest.mark.parametrize("space", [BOX, spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": BOX, "b": spaces.MultiBinary(2)})])
def test_what_the_policy_did_just_now_has_importance_weight_1(space):
    policy = made(space, learn__epoch_per_collect=1)
    obs = np.random.default_rng(0).normal(size=(7, 4, 5)).astype(np.float32)
    with torch.inference_mode():
        steps = [policy.collect_mode.forward(row) for row in obs]
    actions = [action for action, *_ in steps]
    action = {name: np.stack([a[name] for a in actions]) for name in actions[0]} if isinstance(actions[0], dict) else None
    batch = rollout(dtype=torch.float32) | {"obs": torch.from_numpy(obs)}
    batch |= {"action": np.stack(actions) if action is None else action}
    batch |= {"log_prob": np.stack([outputs["log_prob"] for _, _, outputs in steps])}
    output = policy.learn_mode.forward(tree(batch))

    assert float(output["rho_mean"]) == pytest.approx(1, abs=1e-5)
    assert float(output["kl"]) == pytest.approx(0, abs=1e-6)


def test_the_pipeline_need_not_add_anything_and_what_it_does_not_give_is_missed_by_name():
    class Greedy(IMPALAPolicy):
        def loss(self, batch):
            return super().loss(batch)[0] + batch.advantage.mean(), {}

    with pytest.raises(ColumnError, match="loss of Greedy reads the column 'advantage'"):
        Greedy(IMPALAPolicyConfig(), OBS, spaces.Discrete(2)).dry_run()
    assert set(made().columns) == {"obs", "next_obs", "action", "log_prob", "reward", "terminated", "truncated"}


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_saved_state_goes_on_bit_for_bit(optimizer, same):
    settings = {"learn__optimizer": optimizer, "learn__batch_size": 7, "learn__epoch_per_collect": 2}
    policy, other = made(**settings), made(**settings)
    for seed in range(3):
        policy.learn_mode.forward(tree(rollout(dtype=torch.float32, seed=seed)))
    other.load_state_dict(policy.state_dict())
    for seed in range(3, 8):
        batch = tree(rollout(dtype=torch.float32, seed=seed))
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))

    assert same(policy.state_dict(), other.state_dict())
