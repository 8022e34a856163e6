"""PPO against its equations row by row, its epochs, and a chain whose value is known."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.functional import explained_variance, gae
from ding_lite.policy import PPOPolicy, PPOPolicyConfig

OBS, T, B = spaces.Box(-1, 1, (5,), np.float32), 15, 4
BOX = spaces.Box(-1, 1, (2,), np.float32)


def made(action_space=None, observation_space=OBS, double_precision: bool = False, **settings) -> PPOPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    policy = PPOPolicy(PPOPolicyConfig().override(settings), observation_space, action_space or spaces.Discrete(3))
    if double_precision:
        policy.model.double()
    return policy


def rows(policy: PPOPolicy, *lead: int, dtype=torch.float64, seed: int = 0) -> dict:
    """What `loss` wants, with every number off from what the policy itself would say."""
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*lead, *shape, generator=g, dtype=torch.float64).to(dtype)  # noqa: E731
    obs = noise(5)
    with torch.no_grad():
        logit = policy.model.logits(obs.flatten(0, -2).to(policy.params[0].dtype))
        action, log_prob = policy.model.distribution.sample(logit, g)
    action = action.reshape(*lead, *action.shape[1:])
    log_prob = log_prob.reshape(lead).to(dtype) + 0.3 * noise()
    return {
        "obs": obs,
        "action": action,
        "log_prob": log_prob,
        "advantage": 2 * noise() + 1,
        "value": noise(),
        "return_": noise(),
    }


def loss_by_definition(policy, batch, adv_norm, clip_ratio, value_clip, value_weight, entropy_weight) -> dict[str, float]:
    """Equations 7 and 9 of the paper for Discrete actions, one row after the other."""
    n = len(batch["advantage"])
    advantage = batch["advantage"].tolist()
    if adv_norm:
        mean = math.fsum(advantage) / n
        std = math.sqrt(math.fsum((a - mean) ** 2 for a in advantage) / (n - 1))
        advantage = [(a - mean) / (std + 1e-8) for a in advantage]
    policy_loss, vf_loss, entropy, kl, clipped_rows = [], [], [], [], []
    for i in range(n):
        logit, value = (x[0].tolist() for x in policy.model(batch["obs"][i : i + 1]))
        total = math.fsum(map(math.exp, logit))
        probability = [math.exp(x) / total for x in logit]
        log_ratio = math.log(probability[batch["action"][i]]) - batch["log_prob"][i].item()
        ratio = math.exp(log_ratio)
        policy_loss.append(-min(ratio * advantage[i], min(max(ratio, 1 - clip_ratio), 1 + clip_ratio) * advantage[i]))
        old_value, target = batch["value"][i].item(), batch["return_"][i].item()
        error = (value - target) ** 2
        if value_clip is not None:
            error = max(error, (old_value + min(max(value - old_value, -value_clip), value_clip) - target) ** 2)
        vf_loss.append(error / 2)
        entropy.append(-math.fsum(p * math.log(p) for p in probability))
        kl.append(ratio - 1 - log_ratio)
        clipped_rows.append(abs(ratio - 1) > clip_ratio)
    means = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy, "kl": kl, "clip_frac": clipped_rows}
    means = {name: math.fsum(terms) / n for name, terms in means.items()}
    means["total_loss"] = means["policy_loss"] + value_weight * means["vf_loss"] - entropy_weight * means["entropy"]
    return means


OPTIONS = ("clip_ratio", "value_clip", "value_weight", "entropy_weight", "adv_norm")


@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("adv_norm", [False, True])
@pytest.mark.parametrize(
    "options", [(0.2, None, 0.5, 0.0), (0.05, 0.1, 1.0, 0.01), (0.3, 0.0, 0.25, 1.0), (0.2, 10.0, 0.0, 0.5)]
)
def test_the_loss_matches_its_equation_row_by_row(options, adv_norm, share_encoder):
    options = dict(zip(OPTIONS, (*options, adv_norm), strict=True))
    policy = made(
        double_precision=True, model__share_encoder=share_encoder, **{f"learn__{name}": x for name, x in options.items()}
    )
    batch = rows(policy, 20)
    loss, stats = policy.loss(tree(batch))
    expected = loss_by_definition(policy, batch, **options)

    np.testing.assert_allclose(loss.item(), expected["total_loss"], rtol=1e-11)
    assert stats.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-6 if name == "clip_frac" else 1e-11, atol=1e-14)
    assert not any(stat.requires_grad for stat in stats.values())


def test_the_advantage_of_a_single_row_is_not_normalised():
    policy = made(double_precision=True, learn__entropy_weight=0)
    batch = rows(policy, 1)
    expected = loss_by_definition(policy, batch, False, 0.2, None, 0.5, 0.0)

    np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), expected["total_loss"], rtol=1e-12)


def test_on_the_policy_that_collected_the_gradient_is_that_of_the_surrogate():
    policy = made(BOX, double_precision=True, learn__value_weight=0, learn__adv_norm=False)
    batch = rows(policy, 20)
    with torch.no_grad():
        batch["log_prob"] = policy.model.distribution.evaluate(policy.model.logits(batch["obs"]), batch["action"])[0]
    policy.loss(tree(batch))[0].backward()
    found = [param.grad.clone() for param in policy.model.actor.parameters()]
    policy.model.zero_grad()
    mean, std = policy.model.logits(batch["obs"]), policy.model.distribution.log_std.exp()
    log_prob = torch.distributions.Normal(mean, std).log_prob(batch["action"]).sum(-1)
    (-(log_prob * batch["advantage"]).mean()).backward()

    for one, param in zip(found, policy.model.actor.parameters(), strict=True):
        torch.testing.assert_close(one, param.grad, rtol=1e-10, atol=1e-12)


def rollout(observation_space, elements, t: int, b: int, p_end: float, seed: int = 0) -> dict:
    """Random episodes, [t, b]: next_obs is the next row's obs, but at the end of an episode something of its own."""
    rng = np.random.default_rng(seed)
    obs = elements(observation_space, t + 1, b, seed=seed)
    final = elements(observation_space, t, b, seed=seed + 1)
    terminated, truncated = rng.random((2, t, b)) < p_end
    done = terminated | truncated

    def following(after, end):
        if isinstance(after, dict):
            return {name: following(after[name], end[name]) for name in after}
        return np.where(done.reshape(t, b, *[1] * (after.ndim - 2)), end, after[1:])

    return {
        "obs": {name: leaf[:-1] for name, leaf in obs.items()} if isinstance(obs, dict) else obs[:-1],
        "next_obs": following(obs, final),
        "reward": rng.normal(size=(t, b)).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
    }


