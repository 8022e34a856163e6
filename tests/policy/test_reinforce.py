"""REINFORCE against its equation step by step, with and without a baseline, on whole episodes as its estimator gives them."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.config import REINFORCEConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, tree
from ding_lite.middleware import montecarlo_return_estimator
from ding_lite.policy import REINFORCEPolicy

OBS = spaces.Box(-1, 1, (3,), np.float32)
LENGTHS = [4, 1, 6]


def made(action_space=None, **settings) -> tuple[REINFORCEConfig, REINFORCEPolicy]:
    settings = {"model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    cfg = REINFORCEConfig(seed=0).override({"policy": {"collect.discount_factor": 0.8, **settings}})
    return cfg, REINFORCEPolicy(cfg.policy, OBS, action_space or spaces.Discrete(3))


def episodes(lengths=LENGTHS, start: int = 0, truncated: bool = False, seed: int = 0) -> Episodes:
    rng, count = np.random.default_rng(seed), sum(lengths)
    obs = rng.normal(size=(2, count, 3)).astype(np.float32)
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    columns = {"obs": obs[0], "next_obs": obs[1], "action": rng.integers(3, size=count) + start}
    columns |= {"reward": rng.normal(size=count).astype(np.float32), "log_prob": np.zeros(count, np.float32)}
    return Episodes({**columns, "terminated": ends & (not truncated), "truncated": ends & truncated}, lengths)


def train_data(cfg, policy, collected: Episodes):
    ctx = OnlineRLContext(episodes=collected)
    montecarlo_return_estimator(cfg, policy.collect_mode)(ctx)
    return ctx.train_data


def loss_by_definition(policy, collected: Episodes, start: int, adv_norm: bool, baseline: bool, entropy_weight: float) -> float:
    log_prob, weight, entropy, error = [], [], [], []
    for episode in collected:
        for t in range(len(episode.reward)):
            logit = policy.model.logits(episode.obs[t : t + 1])[0].tolist()
            total = math.fsum(map(math.exp, logit))
            probability = [math.exp(x) / total for x in logit]
            return_ = math.fsum(0.8**k * float(reward) for k, reward in enumerate(episode.reward[t:]))
            value = policy.model.values(episode.obs[t : t + 1]).item() if baseline else 0.0
            log_prob.append(math.log(probability[int(episode.action[t]) - start]))
            weight.append(return_ - value)
            entropy.append(-math.fsum(p * math.log(p) for p in probability))
            error.append((value - return_) ** 2 / 2)
    n = len(weight)
    if adv_norm:
        mean = math.fsum(weight) / n
        std = math.sqrt(math.fsum((w - mean) ** 2 for w in weight) / (n - 1))
        weight = [(w - mean) / (std + 1e-8) for w in weight]
    loss = -math.fsum(map(math.prod, zip(log_prob, weight))) / n - entropy_weight * math.fsum(entropy) / n
    return loss + (0.5 * math.fsum(error) / n if baseline else 0)


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("adv_norm", [False, True])
@pytest.mark.parametrize(("start", "entropy_weight"), [(0, 0.0), (3, 0.1)])
def test_the_loss_of_whole_episodes_matches_its_equation_step_by_step(start, entropy_weight, adv_norm, baseline):
    cfg, policy = made(
        spaces.Discrete(3, start=start), baseline=baseline, learn__adv_norm=adv_norm, learn__entropy_weight=entropy_weight
    )
    collected = episodes(start=start)
    loss, stats = policy.loss(policy.loss_batch(train_data(cfg, policy, collected)))
    expected = loss_by_definition(policy, collected, start, adv_norm, baseline, entropy_weight)

    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert stats.keys() == {"total_loss", "policy_loss", "entropy", *(["vf_loss"] if baseline else [])}


def test_without_a_baseline_there_is_no_critic_and_nobody_asks_for_one():
    cfg, policy = made()
    batch = train_data(cfg, policy, episodes(truncated=True))

    assert policy.model.critic is None
    assert not policy.collect_mode.has_critic
    torch.testing.assert_close(batch.advantage, batch.return_)
    assert "value" not in batch.keys()  # noqa: SIM118


def test_with_a_baseline_a_cut_episode_goes_on_with_the_critics_opinion():
    cfg, policy = made(baseline=True)
    collected = episodes([1], truncated=True)
    batch = train_data(cfg, policy, collected)
    after = policy.model.values(torch.from_numpy(collected.rows()["next_obs"])).item()

    assert batch.return_.item() == pytest.approx(collected.rows()["reward"][0] + 0.8 * after, rel=1e-5)


@pytest.mark.parametrize("baseline", [False, True])
def test_one_gradient_step_takes_all_episodes_and_changes_every_weight(baseline):
    cfg, policy = made(baseline=baseline)
    before = policy.get_weights()
    output = policy.learn_mode.forward(train_data(cfg, policy, episodes()))
    after = policy.get_weights()

    assert policy.train_iter == 1
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert any(name.startswith("critic") for name in before) == baseline
    assert ("vf_explained_var" in output) == baseline


@pytest.mark.parametrize("baseline", [False, True])
def test_a_saved_state_goes_on_bit_for_bit(baseline, same):
    (cfg, policy), (_, other) = (made(baseline=baseline, model__normalize_obs=True) for _ in range(2))
    for seed in range(3):
        policy.learn_mode.forward(train_data(cfg, policy, episodes(seed=seed)))
    other.load_state_dict(policy.state_dict())
    for seed in range(3, 8):
        outputs = [one.learn_mode.forward(train_data(cfg, one, episodes(seed=seed))) for one in (policy, other)]
        assert same(*outputs)

    assert same(policy.get_weights(), other.get_weights())
    assert policy.model.normalizer.count == 8 * sum(LENGTHS)  # padding is no observation


def test_it_learns_the_arm_that_pays():
    cfg, policy = made(learn__learning_rate=0.05)
    obs = np.ones((16, 3), np.float32)
    for _ in range(40):
        with torch.inference_mode():
            action = policy.collect_mode.forward(obs)[0]
        ends = np.ones(16, bool)
        columns = {"obs": obs, "next_obs": obs, "action": action, "reward": (action == 2).astype(np.float32)}
        collected = Episodes({**columns, "terminated": ends, "truncated": ~ends}, [1] * 16)
        policy.learn_mode.forward(train_data(cfg, policy, collected))

    assert policy.model.logits(torch.ones(1, 3)).softmax(-1)[0, 2] > 0.9


def test_a_rollout_of_rows_can_be_learned_from_too():
    _, policy = made()
    columns = {"obs": torch.randn(5, 3), "action": torch.arange(5) % 3, "advantage": torch.randn(5)}
    policy.learn_mode.forward(tree(columns))

    assert policy.train_iter == 1
