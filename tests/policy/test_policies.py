"""Every policy on every space, from its seed alone; what it saves, what it refuses, and the hooks of a policy of one's own."""

import random

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import Tree, tree
from ding_lite.data.trees import with_leaves
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.functional import gae
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, NonFiniteError, Policy, PolicyConfig, PPOPolicy, PPOPolicyConfig

T, B = 5, 3
VECTOR, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
OBSERVATIONS = {
    "a vector": VECTOR,
    "a vector of float64": spaces.Box(-1, 1, (4,), np.float64),
    "a vector of bytes": spaces.Box(0, 255, (4,), np.uint8),
    "a matrix": spaces.Box(-1, 1, (3, 4), np.float32),
    "a number": spaces.Box(-1, 1, (), np.float32),
    "an image, channels last": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "an image, channels first": spaces.Box(0, 255, (3, 10, 10), np.uint8),
    "a category": spaces.Discrete(6, start=2),
    "categories": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
    "parts": spaces.Dict({"keys": DISCRETE, "a.b": VECTOR, "shape": spaces.Box(0, 255, (8, 8, 2), np.uint8)}),
    "parts of parts": spaces.Tuple((VECTOR, spaces.Dict({"x": spaces.Tuple((DISCRETE, spaces.MultiBinary((2, 2))))}))),
}  # fmt: skip
ACTIONS = {
    "one of n": DISCRETE,
    "one of n from 3": spaces.Discrete(3, start=3),
    "a vector": spaces.Box(-1, 1, (2,), np.float32),
    "a vector of float64": spaces.Box(-1, 1, (2,), np.float64),
    "a matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "a number": spaces.Box(-1, 1, (), np.float32),
    "several": spaces.MultiDiscrete([2, 4]),
    "several with starts": spaces.MultiDiscrete([[2, 3], [2, 2]], start=[[1, 0], [-1, 5]]),
    "bits": spaces.MultiBinary(3),
    "parts": spaces.Dict({"keys": spaces.Discrete(3, start=1), "a.b": spaces.Box(-1, 1, (2,), np.float32)}),
    "parts of parts": spaces.Tuple((DISCRETE, spaces.Dict({"x": spaces.MultiBinary(2), "y": spaces.Tuple((DISCRETE,))}))),
}  # fmt: skip
KINDS = {"dqn": (DQNPolicy, DQNPolicyConfig), "ppo": (PPOPolicy, PPOPolicyConfig)}
each = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, observation_space=VECTOR, action_space=DISCRETE, **settings) -> Policy:
    policy, config = KINDS[kind]
    small = {"seed": 0, "model.encoder_hidden_size_list": [8], "learn.batch_size": 8}
    settings = {**small, **({"learn.epoch_per_collect": 2} if kind == "ppo" else {}), **settings}
    return policy(config().override(settings), observation_space, action_space)


@pytest.fixture
def cycle(elements):
    """Act for T steps in B environments and learn from that. Returns the actions, and what learning gave."""

    def run(policy: Policy, seed: int = 0, reward_scale: float = 1.0):
        rng = np.random.default_rng(seed)
        obs = elements(policy.observation_space, T, B, seed=2 * seed)
        next_obs = elements(policy.observation_space, T, B, seed=2 * seed + 1)
        with torch.inference_mode():
            steps = [policy.collect_mode.forward(row(obs, t), eps=0.5) for t in range(T)]
        columns = stacked([{"action": action, **outputs} for action, _, outputs in steps])
        terminated, truncated = rng.random((2, T, B)) < 0.2
        reward = (reward_scale * rng.normal(size=(T, B))).astype(np.float32)
        batch = tree(
            {"obs": obs, "next_obs": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated, **columns}
        )
        if isinstance(policy, PPOPolicy):
            batch = policy.collect_mode.with_values(batch)
            signals = (batch.reward, batch.value, batch.next_value, batch.terminated, batch.truncated)
            advantage = gae(*signals, gamma=0.9, lambda_=0.9)
            batch = with_leaves(batch, advantage=advantage, return_=advantage + batch.value)
        else:
            batch = batch.flatten(0, 1)
        return columns["action"], policy.learn_mode.forward(batch)

    return run


