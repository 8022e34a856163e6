"""Mistakes in the use of policies, saved policies and exports: each is named, with its fix."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.basics import ConfigError, save_checkpoint
from ding_lite.envs import SpaceError
from ding_lite.policy import (
    A2CPolicy,
    C51Policy,
    DQNPolicy,
    PPOPolicy,
    R2D2Policy,
    StateDictError,
    export_policy,
    load_policy,
)
from ding_lite.policy_check import ObservationError

OBS, TWO = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2)
HUGE = spaces.Discrete(2**40)
ZEROS = np.zeros(4, np.float32)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
@pytest.mark.parametrize(
    ("obs", "action", "words"),
    [
        (HUGE, TWO, r"the 1,099,511,627,776 elements of observations Discrete\(1099511627776\): return a few"),
        (spaces.MultiDiscrete([2**40, 2]), TWO, r"the 1,099,511,627,778 elements of observations MultiDiscrete"),
        (spaces.Dict({"x": OBS, "k": HUGE}), TWO, r"the 1,099,511,627,776 elements of observations Discrete\("),
        (OBS, HUGE, r"the 1,099,511,627,776 elements of actions Discrete\(1099511627776\): choose from fewer"),
    ],
    ids=["obs", "several", "part", "action"],
)
def test_a_space_with_too_many_elements_for_a_network_is_named(kind, obs, action, words):
    with pytest.raises(SpaceError, match=f"{kind.__name__} has no memory for networks with weights for each of {words}"):
        kind(None, obs, action)


def test_another_lack_of_memory_is_raised_as_it_is():
    def make_model(policy, observation_space, action_space, config):
        raise MemoryError("of the hook")

    with pytest.raises(MemoryError, match="of the hook"):
        DQNPolicy.with_updates(make_model=make_model)(None, OBS, TWO)


@pytest.mark.parametrize("kind", [DQNPolicy, C51Policy, R2D2Policy])
def test_a_policy_that_explores_by_eps_wants_it_for_predictions_that_explore(kind):
    policy = kind(None, OBS, TWO)
    with pytest.raises(ValueError, match=rf"{kind.__name__} explores by eps, .* predict\(obs, deterministic=False, eps=0.05\)"):
        policy.predict(ZEROS, deterministic=False)

    assert {int(policy.predict(ZEROS, deterministic=False, eps=1.0)[0]) for _ in range(64)} == {0, 1}
    assert len({int(policy.predict(ZEROS)[0]) for _ in range(8)}) == 1


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (np.full(4, np.inf, np.float32), "obs with an infinite number"),
        (np.full(4, np.nan, np.float32), "NaN"),
        ((ZEROS, {}), r"obs, info = env\.reset\(\)"),
    ],
)
def test_what_is_no_observation_is_refused(obs, words):
    with pytest.raises(ObservationError, match=words):
        PPOPolicy(None, OBS, TWO).predict(obs)


@pytest.mark.parametrize("mask", [[-1, 0, 0], [2, 0, 0]])
def test_a_mask_with_other_numbers_than_0_and_1_is_refused(mask):
    space = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(3)})
    with pytest.raises(ObservationError, match=rf"obs\['action_mask'\]\[0, 0\] is {mask[0]}, and MultiBinary\(3\) has 0 to 1"):
        PPOPolicy(None, space, spaces.Discrete(3)).predict({"x": ZEROS, "action_mask": mask})


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(0, 1e-3), (0.5, 0.0)], "not fractions of the run"),
        ([], "one point"),
        ([(10, 1e-3), (0, 0.0)], "sorted by step"),
    ],
)
def test_a_schedule_names_its_setting(points, words):
    with pytest.raises(ConfigError, match=rf"learn\.lr_schedule = .*{words}"):
        DQNPolicy({"lr_schedule": points}, OBS, TWO)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(0.0, 255.0, (3, 40, 40), np.float32), "are not scaled"),
        (spaces.Box(0, 255, (4, 4, 8, 8), np.uint8), "flattened to 1,024 features"),
    ],
)
def test_images_that_are_treated_otherwise_than_expected_cause_a_warning(space, words):
    with pytest.warns(UserWarning, match=words):
        PPOPolicy(None, space, TWO)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"horizon": 10}, "max_episode_steps"),
        ({"opt_type": "rmsprop"}, r"policy\.learn\.optimizer"),
        ({"observation_filter": "MeanStdFilter"}, "normalize_obs"),
        ({"clip_range": 0.1}, "clip_ratio"),
        ({"framework": "torch"}, "no counterpart"),
    ],
)
def test_settings_of_other_libraries_are_not_ignored_silently(setting, words):
    with pytest.warns(UserWarning, match=words):
        PPOPolicy(setting, OBS, TWO)


def test_loading_names_what_does_not_fit(tmp_path):
    (tmp_path / "ckpt").mkdir()
    save_checkpoint(PPOPolicy(None, OBS, TWO).state_dict(), tmp_path / "ckpt/final.pt")

    with pytest.raises(StateDictError, match="holds one policy without a name, and not 'x'"):
        load_policy(tmp_path, "final", name="x")
    with pytest.raises(StateDictError, match="holds a policy of the class PPOPolicy, and policy_class is A2CPolicy"):
        load_policy(tmp_path, "final", policy_class=A2CPolicy)
    with pytest.raises(ValueError, match="nowhere/ckpt/best.pt"):
        load_policy(tmp_path / "nowhere")


@pytest.mark.parametrize("thing", ["runs/dqn", None])
def test_what_is_no_policy_cannot_be_exported(thing, tmp_path):
    with pytest.raises(TypeError, match=r"wants the policy itself, got .*load_policy"):
        export_policy(thing, tmp_path / "policy.pt2")


def test_masks_in_infos_that_nobody_uses_cause_a_warning():
    from ding_lite.envs import make_envs

    envs = make_envs("Taxi-v4", 2)
    with pytest.warns(UserWarning, match="action_mask=True"):
        envs.reset()


def test_an_evaluator_in_environments_for_training_warns():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from ding_lite.config import PPOAtariConfig
    from ding_lite.envs import make_envs
    from ding_lite.middleware import interaction_evaluator

    cfg = PPOAtariConfig()
    envs = make_envs("ALE/Pong-v5", 1, atari="train")
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with pytest.warns(UserWarning, match='atari="eval"'):
        interaction_evaluator(cfg, policy.eval_mode, envs)


class Steps(gymnasium.Env):
    """Its info has a number that outgrows its dtype."""

    observation_space, action_space = OBS, TWO
    level = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return ZEROS, {}

    def step(self, action):
        self.t += 1
        small, large = np.array([1], np.uint8), np.array([300], np.uint16)
        return ZEROS, 1.0 + self.level, False, self.t == 5, {"a": small if self.t == 1 else large}

    def harder(self):
        self.level += 1
        raise ValueError("harder than before")


def test_a_column_of_infos_refuses_numbers_that_it_cannot_hold():
    from ding_lite.envs import make_envs
    from ding_lite.rollout import LocalWorker

    envs = make_envs(Steps, 1, info_columns=("a",))
    with pytest.raises(ValueError, match="'a' is an array of uint16"):
        LocalWorker(envs, PPOPolicy(None, OBS, TWO).collect_mode).collect(4)


def test_a_call_that_raises_is_repeated_when_environments_are_restored():
    from ding_lite.envs import make_envs

    envs, other = make_envs(Steps, 1), make_envs(Steps, 1)
    envs.reset()
    envs.step(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="harder than before"):
        envs.call("harder")
    envs.step(np.zeros(1, np.int64))
    other.load_state_dict(envs.state_dict())

    assert other.get_attr("level") == envs.get_attr("level") == (1,)
    assert other.step(np.zeros(1, np.int64))[1] == envs.step(np.zeros(1, np.int64))[1] == 2.0


class Forgetful(DQNPolicy):
    def __init__(self, cfg, observation_space, action_space):
        self.mine = 1


@pytest.mark.parametrize("mode", ["learn_mode", "collect_mode", "eval_mode", "predict_mode"])
def test_a_constructor_that_does_not_call_that_of_its_base_class_is_named(mode):
    policy = Forgetful(None, OBS, TWO)
    with pytest.raises(RuntimeError, match=r"Forgetful has no networks yet, .*: call super\(\).__init__\(cfg, .* in Forge"):
        getattr(policy, mode)