def at(leaves, t: int, b: int):
    """One row as a batch of one."""
    return {k: at(x, t, b) for k, x in leaves.items()} if isinstance(leaves, dict) else torch.from_numpy(leaves[t : t + 1, b])


@pytest.mark.few
@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("space", [OBS, spaces.Dict({"keys": spaces.Discrete(4, start=1), "x": spaces.Box(-1, 1, (2, 2))})])
@pytest.mark.parametrize(("t", "b", "p_end"), [(7, 3, 0.2), (1, 1, 1.0), (1, 4, 0.5), (6, 2, 0.0), (5, 2, 1.0)])
def test_values_are_those_of_each_row_by_itself(t, b, p_end, space, share_encoder, elements):
    policy = made(observation_space=space, model__share_encoder=share_encoder)
    data = rollout(space, elements, t, b, p_end)
    found = policy.collect_mode.with_values(tree(data))
    with torch.no_grad():
        value = [[policy.model(at(data["obs"], i, j))[1].item() for j in range(b)] for i in range(t)]
        next_value = [[policy.model(at(data["next_obs"], i, j))[1].item() for j in range(b)] for i in range(t)]
    watched = ~data["terminated"]  # nothing follows a termination, so its next_value means nothing

    np.testing.assert_allclose(found.value, value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.next_value[watched], np.array(next_value)[watched], rtol=1e-5, atol=1e-6)
    assert found.value.shape == found.next_value.shape == (t, b)
    assert not found.value.requires_grad
    assert np.array_equal(found.reward, data["reward"])


