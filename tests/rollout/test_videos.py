"""VideoRecorder: it films what was evaluated when it is time, changes nothing by that, and stops nothing."""

import copy
import itertools
import json
import os
import subprocess
import sys
import textwrap
import warnings
from functools import partial

import gymnasium
import imageio_ffmpeg
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces

from ding_lite.basics import temporary_beside
from ding_lite.envs import make_envs, with_render_mode
from ding_lite.envs.partial_observations import CARTPOLE_POSITIONS
from ding_lite.policy import DQNPolicy, Policy, PolicyConfig
from ding_lite.rollout import LocalWorker, VideoRecorder
from ding_lite.rollout.videos import capped_cubic_video_schedule

LENGTH = 9


class Clock(gymnasium.Env):
    """Nine steps, each shown in a lighter shade of grey; its reward is the action.

    Args:
        strike: called in step 3.
        frame: what render() gives, instead.
    """

    observation_space, action_space = spaces.Box(0, 1e6, (1,), np.float32), spaces.Box(-1e6, 1e6, (1,), np.float32)
    made: list["Clock"] = []

    def __init__(self, strike=lambda: None, frame=None):
        self.strike, self.frame, self.seeds, self.is_closed = strike, frame, [], False
        Clock.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            self.strike()
        return np.array([self.t], np.float32), float(action[0]), self.t == LENGTH, False, {}

    def render(self):
        return np.full((32, 48, 3), 25 * self.t, np.uint8) if self.frame is None else self.frame

    def close(self):
        self.is_closed = True


class Counting(Policy):
    """Its action is its weight, and more: what its state counts and, where it is noisy, chance."""

    noise = 0.0

    def make_model(self):
        return torch.nn.Linear(1, 1, bias=False)

    def get_initial_state(self):
        return [torch.zeros(1)]

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        self.metrics.log_value("acted", 1.0)
        chance = self.noise * torch.randn(len(obs), 1, generator=self.generator)
        return self.model.weight + state[0] + chance, [state[0] + 1], {}


class Noisy(Counting):
    noise = 1.0


class Balancing(Policy):
    """Keeps CartPole's pole up."""

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return (obs[:, :4] @ torch.tensor([0.05, 0.1, 1.0, 0.5]) > 0).long(), state, {}


def counting(weight=0.0, kind=Counting):
    policy = kind(PolicyConfig(seed=0), Clock.observation_space, Clock.action_space)
    policy.set_weights({"weight": torch.full((1, 1), weight)})
    return policy