def row(leaves, t):
    return {name: row(leaf, t) for name, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[t]


def stacked(rows: list):
    if isinstance(rows[0], dict):
        return {name: stacked([one[name] for one in rows]) for name in rows[0]}
    return np.stack(rows)


def element(space, action, b: int):
    """Row b of a batch of actions as gymnasium has it."""
    if isinstance(space, spaces.Dict):
        return {name: element(part, action[name], b) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(element(part, action[str(i)], b) for i, part in enumerate(space.spaces))
    return np.int64(action[b]) if isinstance(space, spaces.Discrete) else np.asarray(action[b], space.dtype)


def assert_learns(policy: Policy, cycle):
    before = policy.get_weights()
    action, output = cycle(policy)
    assert output
    assert all(value.isfinite() and value.ndim == 0 for value in output.values())
    assert all(tensor.isfinite().all() for tensor in policy.get_weights().values())
    assert any(not torch.equal(before[name], tensor) for name, tensor in policy.get_weights().items())
    for mode in (policy.collect_mode, policy.eval_mode):
        for t in range(T):
            env_action = mode.env_action(row(action, t))
            assert all(policy.action_space.contains(element(policy.action_space, env_action, b)) for b in range(B))


@pytest.mark.few
@each
@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())
def test_acts_and_learns_on_observations_of_every_space(space, kind, cycle):
    assert_learns(made(kind, space), cycle)


@pytest.mark.few
@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS.keys())
def test_ppo_acts_and_learns_with_actions_of_every_space(space, share_encoder, cycle):
    assert_learns(made("ppo", action_space=space, **{"model.share_encoder": share_encoder}), cycle)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("space", [DISCRETE, spaces.Discrete(3, start=3), spaces.Discrete(1)])
def test_dqn_acts_and_learns_with_actions_from_any_start(space, dueling, cycle):
    assert_learns(made("dqn", action_space=space, **{"model.dueling": dueling}), cycle)


@each
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "gelu", "silu"])
def test_acts_and_learns_with_every_activation(activation, kind, cycle):
    assert_learns(made(kind, **{"model.activation": activation}), cycle)


def life(policy: Policy, cycle, start: int = 0, stop: int = 4) -> list:
    """Everything that a policy does and becomes."""
    return [cycle(policy, seed) for seed in range(start, stop)] + [policy.state_dict()]


@each
def test_the_same_seed_gives_the_same_life_and_another_seed_another(kind, cycle, same):
    first = life(made(kind), cycle)

    assert same(life(made(kind), cycle), first)
    other = made(kind, seed=1)
    assert not same(other.get_weights(), made(kind).get_weights())
    assert not same(life(other, cycle)[0], first[0])


@each
def test_no_seed_is_seed_zero(kind, same):
    assert same(made(kind, seed=None).state_dict(), made(kind, seed=0).state_dict())


