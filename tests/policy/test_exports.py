"""Exports: programs and ONNX files act as the policy does, on observations of any space."""

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_cases import mostly_slow

from ding_lite import policy as policies
from ding_lite.policy import DQNPolicy, ExportError, GreedyActionModule, PPOPolicy, export_policy

VECTOR = spaces.Box(-2.0, 2.0, (4,))
NESTED = spaces.Dict(
    {"x": VECTOR, "t": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(3))), "a b": spaces.MultiDiscrete([2, 3])}
)
CHOICE, FORCE = spaces.Discrete(3, start=1), spaces.Box(-1.0, 3.0, (2,))
PARTS = spaces.Dict({"g": spaces.Tuple((CHOICE, FORCE)), "m": spaces.MultiDiscrete([2, 3])})
SMALL = {"model": {"encoder_hidden_size_list": [8]}}


def make(name, observation_space=VECTOR, action_space=None, **model):
    kind = getattr(policies, f"{name}Policy")
    bounded = issubclass(kind, policies.BoxActionMixin)
    cfg = kind.config_type().override({"model": {**SMALL["model"], **model}, "seed": 3})
    return kind(cfg, observation_space, action_space or (FORCE if bounded else CHOICE))


def batch_of(space, count, seed=1):
    """Observations of the environment, and the same as nested tensors."""
    space.seed(seed)
    rows = [space.sample() for _ in range(count)]
    return rows, _stacked(space, rows)