def test_values_come_from_the_newest_critic():
    policy = made()
    obs, number, no = np.ones((2, 1, 5), np.float32), np.ones((2, 1), np.float32), np.zeros((2, 1), bool)
    data = {"obs": obs, "next_obs": obs, "reward": number, "terminated": no, "truncated": no}
    before = policy.collect_mode.with_values(tree(data)).value
    policy.learn_mode.forward(tree(rows(policy, T, B, dtype=torch.float32)))
    after = policy.collect_mode.with_values(tree(data)).value

    assert not torch.equal(before, after)
    torch.testing.assert_close(after[0], policy.model.values(torch.ones(1, 5)).detach())


def learned(**settings) -> tuple[PPOPolicy, dict]:
    policy = made(**settings)
    return policy, policy.learn_mode.forward(tree(rows(policy, T, B, dtype=torch.float32)))


@pytest.mark.few
@pytest.mark.parametrize(("batch_size", "parts"), [(16, 4), (60, 1), (1000, 1), (7, 9), (1, 60)])
def test_each_epoch_takes_a_gradient_step_for_each_part_of_about_the_batch_size(batch_size, parts):
    policy, _ = learned(learn__batch_size=batch_size, learn__epoch_per_collect=3)

    assert policy.learn_mode.train_iter == 3 * parts


def test_what_is_logged_is_the_mean_over_all_gradient_steps():
    policy, output = learned(learn__batch_size=30, learn__epoch_per_collect=2, learn__learning_rate=0.0, learn__adv_norm=False)
    parts = {"total_loss", "policy_loss", "vf_loss", "entropy", "kl", "clip_frac", "grad_norm", "vf_explained_var", "cur_lr"}
    parts.add("cur_kl_coeff")
    batch = {name: leaf.flatten(0, 1) for name, leaf in rows(policy, T, B, dtype=torch.float32).items()}
    _, whole = policy.loss(tree(batch))

    assert output.keys() == parts
    for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "kl", "clip_frac"):  # equal parts, no step: as one batch
        torch.testing.assert_close(output[name], whole[name])
    residual = batch["return_"] - batch["value"]
    expected = 1 - residual.var(correction=0) / batch["return_"].var(correction=0)
    torch.testing.assert_close(output["vf_explained_var"], expected)


def test_the_stats_hook_gets_the_whole_rollout_once_after_all_gradient_steps():
    seen = []

    def stats_fn(policy, batch):
        seen.append((tuple(batch.return_.shape), policy.train_iter, len(policy.model.value_function())))
        return {"mine": explained_variance(batch.value, batch.return_)}

    kind = PPOPolicy.with_updates(stats_fn=stats_fn)
    policy = kind({"learn.batch_size": 20, "learn.epoch_per_collect": 2}, OBS, spaces.Discrete(3))
    policy.dry_run()
    seen.clear()
    policy.learn_mode.forward(tree(rows(policy, T, B, dtype=torch.float32)))
    assert seen == [((T, B), 6, 20)]


@pytest.mark.parametrize(("target_kl", "batch_size", "steps"), [(None, 60, 10), (1e9, 60, 10), (1e-9, 15, 4), (0.0, 60, 1)])
def test_the_epochs_stop_after_the_one_in_which_the_policy_moved_too_far(target_kl, batch_size, steps):
    policy, _ = learned(
        learn__target_kl=target_kl, learn__batch_size=batch_size, learn__epoch_per_collect=10, learn__learning_rate=0.01
    )

    assert policy.learn_mode.train_iter == steps


def test_the_learning_rate_falls_linearly_to_zero_and_stays_there():
    points = [(0, 0.04), (10, 0.0)]
    policy = made(learn__lr_schedule=points, learn__batch_size=60, learn__epoch_per_collect=4)
    rates, weights = [], []
    for seed in range(4):
        weights.append(policy.get_weights())
        rates.append(policy.learn_mode.forward(tree(rows(policy, T, B, dtype=torch.float32, seed=seed)))["cur_lr"].item())

    assert rates == pytest.approx([0.04 * 0.7, 0.04 * 0.3, 0.0, 0.0])  # after 4, 8, ... gradient steps, that of the last
    assert all(torch.equal(weights[3][name], now) for name, now in policy.get_weights().items())
    assert not torch.equal(weights[2]["actor.layers.0.weight"], weights[3]["actor.layers.0.weight"])