@pytest.fixture
def global_seed():
    """Sets every global generator, and puts them back in the end."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  they are what must not matter
    with torch.random.fork_rng(devices=[]):
        yield lambda seed: (random.seed(seed), np.random.seed(seed), torch.manual_seed(seed))  # noqa: NPY002
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002


@each
def test_global_generators_are_neither_moved_nor_heeded(kind, cycle, same, global_seed):
    lives = []
    for seed in (1, 2):
        global_seed(seed)
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        lives.append(life(made(kind), cycle))
        assert same((random.getstate(), np.random.get_state(), torch.get_rng_state()), before)  # noqa: NPY002

    assert same(*lives)


@pytest.mark.few
@each
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_policy_goes_on_from_a_checkpoint_bit_for_bit(kind, cut, cycle, same, tmp_path):
    straight, saved = made(kind), made(kind)
    life(saved, cycle, 0, cut)
    resumed = made(kind, seed=5)
    life(resumed, cycle, 20, 22)
    resumed.load_state_dict(load_checkpoint(save_checkpoint(saved.state_dict(), tmp_path / "policy.pt")))
    whole = life(straight, cycle, 0, 5)

    assert same(life(resumed, cycle, cut, 5), whole[cut:])


@each
def test_restored_weights_are_acted_on_at_once(kind, cycle, elements):
    policy, other, obs = made(kind), made(kind, seed=3), elements(VECTOR, 50)
    cycle(policy)
    other.learn_mode.load_state_dict(policy.state_dict())

    np.testing.assert_array_equal(other.eval_mode.forward(obs)[0], policy.eval_mode.forward(obs)[0])
    np.testing.assert_array_equal(other.collect_mode.forward(obs)[0], policy.collect_mode.forward(obs)[0])


@each
def test_weights_can_be_taken_and_given(kind, cycle, elements, same):
    policy, other, obs = made(kind), made(kind, seed=3), elements(VECTOR, 50)
    other.eval_mode.forward(obs)
    weights = policy.get_weights()
    other.set_weights(weights)

    assert same(other.get_weights(), weights)
    np.testing.assert_array_equal(other.eval_mode.forward(obs)[0], policy.eval_mode.forward(obs)[0])
    cycle(policy)
    assert same(other.get_weights(), weights)
    assert not same(policy.get_weights(), weights)


@each
def test_given_weights_are_no_gradient_step(kind):
    policy = made(kind)
    policy.set_weights(policy.get_weights())

    assert policy.learn_mode.train_iter == 0


@each
@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing(kind, junk, cycle, same):
    policy = made(kind)
    for seed in range(2):
        cycle(policy, seed)
    step = policy.learn_mode.train_iter
    before = load_state(policy)
    causes = r"(lower learn\.l|\w+(, \w+)* of the batch it learns from holds (NaN|an infinite number))"
    with pytest.raises(
        NonFiniteError, match=rf"loss of {type(policy).__name__} is -?(nan|inf) in gradient step {step}: {causes}"
    ):
        cycle(policy, 2, reward_scale=junk)
    after = load_state(policy)

    for name in ("model", "optimizer", "version", "target_model"):
        assert same(after.get(name), before.get(name))
    cycle(policy, 3)
    assert all(tensor.isfinite().all() for tensor in policy.get_weights().values())


def load_state(policy: Policy) -> dict:
    """A state of its own, which learning does not change."""
    return clone(policy.state_dict())


def clone(state):
    if isinstance(state, dict):
        return {name: clone(value) for name, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(same):
    policy = made("ppo", **{"learn.epoch_per_collect": 1, "learn.adv_norm": False, "learn.batch_size": 100})
    no = torch.zeros(T, B)
    # The ratio overflows to infinity, the clip keeps the loss finite, and the gradient becomes 0 * inf.
    batch = tree(
        {"obs": torch.ones(T, B, 4), "action": no.long(), "log_prob": no - 200, "advantage": no + 1, "value": no, "return_": no}
    )
    before = policy.get_weights()
    with pytest.raises(NonFiniteError, match="gradient"):
        policy.learn_mode.forward(batch)

    assert same(policy.get_weights(), before)


@each
@pytest.mark.parametrize("device", ["nonsense", "cuda:nonsense", ""])
def test_a_device_that_does_not_exist_is_refused_with_the_one_that_does(kind, device):
    with pytest.raises(ValueError, match=rf"cfg\.policy\.device = '{device}' is not available.*use 'cpu'"):
        made(kind, device=device)


@each
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_is_refused_where_there_is_none(kind, device):
    with pytest.raises(ValueError, match=rf"cfg\.policy\.device = '{device}' is not available.*use 'cpu'"):
        made(kind, device=device)


class Own(Policy):
    """A user's policy: a recurrent state, normalisation with running means, and every hook."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    def make_optimizer(self, params):
        return torch.optim.SGD(params, lr=0.1)

    def get_initial_state(self):
        return [torch.zeros(2)]

    def compute_actions(self, obs, state=None, *, explore=True, offset=0, **kwargs):
        q_value = self.model(obs)
        noise = torch.randint(3, (len(obs),), generator=self.generator) if explore else 0
        action = (q_value.argmax(-1) + noise + offset) % 3
        return action, [state[0] + 1], {"q_value": q_value, "memory": {"count": state[0]}}

    def postprocess(self, batch: Tree) -> Tree:
        return with_leaves(batch, target=batch.reward * 2)

    def loss(self, batch: Tree):
        loss = (self.model(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) - batch.target).square().mean()
        return loss, {"loss": loss.detach()}

    def gradients(self, params):
        for param in params:
            param.grad.sign_()
        return {"largest": max(param.grad.max() for param in params)}

    def stats(self, batch: Tree):
        return {"target": batch.target.mean()}

    def after_step(self) -> None:
        self.steps = getattr(self, "steps", 0) + 1