def _stacked(space, rows):
    if isinstance(space, spaces.Dict):
        return {name: _stacked(part, [row[name] for row in rows]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(at): _stacked(part, [row[at] for row in rows]) for at, part in enumerate(space.spaces)}
    return torch.from_numpy(np.stack([np.asarray(row) for row in rows]))


def same_actions(space, wanted, found):
    """Whether actions of `predict` equal nested actions of an export, in row 0 of the latter."""
    if isinstance(space, spaces.Dict):
        return all(same_actions(part, wanted[name], found[name]) for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(same_actions(part, wanted[at], found[str(at)]) for at, part in enumerate(space.spaces))
    return np.allclose(wanted, np.asarray(found)[0], rtol=1e-4, atol=1e-5)


ALGORITHMS = ["DQN", "C51", "QRDQN", "IQN", "Rainbow", "PPO", "A2C", "DDPG", "TD3", "SAC", "BC", "DiscreteCQL"]
ALGORITHMS += ["DiscreteIQL", "IQL"]
"""Each way of acting: CQL, TD3BC, AWAC, IMPALA and REINFORCE act as SAC, TD3, IQL, PPO and A2C."""


def test_the_program_of_a_mixture_acts_as_its_predictions(tmp_path):
    policy = make("BC", action_space=FORCE, mixture_components=3)
    program = torch.export.load(export_policy(policy, tmp_path / "policy.pt2")).module()
    rows, obs = batch_of(VECTOR, 5)

    assert same_actions(policy.action_space, policy.predict(rows[0])[0], program(obs[:1]))
    assert len(program(obs)) == 5


@pytest.mark.few
@pytest.mark.parametrize("name", mostly_slow(ALGORITHMS, "DQN", "C51", "PPO", "SAC"))
def test_the_program_of_each_algorithm_acts_as_its_predictions(name, tmp_path):
    policy = make(name)
    program = torch.export.load(export_policy(policy, tmp_path / "deep" / "policy.pt2")).module()
    rows, obs = batch_of(VECTOR, 5)

    for at, row in enumerate(rows):
        assert same_actions(policy.action_space, policy.predict(row)[0], program(obs[at : at + 1]))
    assert len(program(obs)) == 5
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["policy.pt2"]


def test_a_policy_that_has_explored_is_exported_and_its_predictions_go_on(tmp_path):
    obs = np.zeros((8, 4), np.float32)
    policy, other = make("SAC"), make("SAC")
    for one in (policy, other):
        one.predict(obs, deterministic=False)
    export_policy(policy, tmp_path / "policy.pt2")

    explored, expected = (one.predict(obs, deterministic=False)[0] for one in (policy, other))
    np.testing.assert_array_equal(explored, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "observation_space", "action_space", "model"),
    [
        ("PPO", NESTED, PARTS, {"normalize_obs": True}),
        ("DQN", spaces.Box(0, 255, (4, 16, 16), np.uint8), CHOICE, {"conv_layers": [(2, 3, 2)]}),
    ],
    ids=["nested", "images"],
)
def test_a_file_for_onnx_takes_raw_observations_by_name(name, observation_space, action_space, model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = make(name, observation_space, action_space, **model)
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    rows, obs = batch_of(observation_space, 3)
    leaves = {".".join(("obs", *path)): leaf.numpy() for path, leaf in policies_leaves(obs)}

    assert {one.name for one in session.get_inputs()} == set(leaves)
    names = [one.name for one in session.get_outputs()]
    assert set(names) == ({"action"} if name == "DQN" else {"action.g.0", "action.g.1", "action.m"})
    for at, row in enumerate(rows):
        found = session.run(None, {key: leaf[at : at + 1] for key, leaf in leaves.items()})
        action = nested_from(dict(zip(names, found)))
        assert same_actions(action_space, policy.predict(row)[0], action)


@pytest.mark.slow
def test_names_with_dots_are_kept_apart_in_a_file_for_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    parts = {"arm.left": spaces.Discrete(2), "arm": spaces.Dict({"right": spaces.Discrete(3)})}
    policy = make("PPO", spaces.Dict(parts), spaces.Dict(parts))
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    obs = {"arm.left": np.int64(1), "arm": {"right": np.int64(2)}}
    left, right = session.run(
        ["action.arm.left", "action.arm.right"], {"obs.arm.left": np.full(1, 1), "obs.arm.right": np.full(1, 2)}
    )
    assert same_actions(policy.action_space, policy.predict(obs)[0], {"arm.left": left, "arm": {"right": right}})

    parts = {**parts, "arm": spaces.Dict({"left": spaces.Discrete(3)})}
    for space, other, name in ((spaces.Dict(parts), CHOICE, "obs"), (VECTOR, spaces.Dict(parts), "action")):
        with pytest.raises(ExportError, match=rf"two parts of {name} have the name {name}\.arm\.left in an ONNX file"):
            export_policy(make("PPO", space, other), tmp_path / "other.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]


def policies_leaves(structure, path=()):
    if not isinstance(structure, dict):
        return [(path, structure)]
    return [leaf for name, part in structure.items() for leaf in policies_leaves(part, (*path, name))]


def nested_from(by_name):
    found = {}
    for name, value in by_name.items():
        *around, last = name.split(".")
        inner = found
        for part in around:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found["action"]


@pytest.mark.parametrize(
    ("name", "model", "ending"),
    [
        ("PPO", {"lstm_size": 8}, "pt2"),
        pytest.param("PPO", {"attention_window": 3}, "onnx", marks=pytest.mark.slow),  # made from the same program as pt2
        pytest.param("R2D2", {}, "onnx", marks=pytest.mark.slow),
    ],
)
def test_a_recurrent_state_is_passed_on(name, model, ending, tmp_path):
    policy = make(name, **model)
    path = export_policy(policy, tmp_path / f"policy.{ending}")
    rows, obs = batch_of(VECTOR, 4)
    mine, state = None, GreedyActionModule(policy).initial_state(1)
    if ending == "pt2":
        program = torch.export.load(path).module()
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    for at, row in enumerate(rows):
        action, mine = policy.predict(row, mine)
        if ending == "pt2":
            found, state = program(obs[at : at + 1], state)
        else:
            inputs = {"obs": obs[at : at + 1].numpy(), **{f"state_{k}": np.asarray(part) for k, part in enumerate(state)}}
            found, *state = session.run(["action", "next_state_0", "next_state_1"], inputs)
        assert same_actions(CHOICE, action, found)
        for part, other in zip(mine, state):
            np.testing.assert_allclose(np.asarray(part), np.asarray(other), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_decision_transformer_gets_the_rewards_of_its_steps(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")  # the file is made from the same program as pt2
    settings = {"seed": 3, "context_length": 2, "target_return": 4.0, "return_scale": 1.0, "model": {"size": 8, "layers": 1}}
    policy = policies.DecisionTransformerPolicy(settings, VECTOR, CHOICE)
    with torch.no_grad():
        policy.model.head.weight.mul_(100)
        policy.model.embed_return.weight.mul_(5)
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    rows, obs = batch_of(VECTOR, 6)
    mine, without_rewards, reward = None, None, np.zeros(1, np.float32)
    state, differs = GreedyActionModule(policy).initial_state(1), False
    names = [f"{kind}state_{place}" for kind in ("", "next_") for place in range(len(state))]
    for at, row in enumerate(rows):
        action, mine = policy.predict(row, mine, prev_reward_batch=reward)
        other, without_rewards = policy.predict(row, without_rewards, prev_reward_batch=0.0)
        given = {"obs": obs[at : at + 1].numpy(), "prev_reward_batch": reward, **dict(zip(names, map(np.asarray, state)))}
        inputs = {one.name: given[one.name] for one in session.get_inputs()}
        found, *state = session.run(["action", *names[len(state) :]], inputs)
        assert found == [action], at
        differs |= other != action
        reward = np.float32([9.0 * (-1) ** at])
    assert differs


class Repeats(PPOPolicy):
    """Takes the last action, and the best one after a reward below zero."""

    def compute_actions(self, obs, state=(), *, explore=True, prev_action_batch=None, prev_reward_batch=None, **kwargs):
        action, state, outputs = super().compute_actions(obs, state, explore=explore, **kwargs)
        last, reward = torch.as_tensor(prev_action_batch), torch.as_tensor(prev_reward_batch)
        return torch.where(reward < 0, action, last), state, outputs


def test_a_policy_without_state_gets_its_last_action_and_reward(tmp_path):
    policy = Repeats(PPOPolicy.config_type(), VECTOR, CHOICE)
    program = torch.export.load(export_policy(policy, tmp_path / "policy.pt2")).module()
    _, obs = batch_of(VECTOR, 3)
    best = GreedyActionModule(PPOPolicy(PPOPolicy.config_type(), VECTOR, CHOICE))
    best.model.load_state_dict(policy.model.state_dict())
    previous = {"prev_action_batch": torch.tensor([3, 1, 2]), "prev_reward_batch": torch.tensor([0.0, -1.0, 1.0])}
    assert program(obs, (), previous).tolist() == [3, best(obs)[1].item(), 2]


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "action_space", "mask", "action"),
    [
        ("DQN", CHOICE, [0, 0, 1], 3),
        ("PPO", CHOICE, [0, 1, 0], 2),
        ("PPO", spaces.MultiDiscrete([2, 3]), [0, 1, 0, 0, 1], [1, 2]),
    ],
)
def test_the_masks_of_actions_are_a_part_of_the_program(name, action_space, mask, action, tmp_path):
    policy = make(name, spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(len(mask))}), action_space)
    program = torch.export.load(export_policy(policy, tmp_path / "policy.pt2")).module()

    assert (
        program({"obs": torch.randn(4, 4), "action_mask": torch.tensor([mask] * 4, dtype=torch.int8)}).tolist() == [action] * 4
    )


def test_later_training_does_not_reach_the_module():
    policy = make("DQN")
    greedy, obs = GreedyActionModule(policy), torch.randn(64, 4)
    before = greedy(obs)
    policy.set_weights({name: -weight for name, weight in policy.get_weights().items()})

    assert torch.equal(greedy(obs), before)
    assert not torch.equal(GreedyActionModule(policy)(obs), before)


class ByNumpy(DQNPolicy):
    def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
        return np.argmax(self.model(obs).numpy(), -1) + 1, state, {}


class Moody(PPOPolicy):
    calls = 0

    def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
        type(self).calls += 1
        action, state, outputs = super().compute_actions(obs, state, explore=explore, **kwargs)
        return (action % 3 + 1 if self.calls % 2 else action), state, outputs


def test_what_cannot_be_exported_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(ExportError, match="ByNumpy cannot be exported, .* operations of torch alone"):
        export_policy(ByNumpy(DQNPolicy.config_type(), VECTOR, CHOICE), tmp_path / "policy.pt2")
    with pytest.raises(ValueError, match=r"ends in \.pt2 for torch\.export, or in \.onnx"):
        export_policy(make("DQN"), tmp_path / "policy.pt")
    with pytest.raises(ExportError, match="the exported Moody acts differently: action is"):
        export_policy(Moody(PPOPolicy.config_type(), VECTOR, CHOICE), tmp_path / "policy.pt2")

    assert list(tmp_path.iterdir()) == []


def test_onnx_without_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"\[export\]"):
        export_policy(make("DQN"), tmp_path / "policy.onnx")
