"""VectorEnvAdapter: vector environments made elsewhere give right data or an error, never wrong data."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data.trees import map_leaves
from ding_lite.envs import EnvDataError, SpaceError, make_envs, stepper
from ding_lite.envs.spaces import space_spec
from ding_lite.envs.vector_adapters import VectorEnvAdapter
from ding_lite.middleware import StepCollector
from ding_lite.policy import DQNPolicy, PPOPolicy
from ding_lite.rollout import LocalWorker

MODES = list(AutoresetMode)


class Scripted(VectorEnv):
    """Answers every step with what it was given."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 2, obs=None, reward=None, terminated=None, truncated=None, infos=None) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-10, 10, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        good = {
            "obs": np.ones((num_envs, 3), np.float32),
            "reward": np.zeros(num_envs),
            "terminated": np.zeros(num_envs, bool),
            "truncated": np.zeros(num_envs, bool),
            "infos": {},
        }
        given = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "infos": infos}
        self.answer = tuple(good[name] if value is None else value for name, value in given.items())

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        return self.answer


def one_step(env: VectorEnv):
    stepper = VectorEnvAdapter(env)
    out = np.empty((env.num_envs, 3), np.float32)
    stepper.begin(out)
    return stepper.advance(np.zeros(env.num_envs, np.int64), np.empty_like(out))


@pytest.mark.parametrize("mode", [None, "NextStep", True])
def test_an_environment_that_does_not_say_how_it_resets_is_refused(mode):
    env = Scripted()
    env.metadata = {"autoreset_mode": mode}
    with pytest.raises(EnvDataError, match=r"does not say how it resets.*autoreset_mode.*Set it"):
        VectorEnvAdapter(env)


def test_a_space_without_a_fixed_layout_is_refused():
    env = Scripted()
    env.single_observation_space = spaces.Text(5)
    with pytest.raises(SpaceError, match="has no fixed layout"):
        VectorEnvAdapter(env)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"reward": np.zeros((2, 1))}, r"reward \(2, 1\).*expected \(2,\)"),
        ({"terminated": np.zeros(3, bool)}, r"terminated \(3,\).*expected \(2,\)"),
        ({"truncated": np.bool_(False)}, r"truncated \(\).*expected \(2,\)"),
        ({"reward": np.array([1, np.nan])}, "environment 1 returned the reward nan, which is not finite"),
        ({"reward": np.array([-np.inf, 1])}, "environment 0 returned the reward -inf, which is not finite"),
        ({"obs": np.array([[1, 1, 1], [1, np.nan, 1]], np.float32)}, "environment 1 returned obs .*not finite"),
        ({"obs": np.ones((2, 4), np.float32)}, r"obs has shape \(2, 4\), its space has \(2, 3\)"),
        ({"obs": np.full((2, 3), "a")}, "obs has dtype .*its space has float32"),
        ({"obs": np.full((2, 3), 1e300)}, "obs is 1e\\+300, which float32 cannot"),
        ({"terminated": np.array([True, False])}, "has autoreset mode SAME_STEP, but its infos have no 'final_obs'"),
        (
            {"terminated": np.array([False, True]), "infos": {"final_obs": np.array([None, None])}},
            "environment 1, final obs has shape",
        ),
        (
            {"terminated": np.array([False, True]), "infos": {"final_obs": np.array([None, np.ones(4)], object)}},
            r"environment 1, final obs has shape \(4,\), its space has \(3,\)",
        ),
        (
            {"truncated": np.array([False, True]), "infos": {"final_obs": [None, np.array([1, np.nan, 2], np.float32)]}},
            "environment 1.*final obs.*not finite",
        ),
    ],
)
def test_wrong_data_is_refused_where_it_comes_from(faults, words):
    with pytest.raises(EnvDataError, match=words):
        one_step(Scripted(**faults))


def test_the_older_name_of_the_final_observation_is_understood():
    infos = {"final_observation": np.array([None, np.full(3, 7.0)], object)}
    step = one_step(Scripted(terminated=np.array([False, True]), infos=infos))
    assert {index: obs.tolist() for index, obs in step.final_obs.items()} == {1: [7.0, 7.0, 7.0]}


