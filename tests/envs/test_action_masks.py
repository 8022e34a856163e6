"""Action masks in observations and infos: which spaces have one, what is checked, and choices among allowed actions."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from masked_envs import MaskedEnv

from ding_lite.config import DQNConfig
from ding_lite.envs import ActionMask, ActionMaskError, SpaceError, action_masks, make_envs, reproduce_env_error, save_env_error
from ding_lite.envs.action_masks import choose_allowed, without_mask

OBS = spaces.Box(-1, 1, (2,))


def with_mask(mask, **parts):
    return spaces.Dict({"obs": OBS, **parts, "action_mask": mask})


class TestSpaces:
    @pytest.mark.parametrize(
        "mask",
        [
            spaces.MultiBinary(6),
            spaces.Box(0, 1, (6,), np.int8),
            spaces.Box(0, 1, (6,), np.float32),
            spaces.MultiDiscrete([2] * 6),
        ],
        ids=str,
    )
    def test_a_part_action_mask_with_a_number_for_each_action_is_a_mask(self, mask):
        assert action_masks(with_mask(mask), spaces.Discrete(6)).num_choices == 1
        assert action_masks(with_mask(mask), spaces.MultiDiscrete([2, 4])).num_choices == 2
        assert action_masks(with_mask(mask), spaces.MultiDiscrete([[1, 2], [1, 2]])).num_choices == 4

    @pytest.mark.parametrize("space", [OBS, spaces.Dict(mask=spaces.MultiBinary(6)), spaces.Tuple((OBS,))], ids=str)
    def test_other_spaces_have_none(self, space):
        assert action_masks(space, spaces.Discrete(6)) is None
        assert without_mask(space) is space

    @pytest.mark.parametrize(
        ("mask", "actions", "message"),
        [
            (spaces.MultiBinary(5), spaces.Discrete(6), r"has the shape \(5,\), and the actions want \(6,\)"),
            (spaces.MultiBinary((2, 3)), spaces.Discrete(6), r"has the shape \(2, 3\), and the actions want \(6,\)"),
            (spaces.MultiBinary(6), spaces.MultiDiscrete([2, 3]), r"has the shape \(6,\), and the actions want \(5,\)"),
            (spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)), "only Discrete and MultiDiscrete actions have masks"),
            (spaces.MultiBinary(2), spaces.MultiBinary(2), "only Discrete and MultiDiscrete actions have masks"),
            (spaces.Box(-1, 1, (6,)), spaces.Discrete(6), r"Make its space spaces.MultiBinary\(6\)"),
            (spaces.MultiDiscrete([3] * 6), spaces.Discrete(6), r"Make its space spaces.MultiBinary\(6\)"),
        ],
    )
    def test_a_mask_that_does_not_fit_the_actions_is_an_error(self, mask, actions, message):
        with pytest.raises(SpaceError, match=message):
            action_masks(with_mask(mask), actions)

    def test_a_mask_alone_is_no_observation(self):
        with pytest.raises(SpaceError, match="hold only a mask"):
            action_masks(spaces.Dict(action_mask=spaces.MultiBinary(3)), spaces.Discrete(3))


class TestChoices:
    def test_each_allowed_action_has_an_equal_share_of_the_fractions(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            mask = (rng.random((1, 7)) < 0.5).astype(np.int8)
            allowed = np.flatnonzero(mask[0])
            if not len(allowed):
                continue
            fractions = (np.arange(3 * len(allowed)) + 0.5) / (3 * len(allowed))
            found = choose_allowed(np.repeat(mask, len(fractions), 0), fractions)
            assert found.tolist() == np.repeat(allowed, 3).tolist()

    def test_the_largest_fraction_is_the_last_allowed_action(self):
        mask = np.ones((1, 3), np.int8)
        assert choose_allowed(mask, np.array([np.nextafter(1, 0)])).tolist() == [2]

    def test_draws_of_several_choices_are_uniform_and_their_log_prob_is_exact(self):
        masks = action_masks(with_mask(spaces.MultiBinary(6)), spaces.MultiDiscrete([2, 4], start=[5, 7]))
        obs = {"action_mask": np.repeat(np.array([[0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 1, 0]], np.int8), 3000, 0)}
        drawn = masks.draw(obs, np.random.default_rng(0))
        expected = [{(6, 7), (6, 9), (6, 10)}, {(5, 9), (6, 9)}]

        for row, pairs in enumerate(expected):
            found, counts = np.unique(drawn[3000 * row :][:3000], axis=0, return_counts=True)
            assert set(map(tuple, found.tolist())) == pairs
            assert (abs(counts / 3000 - 1 / len(pairs)) < 4 * np.sqrt(0.25 / 3000)).all()
        np.testing.assert_allclose(masks.log_prob(obs)[[0, 3000]], [-np.log(3), -np.log(2)])

    def test_a_draw_refuses_other_numbers_than_0_and_1(self):
        masks = action_masks(with_mask(spaces.Box(0, 1, (3,), np.float32)), spaces.Discrete(3))
        with pytest.raises(ActionMaskError, match="other numbers than 0 and 1"):
            masks.draw({"action_mask": np.array([[0.5, 0.0, 1.0]], np.float32)}, np.random.default_rng(0))


class TestWrapper:
    def test_the_mask_of_each_state_is_in_its_observation(self):
        env, bare = ActionMask(gymnasium.make("Taxi-v4")), gymnasium.make("Taxi-v4")
        obs, _ = env.reset(seed=3)
        bare_obs, info = bare.reset(seed=3)
        for action in [*range(6), 1, 1, 4]:
            assert env.observation_space.contains(obs)
            assert obs["obs"] == bare_obs
            assert obs["action_mask"].tolist() == info["action_mask"].tolist()
            obs, *_ = env.step(action)
            bare_obs, *_, info = bare.step(action)

    def test_a_dict_observation_gets_a_key_and_a_tuple_of_masks_is_joined(self):
        class Two(gymnasium.Env):
            observation_space, action_space = spaces.Dict(x=OBS), spaces.MultiDiscrete([2, 3])

            def reset(self, *, seed=None, options=None):
                masks = np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)
                return {"x": np.zeros(2, np.float32)}, {"legal": masks}

        obs, _ = ActionMask(Two(), key="legal").reset()
        assert sorted(obs) == ["action_mask", "x"]
        assert obs["action_mask"].tolist() == [1, 0, 0, 1, 1]

    @pytest.mark.parametrize(
        "mask",
        [
            [1, 0, 0, 1, 1],
            [np.array([1, 0]), np.array([0, 1, 1])],
            [[1, 0], [0, 1, 1]],
            ([1, 0], [0, 1, 1]),
            [np.int8(1), 0, 0, 1, 1],
        ],
    )
    def test_a_list_is_a_mask_or_holds_masks_that_are_joined(self, mask):
        class Listed(gymnasium.Env):
            observation_space, action_space = OBS, spaces.MultiDiscrete([2, 3])

            def reset(self, *, seed=None, options=None):
                return np.zeros(2, np.float32), {"action_mask": mask}

        assert ActionMask(Listed()).reset()[0]["action_mask"].tolist() == [1, 0, 0, 1, 1]

    @pytest.mark.parametrize(
        ("info", "message"),
        [
            ({"mask": 1}, r"from reset\(\) has no 'action_mask', it has \['mask'\].*--env.action-mask"),
            ({"action_mask": np.ones(3)}, "expected an array of 5 numbers 0 or 1"),
            ({"action_mask": np.full(5, 0.5)}, "expected an array of 5 numbers 0 or 1"),
            ({"action_mask": [1, [0, 1], [1]]}, "expected an array of 5 numbers 0 or 1"),
            ({"action_mask": ()}, "expected an array of 5 numbers 0 or 1"),
            ({"action_mask": [np.ones(2), np.ones(2)]}, "expected an array of 5 numbers 0 or 1"),
            ({"action_mask": None}, "expected an array of 5 numbers 0 or 1"),
        ],
    )
    def test_a_missing_or_wrong_mask_is_an_error_that_names_the_environment(self, info, message):
        class Wrong(MaskedEnv):
            def reset(self, **kwargs):
                return super().reset(**kwargs)[0], info

        with pytest.raises(ActionMaskError, match=f"Wrong.*{message}"):
            make_envs(lambda: Wrong(in_info=True), action_mask=True).reset()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: gymnasium.make("Pendulum-v1"), "Pendulum-v1 has Box"),
            (MaskedEnv, "have the key 'action_mask' already"),
        ],
    )
    def test_environments_without_masks_in_their_infos_are_refused(self, make, message):
        with pytest.raises(SpaceError, match=message):
            make_envs(make, action_mask=True)

    def test_the_setting_of_a_run_applies_it_below_other_wrappers(self):
        cfg = DQNConfig().override({"env.action_mask": True, "env.id": "MaskedInInfo-v0"})
        envs = make_envs(cfg.env.id, wrappers=[gymnasium.wrappers.FlattenObservation], **cfg.env.options())
        assert envs.single_observation_space.shape == (8,)
        assert not DQNConfig().env.options()["action_mask"]

    def test_an_error_is_replayed_with_the_wrapper(self, tmp_path):
        envs = make_envs("MaskedInInfo-v0", 2, seed=1, action_mask=True)
        envs.reset()
        masks = [env.unwrapped.masks[0] for env in envs.envs]
        wrong = np.array([int(mask.argmax()) for mask in masks[:1]] + [int(mask.argmin()) for mask in masks[1:]]) + 2
        with pytest.raises(RuntimeError, match="is allowed") as caught:
            envs.step(wrong)
        path = save_env_error(caught.value, tmp_path)

        with pytest.raises(RuntimeError, match="is allowed"):
            reproduce_env_error(path)

    def test_saved_environments_continue_with_the_same_masks(self):
        def played(envs, steps):
            seen = []
            for _ in range(steps):
                envs.step(np.array([int(env.unwrapped.masks[0].argmax()) + 2 for env in envs.envs]))
                seen.append({name: part.tolist() for name, part in envs.current.items()})
            return seen

        first, second = (make_envs("MaskedInInfo-v0", 3, seed=5, action_mask=True) for _ in range(2))
        first.reset()
        played(first, 7)
        second.load_state_dict(first.state_dict())
        assert played(second, 20) == played(first, 20)