def own() -> Own:
    return Own(PolicyConfig().override({"seed": 0}), VECTOR, DISCRETE)


def own_batch(n: int = 6) -> Tree:
    return tree({"obs": torch.linspace(-1, 1, 4 * n).reshape(n, 4), "action": torch.arange(n) % 3, "reward": torch.ones(n)})


def test_the_hooks_of_a_policy_of_ones_own_are_called():
    policy, before = own(), own().get_weights()
    output = policy.learn_mode.forward(own_batch())

    assert output.keys() == {"loss", "largest", "target"}
    assert (output["largest"].item(), output["target"].item(), policy.steps) == (1, 2, 1)
    moved = (policy.get_weights()["2.weight"] - before["2.weight"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.1))  # SGD by 0.1 along signs


def test_the_state_and_the_outputs_of_a_policy_of_ones_own_pass_through_its_modes(elements):
    policy, obs = own(), elements(VECTOR, B)
    state = policy.collect_mode.get_initial_state(B)
    action, state, outputs = policy.collect_mode.forward(obs, state)
    _, state, outputs = policy.collect_mode.forward(obs, state)
    best, _, _ = policy.eval_mode.forward(obs, policy.eval_mode.get_initial_state(B))
    shifted, _, _ = policy.eval_mode.forward(obs, policy.eval_mode.get_initial_state(B), offset=1)

    assert (action.shape, outputs["q_value"].shape, outputs["memory"]["count"].tolist()) == ((B,), (B, 3), [[1, 1]] * B)
    assert [element.tolist() for element in state] == [[[2, 2]] * B]
    np.testing.assert_array_equal(best, outputs["q_value"].argmax(-1))
    np.testing.assert_array_equal(shifted, (best + 1) % 3)


def test_an_acting_copy_takes_over_running_means_too_and_does_not_change_them(elements, same):
    policy, obs = own(), elements(VECTOR, B)
    policy.learn_mode.forward(own_batch())
    policy.eval_mode.forward(obs, [torch.zeros(B, 2)])

    assert policy.get_weights()["1.running_mean"].any()
    assert same(policy.eval_mode.get_weights(), policy.get_weights())
    first, second = (policy.eval_mode.forward(obs, [torch.zeros(B, 2)])[2]["q_value"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_policy_of_ones_own_is_refused_a_critic_it_does_not_have():
    with pytest.raises(TypeError, match=r"Own has no critic, so it cannot add values to a rollout: use a PPOPolicy"):
        own().collect_mode.with_values(own_batch())


def test_a_policy_without_hooks_acts_at_random_and_does_not_learn():
    policy = Policy(PolicyConfig(seed=0), VECTOR, DISCRETE)
    action, _, outputs = policy.collect_mode.forward(np.zeros((1000, 4), np.float32))

    assert np.bincount(action).min() > 250
    np.testing.assert_allclose(outputs["log_prob"], np.log(1 / 3), atol=0.05)
    with pytest.raises(NotImplementedError, match="Policy has no loss"):
        policy.learn_mode.forward(own_batch())