def test_the_learning_rate_stays_where_it_is_not_told_to_fall():
    assert learned(learn__learning_rate=0.03)[1]["cur_lr"].item() == pytest.approx(0.03)


def gradient_norm(policy: PPOPolicy) -> float:
    return math.sqrt(sum(param.grad.double().square().sum().item() for param in policy.params if param.grad is not None))


def test_the_norm_of_the_gradient_is_clipped_and_logged_as_it_was():
    once = {"learn__epoch_per_collect": 1, "learn__batch_size": 60}
    free, logged = learned(**once, learn__grad_clip_norm=None)
    norm = gradient_norm(free)
    clipped, output = learned(**once, learn__grad_clip_norm=norm / 3)
    loose, _ = learned(**once, learn__grad_clip_norm=norm * 3)

    assert "grad_norm" not in logged
    assert output["grad_norm"].item() == pytest.approx(norm, rel=1e-5)
    assert gradient_norm(clipped) == pytest.approx(norm / 3, rel=1e-5)
    assert gradient_norm(loose) == pytest.approx(norm, rel=1e-5)


def with_resets(policy: PPOPolicy, junk: float):
    """A batch in which some steps were only a reset, and hold junk."""
    batch, valid = rows(policy, T, B, dtype=torch.float32), torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.8
    for name in ("obs", "log_prob", "advantage", "value", "return_"):
        batch[name][~valid] = junk
    return tree({**batch, "valid": valid}), int(valid.sum())


def test_steps_that_were_only_a_reset_are_not_learned_from(same):
    policies = [made(learn__batch_size=1, learn__epoch_per_collect=1) for _ in range(2)]
    for policy, junk in zip(policies, (0.0, torch.nan), strict=True):
        batch, count = with_resets(policy, junk)
        policy.learn_mode.forward(batch)
        assert policy.learn_mode.train_iter == count

    assert same(policies[0].get_weights(), policies[1].get_weights())


def test_steps_that_were_only_a_reset_are_not_logged():
    outputs = []
    for junk in (0.0, 100.0):
        policy = made()
        outputs.append(policy.learn_mode.forward(with_resets(policy, junk)[0]))

    torch.testing.assert_close(outputs[0], outputs[1])


def test_a_shared_encoder_learns_from_the_actor_and_from_the_critic():
    for weight, adv in [(0.0, 1.0), (1.0, 0.0)]:
        policy = made(model__share_encoder=True, learn__value_weight=weight, learn__adv_norm=False)
        batch = rows(policy, 20, dtype=torch.float32)
        policy.loss(tree({**batch, "advantage": batch["advantage"] * adv}))[0].backward()
        assert all(param.grad.abs().sum() > 0 for param in policy.model.encoder.parameters())


@pytest.mark.parametrize("share_encoder", [False, True])
def test_actor_and_critic_share_weights_only_if_they_are_told_to(share_encoder):
    model = made(model__share_encoder=share_encoder).model
    memory = [{param.data_ptr() for param in part.parameters()} for part in (model.actor, model.critic)]

    assert (model.encoder is not None) == share_encoder
    assert not memory[0] & memory[1]
    assert all(
        torch.equal(*pair)
        for pair in zip(model(torch.ones(2, 5)), (model.logits(torch.ones(2, 5)), model.values(torch.ones(2, 5))))
    )


@pytest.mark.parametrize("share_encoder", [False, True])
def test_actions_are_nearly_uniform_at_the_start(share_encoder):
    policy = made(model__share_encoder=share_encoder)
    logit = policy.model.logits(torch.randn(100, 5, generator=torch.Generator().manual_seed(0)))

    assert logit.detach().abs().max() < 0.05
    assert logit.detach().std() > 0


