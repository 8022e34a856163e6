"""Rainbow: C51's loss on networks with noise, noise that explores and is not evaluated, and a run that no schedule changes."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import RainbowConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import PrioritizedReplayBuffer, tree
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    interaction_evaluator,
    nstep_reward_enhancer,
)
from ding_lite.nn import NoisyLinear
from ding_lite.policy import RainbowPolicy, RainbowPolicyConfig

OBS = spaces.Box(-1, 1, (5,), np.float32)
V_MIN, V_MAX, N, GAMMA = -3.0, 5.0, 7, 0.9


def made(start: int = 0, double_precision: bool = True, **settings) -> RainbowPolicy:
    settings = {
        "seed": 0, "discount_factor": GAMMA, "model.n_atom": N, "model.v_min": V_MIN, "model.v_max": V_MAX,
        "model.encoder_hidden_size_list": [8], "model.head_hidden_size_list": [6],
        **{key.replace("__", "."): v for key, v in settings.items()},
    }  # fmt: skip
    policy = RainbowPolicy(RainbowPolicyConfig().override(settings), OBS, spaces.Discrete(3, start=start))
    if double_precision:
        policy.model.double()
        policy.target_model.double()
    return policy


def with_noise_of(generator: torch.Generator, network: torch.nn.Module, obs: torch.Tensor) -> np.ndarray:
    """Logits [B, 3, N] by a network whose weights are written out with the noise that comes next."""
    encoder, head = network
    layers = [layer for stream in (head.advantage, head.value) if stream is not None for layer in stream.layers]
    sizes = [(layer.weight.shape[1], layer.weight.shape[0]) for layer in layers]
    drawn = torch.randn(sum(map(sum, sizes)), generator=generator, dtype=torch.float64).numpy()
    f, x, outputs, at = np.sign(drawn) * np.sqrt(abs(drawn)), encoder(obs).detach().numpy(), [], 0
    for i, (layer, (width, out)) in enumerate(zip(layers, sizes)):
        inner, outer, at = f[at : at + width], f[at + width : at + width + out], at + width + out
        weight, bias, weight_sigma, bias_sigma = (param.detach().numpy() for param in layer.parameters())
        below = outputs[-1] if i % 2 else x
        y = below @ (weight + weight_sigma * np.outer(outer, inner)).T + bias + bias_sigma * outer
        outputs.append(y if i % 2 else np.maximum(y, 0))
    advantage = outputs[1].reshape(len(obs), 3, N)
    return advantage if len(layers) == 2 else outputs[3][:, None] + advantage - advantage.mean(1, keepdims=True)


def by_definition(policy: RainbowPolicy, batch: dict, start: int) -> list[float]:
    """The loss of each row."""
    generator, atoms, step = torch.Generator(), np.linspace(V_MIN, V_MAX, N), (V_MAX - V_MIN) / (N - 1)
    generator.set_state(policy.generator.get_state())
    judged = with_noise_of(generator, policy.target_model, batch["next_obs"])
    online = with_noise_of(generator, policy.model, batch["next_obs"]) if policy.cfg.double else judged
    now = with_noise_of(generator, policy.model, batch["obs"])
    losses = []
    for i, reward in enumerate(batch["reward"].tolist()):
        q = [float(np.dot(atoms, np.exp(x) / np.exp(x).sum())) for x in online[i]]
        best = np.exp(judged[i, q.index(max(q))])
        prob = np.exp(now[i, batch["action"][i].item() - start])
        discount = batch["discount"][i].item() if "discount" in batch else GAMMA
        loss = 0.0
        for j, p in enumerate(best / best.sum()):
            moved = reward + (0 if batch["terminated"][i] else discount) * atoms[j]
            place = (min(max(moved, V_MIN), V_MAX) - V_MIN) / step
            for k in range(N):
                loss -= p * max(0.0, 1 - abs(place - k)) * math.log(prob[k] / prob.sum())
        losses.append(loss)
    return losses


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_the_loss_is_that_of_c51_with_other_noise_for_each_network(start, double, dueling, varied, moved_apart):
    policy, batch = moved_apart(made(start, double=double, model__dueling=dueling)), varied(start=start)
    losses = by_definition(policy, batch, start)
    loss, stats = policy.loss(tree(batch))
    expected = np.mean(np.asarray(losses) * batch.get("weight", torch.ones(len(losses))).numpy())

    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    assert ("priority" in stats) == ("weight" in batch)
    assert not any(stat.requires_grad for stat in stats.values())


def test_collecting_is_noisy_and_evaluating_is_not():
    policy, obs = made(double_precision=False), np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    with torch.no_grad():
        for param in policy.params:
            param.mul_(3)  # so that no action is the best everywhere
        greedy = policy.q_values(torch.from_numpy(obs)).argmax(-1).numpy()
    collected = [policy.collect_mode.forward(obs)[0] for _ in range(3)]

    assert not any(np.array_equal(one, other) for one, other in zip(collected, [*collected[1:], greedy]))
    for eps in (0.0, 1.0):
        np.testing.assert_array_equal(policy.eval_mode.forward(obs, eps=eps)[0], greedy)


def test_each_environment_explores_by_noise_of_its_own_and_none_is_in_what_is_evaluated():
    policy, obs = made(double_precision=False), np.zeros((400, 5), np.float32)

    assert len(np.unique(policy.collect_mode.forward(obs)[0])) > 1
    assert len(np.unique(policy.eval_mode.forward(obs)[0])) == 1


def test_an_eps_that_a_pipeline_sets_comes_on_top_of_the_noise():
    policy, obs = made(double_precision=False), np.zeros((900, 5), np.float32)
    _, counts = np.unique(policy.collect_mode.forward(obs, eps=1.0)[0], return_counts=True)

    assert len(counts) == 3
    assert counts.min() > 240


def test_noise_depends_on_the_policys_seed_and_on_nobody_elses_numbers():
    obs = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    first = made(double_precision=False).collect_mode.forward(obs)[0]
    torch.manual_seed(99)
    policy, before = made(double_precision=False), torch.get_rng_state()

    np.testing.assert_array_equal(policy.collect_mode.forward(obs)[0], first)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_snapshot_has_no_noise_and_learning_gives_none_to_who_acts(transitions):
    policy = made(double_precision=False)
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))
    collect = policy.collect_mode
    collect.forward(np.zeros((2, 5), np.float32))
    layers = [layer for one in (policy, collect.actor) for layer in one.model.modules() if isinstance(layer, NoisyLinear)]

    assert len(layers) == 8
    assert all(layer.drawn is None for layer in layers)
    assert len(policy.snapshot().values) == len(policy.params)


def test_the_amounts_of_noise_are_learned(transitions):
    policy = made(double_precision=False)
    before = {name: param.clone() for name, param in policy.model.state_dict().items()}
    policy.learn_mode.forward(tree(transitions(dtype=torch.float32)))
    changed = {name for name, param in policy.model.state_dict().items() if not torch.equal(param, before[name])}

    assert changed == set(before)
    assert sum("sigma" in name for name in changed) == 8


def run(async_mode: bool, max_lag: int | None, workers: int = 1):
    """What a short run comes to: policy, buffer, counters."""
    cfg = RainbowConfig(seed=3).override({
        "policy.collect.n_sample": 32, "env.stop_value": None, "env.n_evaluator_episode": 2,
        "policy.learn": {"learning_starts": 32, "update_per_collect": 3, "batch_size": 16},
        "policy.model": {"encoder_hidden_size_list": [8], "head_hidden_size_list": [8]}, "policy.eval.evaluator.eval_freq": 10,
    })  # fmt: skip
    envs = make_envs("CartPole-v1", 4, seed=3, workers=workers)
    policy = RainbowPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer = PrioritizedReplayBuffer(1000, seed=3, **cfg.policy.other.priorities())
    loop = Task()
    with loop.start(async_mode=async_mode, max_lag=max_lag, ctx=OnlineRLContext()):
        loop.use(interaction_evaluator(cfg, policy.eval_mode, make_envs("CartPole-v1", 2, seed=4)))
        loop.use(StepCollector(cfg, policy.collect_mode, envs))
        loop.use(nstep_reward_enhancer(cfg))
        loop.use(data_pusher(cfg, buffer))
        loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        loop.run(max_step=6)
    return policy.state_dict(), buffer.state_dict(), loop.ctx.env_step, loop.ctx.train_iter, loop.ctx.last_eval_value


@pytest.mark.parametrize(("max_lag", "workers"), [(0, 1), (1, 2)])
def test_an_asynchronous_run_is_the_run_on_one_thread(max_lag, workers, digest):
    assert digest(*run(True, max_lag, workers)) == digest(*run(False, max_lag, workers))


def test_the_pipeline_learns_from_three_steps_and_gives_priorities_back():
    _, buffer, _, train_iter, _ = run(False, None)

    assert train_iter == 18
    assert buffer["sampled"] == 18
    assert len(np.unique(buffer["scaled"])) > 10
    discount = np.unique(buffer["columns"]["discount"].numpy())
    np.testing.assert_allclose(discount, [0.99**3, 0.99**2, 0.99], rtol=1e-6)
