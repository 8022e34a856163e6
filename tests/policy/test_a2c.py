"""A2C against its equation row by row, what a step changes, its state, and a chain whose value is known."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.functional import gae
from ding_lite.policy import A2CPolicy, A2CPolicyConfig

OBS, T, B = spaces.Box(-1, 1, (5,), np.float32), 6, 4
BOX = spaces.Box(-1, 1, (2,), np.float32)


def made(action_space=None, double_precision: bool = False, **settings) -> A2CPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    policy = A2CPolicy(A2CPolicyConfig().override(settings), OBS, action_space or spaces.Discrete(3))
    if double_precision:
        policy.model.double()
    return policy


def rows(policy: A2CPolicy, *lead: int, dtype=torch.float64, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(*lead, 5, generator=g, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        logit = policy.model.logits(obs.flatten(0, -2).to(policy.params[0].dtype))
        action, _ = policy.model.distribution.sample(logit, g)
    numbers = torch.randn(3, *lead, generator=g, dtype=torch.float64).to(dtype)
    columns = dict(zip(("advantage", "return_", "value"), numbers))
    return {"obs": obs, "action": action.reshape(*lead, *action.shape[1:]), **columns}


def loss_by_definition(policy, batch, start, adv_norm, value_weight, entropy_weight) -> dict[str, float]:
    n = len(batch["advantage"])
    advantage = batch["advantage"].tolist()
    if adv_norm and n > 1:
        mean = math.fsum(advantage) / n
        std = math.sqrt(math.fsum((a - mean) ** 2 for a in advantage) / (n - 1))
        advantage = [(a - mean) / (std + 1e-8) for a in advantage]
    terms = {"policy_loss": [], "vf_loss": [], "entropy": []}
    for i in range(n):
        logit, value = (x[0].tolist() for x in policy.model(batch["obs"][i : i + 1]))
        total = math.fsum(map(math.exp, logit))
        probability = [math.exp(x) / total for x in logit]
        terms["policy_loss"].append(-math.log(probability[batch["action"][i] - start]) * advantage[i])
        terms["vf_loss"].append((value - batch["return_"][i].item()) ** 2 / 2)
        terms["entropy"].append(-math.fsum(p * math.log(p) for p in probability))
    means = {name: math.fsum(term) / n for name, term in terms.items()}
    total = means["policy_loss"] + value_weight * means["vf_loss"] - entropy_weight * means["entropy"]
    return {**means, "total_loss": total}


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("options", [(True, 0.5, 0.0), (False, 1.0, 0.01), (True, 0.0, 1.0)])
def test_the_loss_matches_its_equation_row_by_row(options, start, n):
    options = dict(zip(("adv_norm", "value_weight", "entropy_weight"), options))
    settings = {f"learn__{name}": x for name, x in options.items()}
    policy = made(spaces.Discrete(3, start=start), double_precision=True, **settings)
    batch = rows(policy, n)
    loss, stats = policy.loss(tree(batch))
    expected = loss_by_definition(policy, batch, start, **options)

    np.testing.assert_allclose(loss.item(), expected["total_loss"], rtol=1e-11)
    assert stats.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-11, atol=1e-14)
    assert not any(stat.requires_grad for stat in stats.values())


def test_a_rollout_is_one_gradient_step_and_what_is_logged_is_of_all_its_steps():
    policy, other = made(), made()
    batch = rows(policy, T, B, dtype=torch.float32)
    output = policy.learn_mode.forward(tree(batch))
    flat = {name: leaf.flatten(0, 1) for name, leaf in batch.items()}
    _, whole = other.loss(tree(flat))
    residual = flat["return_"] - flat["value"]

    assert policy.learn_mode.train_iter == 1
    assert output.keys() == whole.keys() | {"grad_norm", "cur_lr", "vf_explained_var"}
    torch.testing.assert_close({name: output[name] for name in whole}, whole)
    explained = 1 - residual.var(correction=0) / flat["return_"].var(correction=0)
    torch.testing.assert_close(output["vf_explained_var"], explained)


def test_steps_that_were_only_a_reset_are_not_learned_from_nor_logged(same):
    valid = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.8
    policies = [made() for _ in range(2)]
    outputs = []
    for policy, junk in zip(policies, (0.0, torch.nan), strict=True):
        batch = rows(policy, T, B, dtype=torch.float32)
        for name in ("obs", "advantage", "return_", "value"):
            batch[name][~valid] = junk
        outputs.append(policy.learn_mode.forward(tree({**batch, "valid": valid})))

    assert same(policies[0].get_weights(), policies[1].get_weights())
    torch.testing.assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOX, spaces.Dict({"a": BOX, "b": spaces.MultiDiscrete([2, 3])})])
def test_actions_of_any_space_are_collected_and_learned_from(space):
    policy = made(space)
    obs = np.random.default_rng(0).normal(size=(T, B, 5)).astype(np.float32)
    with torch.inference_mode():
        steps = [policy.collect_mode.forward(row)[0] for row in obs]
    action = {name: np.stack([step[name] for step in steps]) for name in steps[0]} if isinstance(steps[0], dict) else None
    columns = rows(made(), T, B, dtype=torch.float32)
    before = policy.get_weights()
    policy.learn_mode.forward(tree({**columns, "obs": obs, "action": np.stack(steps) if action is None else action}))
    after = policy.get_weights()

    assert {name for name in before if not torch.equal(before[name], after[name])} == set(before)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_saved_state_goes_on_bit_for_bit(optimizer, same):
    settings = {"learn__optimizer": optimizer, "model__normalize_obs": True}
    policy, other = made(**settings), made(**settings, seed=5)
    for seed in range(3):
        policy.learn_mode.forward(tree(rows(policy, T, B, dtype=torch.float32, seed=seed)))
    other.load_state_dict(policy.state_dict())
    for seed in range(3, 8):
        batch = tree(rows(made(), T, B, dtype=torch.float32, seed=seed))
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))

    assert same(policy.state_dict()["model"], other.state_dict()["model"])
    assert same(policy.state_dict()["optimizer"], other.state_dict()["optimizer"])
    assert policy.model.normalizer.count == 8 * T * B


@pytest.mark.slow
def test_it_learns_which_way_to_walk_a_chain_and_what_each_place_is_worth():
    # Six places in a row, the last is worth 1 and ends it; to the left of the first there is nothing. Right is action 1.
    policy = made(
        spaces.Discrete(2), learn__learning_rate=0.02, learn__entropy_weight=0.01, model__encoder_hidden_size_list=[32]
    )
    rng, gamma, places = np.random.default_rng(0), 0.9, np.eye(5, dtype=np.float32)
    place = np.zeros(16, int)
    for _ in range(80):
        steps = []
        for _ in range(8):
            obs = places[place]
            with torch.inference_mode():
                action = policy.collect_mode.forward(obs)[0]
            moved = np.maximum(place + 2 * action - 1, 0)
            terminated = moved == 5
            steps.append((obs, action, terminated.astype(np.float32), places[np.minimum(moved, 4)], terminated))
            place = np.where(terminated, rng.integers(0, 5, 16), moved)
        names = ("obs", "action", "reward", "next_obs", "terminated")
        columns = {name: np.stack(column) for name, column in zip(names, zip(*steps))}
        batch = policy.collect_mode.with_values(tree({**columns, "truncated": np.zeros((8, 16), bool)}))
        signals = (batch.reward, batch.value, batch.next_value, batch.terminated, batch.truncated)
        advantage = gae(*signals, gamma=gamma, lambda_=0.95)
        policy.learn_mode.forward(
            tree({**columns, "value": batch.value, "advantage": advantage, "return_": advantage + batch.value})
        )

    assert (policy.eval_mode.forward(places)[0] == 1).all()
    np.testing.assert_allclose(
        policy.model.values(torch.from_numpy(places)).detach(), gamma ** np.arange(4.0, -1, -1), atol=0.1
    )
