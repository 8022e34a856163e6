"""R2D2 against its equations step by step, its burn-in against acting, and its sequences."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.config import R2D2Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer, tree
from ding_lite.envs import SpaceError, make_envs
from ding_lite.middleware import sequence_pusher
from ding_lite.policy import R2D2Policy, R2D2PolicyConfig
from ding_lite.rollout import make_worker

OBS, BURN_IN, LEARNED, N, H = spaces.Box(-1, 1, (5,), np.float32), 4, 7, 6, 5
L = BURN_IN + LEARNED


def made(
    action_space=None, observation_space=OBS, double_precision: bool = False, apart: float = 0.3, **settings
) -> R2D2Policy:
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    sizes = {"model.encoder_hidden_size_list": [8], "model.lstm_size": H}
    lengths = {"learn.burn_in": BURN_IN, "learn.unroll_len": LEARNED}
    cfg = R2D2PolicyConfig().override({"seed": 0, **sizes, **lengths, **settings})
    policy = R2D2Policy(cfg, observation_space, action_space or spaces.Discrete(3))
    with torch.no_grad():
        for param in policy.target_model.parameters():  # unlike the online network
            param.add_(torch.linspace(-apart, apart, param.numel()).reshape(param.shape))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def sequences(share: float = 0.3, start: int = 0, dtype=torch.float64, seed: int = 0, with_weight: bool = False) -> dict:
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)  # noqa: E731
    flag = lambda share: torch.rand(N, L, generator=g) < share  # noqa: E731
    batch = {
        "obs": noise(N, L, 5),
        "next_obs": noise(N, L, 5),
        "action": torch.randint(3, (N, L), generator=g) + start,
        "reward": 3 * noise(N, L),
        "terminated": flag(share / 2),
        "truncated": flag(share / 2),
        "valid": flag(0.85) if share else torch.ones(N, L, dtype=torch.bool),
        "state_in_0": noise(N, H),
        "state_in_1": noise(N, H),
    }
    return {**batch, "weight": torch.rand(N, generator=g).to(dtype)} if with_weight else batch


def h(x: float, eps: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x)


def h_inverse(x: float, eps: float) -> float:
    return float(np.sign(x) * (((np.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1))


def walk(network, batch: dict, i: int):
    """Values at each observation of sequence i, and at what comes after it, one step after the other."""
    state = [batch[f"state_in_{k}"][i : i + 1] for k in range(2)]
    ended = batch["terminated"][i] | batch["truncated"][i] | ~batch["valid"][i]
    values, after = [], []
    for t in range(L):
        if t and ended[t - 1]:
            state = [torch.zeros_like(element) for element in state]
        q_value, state = network.step(batch["obs"][i, t : t + 1], state)
        goes_on = t + 1 < L and not ended[t]
        beyond = batch["obs"][i, t + 1 : t + 2] if goes_on else batch["next_obs"][i, t : t + 1]
        values.append(q_value[0].tolist())
        after.append(network.step(beyond, state)[0][0].tolist())
    return values, after


def loss_by_definition(policy: R2D2Policy, batch: dict, nstep: int, gamma: float, eta: float, eps: float, start: int):
    """Loss and priority of each sequence."""
    losses, priorities = [], []
    for i in range(N):
        online, online_after = walk(policy.model, batch, i)
        judged = walk(policy.target_model, batch, i)[1]
        errors = []
        for t in range(BURN_IN, L):
            if not batch["valid"][i, t]:
                continue
            total, k = 0.0, 0
            while True:
                total += gamma**k * batch["reward"][i, t + k].item()
                k += 1
                last = t + k - 1
                if k == nstep or last + 1 == L or batch["terminated"][i, last] or batch["truncated"][i, last]:
                    break
                if not batch["valid"][i, last + 1]:
                    break
            if not batch["terminated"][i, last]:
                best = int(np.argmax(online_after[last]))
                total += gamma**k * h_inverse(judged[last][best], eps)
            errors.append(h(total, eps) - online[t][batch["action"][i, t].item() - start])
        losses.append(sum(e * e / 2 for e in errors) / max(1, len(errors)))
        absolute = [abs(e) for e in errors] or [0.0]
        priorities.append(eta * max(absolute) + (1 - eta) * sum(absolute) / len(absolute))
    return np.array(losses), np.array(priorities)


@pytest.mark.few
@pytest.mark.parametrize("nstep", [1, 3, 20])
@pytest.mark.parametrize(("share", "start"), [(0.0, 0), (0.3, 0), (0.3, 4)])
def test_the_loss_matches_its_equation_step_by_step(share, start, nstep):
    policy = made(
        spaces.Discrete(3, start=start), double_precision=True, nstep=nstep, discount_factor=0.8, learn__priority_eta=0.7,
        learn__rescale_eps=0.01,
    )  # fmt: skip
    batch = sequences(share, start, with_weight=True)
    batch["valid"][:, 1:] |= ~(batch["terminated"] | batch["truncated"])[:, :-1]  # a reset comes behind an end
    loss, stats = policy.loss(policy.postprocess(tree(batch)))
    losses, priorities = loss_by_definition(policy, batch, nstep, 0.8, 0.7, 0.01, start)

    np.testing.assert_allclose(loss.item(), (losses * batch["weight"].numpy()).mean(), rtol=1e-9)
    np.testing.assert_allclose(stats["priority"], priorities, rtol=1e-9)
    unweighted = {name: leaf for name, leaf in batch.items() if name != "weight"}
    plain_loss, plain_stats = policy.loss(policy.postprocess(tree(unweighted)))
    np.testing.assert_allclose(plain_loss.item(), losses.mean(), rtol=1e-9)
    assert "priority" not in plain_stats
    walked = [walk(policy.model, batch, i)[0] for i in range(N)]
    values = [
        walked[i][t][batch["action"][i, t].item() - start] for i in range(N) for t in range(BURN_IN, L) if batch["valid"][i, t]
    ]
    np.testing.assert_allclose(plain_stats["q_value"].item(), np.mean(values), rtol=1e-9)


def test_the_burn_in_and_the_target_have_no_gradient():
    policy, batch = made(double_precision=True), sequences(0.0)
    batch["obs"].requires_grad_()
    policy.loss(policy.postprocess(tree(batch)))[0].backward()
    gradient = batch["obs"].grad.abs().sum(-1)

    assert (gradient[:, :BURN_IN] == 0).all()
    assert (gradient[:, BURN_IN:] > 0).all()
    assert all(param.grad is None for param in policy.target_model.parameters())


def collected(env, policy, buffer_, num_steps: int, iterations: int, **settings) -> list:
    """What acting did, and the buffer filled with it."""
    cfg = R2D2Config().override({"policy.learn": {"burn_in": BURN_IN, "unroll_len": LEARNED}})
    worker, push, rollouts = make_worker(env, policy.collect_mode), sequence_pusher(cfg, buffer_), []
    for _ in range(iterations):
        ctx = OnlineRLContext()
        ctx.trajectories = worker.collect(num_steps, eps=0.5).trajectories
        rollouts.append(ctx.trajectories.batch)
        push(ctx)
    return rollouts


def test_the_burn_in_ends_with_the_values_that_acting_had():
    env = make_envs("CartPoleNoVel-v1", 3, seed=0, max_episode_steps=9)
    policy = made(env.single_action_space, env.single_observation_space)
    buffer_ = ReplayBuffer(1000)
    rollouts = collected(env, policy, buffer_, 2 * LEARNED, 4)
    columns = [torch.cat([rollout[name] for rollout in rollouts]) for name in ("obs", "state_in_0", "state_in_1")]
    acted = torch.stack([policy.model.step(obs, state)[0].detach() for obs, *state in zip(*columns)])  # [T, B, A]
    held = {name: torch.from_numpy(column[: len(buffer_)]) for name, column in buffer_._columns.items()}
    assert held["terminated"].any()
    assert held["truncated"].any()
    found = policy.unrolled(policy.model, policy.postprocess(tree(held)))[0].detach()

    first = LEARNED - BURN_IN  # of the sequences: the first rollout's ends with it
    for place in range(len(buffer_)):
        number, env_index = divmod(place, 3)
        begin = first + number * LEARNED + BURN_IN
        torch.testing.assert_close(found[:, place], acted[begin : begin + LEARNED, env_index], rtol=1e-4, atol=1e-6)


def test_sequences_are_whole_and_overlap_by_the_burn_in():
    env = make_envs("CartPoleNoVel-v1", 2, seed=0, max_episode_steps=9)
    policy = made(env.single_action_space, env.single_observation_space)
    buffer_ = PrioritizedReplayBuffer(100)
    rollouts = collected(env, policy, buffer_, LEARNED, 5)
    obs, state = (torch.cat([rollout[name] for rollout in rollouts]) for name in ("obs", "state_in_0"))
    columns = buffer_._columns

    assert len(buffer_) == 2 * 4
    for place in range(len(buffer_)):
        begin = LEARNED - BURN_IN + (place // 2) * LEARNED
        np.testing.assert_array_equal(columns["obs"][place], obs[begin : begin + L, place % 2])
        np.testing.assert_array_equal(columns["state_in_0"][place], state[begin, place % 2])
        assert columns["valid"][place].all()


def test_initial_priorities_of_steps_become_those_of_sequences():
    cfg = R2D2Config().override({"policy.learn": {"burn_in": 2, "unroll_len": 3, "priority_eta": 0.75}})
    buffer_, ctx = PrioritizedReplayBuffer(10, alpha=1.0, eps=1e-9), OnlineRLContext()
    env = make_envs("CartPoleNoVel-v1", 1, seed=0)
    policy = made(env.single_action_space, env.single_observation_space)
    worker, push = make_worker(env, policy.collect_mode), sequence_pusher(cfg, buffer_)
    for priority in ([9.0, 9.0, 9.0], [1.0, 2.0, 6.0]):
        rollout = worker.collect(3).trajectories
        ctx.trajectories = rollout.with_columns(priority=np.array(priority, np.float32)[:, None])
        push(ctx)

    assert len(buffer_) == 1
    np.testing.assert_allclose(buffer_._tree.values[0], 0.75 * 6 + 0.25 * 3, rtol=1e-6)
    assert "priority" not in buffer_._columns


def test_learning_goes_on_bit_for_bit_after_a_state_is_loaded(same):
    policy, other = made(learn__target_update_freq=2), made(seed=1, learn__target_update_freq=2)
    batch = tree(sequences(dtype=torch.float32, with_weight=True))
    policy.learn_mode.forward(batch)
    other.load_state_dict(policy.state_dict())
    for _ in range(5):
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))
    for name in ("model", "target_model"):
        assert same(dict(getattr(policy, name).state_dict()), dict(getattr(other, name).state_dict()))


@pytest.mark.parametrize("start", [0, 3])
def test_it_explores_where_it_is_told_to(start):
    policy = made(spaces.Discrete(3, start=start))
    obs = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    state = policy.eval_mode.get_initial_state(50)
    greedy, after, _ = policy.eval_mode.forward(obs, state, eps=1.0)
    mixed = policy.collect_mode.forward(obs, state, eps=1.0)[0]
    best = policy.model.step(torch.from_numpy(obs), state)[0].argmax(-1).numpy() + start

    np.testing.assert_array_equal(greedy, best)
    assert (mixed != greedy).any()
    assert set(mixed) <= {start, start + 1, start + 2}
    assert [tuple(element.shape) for element in after] == [(50, H)] * 2


def test_actions_that_are_not_discrete_are_refused():
    with pytest.raises(SpaceError, match="R2D2Policy wants Discrete actions"):
        made(spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("length", [L - 1, L + 3])
def test_sequences_of_another_length_are_refused(length):
    policy = made()
    rows = {name: leaf if leaf.ndim == 2 and name.startswith("state") else leaf[:, :1].repeat_interleave(length, 1)
            for name, leaf in sequences(dtype=torch.float32).items()}  # fmt: skip
    with pytest.raises(
        ValueError, match=rf"sequences \[N, {L}\] of burn_in {BURN_IN}.*terminated is \[{N}, {length}\].*sequence_pusher"
    ):
        policy.learn_mode.forward(tree(rows))


def test_outputs_that_are_text_are_let_be():
    class Noting(R2D2Policy):
        def compute_actions(self, obs, state=(), **kwargs):
            action, state, outputs = super().compute_actions(obs, state, **kwargs)
            return action, state, {**outputs, "note": ["foo"] * len(action)}

    cfg = R2D2Config().override({"policy.learn": {"burn_in": 2, "unroll_len": 4, "batch_size": 3}})
    envs = make_envs("CartPole-v1", 2, seed=0)
    policy = Noting(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer, worker = ReplayBuffer(100, seed=0), make_worker(envs, policy.collect_mode)
    push = sequence_pusher(cfg, buffer)
    for _ in range(3):
        push(OnlineRLContext(trajectories=worker.collect(8).trajectories))

    assert policy.learn_mode.forward(buffer.sample(3))["loss"].isfinite()
