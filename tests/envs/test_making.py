"""make_envs() and stepper(): what they make, and what they say of what they cannot use."""

import itertools
import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RescaleAction, TimeLimit, TransformReward

from ding_lite.config import EnvConfig
from ding_lite.envs import SpaceError, make_envs, stepper
from ding_lite.envs.vector_adapters import VectorEnvAdapter


def test_an_id_gives_a_vector_environment_of_gymnasium():
    envs = make_envs("CartPole-v1", 3)
    assert isinstance(envs, VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (envs.num_envs, envs.single_action_space) == (3, spaces.Discrete(2))
    assert envs.spec.id == "CartPole-v1"
    assert envs.reset()[0].shape == (3, 4)


def test_one_environment_is_the_default():
    assert make_envs("CartPole-v1").num_envs == 1


def test_each_environment_is_one_of_its_own():
    envs = make_envs("CartPole-v1", 3).envs
    assert len({id(env.unwrapped) for env in envs}) == 3


def test_keywords_reach_gymnasium():
    envs = make_envs("Pendulum-v1", 2, g=3.0, max_episode_steps=4)
    assert [env.unwrapped.g for env in envs.envs] == [3.0, 3.0]
    envs.reset()
    truncated = [envs.step(np.zeros((2, 1), np.float32))[3].tolist() for _ in range(4)]
    assert truncated == [[False] * 2] * 3 + [[True] * 2]


def test_the_registry_of_gymnasium_stays_as_it_is():
    before = str(gymnasium.spec("CartPole-v1"))
    make_envs("CartPole-v1")
    assert str(gymnasium.spec("CartPole-v1")) == before


def test_wrappers_are_put_around_each_environment_the_first_innermost():
    twice, plus_one = partial(TransformReward, func=lambda r: 2 * r), partial(TransformReward, func=lambda r: r + 1)
    envs = make_envs("CartPole-v1", 2, wrappers=[twice, plus_one])
    envs.reset()
    assert envs.step(np.zeros(2, np.int64))[1].tolist() == [3.0, 3.0]


def test_the_spaces_are_those_of_the_wrapped_environments():
    envs = make_envs("Pendulum-v1", 2, wrappers=[partial(RescaleAction, min_action=np.float32(-1), max_action=np.float32(1))])
    assert envs.single_action_space == spaces.Box(-1, 1, (1,), np.float32)


def test_a_function_makes_the_environments(counting_env):
    envs = make_envs(partial(counting_env, 7), 2, wrappers=[partial(TimeLimit, max_episode_steps=2)])
    assert envs.reset()[0].tolist() == [[7, 0, 0]] * 2
    envs.step(np.zeros(2, np.int64))
    assert envs.step(np.zeros(2, np.int64))[3].tolist() == [True, True]


@pytest.mark.parametrize("num_envs", [0, -3])
def test_fewer_than_one_environment_is_refused(num_envs):
    with pytest.raises(ValueError, match=rf"num_envs={num_envs}.*at least 1 environment"):
        make_envs("CartPole-v1", num_envs)


@pytest.mark.parametrize("num_envs", [2.0, "2", None])
def test_a_number_of_environments_that_is_no_integer_is_refused(num_envs):
    with pytest.raises(TypeError, match="num_envs"):
        make_envs("CartPole-v1", num_envs)


@pytest.mark.parametrize(
    ("name", "words"), [("CartPole-v99", "v99.*CartPole"), ("Cartpole-v1", "Cartpole.*did you mean.*CartPole")]
)
def test_an_unknown_id_is_refused(name, words):
    with pytest.raises(gymnasium.error.Error, match=f"(?i){words}"):
        make_envs(name)


def test_an_environment_instead_of_a_function_is_refused():
    with pytest.raises(TypeError, match=r"id or a function that returns a new environment, got .*CartPole"):
        make_envs(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("env", [None, 3, [gymnasium.Env], b"CartPole-v1"], ids=repr)
def test_what_is_neither_id_nor_function_is_refused(env):
    with pytest.raises(TypeError, match="an environment id or a function"):
        make_envs(env)


def test_a_list_of_functions_is_told_to_be_one_function_and_a_number():
    with pytest.raises(TypeError, match=r"write make_envs\(fn, n\), which calls one function n times\.$"):
        make_envs([lambda: gymnasium.make("CartPole-v1")] * 2)


def test_keywords_beside_a_function_are_refused(counting_env):
    with pytest.raises(TypeError, match=r"\['render_mode'\].*pass them in env_config"):
        make_envs(counting_env, render_mode="rgb_array")


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["here", "workers"])
def test_a_time_limit_may_be_used_with_a_function(counting_env, options):
    envs = make_envs(counting_env, 2, seed=0, max_episode_steps=2, **options)
    envs.reset()
    truncated = [envs.step(envs.action_space.sample())[3].tolist() for _ in range(2)]
    envs.close()
    assert truncated == [[False, False], [True, True]]
    make_envs(counting_env, 2, **EnvConfig().options()).close()  # as in the examples


def test_a_function_that_returns_one_environment_twice_is_refused(counting_env):
    one = counting_env()
    with pytest.raises(ValueError, match=r"environment 1 .*in use: make a new one each time"):
        make_envs(lambda: one, 3)
    with pytest.raises(ValueError, match=r"environment 1 .*in use"):
        make_envs(lambda: TimeLimit(one, 3), 3)


class OldGymEnv:
    """What the old gym's environments look like: another base class, four return values."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self):
        return 0

    def step(self, action):
        return 0, 0.0, False, {}


@pytest.mark.parametrize("made", [None, 3, "CartPole-v1", OldGymEnv()], ids=lambda made: type(made).__name__)
def test_a_function_that_returns_no_environment_is_refused(made):
    with pytest.raises(TypeError, match=rf"environment 0 returned a {type(made).__name__}, .* new gymnasium.Env.*old gym"):
        make_envs(lambda: made)


def test_a_vector_environment_from_the_function_is_refused(counting_env):
    with pytest.raises(TypeError, match=r"environment 0 returned a SyncVectorEnv, .* new gymnasium.Env"):
        make_envs(lambda: SyncVectorEnv([counting_env]))


BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    "other",
    [
        {"observation_space": spaces.Box(-1, 1, (3,), np.float32)},
        {"observation_space": spaces.Box(-1, 1, (2,), np.float16)},
        {"observation_space": spaces.Discrete(3)},
        {"observation_space": BOX, "action_space": spaces.Discrete(5)},
    ],
)
def test_environments_with_different_spaces_are_refused(faulty_env, other):
    makers = iter([partial(faulty_env, observation_space=BOX), partial(faulty_env, **other)])
    with pytest.raises(SpaceError, match=r"environment 1 has the spaces .*, environment 0 has .*: they must be the same"):
        make_envs(lambda: next(makers)(), 2)


def test_environments_may_differ_in_the_bounds_of_their_observations(faulty_env):
    makers = iter([partial(faulty_env, observation_space=spaces.Box(-n, n, (2,), np.float32)) for n in (1, 2)])
    assert make_envs(lambda: next(makers)(), 2).num_envs == 2


def test_our_environments_step_themselves():
    envs = make_envs("CartPole-v1")
    assert stepper(envs) is envs


def test_a_foreign_environment_has_one_stepper(counting_env):
    one, other = SyncVectorEnv([counting_env]), SyncVectorEnv([counting_env])
    assert isinstance(stepper(one), VectorEnvAdapter)
    assert stepper(one) is stepper(one)
    assert stepper(one) is not stepper(other)


@pytest.mark.parametrize("make", [lambda: gymnasium.make("CartPole-v1"), lambda: "CartPole-v1", lambda: None])
def test_what_is_no_vector_environment_has_no_stepper(make):
    with pytest.raises(TypeError, match=r"expected a vector environment, got .*make_envs"):
        stepper(make())


@pytest.mark.slow
def test_an_atari_game_needs_no_registration_by_hand():
    pytest.importorskip("ale_py")
    script = "from ding_lite.envs import make_envs; print(make_envs('ALE/Pong-v5', 2, obs_type='ram').reset()[0].shape)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert ended.stdout.split("\n")[-2] == "(2, 128)"


def test_an_atari_game_without_the_extra_is_refused_with_its_name(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"make_envs\('ALE/Nothing-v5'\) needs ale_py.*pip install 'ding_lite\[atari\]'"):
        make_envs("ALE/Nothing-v5")


def test_a_wrapper_that_is_an_object_is_refused_by_name():
    wrapped = TimeLimit(gymnasium.make("CartPole-v1"), 5)
    with pytest.raises(TypeError, match="wants classes or functions of an environment, got .*TimeLimit: pass the class"):
        make_envs("CartPole-v1", wrappers=[wrapped])


def test_a_setting_that_the_environment_does_not_take_is_answered_with_the_one_that_was_meant():
    with pytest.raises(TypeError) as raised:
        make_envs("CartPole-v1", max_episode_step=5)
    assert any(
        "passed 'max_episode_step' to CartPole-v1: did you mean 'max_episode_steps'?" in it for it in raised.value.__notes__
    )


class Sized(gymnasium.Env):
    """Its observations have the size that it was made with; it empties the dict that it was given."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size, options=None):
        self.options = options.popitem() if options is not None else None
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"max_episode_steps": 3}])
def test_env_config_has_the_keyword_arguments_of_a_function(options):
    envs = make_envs(Sized, 2, env_config={"size": 5, "options": {"a": 1}}, **options)
    assert envs.single_observation_space.shape == (5,)
    assert envs.get_attr("options") == (("a", 1), ("a", 1))


