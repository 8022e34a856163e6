"""Atari games: preprocessing as gymnasium's, true scores, lost lives, and saved states."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing as GymnasiumPreprocessing
from gymnasium.wrappers import FrameStackObservation
from slow_cases import mostly_slow
from states import same, through_a_file

from ding_lite.envs import AtariPreprocessing, make_envs
from ding_lite.envs.making import registered_spec
from ding_lite.rollout import summarize_episodes

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
BREAKOUT = "ALE/Breakout-v5"


def game(name, **settings):
    spec = registered_spec(f"ALE/{name}-v5")
    bare = gymnasium.make(spec, disable_env_checker=True, frameskip=1, repeat_action_probability=0.0)
    return AtariPreprocessing(bare, **settings)


def reference(name, frameskip, noop_max):
    bare = gymnasium.make(registered_spec(f"ALE/{name}-v5"), frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(GymnasiumPreprocessing(bare, frame_skip=frameskip, noop_max=noop_max), 4)


@pytest.mark.parametrize(
    ("name", "frameskip", "noop_max", "seeds", "steps"),
    mostly_slow(
        [("Pong", 4, 30, 1, 60), ("Breakout", 4, 30, 1, 250), ("SpaceInvaders", 3, 0, 1, 60), ("Boxing", 1, 5, 2, 20)],
        *[("Pong", 4, 30, 1, 60), ("Boxing", 1, 5, 2, 20)],
    ),
)
def test_it_is_gymnasiums_preprocessing_bit_for_bit(name, frameskip, noop_max, seeds, steps):
    """Also in the step that ends a game, and in the games after it, whose resets have no seed."""
    ours, theirs = game(name, frameskip=frameskip, noop_max=noop_max), reference(name, frameskip, noop_max)
    assert ours.observation_space == theirs.observation_space
    for seed in range(seeds):
        actions = np.random.default_rng(seed).integers(ours.action_space.n, size=steps)
        results, kept = [env.reset(seed=seed) for env in (ours, theirs)], []
        assert same(results[0][0], results[1][0])
        for action in actions:
            ours_, theirs_ = ours.step(action), theirs.step(action)
            kept.append((ours_[0], theirs_[0]))
            assert same(list(ours_[1:4]), list(theirs_[1:4]))
            assert {name: ours_[4][name] for name in ("lives", "episode_frame_number")}.items() <= theirs_[4].items()
            if ours_[2] or ours_[3]:
                kept.append((ours.reset()[0], theirs.reset()[0]))
        assert all(same(*pair) for pair in kept)  # after all steps: earlier observations do not change


def test_a_game_is_preprocessed_by_default_and_played_to_its_end():
    envs = make_envs(BREAKOUT, 1, seed=3)
    assert envs.single_observation_space.shape == (4, 84, 84)
    assert envs.envs[0].unwrapped.ale.getFloat("repeat_action_probability") == 0
    envs.reset()
    finished = played(envs, 200)

    assert finished
    for episode in finished:
        assert episode.info["score"] == episode.return_
        assert episode.info["lives"] == 0


def played(envs, steps, seed=None, seen=None):
    """The episodes that end within these steps, with random actions; without a seed, with FIRE, which soon ends a life."""
    rng, finished = np.random.default_rng(seed), []
    for _ in range(steps):
        action = rng.integers(envs.single_action_space.n, size=envs.num_envs) if seed else np.ones(envs.num_envs, np.int64)
        step = envs.advance(action, out := envs.new_obs())
        finished += step.finished
        if seen is not None:
            seen.append((out, step.reward, step.terminated, step.truncated, step.finished))
    return finished


def test_in_training_a_lost_life_ends_an_episode_and_the_score_of_the_whole_game_is_logged():
    train = make_envs(BREAKOUT, 1, seed=3, atari="train", reward_clipping=False)
    train.reset()
    lives = played(train, 200)
    games = [episode for episode in lives if "score" in episode.info]

    assert [episode.info["lives"] for episode in lives[:6]] == [4, 3, 2, 1, 0, 4]
    assert lives[4] is games[0]
    assert games[0].info["score"] == sum(episode.return_ for episode in lives[:5])
    assert summarize_episodes(lives)["custom_metrics"]["score_mean"] == np.mean([one.info["score"] for one in games])


def test_rewards_are_clipped_in_training_and_scores_are_not():
    clipped, true = (game("SpaceInvaders", reward_clipping=clip, max_episode_steps=150) for clip in (True, False))
    rewards = []
    for env in (clipped, true):
        env.reset(seed=1)
        rewards.append([env.step(1)[1] for _ in range(150)])
    info = clipped.step(1)[4]

    assert set(rewards[0]) == {0.0, 1.0}
    assert max(rewards[1]) > 1
    assert rewards[0] == np.sign(rewards[1]).tolist()
    assert info["score"] >= sum(rewards[1])


def test_a_reset_goes_on_only_after_a_lost_life_and_a_limit_counts_the_steps_of_a_game():
    env = game("Breakout", episodic_life=True, noop_max=0, max_episode_steps=60)
    env.reset(seed=0)
    first, ends = env.unwrapped.ale.getEpisodeFrameNumber(), []
    for _ in range(60):
        _, _, terminated, truncated, info = env.step(1)
        if terminated or truncated:
            ends.append((terminated, truncated, info["lives"]))
            env.reset()
    assert ends[-1][:2] == (False, True)
    assert all(end[:2] == (True, False) for end in ends[:-1])
    assert len(ends) >= 2
    assert env.unwrapped.ale.getEpisodeFrameNumber() == first  # a new game
    for _ in range(10):
        env.step(0)
    env.reset()
    assert env.unwrapped.ale.getEpisodeFrameNumber() == first


@pytest.mark.slow
def test_fire_is_pressed_at_the_start_of_an_episode_if_asked():
    plain, fired = (game("Breakout", noop_max=0, use_fire_reset=fire) for fire in (False, True))
    plain.reset(seed=0)
    obs = fired.reset(seed=0)[0]

    assert same(plain.step(1)[0][-1], obs[-1])
    assert game("Freeway", use_fire_reset=True).reset(seed=0)[0].shape == (4, 84, 84)  # has no FIRE


def test_sticky_actions_repeat_the_previous_action():
    env = game("Pong", repeat_action_probability=0.25, noop_max=0)
    env.reset(seed=0)
    rng, repeats, pressed = np.random.default_rng(0), 0, []
    act = env._ale.act

    class Spy:
        def __getattr__(self, name):
            return getattr(env.unwrapped.ale, name)

        def act(self, action):
            pressed.append(action)
            return act(action)

    env._ale, before = Spy(), env._actions[0]
    for action in rng.integers(6, size=300):
        pressed.clear()
        env.step(action)
        repeats += sum(one != env._actions[action] for one in pressed)
        assert set(pressed) <= {before, env._actions[action]}
        before = pressed[-1]
    # 5/6 of the actions change; the previous one is then kept for 0.25 + 0.25^2 + ... frames
    assert 0.6 < repeats / (300 * 5 / 6 * (0.25 + 0.0625 + 0.015625 + 0.00390625)) < 1.4


@pytest.mark.parametrize(
    ("settings", "steps"),
    mostly_slow([({}, 60), ({"repeat_action_probability": 0.25, "use_fire_reset": True}, 60), ({}, 5)], ({}, 5)),
)
def test_saved_environments_go_on_in_the_middle_of_a_game(settings, steps):
    """Also in a life that is not the first of its game, right after its start, and after a game that was truncated."""
    options = {"atari": "train", "max_episode_steps": 50, **settings}
    envs, other = (make_envs(BREAKOUT, 1, seed=seed, **options) for seed in (3, 8))
    envs.reset()
    finished = played(envs, steps)
    for _ in range(60 if steps > 5 else 0):
        finished += played(envs, 1)
        if not envs.starts[0].actions and "score" not in finished[-1].info:  # the next life has just begun
            break
    assert {"score" in episode.info for episode in finished} == ({False, True} if steps > 5 else set())
    other.load_state_dict(through_a_file(envs.state_dict()))
    seen, again = [], []
    played(envs, 40, seed=9, seen=seen)
    played(other, 40, seed=9, seen=again)

    assert all(same(list(one[:4]), list(two[:4])) for one, two in zip(seen, again))
    assert [one[4] for one in seen] == [two[4] for two in again]
    assert same(through_a_file(envs.state_dict()), through_a_file(other.state_dict()))


def test_a_saved_game_with_another_time_limit_is_named():
    saved, other = (make_envs(BREAKOUT, 1, max_episode_steps=limit) for limit in (50, None))
    with pytest.warns(UserWarning, match=f"environments {BREAKOUT} with at most 50 steps an episode, .* without a time limit"):
        other.load_state_dict(saved.state_dict())


def test_worker_processes_play_the_same_games(made):
    seen = []
    for backend in ("local", "process"):
        envs = made("ALE/Pong-v5", 2, seed=1, atari="train", backend=backend, max_episode_steps=7)
        envs.reset()
        rng = np.random.default_rng(0)
        seen.append([envs.step(rng.integers(6, size=2))[0] for _ in range(10)])
    assert same(*seen)


@pytest.mark.few
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"atari": "training"}, "expected 'train', 'eval' or 'raw'"),
        ({"atari": "raw", "noop_max": 3}, "noop_max is of the preprocessing, which atari='raw' leaves out"),
        ({"reward_clipping": True}, "reward_clipping=True.* is for training.*add atari='train'"),
        ({"atari": "eval", "episodic_life": True}, "play whole games"),
        ({"obs_type": "rgb"}, "obs_type is of unprocessed games: add atari='raw'"),
        ({"atari": "train", "obs_type": "ram"}, "obs_type is of unprocessed games"),
        ({"continuous": True}, "continuous is of unprocessed games"),
        ({"frameskip": (2, 5)}, "skips a fixed number of frames"),
        ({"frameskip": 0}, r"AtariPreprocessing\(frameskip=0\): expected an integer >= 1"),
        ({"noop_max": -1}, "expected an integer >= 0"),
        ({"stack_num": 2.5}, "expected an integer >= 1"),
        ({"max_episode_steps": 0}, "expected an integer >= 1"),
        ({"repeat_action_probability": 1.0}, r"expected a number in \[0, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        make_envs("ALE/Pong-v5", **settings)


def test_an_unknown_setting_is_refused_with_the_known_name():
    with pytest.raises(TypeError) as error:
        make_envs("ALE/Pong-v5", stack_nun=3)
    assert any("did you mean 'stack_num'" in note for note in error.value.__notes__)


def test_the_argument_is_for_ids_of_atari_games():
    with pytest.raises(ValueError, match="this is not an Atari game, leave `atari` out"):
        make_envs("CartPole-v1", atari="eval")
    with pytest.raises(ValueError, match="use AtariPreprocessing in your function"):
        make_envs(lambda: gymnasium.make("CartPole-v1"), atari="train")


@pytest.mark.slow
def test_raw_frames_come_only_by_asking_and_with_a_warning():
    with pytest.warns(UserWarning, match=r"without preprocessing, with frameskip=4 and repeat_action_probability=0\.25"):
        assert make_envs("ALE/Pong-v5", atari="raw").reset()[0].shape == (1, 210, 160, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_envs("ALE/Pong-v5", obs_type="ram").reset()[0].shape == (1, 128)
        assert make_envs("PongNoFrameskip-v4").reset()[0].shape == (1, 4, 84, 84)


def test_a_game_that_skips_frames_itself_is_refused():
    with pytest.raises(ValueError, match="wants a game with frameskip=1 and repeat_action_probability=0"):
        AtariPreprocessing(gymnasium.make(registered_spec("ALE/Pong-v5")))


def test_without_opencv_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "cv2" else True)
    with pytest.raises(ImportError, match=r"needs cv2.*pip install 'ding_lite\[atari\]'"):
        make_envs("ALE/Pong-v5")
