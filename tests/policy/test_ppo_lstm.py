"""PPO with an LSTM: its values and its loss against single steps, and sequences that begin with the state of acting."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import nested, tree
from ding_lite.data.trees import map_leaves, with_leaves
from ding_lite.envs import make_envs
from ding_lite.policy import PPOPolicy, PPOPolicyConfig
from ding_lite.rollout import make_worker

OBS, T, B, H = spaces.Box(-1, 1, (5,), np.float32), 12, 4, 6


def made(action_space=None, observation_space=OBS, double_precision: bool = False, **settings) -> PPOPolicy:
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], "model.lstm_size": H, **settings}
    policy = PPOPolicy(PPOPolicyConfig().override(settings), observation_space, action_space or spaces.Discrete(3))
    with torch.no_grad():
        for param in policy.model.parameters():
            param.add_(torch.linspace(-0.2, 0.2, param.numel()).reshape(param.shape))
    policy.version += 1
    if double_precision:
        policy.model.double()
    return policy


def rollout(share: float = 0.2, with_valid: bool = False, seed: int = 0, dtype=torch.float64) -> dict:
    """[T, B, ...] as after the estimator, every number off from what the policy would say."""
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(T, B, *shape, generator=g, dtype=torch.float64).to(dtype)  # noqa: E731
    flag = lambda: torch.rand(T, B, generator=g) < share / 2  # noqa: E731
    batch = {
        "obs": noise(5),
        "next_obs": noise(5),
        "action": torch.randint(3, (T, B), generator=g),
        "log_prob": -1 + 0.3 * noise(),
        "reward": noise(),
        "terminated": flag(),
        "truncated": flag(),
        "state_in_0": noise(H),
        "state_in_1": noise(H),
        "advantage": noise(),
        "value": noise(),
        "return_": noise(),
    }
    return {**batch, "valid": torch.rand(T, B, generator=g) < 0.8} if with_valid else batch


def begins(batch: dict, t: int, b: int) -> bool:
    """Whether step t begins an episode."""
    before = t - 1
    return before >= 0 and bool(
        batch["terminated"][before, b] or batch["truncated"][before, b] or ("valid" in batch and not batch["valid"][before, b])
    )


def stepped(policy: PPOPolicy, batch: dict, length: int):
    """Logit, value and value of the next observation of each step, one after the other, from every `length`-th state on."""
    model, table = policy.model, {}
    for b in range(B):
        for t in range(T):
            if t % length == 0:
                state = [batch[f"state_in_{k}"][t, b : b + 1] for k in range(2)]
            elif begins(batch, t, b):
                state = [torch.zeros_like(element) for element in state]
            logit, state = model.step(batch["obs"][t, b : b + 1], state)
            value = model.value_function()
            is_last = batch["terminated"][t, b] or batch["truncated"][t, b] or t + 1 == T
            beyond = batch["next_obs"][t, b : b + 1] if is_last else batch["obs"][t + 1, b : b + 1]
            model.step(beyond, state)
            table[t, b] = logit[0], value[0], model.value_function()[0]
    return table


@pytest.mark.parametrize("with_valid", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 2.0])
def test_values_are_those_of_single_steps(share, with_valid):
    policy, batch = made(double_precision=True), rollout(share, with_valid)
    found = policy.with_values(tree({name: leaf for name, leaf in batch.items() if name != "value"}))
    table = stepped(policy, batch, length=T)

    for (t, b), (_, value, next_value) in table.items():
        torch.testing.assert_close(found.value[t, b], value.detach(), rtol=1e-12, atol=1e-14)
        if not batch["terminated"][t, b] and (not with_valid or batch["valid"][t, b]):
            torch.testing.assert_close(found.next_value[t, b], next_value.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.few
@pytest.mark.parametrize("with_valid", [False, True])
@pytest.mark.parametrize("length", [None, 1, 3, 5, 12, 50])
def test_the_loss_of_sequences_is_that_of_their_steps(length, with_valid):
    policy, batch = made(double_precision=True, learn__unroll_len=length, learn__entropy_weight=0.1), rollout(0.3, with_valid)
    rows, size = policy.learning_rows(tree(batch), 10_000)
    loss, stats = policy.loss(tree(rows))
    steps = min(length or T, T)
    table = stepped(policy, batch, steps)
    places = [place for place in table if not with_valid or batch["valid"][place]]
    at = lambda name: torch.stack([batch[name][place] for place in places])  # noqa: E731
    plain = copy.copy(policy)
    plain.evaluate_batch = lambda rows: (  # what a policy without state would be told by its model
        torch.stack([table[place][0] for place in places]),
        torch.stack([table[place][1] for place in places]),
        rows,
    )
    names = ("action", "log_prob", "advantage", "value", "return_")
    expected, expected_stats = plain.loss(tree({name: at(name) for name in names}))

    assert size * steps >= 10_000 - steps
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for name, stat in stats.items():
        torch.testing.assert_close(stat, expected_stats[name], rtol=1e-10, atol=1e-12)
    for found, wanted in zip(*(torch.autograd.grad(one, policy.params) for one in (loss, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)


def collected(policy: PPOPolicy, num_steps: int, env):
    worker = make_worker(env, policy.collect_mode)
    return [worker.collect(num_steps).trajectories.batch for _ in range(3)]


def cartpole(**settings):
    env = make_envs("CartPoleNoVel-v1", 3, seed=0, max_episode_steps=15)
    policy = made(env.single_action_space, env.single_observation_space, **settings)
    return policy, env


@pytest.mark.parametrize("length", [None, 7, 10])
def test_what_was_just_collected_has_the_probabilities_that_acting_gave(length):
    policy, env = cartpole(learn__unroll_len=length)
    for batch in collected(policy, 20, env):
        batch = policy.with_values(batch)
        batch = with_leaves(batch, advantage=batch.value, return_=batch.value)
        assert (batch.terminated | batch.truncated).any()
        stats = policy.loss(tree(policy.learning_rows(batch, 30)[0]))[1]

        assert stats["kl"].abs() < 1e-9
        assert stats["clip_frac"] == 0
        assert stats["vf_loss"] < 1e-9


def test_the_stored_state_is_the_one_that_acting_had_and_begins_with_each_episode():
    policy, env = cartpole()
    state = policy.collect_mode.get_initial_state(3)
    restart = torch.ones(3, dtype=torch.bool)
    for batch in collected(policy, 20, env):
        for t in range(20):
            state = [element.masked_fill(restart.unsqueeze(1), 0) for element in state]
            for k, element in enumerate(state):
                torch.testing.assert_close(batch[f"state_in_{k}"][t], element, rtol=1e-5, atol=1e-6)
            state = [element.detach() for element in policy.model.step(batch.obs[t], state)[1]]
            restart = batch.terminated[t] | batch.truncated[t]


def test_only_the_state_that_is_read_is_recorded():
    policy, env = cartpole()
    names = set(nested(collected(policy, 4, env)[0]))

    assert {"state_in_0", "state_in_1"} <= names
    assert not {"state_out_0", "state_out_1"} & names


def test_learning_goes_on_bit_for_bit_after_a_state_is_loaded(same):
    batch = tree(map_leaves(lambda leaf: leaf, rollout(dtype=torch.float32)))
    settings = {"learn__unroll_len": 5, "learn__epoch_per_collect": 2, "learn__batch_size": 20}
    policy, other = made(**settings), made(seed=1, **settings)
    policy.learn_mode.forward(batch)
    other.load_state_dict(policy.state_dict())
    for _ in range(3):
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))
    assert same(dict(policy.model.state_dict()), dict(other.model.state_dict()))


@pytest.mark.parametrize("action_space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.Discrete(3, start=4)])
def test_actions_of_any_space_are_learned_with_a_state(action_space):
    policy = made(action_space, learn__unroll_len=5)
    mode = policy.collect_mode
    obs = np.random.default_rng(0).normal(size=(B, 5)).astype(np.float32)
    action, state, outputs = mode.forward(obs, mode.get_initial_state(B))

    assert action.shape == (B, *action_space.shape)
    assert outputs["log_prob"].shape == (B,)
    assert [tuple(element.shape) for element in state] == [(B, H)] * 2


def test_without_an_lstm_there_is_no_state():
    policy = made(model__lstm_size=None)

    assert policy.collect_mode.get_initial_state(3) == []
    assert not any(name.startswith("state") or name == "terminated" for name in policy.columns)


@pytest.mark.parametrize("memory", [{"model__lstm_size": H}, {"model__lstm_size": None, "model__attention_window": 4}])
def test_sequences_without_a_valid_step_are_left_out(memory):
    batch = rollout(0.3, with_valid=True, dtype=torch.float32)
    batch["valid"][:, 1::2] = False
    if "model__attention_window" in memory:
        one = made(**memory).get_initial_state()
        batch = {name: column for name, column in batch.items() if not name.startswith("state_in")}
        batch |= {f"state_in_{k}": torch.zeros(T, B, *element.shape, dtype=element.dtype) for k, element in enumerate(one)}
    first, second = (made(learn__batch_size=T, learn__unroll_len=T, **memory) for _ in range(2))

    outputs = [first.learn_on_batch(tree(batch)), second.learn_on_batch(tree({n: x[:, ::2] for n, x in batch.items()}))]

    assert outputs[0]["total_loss"] == outputs[1]["total_loss"]
    for one, other in zip(first.get_weights().values(), second.get_weights().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