def test_env_config_has_the_keyword_arguments_of_gymnasium_make():
    config = {"map_name": "8x8", "is_slippery": False, "max_episode_steps": 7}
    envs = make_envs("FrozenLake-v1", 2, **{**EnvConfig(env_config=config).options(), "workers": 2})
    envs.reset()
    assert envs.single_observation_space.n == 64
    assert [envs.step(np.zeros(2, np.int64))[3].tolist() for _ in range(7)][-1] == [True, True]


@pytest.mark.parametrize(
    ("env", "config", "more", "words"),
    [
        ("FrozenLake-v1", {"is_slipery": 1}, {}, "passed 'is_slipery' to FrozenLake-v1: did you mean 'is_slippery'?"),
        ("FrozenLake-v1", {"gravity": 1}, {}, "passed 'gravity' to FrozenLake-v1. It takes render_mode, desc, map_name"),
        (Sized, {"size": 3, "big": 1}, {}, "env_config passed size, big to Sized"),
        ("CartPole-v1", {"max_episode_steps": 3}, {"max_episode_steps": 4}, "both in env_config and as an argument"),
        ("CartPole-v1", ["max_episode_steps"], {}, "wants keyword arguments by name"),
    ],
)
def test_a_wrong_env_config_is_explained(env, config, more, words):
    with pytest.raises(TypeError) as caught:
        make_envs(env, 2, env_config=config, **more)
    assert words in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_an_id_with_a_module_imports_it_and_ends_at_its_threshold(tmp_path, monkeypatch):
    (tmp_path / "of_a_module.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('OfModule-v0', 'gymnasium.envs.classic_control:CartPoleEnv', reward_threshold=40)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = EnvConfig()
    env.id = "of_a_module:OfModule-v0"
    try:
        envs = make_envs(env.id)
        env.settle(envs.env_name, envs.spec.reward_threshold)
    finally:
        gymnasium.registry.pop("OfModule-v0", None)
        sys.modules.pop("of_a_module", None)
    assert (envs.env_name, env.id, env.stop_value) == ("OfModule-v0", "of_a_module:OfModule-v0", 40)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        make_envs("no_such_module:OfModule-v0")


def test_none_stands_for_no_wrappers_and_no_names():
    envs = make_envs("CartPole-v1", 2, wrappers=None, log_info=None, info_columns=None)
    assert (envs.num_envs, envs.info_columns) == (2, ())


def test_wrappers_and_names_may_come_from_a_generator():
    wrappers = (wrapper for wrapper in [partial(TransformReward, func=lambda reward: 100 * reward)])
    envs = make_envs("CartPole-v1", 2, wrappers=wrappers, log_info=(name for name in ["speed"]), info_columns=iter(["x"]))
    envs.reset()

    assert envs.step([0, 0])[1].tolist() == [100, 100]
    assert envs.info_columns == ("x",)


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        (
            TimeLimit,
            r"make_envs\(wrappers=<class .*\) wants several wrappers, got one: write wrappers=\[TimeLimit\].",
        ),
        (partial(TimeLimit, max_episode_steps=5), r"wants several wrappers, got one: write wrappers=\[wrapper\]."),
        (3, r"make_envs\(wrappers=3\) wants several wrappers, got one: pass a list of them."),
    ],
)
def test_one_wrapper_instead_of_several_is_refused(wrappers, words):
    with pytest.raises(TypeError, match=words):
        make_envs("CartPole-v1", wrappers=wrappers)