@pytest.mark.parametrize("key", ["final_obs", "final_observation"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_an_environment_that_resets_in_the_same_step_and_declares_another_mode_is_refused_at_the_first_end(
    mode, key, counting_env, rule_policy
):
    env = SyncVectorEnv([partial(counting_env, i, [(3 + i, "terminated")]) for i in range(2)], autoreset_mode="SameStep")
    env.metadata = {**env.metadata, "autoreset_mode": mode}
    step = env.step

    def renamed(actions):
        *result, infos = step(actions)
        return (*result, {name.replace("final_obs", key): value for name, value in infos.items()})

    env.step = renamed
    with pytest.raises(
        EnvDataError, match=f"environment 0 .*mode {mode.name}, .*infos have '{key}'.*= AutoresetMode.SAME_STEP"
    ):
        LocalWorker(env, rule_policy(env).collect_mode).collect(3)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize(
    "infos",
    [
        {"final_obs": np.array([None, None])},
        {"final_obs": np.array([None, np.ones(3, np.float32)], object)},
        {"final_obs": np.array([[0, 0, 0], [1, 1, 1]], np.float32), "_final_obs": np.array([False, True])},
        {"final_obs": np.zeros((2, 3), np.float32), "_final_obs": np.array([False, False])},
    ],
    ids=["none", "the returned one", "an array", "masked"],
)
def test_a_final_observation_that_the_step_returned_too_contradicts_no_mode(mode, infos):
    env = Scripted(terminated=np.array([False, True]), infos=infos)
    env.metadata = {"autoreset_mode": mode}

    assert one_step(env).terminated.tolist() == [False, True]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("faults", [{"obs": np.array([0, np.nan], np.float32)}, {"reward": np.inf}], ids=["obs", "reward"])
def test_what_is_not_finite_at_the_end_of_an_episode_is_refused_in_every_mode(mode, faults, faulty_env):
    env = SyncVectorEnv([partial(faulty_env, 2, terminated=True, **faults)], autoreset_mode=mode)
    stepper = VectorEnvAdapter(env)
    out = np.empty((1, 2), np.float32)
    stepper.begin(out)
    stepper.advance(np.zeros(1, np.int64), out.copy())
    with pytest.raises(EnvDataError, match="environment 0.*not finite"):
        stepper.advance(np.zeros(1, np.int64), out.copy())


@pytest.mark.parametrize(
    ("kind", "layout", "num_steps"),
    [
        *(("sync", layout, num_steps) for layout in ("float32", "float64", "dict", "uint8") for num_steps in (1, 7)),
        ("async", "float32", 7),
        ("async", "dict", 1),
    ],
)
def test_same_step_refuses_an_environment_that_overwrites_its_final_observation(
    vector, kind, layout, num_steps, counting_env, layouts, rule_policy
):
    env = vector(f"{kind} SameStep", [partial(counting_env, index, [(3, "truncated")], layout, True) for index in range(2)])
    worker = LocalWorker(env, rule_policy(env, layout).collect_mode)
    handed_out = []
    try:
        with pytest.raises(EnvDataError, match=r"writes all observations into one array.*make_envs"):
            handed_out.extend(worker.collect(num_steps).trajectories.rows() for _ in range(9))
    finally:
        env.close()
    for rows in handed_out:
        gone_on = layouts[layout].decode(rows["next_obs"]) - layouts[layout].decode(rows["obs"])
        assert gone_on.tolist() == [[0, 0, 1]] * len(gone_on), "a wrong row was handed out before the environment was refused"


class Drawn(gymnasium.Env):
    """Episodes of 4 steps with random observations of any space, each a new element that float32 may have to round."""

    action_space = spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space
        self.observation_space.seed(5)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 4, False, {}


OF_EVERY_DTYPE = {
    **{name: spaces.Box(-1, 1, (3,), np.dtype(name)) for name in ("float64", "float32", "float16")},
    **{name: spaces.Box(0, 200, (3,), np.dtype(name)) for name in ("uint8", "int64")},
    "MultiDiscrete": spaces.MultiDiscrete([5, 7, 9], dtype=np.int32),
    "few numbers": spaces.MultiBinary(2),  # many an episode ends as the next one begins
}
OF_EVERY_DTYPE["Dict"] = spaces.Dict({name: space for name, space in OF_EVERY_DTYPE.items() if "few" not in name})
OF_EVERY_DTYPE["Tuple"] = spaces.Tuple((OF_EVERY_DTYPE["float64"], spaces.Discrete(3, dtype=np.int32)))


@pytest.mark.few
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_EVERY_DTYPE)
def test_observations_of_every_dtype_are_collected_in_every_mode(mode, name):
    env = SyncVectorEnv([partial(Drawn, OF_EVERY_DTYPE[name])] * 2, autoreset_mode=mode)
    stepper = VectorEnvAdapter(env)
    spec = map_leaves(lambda leaf: np.zeros((2, *leaf.shape), leaf.dtype), space_spec(OF_EVERY_DTYPE[name]))
    stepper.begin(spec)
    ended = 0
    for _ in range(60):
        step = stepper.advance(np.zeros(2, np.int64), map_leaves(np.copy, spec))
        ended += int(step.terminated.sum())
    assert ended > 20


@pytest.mark.parametrize("mode", MODES)
def test_a_collector_takes_float64_in_every_mode(mode):
    env = SyncVectorEnv([partial(Drawn, OF_EVERY_DTYPE["float64"])] * 2, autoreset_mode=mode)
    cfg = DQNConfig().override({"policy.collect.n_sample": 40})
    policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    ctx = OnlineRLContext(collect_kwargs={"eps": 0.5})
    StepCollector(cfg, policy.collect_mode, env)(ctx)

    assert ctx.trajectories.rows()["next_obs"].dtype == np.float32


class Lamp(gymnasium.Env):
    """Counts to 3, with a lamp that is on in between; the name of the room never changes."""

    observation_space = spaces.Dict(
        at=spaces.Box(0, 99, (1,)), lamp=spaces.MultiBinary(1), room=spaces.Box(0, 99, (2,)), kind=spaces.Discrete(9)
    )
    arrays = "at", "lamp", "room"
    action_space = spaces.Discrete(2)

    def __init__(self, reused=()):
        self.reused, self.count = reused, 0
        self.kept = {name: np.zeros(part.shape, part.dtype) for name, part in self.observation_space.spaces.items()}

    def seen(self):
        made = {"at": [10 * self.count + self.at], "lamp": [self.at in (1, 2)], "room": [7, 7], "kind": self.at}
        for name, value in made.items():
            if name in self.reused:
                self.kept[name][...] = value
        return {
            name: self.kept[name] if name in self.reused else np.asarray(value, self.kept[name].dtype)[()]
            for name, value in made.items()
        }

    def reset(self, *, seed=None, options=None):
        self.count, self.at = self.count + 1, 0
        return self.seen(), {}

    def step(self, action):
        self.at += 1
        return self.seen(), 0.0, self.at == 3, False, {}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_part_of_the_final_observation_may_be_that_of_the_next_reset(kind, vector):
    """The lamp is off at the end as at the start, and was on before: nothing is overwritten."""
    env = vector(f"{kind} SameStep", [Lamp] * 2)
    try:
        rows = LocalWorker(env, random_policy(env).collect_mode).collect(7).trajectories.rows()
    finally:
        env.close()
    at, following = rows["obs"]["at"][:, 0], rows["next_obs"]["at"][:, 0]
    assert (following - at).tolist() == [1] * 14
    assert (rows["next_obs"]["lamp"][:, 0] == (following % 10 < 3)).all()


@pytest.mark.parametrize(
    ("kind", "reused"), [("sync", Lamp.arrays), ("async", Lamp.arrays), ("sync", ("at",)), ("sync", ("lamp",))]
)
def test_an_environment_that_reuses_arrays_is_refused(kind, reused, vector):
    """If it reuses only some, this is known in the next step, where the environments are in this process."""
    env = vector(f"{kind} SameStep", [partial(Lamp, reused)] * 2)
    worker = LocalWorker(env, random_policy(env).collect_mode)
    try:
        worker.collect(3 if reused == ("lamp",) else 2)
        with pytest.raises(EnvDataError, match=r"writes all observations into one array.*make_envs"):
            worker.collect(1)
    finally:
        env.close()


def random_policy(env):
    return PPOPolicy(PPOPolicy.config_type(), env.single_observation_space, env.single_action_space)


@pytest.mark.few
@pytest.mark.parametrize("kind", ["sync", "async", "async without shared memory"])
@pytest.mark.parametrize("mode", MODES)
def test_beginning_anew_right_after_an_episode_ended_loses_no_step(vector, mode, kind, counting_env, rule_policy):
    env = vector(f"{kind} {mode.value}", [partial(counting_env, index, [(2, "terminated")]) for index in range(2)])
    try:
        worker = LocalWorker(env, rule_policy(env).collect_mode)
        worker.collect(2)
        worker.begin()
        trajectories, episodes = worker.collect(2)
    finally:
        env.close()
    assert trajectories.rows()["obs"][:, 2].tolist() == [0, 0, 1, 1]
    assert trajectories.rows()["next_obs"][:, 2].tolist() == [1, 1, 2, 2]
    assert [episode.length for episode in episodes] == [2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_numbered_by_those_begun_before(mode, counting_env, rule_policy):
    env = SyncVectorEnv([partial(counting_env, 0, [(2, "terminated"), (3, "truncated")])], autoreset_mode=mode)
    worker = LocalWorker(env, rule_policy(env).collect_mode)
    worker.collect(1)
    worker.begin()  # the first episode is not finished

    assert [episode.number for episode in worker.collect(9).episodes][:2] == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_holds_the_info_of_its_last_step(mode, counting_env, rule_policy):
    env = SyncVectorEnv([partial(counting_env, i, [(2 + i, "terminated")]) for i in range(2)], autoreset_mode=mode)
    episodes = LocalWorker(env, rule_policy(env).collect_mode).collect(9).episodes

    assert {episode.env for episode in episodes} == {0, 1}
    assert all(episode.info["t"] == episode.length and episode.seed is None for episode in episodes)


def test_a_seed_reaches_the_environment(counting_env, rule_policy):
    env = SyncVectorEnv([counting_env] * 2)
    LocalWorker(env, rule_policy(env).collect_mode).begin(seed=5)
    assert [one.seeds for one in env.envs] == [[5], [6]]


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_wrapper_around_any_mode_keeps_transitions_right(mode, counting_env, rule_policy):
    env = RecordEpisodeStatistics(SyncVectorEnv([partial(counting_env, 1, [(3, "truncated")])], autoreset_mode=mode))
    rows = LocalWorker(env, rule_policy(env).collect_mode).collect(12).trajectories.rows()

    assert (rows["next_obs"] - rows["obs"]).tolist() == [[0, 0, 1]] * len(rows["obs"])
    assert len(rows["obs"]) == (9 if mode is AutoresetMode.NEXT_STEP else 12)


def test_make_envs_inside_a_vector_wrapper_gives_right_transitions(counting_env, rule_policy):
    env = RecordEpisodeStatistics(make_envs(partial(counting_env, 1, [(3, "truncated")]), 2))
    rows, episodes = LocalWorker(env, rule_policy(env).collect_mode).collect(7)

    assert (rows.rows()["next_obs"] - rows.rows()["obs"]).tolist() == [[0, 0, 1]] * 14
    assert [(episode.env, episode.length) for episode in episodes] == [(0, 3), (1, 3)] * 2


def test_gymnasiums_own_vectorised_cartpole_gives_steps_of_cartpole():
    env = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point", max_episode_steps=12)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    policy = DQNPolicy(DQNConfig().policy, env.single_observation_space, env.single_action_space).collect_mode
    rollouts = [LocalWorker(env, policy).collect(t, random=True).trajectories for t in (1, 40, 9)]
    single = gymnasium.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    count = 0
    for rows in (rollout.rows() for rollout in rollouts):
        for obs, action, next_obs, terminated, reward in zip(
            rows["obs"], rows["action"], rows["next_obs"], rows["terminated"], rows["reward"], strict=True
        ):
            single.state, single.steps_beyond_terminated = obs.astype(np.float64), None
            expected, _, ended, _, _ = single.step(int(action))
            np.testing.assert_allclose(next_obs, expected, atol=1e-5)
            assert (terminated, reward) == (ended, 1.0)
            count += 1
    ends = sum(int((rollout.columns["terminated"] | rollout.columns["truncated"])[:-1].sum()) for rollout in rollouts)
    assert ends > 10
    assert count == sum(map(len, rollouts))


class OwnArrays(VectorEnv):
    """Returns its own arrays, which `reset` changes in place; environment i has episodes of 3 + i steps."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self):
        self.num_envs = 2
        self.single_observation_space, self.single_action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)
        self.observation_space, self.action_space = (
            batch_space(space, 2) for space in (self.single_observation_space, self.single_action_space)
        )
        self.steps, self.reward = np.zeros(2, np.int64), np.zeros(2, np.float32)
        self.terminated, self.truncated, self.score = np.zeros(2, bool), np.zeros(2, bool), np.zeros((2, 1))

    def reset(self, *, seed=None, options=None):
        begun = (options or {}).get("reset_mask", np.ones(2, bool))
        for part in (self.steps, self.reward, self.terminated, self.score):
            part[begun] = 0
        return self.steps[:, None].astype(np.float32), {}

    def step(self, actions):
        self.steps += 1
        self.reward[:], self.score[:, 0], self.terminated[:] = 10 * self.steps, self.steps, self.steps == [3, 4]
        nested = {"score": self.score[:, 0], "bins": np.zeros(3), "dt": np.array(0.01)}  # the last two are of no environment
        infos = {"score": self.score, "_score": np.ones(2, bool), "nested": nested}
        return self.steps[:, None].astype(np.float32), self.reward, self.terminated, self.truncated, infos


def test_an_environment_may_change_what_it_returned_in_place_when_it_is_reset():
    env = OwnArrays()
    stepper(env).record_infos(("score",))
    trajectories, episodes = LocalWorker(env, random_policy(env).collect_mode).collect(7)
    batch = trajectories.batch

    assert batch.next_obs[:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch.reward[:, 0].tolist() == [10, 20, 30, 10, 20, 30, 10]
    assert batch.terminated[:, 0].tolist() == [False, False, True] * 2 + [False]
    assert batch.info.score[:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    found = [(one.env, one.return_, one.length, one.info["score"].tolist(), one.info["nested"]) for one in episodes]
    first, second = (0, 60.0, 3, [3.0], {"score": 3.0}), (1, 100.0, 4, [4.0], {"score": 4.0})
    assert found == [first, second, first]


class Nesting(gymnasium.Env):
    """Its infos have nested values, in the last step of an episode only, and not in each episode."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        self.steps, self.episode = 0, self.episode + 1
        return np.zeros(1, np.float32), {"begin": {"steps": 0}}

    def step(self, action):
        self.steps += 1
        is_last = self.steps == 3
        info = {"result": {"success": 1.0, "part": {"length": 3}}} if is_last and self.episode % 2 == 0 else {}
        return np.full(1, self.steps, np.float32), 1.0, is_last, False, info


@pytest.mark.parametrize("mode", MODES)
def test_nested_values_of_the_last_info_belong_to_the_episode(mode):
    env = SyncVectorEnv([Nesting] * 2, autoreset_mode=mode)
    episodes = LocalWorker(env, random_policy(env).collect_mode).collect(8).episodes

    assert len(episodes) == 4
    for episode in episodes:
        result = {"result": {"success": 1.0, "part": {"length": 3}}}
        assert episode.info == (result if episode.number % 2 == 0 else {})


@pytest.mark.parametrize("kind", ["sync", "async", "async without shared memory"])
@pytest.mark.parametrize("mode", MODES)
def test_beginning_anew_while_another_episode_is_about_to_end_marks_each_reset(vector, mode, kind, counting_env, rule_policy):
    factories = [partial(counting_env, index, [(3 + index, "terminated")]) for index in range(2)]
    env = vector(f"{kind} {mode.value}", factories)
    try:
        worker = LocalWorker(env, rule_policy(env).collect_mode)
        worker.collect(3)  # the episode of environment 0 has ended, that of environment 1 ends in the next step
        worker.begin()
        trajectories, episodes = worker.collect(9)
    finally:
        env.close()
    rows = trajectories.rows()

    assert (rows["next_obs"][:, 1:] - rows["obs"][:, 1:]).tolist() == [[0, 1]] * len(rows["obs"])
    assert all(episode.length == 3 + episode.env for episode in episodes)
    assert {episode.env for episode in episodes} == {0, 1}
