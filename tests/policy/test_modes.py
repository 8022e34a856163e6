"""The modes of a policy: acting on copies that take over new weights between two forward passes, and what they refuse."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.envs import SpaceError, make_envs
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, PPOPolicy, PPOPolicyConfig
from ding_lite.policy_check import ObservationError
from ding_lite.policy_state import StateDictError

OBS, DISCRETE, BOX = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), spaces.Box(-0.1, 0.2, (2,), np.float32)
POLICIES = {"dqn": (DQNPolicy, DQNPolicyConfig, DISCRETE), "ppo": (PPOPolicy, PPOPolicyConfig, DISCRETE),
            "ppo on Box": (PPOPolicy, PPOPolicyConfig, BOX)}  # fmt: skip
each = pytest.mark.parametrize("kind", POLICIES)
modes = pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])


def made(kind: str, observation_space=OBS, action_space=None, **settings):
    policy, config, space = POLICIES[kind]
    return policy(config().override({"seed": 0, **settings}), observation_space, action_space or space)


def observations(n: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def learn(policy, n: int = 12) -> None:
    rng, number, no = np.random.default_rng(1), np.arange(n, dtype=np.float32), np.zeros(n, bool)
    action = rng.integers(3, size=n) if policy.action_space == DISCRETE else rng.normal(size=(n, 2)).astype(np.float32)
    rows = {"obs": observations(n), "next_obs": observations(n), "action": action, "reward": number, "terminated": no,
            "truncated": no, "log_prob": -number / n, "advantage": number, "value": number, "return_": number}  # fmt: skip
    is_rollout = isinstance(policy, PPOPolicy)
    policy.learn_mode.forward(tree({name: leaf[:, None] if is_rollout else leaf for name, leaf in rows.items()}))


def equal(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@each
@modes
def test_an_acting_copy_has_memory_of_its_own(kind, mode):
    policy = made(kind)
    acting, learning = getattr(policy, mode).actor.model.parameters(), policy.model.parameters()

    assert not {param.data_ptr() for param in acting} & {param.data_ptr() for param in learning}
    assert policy.collect_mode.actor.model is not policy.eval_mode.actor.model


@each
@modes
def test_new_weights_reach_an_action_with_the_next_forward_and_not_before(kind, mode):
    policy = made(kind)
    acting, before = getattr(policy, mode), policy.get_weights()
    learn(policy)
    assert not equal(policy.get_weights(), before)
    assert equal(acting.actor.get_weights(), before)

    acting.forward(observations())
    assert equal(acting.get_weights(), policy.get_weights())


@each
@modes
def test_get_weights_of_a_mode_that_has_never_acted_warns_if_the_policy_has_learned(kind, mode):
    policy = made(kind)
    acting = getattr(policy, mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acting.get_weights()
    learn(policy)
    with pytest.warns(UserWarning, match=rf"{mode}\.get_weights\(\) gives .* has never acted, .* use policy.get_weights\(\)"):
        acting.get_weights()
    acting.forward(observations())
    learn(policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acting.get_weights()


@each
def test_weights_that_are_half_changed_are_never_acted_on(kind):
    policy, obs = made(kind), observations()
    before = policy.eval_mode.forward(obs)[0]
    with torch.no_grad():
        for param in policy.model.parameters():
            param.normal_(generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(policy.eval_mode.forward(obs)[0], before)

    policy.set_weights(policy.get_weights())
    assert not np.array_equal(policy.eval_mode.forward(obs)[0], before)


@each
@modes
def test_an_action_that_was_given_out_never_changes(kind, mode):
    policy = made(kind)
    first, _, outputs = getattr(policy, mode).forward(observations())
    copies = first.copy(), {name: output.copy() for name, output in outputs.items()}
    learn(policy)
    for seed in range(20):
        getattr(policy, mode).forward(observations(seed=seed))

    np.testing.assert_array_equal(first, copies[0])
    for name, output in outputs.items():
        np.testing.assert_array_equal(output, copies[1][name])


@each
def test_evaluating_does_not_explore(kind):
    policy, obs = made(kind), observations(1).repeat(200, 0)
    action = policy.eval_mode.forward(obs, eps=1.0)[0]

    assert (action == action[0]).all()
    assert not (policy.collect_mode.forward(obs, eps=1.0)[0] == action).all()


@each
def test_evaluating_does_not_move_the_random_numbers_of_collecting(kind):
    policy, other, obs = made(kind), made(kind), observations()
    for _ in range(3):
        policy.eval_mode.forward(obs)
        actions = [one.collect_mode.forward(obs, eps=0.5)[0] for one in (policy, other)]
        np.testing.assert_array_equal(*actions)


@each
@modes
@pytest.mark.parametrize("inference", [False, True])
def test_an_action_is_an_array_for_each_row(kind, mode, inference):
    policy = made(kind)
    with torch.inference_mode(inference):
        action, state, outputs = getattr(policy, mode).forward(observations(6))

    assert type(action) is np.ndarray
    assert action.shape == (6, *POLICIES[kind][2].shape)
    assert state == []
    assert outputs.keys() == ({"log_prob"} if kind != "dqn" and mode == "collect_mode" else set())
    assert all(type(output) is np.ndarray and output.shape == (6,) for output in outputs.values())


@each
def test_arrays_and_tensors_are_acted_on_alike_and_left_as_they_are(kind):
    policy, obs = made(kind), observations()
    copy = obs.copy()
    actions = [policy.eval_mode.forward(x)[0] for x in (obs, torch.from_numpy(obs), obs.repeat(2, 0)[::2])]

    assert all(np.array_equal(action, actions[0]) for action in actions)
    np.testing.assert_array_equal(obs, copy)


@pytest.mark.parametrize("obs", [[0.1, 0.2, 0.3, 0.4], (observations(), observations()), None, 3.0, "text", np.float32(1)])
def test_an_observation_that_is_no_array_is_refused_by_type(obs):
    policy = made("ppo")
    with pytest.raises((TypeError, ValueError), match=type(obs).__name__):
        policy.eval_mode.forward(obs)


def test_actions_on_a_box_are_clipped_for_the_environment_and_only_for_it():
    policy = made("ppo on Box")
    action = policy.collect_mode.forward(observations(500))[0]
    clipped = policy.collect_mode.env_action(action)

    assert (action < -0.1).any()
    assert (action > 0.2).any()
    np.testing.assert_array_equal(clipped, np.minimum(np.maximum(action, np.float32(-0.1)), np.float32(0.2)))
    assert all(BOX.contains(row.astype(np.float32)) for row in clipped)


def test_the_parts_of_a_nested_action_are_clipped_where_they_are_boxes():
    space = spaces.Tuple((DISCRETE, spaces.Dict({"force": BOX, "bits": spaces.MultiBinary(2)})))
    policy = made("ppo", action_space=space)
    action = policy.collect_mode.forward(observations(50))[0]
    clipped = policy.collect_mode.env_action(action)

    np.testing.assert_array_equal(clipped["0"], action["0"])
    np.testing.assert_array_equal(clipped["1"]["bits"], action["1"]["bits"])
    np.testing.assert_array_equal(clipped["1"]["force"], np.clip(action["1"]["force"], BOX.low, BOX.high))
    assert np.abs(action["1"]["force"]).max() > 0.2


@each
@modes
def test_an_environment_with_other_spaces_is_refused_and_one_with_other_bounds_of_observations_is_not(kind, mode):
    acting, space = getattr(made(kind), mode), POLICIES[kind][2]
    acting.require_spaces(OBS, space)
    acting.require_spaces(spaces.Box(-9, 9, (4,), np.float64), space)
    for obs, action in [
        (spaces.Box(-1, 1, (5,)), space),
        (DISCRETE, space),
        (OBS, spaces.Discrete(4)),
        (OBS, spaces.Discrete(3, start=1)),
    ]:
        with pytest.raises(
            SpaceError, match=r"Policy was made for the spaces .* and the environment has .*: make the policy from this"
        ):
            acting.require_spaces(obs, action)


@each
def test_the_modes_tell_the_seed_and_the_gradient_steps(kind):
    policy = made(kind, seed=7, **({"learn.epoch_per_collect": 3} if kind != "dqn" else {}))
    assert (policy.collect_mode.seed, policy.eval_mode.seed, policy.learn_mode.train_iter) == (7, 7, 0)
    learn(policy)

    assert policy.learn_mode.train_iter == (1 if kind == "dqn" else 3)
    assert policy.collect_mode.get_initial_state(5) == []


@each
@modes
def test_the_state_of_a_mode_is_where_its_random_numbers_are(kind, mode):
    policy, obs = made(kind), observations()
    acting = getattr(policy, mode)
    acting.forward(obs, eps=0.5)
    state = acting.state_dict()
    expected = [acting.forward(obs, eps=0.5)[0].tolist() for _ in range(20)]
    acting.load_state_dict(state)

    assert [acting.forward(obs, eps=0.5)[0].tolist() for _ in range(20)] == expected


@modes
def test_a_state_of_the_whole_policy_is_refused_by_a_mode_that_acts(mode):
    policy = made("ppo")
    words = r"Mode.load_state_dict\(\) wants the random states that its own state_dict\(\) returns, got a dict with model"
    with pytest.raises(StateDictError, match=words):
        getattr(policy, mode).load_state_dict(policy.learn_mode.state_dict())


@each
def test_the_learning_mode_saves_and_restores_the_whole_policy(kind, same):
    policy, other = made(kind), made(kind, seed=1)
    learn(policy)
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())

    assert same(other.state_dict(), policy.state_dict())


def test_a_single_observation_gives_a_single_action_and_a_wrong_width_tells_the_shapes():
    for kind in ("dqn", "ppo"):
        policy = made(kind)
        assert policy.eval_mode.forward(np.zeros(4, np.float32))[0].shape == ()
        with pytest.raises(ObservationError, match=r"obs is float32 \[2, 7\], expected float32 \[B, 4\]") as caught:
            policy.collect_mode.forward(np.zeros((2, 7), np.float32))
        assert isinstance(caught.value.__cause__, RuntimeError)


VECTOR, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
PARTS, PAIR = spaces.Dict(a=VECTOR, b=spaces.Discrete(3)), spaces.MultiDiscrete([2, 3])
ZEROS = np.zeros((2, 4), np.float32)
IMAGE, IMAGES = spaces.Box(0, 255, (12, 12, 3), np.uint8), np.zeros((2, 12, 12, 3), np.uint8)
IMAGES[1] = 200
SIZE = r"\[2, 12, 12, 3\]"
STRANGE = {
    "NaN": (
        VECTOR,
        np.where(np.eye(2, 4), np.nan, ZEROS).astype(np.float32),
        r"obs\[0, 0\] is NaN, and so are 2 of 8 numbers. Look",
    ),
    "NaN in a tensor": (VECTOR, torch.full((2, 4), float("nan")), r"obs\[0, 0\] is NaN"),
    "another width": (VECTOR, np.zeros((2, 5), np.float32), r"obs is float32 \[2, 5\], expected float32 \[B, 4\]"),
    "float64": (
        VECTOR,
        ZEROS.astype(float),
        r"obs is float64 \[2, 4\], expected float32 \[B, 4\]: obs.astype\(np.float32\)",
    ),
    "text": (VECTOR, "north", "obs is 'north', a str, expected an array or a tensor float32"),
    "a list": (VECTOR, [[0.0] * 4], r"obs is \[\[0.0, 0.0, 0.0, 0.0\]\], a list, expected an array or a tensor"),
    "a dict": (VECTOR, {"a": ZEROS}, r"obs is a dict with the keys \['a'\], expected an array"),
    "no dict": (PARTS, ZEROS, r"obs is float32 \[2, 4\], expected a dict with the keys \['a', 'b'\]"),
    "a missing key": (PARTS, {"a": ZEROS}, r"obs lacks the key 'b', it has \['a'\]: give all of \['a', 'b'\]"),
    "NaN inside": (PARTS, {"a": ZEROS * np.nan, "b": np.array([0, 1])}, r"obs\['a'\]\[0, 0\] is NaN"),
    "other lengths": (PARTS, {"a": ZEROS, "b": np.array([0])}, r"obs\['b'\] has 1 rows, and obs\['a'\] has 2"),
    "fractions": (PARTS, {"a": ZEROS, "b": np.array([0.5, 1])}, r"obs\['b'\] is float64 \[2\], expected int64 \[B\]"),
    "no category": (PARTS, {"a": ZEROS, "b": np.array([0, 9])}, r"obs\['b'\]\[1\] is 9, and Discrete\(3\) has 0 to 2 there"),
    "too large": (PAIR, np.array([[1, 3]]), r"obs\[0, 1\] is 3, and MultiDiscrete\(\[2 3\]\) has 0 to 2 there"),
    "negative": (PAIR, np.array([[-1, 0]]), r"obs\[0, 0\] is -1, and MultiDiscrete\(\[2 3\]\) has 0 to 1 there"),
    "those of a vector": (
        spaces.Box(-1, 1, (4, 4), np.float32),
        np.zeros((4, 4), np.float32),
        r"expected float32 \[B, 4, 4\]. .* Make it with its single_observation_space",
    ),
    "a scaled image": (
        IMAGE,
        IMAGES / 255.0,
        rf"obs is float64 {SIZE}, expected uint8 .*: give the integers of the .*, not scaled",
    ),
    "a scaled float16": (IMAGE, (IMAGES / 255.0).astype(np.float16), rf"obs is float16 {SIZE}, expected uint8"),
    "a scaled tensor": (IMAGE, torch.from_numpy(IMAGES / np.float32(255)), rf"obs is float32 {SIZE}, expected uint8"),
    "a scaled image inside": (
        spaces.Dict(a=VECTOR, b=spaces.Dict(c=IMAGE)),
        {"a": ZEROS, "b": {"c": IMAGES / 255.0}},
        rf"obs\['b'\]\['c'\] is float64 {SIZE}, expected uint8",
    ),
    "a scaled image in a tree": (
        spaces.Dict(a=VECTOR, c=IMAGE),
        tree({"a": torch.from_numpy(ZEROS), "c": torch.from_numpy(IMAGES / 255.0)}),
        rf"obs\['c'\] is float64 {SIZE}, expected uint8",
    ),
    "a negative pixel": (IMAGE, IMAGES.astype(np.int64) - 1, r"obs holds -1 to 199, expected uint8 .*, which holds 0 to 255"),
    "a large pixel": (IMAGE, torch.from_numpy(IMAGES.astype(np.int16) + 100), r"obs holds 100 to 300, expected uint8"),
    "a large pixel inside": (
        spaces.Dict(a=VECTOR, c=IMAGE),
        {"a": ZEROS, "c": IMAGES.astype(np.uint64) + 100},
        r"obs\['c'\] holds 100 to 300, expected uint8",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("name", STRANGE)
def test_observations_of_another_space_are_refused_by_policy_key_and_fix(name):
    space, obs, words = STRANGE[name]
    policy = PPOPolicy(None, space, THREE)
    for mode in (policy.eval_mode, policy.collect_mode):
        with pytest.raises(ObservationError, match=f"^PPOPolicy cannot act on these observations: .*{words}"):
            mode.forward(obs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.int16, np.uint16, np.uint64])
@pytest.mark.parametrize("convert", [lambda it: it, torch.from_numpy], ids=["array", "tensor"])
def test_integers_in_the_range_of_the_space_may_have_another_dtype(dtype, convert):
    policy = PPOPolicy(None, spaces.Dict(a=VECTOR, c=IMAGE), THREE)
    expected = policy.eval_mode.forward({"a": ZEROS, "c": IMAGES})[0]
    found = policy.eval_mode.forward({"a": convert(ZEROS), "c": convert(IMAGES.astype(dtype))})[0]
    assert np.array_equal(found, expected)


def test_infinite_observations_and_errors_of_a_policys_own_are_not_taken_for_those():
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action, _, _ = DQNPolicy(None, space, THREE).eval_mode.forward(np.full((2, 4), np.inf, np.float32))
    assert action.shape == (2,)

    lost = DQNPolicy(None, VECTOR, THREE)
    lost.eval_mode.actor.compute_actions = lambda *args, **kwargs: {}["north"]
    with pytest.raises(KeyError, match="north"):
        lost.eval_mode.forward(ZEROS)


@pytest.mark.parametrize(("given", "fix"), [("envs", ": pass its single_observation_space."), (3, r"\.$")])
def test_what_is_no_space_is_refused_when_the_policy_is_made(given, fix):
    if given == "envs":
        given = make_envs("CartPole-v1", 2)
    with pytest.raises(TypeError, match=f"DQNPolicy wants a space as observation_space, got .*{fix}"):
        DQNPolicy(None, given, THREE)


def test_an_environment_with_other_spaces_hints_at_those_of_a_single_one():
    envs = make_envs("CartPole-v1", 2)
    policy = PPOPolicy(None, envs.observation_space, envs.action_space)
    with pytest.raises(SpaceError, match="Of a vector environment these are single_observation_space and single_action_space"):
        policy.collect_mode.require_spaces(envs.single_observation_space, envs.single_action_space)


def test_a_saved_state_is_a_copy_of_plain_data(tmp_path):
    policy = made("dqn")
    policy.collect_mode.forward(observations(), eps=0.5)
    state = policy.state_dict()
    torch.save(state, tmp_path / "a.pt")
    before = torch.load(tmp_path / "a.pt", weights_only=True)["model"]
    with torch.no_grad():
        for param in policy.params:
            param.add_(1)

    assert all(torch.equal(before[name], tensor) for name, tensor in state["model"].items())


@modes
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generator": None}, r"state\['generator'\] is None, expected the state of a torch.Generator"),
        ({"rng": 3}, r"state\['rng'\]"),
        ({"action_space": None}, r"state\['action_space'\] is None"),
        ({"twins": 3}, r"state\['twins'\] is 3, expected a list of the states of workers"),
        ({"twins": [{}, {}]}, r"state\['twins'\]\[0\] lacks 'rng'"),
        (None, "is None, expected a dict from state_dict"),
    ],
)
def test_a_state_of_a_mode_of_which_a_part_does_not_fit_is_refused_by_name_and_changes_nothing(mode, change, words, same):
    acting, other = (getattr(made("ppo", seed=seed), mode) for seed in (0, 1))
    before = acting.state_dict()
    with pytest.raises(StateDictError, match=words):
        acting.load_state_dict(None if change is None else {**other.state_dict(), **change})

    assert same(acting.state_dict(), before)
    acting.load_state_dict(other.state_dict())
    assert same(acting.state_dict(), other.state_dict())