def test_collecting_draws_from_the_policy_and_gives_the_log_prob():
    policy, obs = made(), np.ones((4000, 5), np.float32)
    with torch.no_grad():
        policy.model.actor.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
        policy.version += 1  # so that the modes look again
        probability = policy.model.logits(torch.ones(1, 5)).softmax(-1)[0].numpy()
    action, _, outputs = policy.collect_mode.forward(obs)
    count = np.bincount(action, minlength=3)

    assert ((count - 4000 * probability) ** 2 / (4000 * probability)).sum() < 13.8  # passed once in 1000 by chance
    np.testing.assert_allclose(outputs["log_prob"], np.log(probability[action]), rtol=1e-5)
    assert (policy.eval_mode.forward(obs)[0] == 1).all()


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOX])
def test_the_log_prob_that_was_collected_is_the_one_that_learning_begins_with(space):
    policy = made(space, learn__epoch_per_collect=1, learn__batch_size=1000)
    obs = np.random.default_rng(0).normal(size=(T, B, 5)).astype(np.float32)
    with torch.inference_mode():
        steps = [policy.collect_mode.forward(row) for row in obs]
    batch = rows(policy, T, B, dtype=torch.float32)
    batch |= {"obs": torch.from_numpy(obs), "action": torch.from_numpy(np.stack([action for action, *_ in steps])),
              "log_prob": torch.from_numpy(np.stack([outputs["log_prob"] for *_, outputs in steps]))}  # fmt: skip
    output = policy.learn_mode.forward(tree(batch))

    assert output["kl"].item() == pytest.approx(0, abs=1e-9)
    assert output["clip_frac"].item() == 0


LENGTH, GAMMA = 5, 0.9


def learned_chain(observation_space, obs, next_obs, ends: str) -> tuple[PPOPolicy, torch.Tensor]:
    """What PPO learns of episodes of LENGTH steps with reward 1 each, and the returns that it learned it from."""
    policy = made(spaces.Discrete(2), observation_space, model__encoder_hidden_size_list=[], learn__learning_rate=0.1,
                  learn__grad_clip_norm=None, learn__batch_size=1000, learn__epoch_per_collect=8)  # fmt: skip
    t = len(obs)
    no = torch.zeros(t, 1, dtype=torch.bool)
    end = (torch.arange(1, t + 1) % LENGTH == 0).unsqueeze(1)
    data = {"obs": obs, "next_obs": next_obs, "reward": torch.ones(t, 1), "terminated": no, "truncated": no, ends: end,
            "action": torch.arange(t).unsqueeze(1) % 2, "log_prob": torch.full((t, 1), math.log(0.5))}  # fmt: skip
    for _ in range(40):
        batch = policy.collect_mode.with_values(tree(data))
        signals = (batch.reward, batch.value, batch.next_value, batch.terminated, batch.truncated)
        advantage = gae(*signals, gamma=GAMMA, lambda_=0.95)
        return_ = advantage + batch.value
        policy.learn_mode.forward(with_leaves(batch, advantage=advantage, return_=return_))
    return policy, return_


def test_a_chain_cut_by_a_time_limit_is_worth_the_endless_sum():
    one = torch.ones(13, 1, 1)
    policy, return_ = learned_chain(spaces.Box(0, 1, (1,)), one, one, "truncated")

    np.testing.assert_allclose(return_, np.full((13, 1), 1 / (1 - GAMMA)), rtol=0.02)
    np.testing.assert_allclose(policy.model.values(torch.ones(1, 1)).detach(), [1 / (1 - GAMMA)], rtol=0.02)


def test_a_chain_that_terminates_is_worth_the_sum_to_its_end():
    step = torch.arange(13).unsqueeze(1) % LENGTH
    policy, return_ = learned_chain(spaces.Discrete(LENGTH + 1), step, step + 1, "terminated")
    expected = np.array([sum(GAMMA**k for k in range(LENGTH - t)) for t in range(LENGTH)])

    np.testing.assert_allclose(policy.model.values(torch.arange(LENGTH)).detach(), expected, rtol=0.02)
    np.testing.assert_allclose(return_[:10, 0], np.tile(expected, 2), rtol=0.02)
