"""PPO with attention: learning computes the logits of acting, and settings that cannot work are refused."""

import warnings

import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.nn import ActorCritic, SetEncoder, action_distribution
from ding_lite.policy import PPOPolicy, PPOPolicyConfig
from ding_lite.policy_parts import episode_starts, states_in
from ding_lite.rollout import make_worker

SMALL = {"seed": 0, "model.encoder_hidden_size_list": [8], "model.attention_size": 8, "model.attention_heads": 2}
OBS, DISCRETE = spaces.Box(-1, 1, (5,)), spaces.Discrete(3)


def made(window=4, observation_space=OBS, action_space=DISCRETE, **settings) -> PPOPolicy:
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    cfg = PPOPolicyConfig().override({**SMALL, "model.attention_window": window, **settings})
    policy = PPOPolicy(cfg, observation_space, action_space)
    with torch.no_grad():
        for param in policy.model.parameters():
            param.add_(0.3 * torch.randn(param.shape, generator=torch.Generator().manual_seed(param.numel())))
    policy.version += 1
    return policy


@pytest.mark.parametrize(("window", "layers"), [(4, 2), (50, 1)])
def test_learning_computes_the_probabilities_and_values_of_acting(window, layers):
    env = make_envs("CartPoleNoVel-v1", 3, seed=0, max_episode_steps=15)
    spaces_ = env.single_observation_space, env.single_action_space
    policies = [made(window, *spaces_, model__attention_layers=layers, learn__unroll_len=length) for length in (None, 1, 7)]
    worker = make_worker(env, policies[0].collect_mode)
    ends = 0
    for num_steps in (20, 1, 12):
        batch = worker.collect(num_steps).trajectories.batch
        batch = policies[0].with_values(batch)
        ends += int((batch.terminated | batch.truncated).sum())
        logit, value = policies[0].model.unroll(batch.obs, [it[0] for it in states_in(batch)], episode_starts(batch))
        log_prob = logit.log_softmax(-1).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(log_prob.detach(), batch.log_prob, rtol=0, atol=1e-5)
        torch.testing.assert_close(value.detach(), batch.value, rtol=0, atol=1e-5)
        for t in range(num_steps):  # from the state that acting had at each step
            found, _ = policies[0].model.step(batch.obs[t], [it[t] for it in states_in(batch)])
            torch.testing.assert_close(found, logit[t], rtol=0, atol=1e-5)
        batch = with_leaves(batch, advantage=batch.value, return_=batch.value)
        for policy in policies:
            stats = policy.loss(tree(policy.learning_rows(batch, 30)[0]))[1]
            assert stats["kl"].abs() < 1e-9
            assert stats["vf_loss"] < 1e-9
    assert ends > 3


def test_prediction_goes_on_from_its_state_and_starts_anew():
    policy, rows = made(), torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    actions, state = [], None
    for row in rows.numpy():
        action, state = policy.predict(row, state, episode_start=False)
        actions.append(int(action))
    logit, _ = policy.model.unroll(rows.unsqueeze(1), policy.model.memory.state_of(1), torch.zeros(6, 1, dtype=torch.bool))
    assert actions == logit.argmax(-1).squeeze(1).tolist()
    assert int(state[-1]) == 3
    assert int(policy.predict(rows[0].numpy(), state, episode_start=True)[1][-1]) == 1


def test_settings_that_cannot_work_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"model\.lstm_size = 8 and model\.attention_window = 4: a policy has either an LSTM or"
    ):
        made(model__lstm_size=8)
    with pytest.raises(ValueError, match=r"model\.attention_size = 8 is not a multiple of model\.attention_heads = 3"):
        made(model__attention_heads=3)
    with pytest.raises(ValueError, match="attention_window = 1 is out of range"):
        made(1)
    with pytest.warns(UserWarning, match=r"attention_layers = 3 has no effect without model\.attention_window"):
        PPOPolicy({"model.attention_layers": 3}, OBS, DISCRETE)
    with pytest.raises(ValueError, match=r"use_attention.*set policy\.model\.attention_window"):
        made(model__use_attention=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()


class OfUnits(nn.Module):
    """Features of the units that an observation has."""

    def __init__(self):
        super().__init__()
        self.units = SetEncoder(3, 8, heads=2)

    def forward(self, obs):
        return self.units(obs["units"], obs["mask"])


def test_a_policy_with_a_set_encoder_learns_and_acts_in_any_order():
    space = spaces.Dict({"units": spaces.Box(-1, 1, (6, 3)), "mask": spaces.MultiBinary(6)})
    model = ActorCritic(nn.Linear(8, 3), nn.Linear(8, 1), action_distribution(DISCRETE), OfUnits())
    policy = PPOPolicy({"seed": 0}, space, DISCRETE, model=model)
    policy.dry_run()
    space.seed(0)
    for obs in (space.sample() for _ in range(10)):
        turned = {name: leaf[::-1].copy() for name, leaf in obs.items()}
        assert policy.predict(obs)[0] == policy.predict(turned)[0]
