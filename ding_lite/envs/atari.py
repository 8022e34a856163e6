"""Atari: the standard preprocessing of games of the Arcade Learning Environment (ALE)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ding_lite.basics import did_you_mean, require_extra

AtariMode: TypeAlias = Literal["train", "eval", "raw"]
"""How `make_envs` makes an Atari game: preprocessed for training or for evaluation, or as gymnasium makes it."""

_MODES = ("train", "eval", "raw")
_ENTRY = "ale_py.env:AtariEnv"
_NOOP = 0
_OF_TRAINING = ("episodic_life", "reward_clipping")
_OF_RAW = ("obs_type", "continuous", "continuous_action_threshold", "sound_obs")
_OF_ALE = ("frameskip", "repeat_action_probability", "max_episode_steps")  # of the preprocessing and of a raw game


class AtariPreprocessing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An Atari game as learners see it: the last 4 frames, greyscale, 84x84, one for each 4 frames of the game.

    The observations are those of gymnasium's `AtariPreprocessing` and `FrameStackObservation`, bit for bit; it steps the
    emulator itself, which is faster. The info of the last step of a game has its score, the sum of the game's own rewards.

    Args:
        env: a game of `gymnasium.make` with frameskip=1 and repeat_action_probability=0.
        frameskip: frames for which an action is repeated. An observation shows the maximum of the last two.
        stack_num: frames in an observation.
        screen_size: height and width of an observation.
        noop_max: a game starts with 1 to noop_max frames without an action; 0 for none.
        repeat_action_probability: probability, in each frame, that the emulator repeats the previous action ("sticky actions").
        episodic_life: a lost life ends the episode, and `reset()` goes on in the same game with a step without an action. A
            reset with a seed, or at any other time, begins a new game.
        reward_clipping: rewards are -1, 0 or 1, the sign of the game's.
        use_fire_reset: each episode starts with a step that presses FIRE, in games that have this action.
        max_episode_steps: steps after which a game is truncated; None for the game's own limit only.

    Raises:
        ValueError: a number is out of range, or the game skips frames or repeats actions itself.
        ImportError: OpenCV is not installed.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, Methods; Machado et al. (2018),
        https://arxiv.org/abs/1709.06009, for sticky actions.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        frameskip: int = 4,
        stack_num: int = 4,
        screen_size: int = 84,
        noop_max: int = 30,
        repeat_action_probability: float = 0.0,
        episodic_life: bool = False,
        reward_clipping: bool = False,
        use_fire_reset: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(env)
        require_extra("cv2", "atari", "AtariPreprocessing")
        import cv2

        least = {"frameskip": 1, "stack_num": 1, "screen_size": 1, "noop_max": 0, "max_episode_steps": 1}
        given = {"frameskip": frameskip, "stack_num": stack_num, "screen_size": screen_size, "noop_max": noop_max}
        if max_episode_steps is not None:
            given["max_episode_steps"] = max_episode_steps
        for name, number in given.items():
            if type(number) is not int or number < least[name]:
                raise ValueError(f"AtariPreprocessing({name}={number!r}): expected an integer >= {least[name]}.")
        if not 0 <= repeat_action_probability < 1:
            raise ValueError(
                f"AtariPreprocessing(repeat_action_probability={repeat_action_probability!r}): expected a number in [0, 1)."
            )
        game: Any = env.unwrapped
        if game._frameskip != 1 or game.ale.getFloat("repeat_action_probability"):
            raise ValueError(
                "AtariPreprocessing wants a game with frameskip=1 and repeat_action_probability=0, because it skips frames and "
                f"repeats actions itself: gymnasium.make({getattr(env.spec, 'id', 'id')!r}, frameskip=1, "
                "repeat_action_probability=0.0)."
            )
        self._ale, self._actions = game.ale, list(game._action_set)
        self._frameskip, self._noop_max, self._sticky = frameskip, noop_max, repeat_action_probability
        self._episodic_life, self._reward_clipping = episodic_life, reward_clipping
        self.max_episode_steps = max_episode_steps
        self.metadata = {**env.metadata, "is_for_training": episodic_life or reward_clipping}
        meanings = game.get_action_meanings()
        self._fire = meanings.index("FIRE") if use_fire_reset and "FIRE" in meanings else None
        self._resize = partial(cv2.resize, dsize=(screen_size, screen_size), interpolation=cv2.INTER_AREA)
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._stack = np.zeros((stack_num, screen_size, screen_size), np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self._goes_on = False  # whether reset() goes on in the same game
        self._lives = 0
        self._pressed = self._actions[_NOOP]  # the action of the last frame
        self._score, self._steps = 0.0, 0  # of the game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; or, after a lost life that ended an episode, go on in the same game."""
        if not self._goes_on or seed is not None or self._plays(_NOOP):
            self._begin(seed, options)
        if self._fire is not None and self._plays(self._fire):
            self._begin(None, options)
        self._goes_on, self._lives = False, self._ale.lives()
        self._stack[:] = self._frame()
        return self._stack.copy(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frameskip` frames."""
        before = self._score
        self._plays(action)
        reward = self._score - before
        self._steps += 1
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._frame()
        terminated, truncated = self._ale.game_over(with_truncation=False), self._ale.game_truncated()
        if self.max_episode_steps is not None and self._steps >= self.max_episode_steps:
            truncated = True
        lives, info = self._ale.lives(), self._info()
        if terminated or truncated:
            info["score"] = self._score
        elif self._episodic_life and 0 < lives < self._lives:  # some games show 0 lives for a moment
            terminated = self._goes_on = True
        self._lives = lives
        if self._reward_clipping:
            reward = float((reward > 0) - (reward < 0))
        return self._stack.copy(), reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """What the next reset depends on besides the emulator."""
        pressed = self._actions.index(self._pressed)
        return {"goes_on": self._goes_on, "pressed": pressed, "score": self._score, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._goes_on, self._score, self._steps = state["goes_on"], state["score"], state["steps"]
        self._pressed = self._actions[state["pressed"]]

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin a game."""
        self.env.reset(seed=seed, options=options)
        self._pressed, self._score, self._steps = self._actions[_NOOP], 0.0, 0
        generator = self.env.unwrapped.np_random
        for _ in range(int(generator.integers(1, self._noop_max + 1)) if self._noop_max else 0):
            self._score += self._ale.act(self._pressed)
            if self._ale.game_over():
                self.env.reset(seed=seed, options=options)
                self._score = 0.0
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0

    def _plays(self, action: Any) -> bool:
        """Repeat an action for `frameskip` frames, or until the game ends; whether it has ended."""
        ale, chosen, last = self._ale, self._actions[action], self._frameskip - 1
        if not self._sticky:
            self._pressed = chosen
        for frame in range(self._frameskip):
            if self._sticky and self.env.unwrapped.np_random.random() >= self._sticky:
                self._pressed = chosen
            self._score += ale.act(self._pressed)
            if ale.game_over():
                return True
            if frame >= last - 1:
                ale.getScreenGrayscale(self._screens[last - frame])
        return False

    def _frame(self) -> np.ndarray[Any, Any]:
        """The last two screens, as one frame of an observation."""
        screen = self._screens[0]
        if self._frameskip > 1:
            np.maximum(screen, self._screens[1], out=screen)
        return self._resize(screen)

    def _info(self) -> dict[str, Any]:
        """The numbers that ALE gives for each step of a game."""
        return {"lives": self._ale.lives(), "episode_frame_number": self._ale.getEpisodeFrameNumber()}


_SETTINGS = tuple(inspect.signature(AtariPreprocessing).parameters)[1:]


def is_atari(spec: EnvSpec) -> bool:
    """Whether this is a game of ALE."""
    return spec.entry_point == _ENTRY


def make_atari(spec: EnvSpec, mode: AtariMode, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A preprocessed game of ALE.

    Args:
        spec: gymnasium's spec of the game.
        mode: "train" or "eval".
        **kwargs: settings of `AtariPreprocessing`, and others for `gymnasium.make`.
    """
    settings: dict[str, Any] = dict.fromkeys(_OF_TRAINING, mode == "train")
    settings |= {name: kwargs.pop(name) for name in _SETTINGS if name in kwargs}
    if settings.get("max_episode_steps") is None:
        settings["max_episode_steps"] = spec.max_episode_steps
    game = gymnasium.make(spec, disable_env_checker=True, frameskip=1, repeat_action_probability=0.0, **kwargs)
    return AtariPreprocessing(game, **settings)


def atari_mode(spec: EnvSpec, mode: AtariMode | None, kwargs: Mapping[str, Any]) -> AtariMode:
    """How to make this environment; "raw" for environments that are not games of ALE.

    Args:
        spec: gymnasium's spec of the environment.
        mode: argument `atari` of `make_envs`; None for preprocessing, unless the RAM is observed instead of the screen.
        kwargs: other arguments for the environment.

    Raises:
        ValueError: the mode is unknown, does not fit the environment, or does not fit another argument.
        ImportError: OpenCV is not installed.
    """
    if mode is not None and mode not in _MODES:
        raise ValueError(f"make_envs(atari={mode!r}): expected 'train', 'eval' or 'raw'{did_you_mean(str(mode), _MODES)}")
    if not is_atari(spec):
        if mode is not None:
            raise ValueError(f"make_envs({spec.id!r}, atari={mode!r}): this is not an Atari game, leave `atari` out.")
        return "raw"
    observed = {**spec.kwargs, **kwargs}.get("obs_type")
    if mode is None:
        mode = "raw" if observed == "ram" else "eval"
    _require_fitting(spec, mode, kwargs)
    if mode == "raw":
        if observed != "ram":
            _warn_of_raw_frames(spec, kwargs)
        return mode
    require_extra("cv2", "atari", f"make_envs({spec.id!r}), which resizes frames,")
    return mode


def _require_fitting(spec: EnvSpec, mode: AtariMode, kwargs: Mapping[str, Any]) -> None:
    """Raise an error if an argument does not fit the mode."""
    if mode == "raw":
        wrong, why = set(_SETTINGS) - set(_OF_ALE), "is of the preprocessing, which atari='raw' leaves out"
    else:
        wrong, why = set(_OF_RAW), "is of unprocessed games: add atari='raw'"
        if isinstance(kwargs.get("frameskip"), tuple):
            raise ValueError(
                f"make_envs({spec.id!r}, frameskip={kwargs['frameskip']!r}): the preprocessing skips a fixed number of frames, "
                "pass an integer, or add atari='raw'."
            )
    for name in kwargs:
        if name in wrong:
            raise ValueError(f"make_envs({spec.id!r}, {name}=...): {name} {why}.")
        if mode == "eval" and name in _OF_TRAINING and kwargs[name]:
            raise ValueError(
                f"make_envs({spec.id!r}, {name}=True) is for training, because it changes scores: add atari='train' for the "
                "environments of the collector; those of the evaluator play whole games."
            )


def _warn_of_raw_frames(spec: EnvSpec, kwargs: Mapping[str, Any]) -> None:
    options = {"frameskip": 4, "repeat_action_probability": 0.25, **spec.kwargs, **kwargs}
    warnings.warn(
        f"make_envs({spec.id!r}, atari='raw') makes frames of 210x160 without preprocessing, with "
        f"frameskip={options['frameskip']} and repeat_action_probability={options['repeat_action_probability']}: leave `atari` "
        "out for the standard preprocessing.",
        stacklevel=4,
    )