def expected_return(weight):
    return LENGTH * weight + sum(range(LENGTH))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Whatever becomes of a video: no process, no open environment and no unfinished file."""
    Clock.made = []
    yield
    assert [child.name() for child in psutil.Process().children() if "ffmpeg" in child.name()] == []
    assert all(env.is_closed for env in Clock.made)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".mp4", ".json"}


def recorder(folder, env=Clock, every=1, **settings):
    return VideoRecorder(folder, env, every, **settings)


def record(it, policy=None, evaluation=0, **settings):
    return it.record((policy or counting()).eval_mode, evaluation, 100, 10, **settings)


def details(path):
    return json.loads(path.with_suffix(".json").read_text())


def decoded(path):
    """What a player is told of a video, and its frames, [T, H, W, 3]."""
    stream = imageio_ffmpeg.read_frames(str(path))
    about = next(stream)
    width, height = about["size"]
    return about, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in stream])


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def warnings_of(action):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    return [str(it.message) for it in seen]


# What it leaves.


def test_a_video_of_cartpole_has_a_frame_after_the_reset_and_each_step(tmp_path):
    env = make_envs("CartPole-v1")
    policy = Balancing(PolicyConfig(seed=0), env.single_observation_space, env.single_action_space)
    spec = copy.deepcopy(gymnasium.spec("CartPole-v1"))
    spec.max_episode_steps = 60
    path = record(recorder(tmp_path, spec), policy, evaluation=8)
    about, frames = decoded(path)

    assert path == tmp_path / "videos" / "evaluation_000008_return_60.mp4"
    expected = {"evaluation": 8, "env_step": 100, "train_iter": 10, "return": 60.0, "length": 60, "complete": True}
    assert details(path) == expected
    assert frames.shape == (61, 400, 600, 3)
    assert about["fps"] == 50
    assert files(tmp_path) == ["evaluation_000008_return_60.json", "evaluation_000008_return_60.mp4"]


def test_a_video_shows_one_whole_episode_in_order(tmp_path):
    _, frames = decoded(record(recorder(tmp_path)))

    assert np.round(frames.mean((1, 2, 3)) / 25).tolist() == list(range(LENGTH + 1))


def test_its_folder_stays_the_same_if_the_working_directory_changes(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    it = recorder("run")
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert record(it).parent == tmp_path / "run/videos"


@pytest.mark.few
@pytest.mark.parametrize(("weight", "name"), [(1.0, "45"), (0.5, "40.5"), (-4.0, "0"), (-10.0, "-54"), (1e5, "900036")])
def test_it_is_named_after_its_return_and_each_begins_with_a_fresh_state(weight, name, tmp_path):
    it = recorder(tmp_path)
    for evaluation in (0, 1):
        path = record(it, counting(weight), evaluation)
        assert path.name == f"evaluation_{evaluation:06d}_return_{name}.mp4"
        assert details(path)["return"] == expected_return(weight)


def test_what_an_earlier_run_left_is_moved_aside_and_a_resumed_run_films_again(tmp_path):
    first = record(recorder(tmp_path), counting(0.0), 0)
    second = recorder(tmp_path, every=2)
    for evaluation in (0, 1, 2):
        record(second, counting(1.0), evaluation)
    record(recorder(tmp_path), counting(2.0), evaluation=2)  # as after a checkpoint from before evaluation 2

    assert files(tmp_path / "videos.1") == [first.with_suffix(".json").name, first.name]
    names = ["evaluation_000000_return_45", "evaluation_000002_return_54"]
    assert files(tmp_path / "videos") == [name + end for name in names for end in (".json", ".mp4")]


def test_what_a_killed_run_left_half_filmed_is_removed(tmp_path):
    half = temporary_beside(tmp_path / "videos" / "evaluation_000008")
    gone = half.with_name(half.name.replace(f".{os.getpid()}.", f".{2**22 + 1}."))  # above the largest number of a process
    gone.parent.mkdir()
    for path in (half, gone):
        path.write_bytes(b"half")
    record(recorder(tmp_path, every=2), counting(1.0), evaluation=9)

    assert list(gone.parent.iterdir()) == [half]
    half.unlink()


# When it films.


def test_by_default_cubes_are_filmed_and_then_each_thousandth():
    expected = sorted({k**3 for k in range(11)} | set(range(1000, 5001, 1000)))

    assert [number for number in range(5500) if capped_cubic_video_schedule(number)] == expected


@pytest.mark.few
@pytest.mark.parametrize(("every", "expected"), [(None, [0, 1, 8]), (3, [0, 3, 6, 9]), (lambda n: n in (2, 5), [2, 5])])
def test_the_schedule_goes_by_the_number_of_the_evaluation(every, expected, tmp_path):
    it = recorder(tmp_path, every=every)
    paths = {number: record(it, evaluation=number) for number in range(10)}

    assert {number: details(path)["evaluation"] for number, path in paths.items() if path} == {it: it for it in expected}


# What it films with.


def test_it_films_the_weights_that_the_mode_acts_with_not_the_newest(tmp_path):
    policy = counting(1.0)
    with policy.eval_mode.acting_with(policy.snapshot()):
        policy.set_weights({"weight": torch.full((1, 1), 2.0)})
        held = record(recorder(tmp_path / "held"), policy)
    newest = record(recorder(tmp_path / "newest"), policy)

    assert [details(path)["return"] for path in (held, newest)] == [expected_return(1.0), expected_return(2.0)]


def test_nothing_of_the_evaluation_depends_on_whether_it_is_filmed(tmp_path, digest):
    def evaluate(is_filmed):
        envs, policy = make_envs(Clock, 3, seed=1), counting(0.3, Noisy)
        worker, it = LocalWorker(envs, policy.eval_mode), recorder(tmp_path)
        found = []
        for evaluation in range(3):
            found.append(worker.play_episodes(6))
            if is_filmed:
                assert record(it, policy, evaluation)
        envs.close()
        everybodys = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002  not even these
        return digest(found, worker.state_dict(), policy.state_dict(), worker.reduce_metrics(), everybodys)

    assert evaluate(True) == evaluate(False)


def test_an_episode_is_a_function_of_seed_and_number_whatever_was_filmed_before(tmp_path):
    def film(folder, evaluations, seed=0):
        it, policy = recorder(tmp_path / folder, seed=seed), counting(0.0, Noisy)
        found = {}
        for evaluation in evaluations:
            path = record(it, policy, evaluation)
            found[evaluation] = Clock.made[-1].seeds[0], details(path)["return"], path.read_bytes()
        return found

    whole, part, other = film("whole", range(4)), film("part", [3, 1]), film("other", range(4), seed=1)
    assert {number: whole[number] for number in (1, 3)} == part
    for place in (0, 1):  # the seed of the environment, and the return, which tells of the policy's random numbers
        assert len({it[place] for it in [*whole.values(), *other.values()]}) == 8


# Where it films.


aware = gymnasium.wrappers.TimeAwareObservation
SHORT = {"max_episode_steps": 7}
SPECS = {
    "ours": lambda: make_envs("CartPole-v1", 2, **SHORT),
    "ours, infos logged": lambda: make_envs("CartPole-v1", 2, log_info=("nothing",), **SHORT),
    "ours, wrapped": lambda: make_envs("CartPole-v1", 2, wrappers=[aware], **SHORT),
    "sync": lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", **SHORT),
    "sync, wrapped": lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", wrappers=[aware], **SHORT),
    "its own": lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", **SHORT),
}


@pytest.mark.few
@pytest.mark.parametrize("kind", SPECS)
def test_the_spec_of_vector_environments_makes_one_like_theirs(kind, tmp_path):
    envs = SPECS[kind]()
    policy = Balancing(PolicyConfig(seed=0), envs.single_observation_space, envs.single_action_space)
    path = record(recorder(tmp_path, envs.spec), policy)
    envs.close()

    assert details(path)["length"] == 7


@pytest.mark.slow
def test_a_machine_without_a_display_films_without_a_word(tmp_path):
    script = """
        import sys, torch
        from ding_lite.config import DQNConfig
        from ding_lite.envs import make_envs
        from ding_lite.policy import DQNPolicy
        from ding_lite.rollout import VideoRecorder
        env = make_envs("CartPole-v1")
        policy = DQNPolicy(DQNConfig().policy, env.single_observation_space, env.single_action_space)
        assert VideoRecorder(sys.argv[1], env.spec).record(policy.eval_mode, 0, 0, 0)
    """
    bare = {"DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER"}
    env = {name: value for name, value in os.environ.items() if name not in bare}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path], env=env, capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Seesaw(gymnasium.Env):
    """Allows only action 1 in odd steps and action 0 in even ones, by a mask in its infos."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def told(self):
        return self.t, {"action_mask": np.eye(2, dtype=np.int8)[self.t % 2]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.told()

    def step(self, action):
        assert action == self.t % 2
        self.t += 1
        obs, info = self.told()
        return obs, float(action), self.t == 7, False, info

    def render(self):
        return np.full((16, 16, 3), self.t, np.uint8)


SEESAW = gymnasium.envs.registration.EnvSpec("Seesaw-v0", entry_point=Seesaw)


@pytest.fixture
def seesaw(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, SEESAW.id, SEESAW)
    return SEESAW.id


@pytest.mark.few
@pytest.mark.parametrize(
    "settings",
    [
        {"action_mask": True},
        {"action_mask": True, "wrappers": [partial(gymnasium.wrappers.TransformReward, func=float)]},
        {"action_mask": True, "log_info": ("nothing",)},
    ],
)
def test_environments_with_masks_are_filmed_by_their_factory(seesaw, settings, tmp_path):
    envs = make_envs(seesaw, 2, **settings)
    policy = DQNPolicy(None, envs.single_observation_space, envs.single_action_space)
    path = record(recorder(tmp_path, with_render_mode(envs.factory, "rgb_array")), policy)

    assert (details(path)["length"], details(path)["return"]) == (7, 3)


def test_a_spec_with_a_wrapper_of_this_library_that_changes_observations_is_refused(seesaw, tmp_path):
    with pytest.raises(ValueError, match=r"the wrapper ActionMask, but not its arguments: .*with_render_mode\(envs.factory, "):
        VideoRecorder(tmp_path, make_envs(seesaw, 2, action_mask=True).spec)


def test_the_spec_of_an_environment_that_comes_with_a_wrapper_is_enough(tmp_path):
    for envs in make_envs(CARTPOLE_POSITIONS, **SHORT), gymnasium.make_vec(CARTPOLE_POSITIONS, 1, "sync", **SHORT):
        policy = DQNPolicy(None, envs.single_observation_space, envs.single_action_space)
        path = record(recorder(tmp_path, envs.spec), policy)
        assert details(path)["length"] == 7
        envs.close()


# Trouble.


class Doubled(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return 2 * observation


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every": 0}, ValueError, r"VideoRecorder\(every=0\): expected 1 evaluation or more."),
        ({"fps": 0}, ValueError, r"VideoRecorder\(fps=0\): expected more than 0 frames per second."),
        ({"env": 3}, TypeError, "wants an environment id, a spec, or a function that returns a new environment, got 3."),
        ({"env": Clock()}, TypeError, "or a function that returns a new environment, got <"),
        (
            {"env": make_envs("CartPole-v1", wrappers=[Doubled]).spec},
            ValueError,
            "the spec of CartPole-v1 has the wrapper Doubled, but not its arguments: pass VideoRecorder",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        VideoRecorder(tmp_path, **{"env": Clock, **arguments})


def burn():
    raise RuntimeError("the pole is on fire")


class Lost(Counting):
    """Finds no action."""

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        if len(obs) > 1:  # as it is tried out when it is made
            return super().compute_actions(obs, state)
        raise RuntimeError("no idea what to do")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (partial(Clock, strike=burn), Counting, "RuntimeError: the pole is on fire; raised by environment 0 .* in step 2 of"),
        (burn, Counting, "RuntimeError: the pole is on fire; raised while environment 0 was made"),
        (Clock, Lost, "RuntimeError: no idea what to do; acting on shape"),
        (partial(Clock, frame=7), Counting, r'ValueError: render\(\) returned int, .*: make .* render_mode="rgb_array"'),
        (partial(gymnasium.make, "MountainCar-v0"), Counting, "SpaceError: Counting was made for the spaces"),
        ("NoSuch-v0", Counting, "NameNotFound: "),
    ],
)
def test_trouble_costs_the_video_and_one_warning(make, kind, message, tmp_path):
    it, policy = recorder(tmp_path, make), counting(kind=kind)
    paths = []
    found = warnings_of(lambda: paths.extend(record(it, policy, evaluation) for evaluation in (0, 1, 2)))

    assert paths == [None] * 3
    (warning,) = [text for text in found if "has no video" in text]
    with pytest.raises(UserWarning, match=f"evaluation 0 has no video, the run continues without it: .*{message}"):
        raise UserWarning(warning)
    assert files(tmp_path) == []


def test_ffmpeg_in_trouble_costs_the_video_and_one_warning_until_it_works_again(tmp_path, monkeypatch):
    it = recorder(tmp_path)
    texts = []
    for evaluation, broken in enumerate([True, True, False, True]):
        monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/no/such/ffmpeg" if broken else "")
        texts.append(warnings_of(lambda number=evaluation: record(it, evaluation=number)))

    assert [len(found) for found in texts] == [1, 0, 0, 1]
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/ffmpeg'" in texts[0][0]
    assert files(tmp_path) == ["evaluation_000002_return_36.json", "evaluation_000002_return_36.mp4"]


def test_a_folder_that_cannot_be_costs_the_video_and_one_warning(tmp_path):
    (tmp_path / "run.json").write_text("a file")

    (text,) = warnings_of(lambda: record(recorder(tmp_path / "run.json"), evaluation=1))
    assert f"{tmp_path}/run.json is a file, but a folder is needed there. Move the file away" in text


@pytest.mark.parametrize("asked", [0, 4])
def test_a_run_that_stops_has_no_half_video(asked, tmp_path):
    asking = itertools.count()
    found = warnings_of(lambda: record(recorder(tmp_path), is_stopping=lambda: next(asking) == asked))

    assert found == []
    assert files(tmp_path) == []
    assert next(asking) == asked + 1


def test_ctrl_c_leaves_no_half_video(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(recorder(tmp_path, partial(Clock, strike=interrupt)))
    assert files(tmp_path) == []
