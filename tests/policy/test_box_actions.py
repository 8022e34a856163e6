"""What the policies for Box actions share: bounds of actions, noise, parts with losses of their own, targets, and resuming."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import ReplayBuffer, tree
from ding_lite.envs import SpaceError, make_envs
from ding_lite.nn import clip_actions
from ding_lite.policy import AWACPolicy, CQLPolicy, DDPGPolicy, IQLPolicy, SACPolicy, TD3BCPolicy, TD3Policy
from ding_lite.policy_check import NonFiniteError
from ding_lite.rollout import LocalWorker

KINDS = {"ddpg": DDPGPolicy, "td3": TD3Policy, "sac": SACPolicy, "cql": CQLPolicy, "td3_bc": TD3BCPolicy}
KINDS |= {"iql": IQLPolicy, "awac": AWACPolicy}
NOISY = ("ddpg", "td3", "td3_bc")  # deterministic actors, which explore by noise
GENERAL = {kind: "PPO" if kind in ("ddpg", "td3", "sac") else "BC" for kind in KINDS}
"""For each kind, a policy that learns from the same data and takes all actions."""
OBS = spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = spaces.Box(np.array([[-2.0, -1.0, 0.0]]), np.array([[2.0, 3.0, 0.5]]), dtype=np.float64)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def made(kind: str, action_space=ACTIONS, observation_space=OBS, **settings):
    small = {"seed": 0, "model.encoder_hidden_size_list": [8, 7], **({"learn.num_actions": 2} if kind == "cql" else {})}
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    policy = KINDS[kind]
    return policy(policy.config_type().override({**small, **settings}), observation_space, action_space)


def transitions(n: int = 12, seed: int = 0, shape=(1, 3)) -> dict:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 5, generator=g),
        "next_obs": torch.randn(n, 5, generator=g),
        "action": torch.rand(n, *shape, generator=g) - 0.5,
        "reward": torch.randn(n, generator=g),
        "terminated": torch.rand(n, generator=g) < 0.3,
        "truncated": torch.rand(n, generator=g) < 0.3,
    }


def learned(policy, steps: int, first: int = 0) -> list:
    return [policy.learn_mode.forward(tree(transitions(seed=first + step))) for step in range(steps)]


def copied(module) -> list:
    return [param.detach().clone() for param in module.parameters()]


# Spaces.


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Discrete(3), "use {}Policy"),
        (spaces.Box(0, 9, (2,), np.int64), "make it a MultiDiscrete space"),
        (spaces.Dict({"a": ACTIONS}), "use {}Policy"),
    ],
)
def test_actions_that_are_no_box_of_floats_are_refused_with_what_takes_them(kind, space, advice):
    with pytest.raises(SpaceError, match=f"Policy wants actions in a Box of floats, got .*{advice.format(GENERAL[kind])}"):
        made(kind, space)


@pytest.mark.parametrize(("low", "high"), [([-1, -np.inf], [1, 1]), ([-1, -1], [np.inf, 1])])
def test_actions_without_an_end_are_refused_with_what_gives_them_one(kind, low, high):
    with pytest.raises(SpaceError, match=f"finite bounds.*inf.*TransformAction, or use {GENERAL[kind]}Policy"):
        made(kind, spaces.Box(np.array(low, np.float32), np.array(high, np.float32)))


@pytest.mark.filterwarnings("error")
def test_so_are_bounds_that_are_infinite_in_float32(kind):
    with pytest.raises(SpaceError, match=f"finite bounds, also in float32.*1e.300.*or use {GENERAL[kind]}Policy"):
        made(kind, spaces.Box(-1e300, 1e300, (2,), np.float64))
    made(kind, spaces.Box(-1e38, 1e38, (2,), np.float64))


@pytest.mark.few
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.Dict({"x": OBS, "y": spaces.MultiDiscrete([2, 3])}),
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Box(-1, 1, (2, 3), np.float64),
    ],
    ids=["discrete", "dict", "image", "matrix"],
)
def test_observations_of_any_space_are_acted_on_and_learned_from(kind, space, elements):
    policy = made(kind, observation_space=space)
    obs = elements(space, 6)
    action = policy.collect_mode.forward(obs)[0]
    as_tensors = (
        {name: torch.from_numpy(part) for name, part in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
    )
    before = copied(policy.model)
    policy.learn_mode.forward(tree({**transitions(6), "obs": as_tensors, "next_obs": as_tensors}))

    assert action.shape == (6, 1, 3)
    assert any(not torch.equal(one, two) for one, two in zip(before, policy.model.parameters(), strict=True))


# Acting.


@pytest.mark.few
@pytest.mark.parametrize(
    ("shape", "low", "high", "dtype"),
    [
        ((), -2.0, 2.0, np.float32),
        ((1,), 0.1, 0.3, np.float32),
        ((2, 3), -0.75, -0.75, np.float32),
        ((2, 3), 0.1, 0.3, np.float64),
        ((), 1e6, 1e6 + 1, np.float32),
        ((1,), 1e6, 1e6 + 1, np.float64),
    ],
)
def test_actions_are_elements_of_their_space_however_wild_the_noise(kind, shape, low, high, dtype):
    space = spaces.Box(low, high, shape, dtype)
    policy = made(kind, space, **({"collect__noise_sigma": 5.0} if kind in NOISY else {}))
    with torch.no_grad():
        for param in policy.model.actor.parameters():
            param.mul_(20)
    policy.version += 1
    obs = 10 * np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)

    for mode in (policy.collect_mode, policy.eval_mode):
        action, state, _ = mode.forward(obs)
        assert action.shape == (40, *shape)
        assert state == []
        assert ((np.asarray(action, np.float64) >= space.low) & (np.asarray(action, np.float64) <= space.high)).all()
        assert all(space.contains(np.asarray(one, dtype)) for one in action)


@pytest.mark.few
def test_exploring_is_random_and_evaluating_is_not(kind):
    policy, obs = made(kind), np.ones((200, 5), np.float32)
    drawn, best = policy.collect_mode.forward(obs)[0], policy.eval_mode.forward(obs)[0]
    twins = [policy.collect_mode.worker_copy(index).forward(obs)[0] for index in (0, 1)]

    np.testing.assert_allclose(best, np.broadcast_to(best[0], best.shape), rtol=1e-5)
    assert (drawn.std(0) > 0).all()
    assert not np.array_equal(drawn, policy.collect_mode.forward(obs)[0])
    np.testing.assert_array_equal(drawn, made(kind).collect_mode.forward(obs)[0])
    assert not np.array_equal(*twins)


def test_noise_correlates_as_asked_within_an_episode_and_begins_anew_with_the_next(kind):
    space = spaces.Box(-1, 1, (2,))
    settings = {"collect__noise_sigma": 0.1} if kind in NOISY else {}
    policy = made(kind, space, collect__noise_correlation=0.8, **settings)
    obs, mode = np.ones((500, 5), np.float32), policy.collect_mode
    start = mode.get_initial_state(500)
    first, state, _ = mode.forward(obs, start)
    states = []
    for _ in range(40):
        _, state, _ = mode.forward(obs, state)
        states.append(state[0].numpy())
    lag = np.corrcoef(states[-2].ravel(), states[-1].ravel())[0, 1]

    assert [tuple(element.shape) for element in start] == [(500, 2)]
    assert not start[0].any()
    np.testing.assert_allclose(lag, 0.8, atol=0.05)
    np.testing.assert_allclose(states[-1].std(), 1, atol=0.06)
    assert np.std(first - policy.eval_mode.forward(obs)[0]) > 0
    assert made(kind, space).collect_mode.get_initial_state(3) == []


@pytest.mark.few
def test_a_worker_goes_on_with_its_noise_where_it_was_saved(kind, same):
    def worker():
        env = make_envs("Pendulum-v1", 2, seed=0)
        policy = made(kind, env.single_action_space, env.single_observation_space, collect__noise_correlation=0.9)
        return env, policy, LocalWorker(env, policy.collect_mode)

    env, policy, first = worker()
    first.collect(5)
    saved = env.state_dict(), policy.state_dict(), first.state_dict()
    expected = first.collect(4).trajectories.batch
    other_env, other_policy, second = worker()
    for thing, state in zip((other_env, other_policy, second), saved, strict=True):
        thing.load_state_dict(state)
    found = second.collect(4).trajectories.batch

    assert torch.equal(expected.action, found.action)
    assert torch.equal(expected.obs, found.obs)


# Learning.


@pytest.mark.parametrize("kind", ["ddpg", "td3", "sac", "cql", "td3_bc"])
def test_each_loss_has_gradients_for_its_own_part_alone(kind):
    policy, batch = made(kind), tree(transitions())
    alpha = (torch.tensor(0.5),) if kind in ("sac", "cql") else ()
    parts = {"critic": policy.model.critic, "actor": policy.model.actor}
    losses = {"critic": lambda: policy.critic_loss(batch, *alpha)[0], "actor": lambda: policy.actor_loss(batch, *alpha)}
    for learning, loss in losses.items():
        given = loss()
        (given[0] if isinstance(given, tuple) else given).backward()
        for name, part in parts.items():
            assert all((param.grad is not None) == (name == learning) for param in part.parameters()), (learning, name)
        for param in policy.params:
            param.grad = None


@pytest.mark.few
@pytest.mark.parametrize("frozen", ["actor", "critic"])
def test_a_part_whose_learning_rate_is_zero_stays_as_it_is(kind, frozen):
    rates = {"learn__learning_rate": 0.0, "learn__learning_rate_actor": 0.01}
    if frozen == "actor":
        rates = {"learn__learning_rate": 0.01, "learn__learning_rate_actor": 0.0}
    policy = made(kind, **rates)
    before = {name: copied(getattr(policy.model, name)) for name in ("actor", "critic")}
    learned(policy, 3)

    for name, params in before.items():
        same = [torch.equal(*pair) for pair in zip(params, getattr(policy.model, name).parameters(), strict=True)]
        assert all(same) if name == frozen else not any(same)


def test_the_gradient_of_each_part_is_clipped_by_itself(kind):
    policy = made(kind, learn__grad_clip_norm=1e-3)
    stats = learned(policy, 1)[0]
    norms = {
        name: torch.stack([param.grad.norm() for param in part]).norm() for name, (part, _) in policy.param_groups().items()
    }

    for name, norm in norms.items():
        assert stats[f"grad_norm_{name}"] > 1e-3
        torch.testing.assert_close(norm, torch.tensor(1e-3), rtol=1e-2, atol=0)
    parts = torch.stack([stats[f"grad_norm_{name}"] for name in norms])
    torch.testing.assert_close(stats["grad_norm"], parts.norm())


def test_targets_follow_slowly_and_take_no_gradient(kind):
    policy = made(kind, learn__target_update_theta=0.25, learn__target_update_freq=2, learn__learning_rate=0.01)
    expected = copied(policy.target_model)
    for step in range(4):
        learned(policy, 1, first=step)
        if step % 2:
            expected = [0.75 * old + 0.25 * new for old, new in zip(expected, copied(policy.target_source()), strict=True)]
        for found, wanted in zip(policy.target_model.parameters(), expected, strict=True):
            torch.testing.assert_close(found.data, wanted, rtol=1e-5, atol=1e-7)
            assert found.grad is None
            assert not found.requires_grad


@pytest.mark.few
def test_a_saved_policy_learns_on_bit_for_bit(kind, same):
    policy = made(kind)
    learned(policy, 3)
    other = made(kind, seed=7)
    other.load_state_dict(policy.state_dict())

    assert same(learned(policy, 5, first=3), learned(other, 5, first=3))
    assert same(policy.state_dict(), other.state_dict())


def test_weights_alone_give_the_targets_too(kind):
    policy, other = made(kind), made(kind, seed=7)
    other.load_state_dict({"model": policy.state_dict()["model"]})

    for found, wanted in zip(other.target_model.parameters(), policy.target_source().parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_all_columns_that_the_losses_read_are_known_before_the_first_step(kind):
    read = {"obs", "action", "reward", "next_obs", "terminated", "weight", "discount"}

    assert set(made(kind).columns) == read


def test_a_reward_that_is_no_number_ends_learning_and_leaves_the_weights(kind):
    policy, batch = made(kind), transitions()
    before = copied(policy.model)
    batch["reward"][3] = np.nan

    with pytest.raises(NonFiniteError, match="reward of the batch it learns from holds NaN"):
        policy.learn_mode.forward(tree(batch))
    assert all(torch.equal(*pair) for pair in zip(before, policy.model.parameters(), strict=True))


@pytest.mark.few
def test_a_constant_reward_is_worth_its_endless_sum(kind):
    settings = {"learn__auto_alpha": False, "learn__alpha": 1e-8} if kind in ("sac", "cql") else {}
    settings |= {"learn__min_q_weight": 0.0} if kind == "cql" else {}
    policy = made(kind, discount_factor=0.5, learn__learning_rate=0.04, learn__target_update_theta=0.5, **settings)
    one, batch = torch.ones(64, 5), transitions(64)
    batch["action"] = policy.model.bounds(2 * torch.rand(64, 3, generator=torch.Generator().manual_seed(1)) - 1)
    batch |= {"obs": one, "next_obs": one, "reward": torch.ones(64), "terminated": torch.zeros(64, dtype=torch.bool)}
    for _ in range(60):
        policy.learn_mode.forward(tree(batch))
    q_value = policy.model.critic(one, policy.model.bounds.to_unit(batch["action"]))

    np.testing.assert_allclose(q_value.mean().item(), 2, rtol=0.05)


@pytest.mark.few
def test_actions_of_float64_are_learned_from_whether_the_policy_chose_them_or_chance(kind):
    class Wide(gymnasium.Env):
        observation_space, action_space = OBS, ACTIONS

        def reset(self, *, seed=None, options=None):
            return np.zeros(5, np.float32), {}

        def step(self, action):
            return np.zeros(5, np.float32), 1.0, False, False, {}

    gymnasium.register("Wide-v0", Wide)
    try:
        envs = make_envs("Wide-v0", 2, seed=0)
    finally:
        del gymnasium.registry["Wide-v0"]
    policy, buffer = made(kind, learn__batch_size=8), ReplayBuffer(64, seed=0)
    worker = LocalWorker(envs, policy.collect_mode)
    for random in (True, False):
        buffer.push(worker.collect(8, random=random).trajectories)
        policy.learn_mode.forward(buffer.sample(8))

    assert buffer.sample(1).action.dtype == torch.float32
    policy.learn_mode.forward(tree({**transitions(), "action": torch.rand(12, 1, 3, dtype=torch.float64)}))


def test_clipped_actions_are_inside_of_bounds_that_float32_does_not_have():
    space = spaces.Box(-0.1, 0.1, (3,), np.float64)
    clipped = clip_actions(space, torch.tensor([[-9.0, 0.05, 9.0]]))
    assert space.contains(clipped[0].numpy().astype(np.float64))
    assert clipped[0, 1] == torch.tensor(0.05)