class Closing(gymnasium.Env):
    """Number `fails` of those that are made cannot be made, or cannot be closed."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, closed, made, fails, fault):
        self.number, self.closed, self.fails, self.fault = next(made), closed, fails, fault
        if self.number == fails and fault == "make":
            raise OSError("no such level")
        if self.number == fails and fault == "space":
            self.action_space = spaces.Discrete(3)

    def close(self):
        if self.number in (self.fails, self.fails + 1) and self.fault == "close":
            raise OSError(f"cannot close {self.number}")
        self.closed.append(self.number)


@pytest.mark.parametrize(("fault", "error", "closed"), [("make", OSError, [0, 1]), ("space", SpaceError, [0, 1, 2, 3])])
def test_environments_that_were_made_are_closed_if_another_one_fails(fault, error, closed):
    found = []
    with pytest.raises(error):
        make_envs(partial(Closing, found, itertools.count(), 2, fault), 4)
    assert found == closed


def test_an_environment_that_cannot_be_closed_does_not_keep_others_open():
    found = []
    envs = make_envs(partial(Closing, found, itertools.count(), 1, "close"), 4)
    with pytest.raises(OSError, match="cannot close 1") as raised:
        envs.close()

    assert found == [0, 3]
    assert "another environment could not be closed either: OSError: cannot close 2" in raised.value.__notes__
