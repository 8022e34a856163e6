"""Environments of several agents: how they are made, seeded and replayed, and what is refused of what they return."""

import itertools
import re

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from ding_lite.data import allocate
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.envs import EnvDataError, SpaceError, make_envs, make_multi_agent_envs
from ding_lite.envs.episode_seeds import episode_seed

BOX, MOVES = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


class Drifting:
    """Two agents that drift by the seed and by what they are pushed; x leaves by chance, where there is no fault.

    Args:
        fault: called with the environment and the results of step 3 in episode 1, before they are returned.
    """

    possible_agents = ("x", "y")
    made = 0

    def __init__(self, fault=None):
        self.fault, self.episode, self.closed, self.seeds = fault, -1, 0, []

    def observation_space(self, agent):
        return BOX if agent == "x" else spaces.Discrete(5)

    def action_space(self, agent):
        return MOVES

    def reset(self, seed=None, options=None):
        self.rng, self.t = np.random.default_rng(seed), 0
        self.episode += 1
        self.seeds.append(seed)
        self.agents = ["x", "y"]
        self.at = {agent: self.rng.normal(size=2) for agent in self.agents}
        return self.see(), {agent: {} for agent in self.agents}

    def see(self):
        obs = {"x": self.at["x"].clip(-9, 9).astype(np.float32), "y": int(abs(self.at["y"][0]) * 2) % 5}
        return {agent: obs[agent] for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.t += 1
        for agent, action in actions.items():
            self.at[agent] += action + self.rng.normal(size=2)
            action *= 0  # an environment may do so
        gone = "x" in self.agents and self.rng.random() < 0.2 and self.fault is None
        result = {
            "obs": self.see(),
            "rewards": {agent: float(self.at[agent][1]) for agent in self.agents},
            "terminations": {agent: agent == "x" and gone for agent in self.agents},
            "truncations": dict.fromkeys(self.agents, self.t == 7),
            "infos": {agent: {} for agent in self.agents},
        }
        self.agents = [] if self.t == 7 else [agent for agent in self.agents if not result["terminations"][agent]]
        if self.fault is not None and (self.episode, self.t) == (1, 3):
            replaced = self.fault(self, result)
            if replaced is not None:
                return replaced
        return tuple(result.values())

    def close(self):
        self.closed += 1


def drifting(count=2, seed=0, fault=None, seated=True):
    made = iter([None] * (count - 1) + [fault])
    env = make_multi_agent_envs(lambda: Drifting(next(made)), count, seed=seed)
    if seated:
        env.assign_slots(str, ("x", "y"))
    return env


def play(env, num_steps, seed=0):
    """Known actions, and all that they lead to."""
    rng, trace = np.random.default_rng(seed), []
    if not env.is_begun:
        env.begin()
    for _ in range(num_steps):
        actions = {name: rng.uniform(-1, 1, (slots.num_envs, 2)).astype(np.float32) for name, slots in env.slots_of.items()}
        before = {name: action.copy() for name, action in actions.items()}
        out = {name: allocate(slots.obs_spec, slots.num_envs) for name, slots in env.slots_of.items()}
        parts, finished = env.advance(actions, out)
        assert all((actions[name] == action).all() for name, action in before.items())
        trace.append((out, {name: tuple(step)[:-1] for name, step in parts.items()}, [tuple(one) for one in finished]))
    return trace


# Seeds, states.


def test_each_episode_of_each_copy_begins_from_its_own_seed():
    env = drifting(3, seed=5)
    play(env, 40)

    for index, one in enumerate(env.envs):
        assert one.seeds == [episode_seed(5, index, number) for number in range(len(one.seeds))]
        assert len(one.seeds) > 5


def test_the_same_seed_gives_the_same_run_and_begin_with_a_seed_is_a_new_one(digest):
    env = drifting(seed=5)
    first = digest(play(env, 30))

    assert digest(play(drifting(seed=5), 30)) == first
    assert digest(play(drifting(seed=6), 30)) != first
    env.begin(seed=6)
    again = digest(play(env, 30))
    assert again == digest(play(drifting(seed=6), 30))


@pytest.mark.parametrize("num_steps", [0, 1, 5, 6, 7, 8, 33])
def test_a_restored_environment_goes_on_as_the_saved_one(num_steps, tmp_path, digest):
    env = drifting(3, seed=1)
    env.begin()
    play(env, num_steps)
    save_checkpoint(env.state_dict(), tmp_path / "env.pt")
    expected = play(env, 20, seed=1)
    other = drifting(3, seed=9)
    play(other, 4)
    other.load_state_dict(load_checkpoint(tmp_path / "env.pt"))

    assert digest(play(other, 20, seed=1)) == digest(expected)


def test_a_state_from_before_the_first_episode_is_restored(digest):
    state, other = drifting(seed=3).state_dict(), drifting(seed=9)
    play(other, 4)
    other.load_state_dict(state)

    assert digest(play(other, 9)) == digest(play(drifting(seed=3), 9))


def test_a_state_of_other_environments_or_of_other_policies_is_refused():
    env = drifting()
    play(env, 3)
    other = drifting(seated=False)
    with pytest.raises(ValueError, match=r"the state of 2 environments with the rows .* does not fit 3"):
        drifting(3).load_state_dict(env.state_dict())
    other.assign_slots(lambda agent: "of " + agent, ("of x", "of y"))
    with pytest.raises(ValueError, match=r"assign the agents to the same policies"):
        other.load_state_dict(env.state_dict())


def test_an_environment_that_is_no_function_of_its_seed_cannot_be_restored():
    resets = itertools.count()

    class Free(Drifting):
        def reset(self, seed=None, options=None):
            return super().reset(seed=next(resets))

    def make():
        env = make_multi_agent_envs(Free, 2)
        env.assign_slots(str, ("x", "y"))
        return env

    env = make()
    play(env, 1)
    with pytest.raises(EnvDataError, match=r"environment 0 did not come back to its observation of agent"):
        make().load_state_dict(env.state_dict())


def test_a_dtype_that_numpy_would_widen_keeps_its_space():
    class Wide(Drifting):
        def observation_space(self, agent):
            return spaces.Box(-9, 9, (2,), np.float64) if agent == "x" else spaces.Discrete(5, start=1)

        def see(self):
            return {agent: self.at["x"].clip(-9, 9) if agent == "x" else np.array(3) for agent in self.agents}

    env = make_multi_agent_envs(Wide, 2)
    env.assign_slots(str, ("x", "y"))
    out = play(env, 12)[-1][0]

    assert (out["x"].dtype, out["y"].dtype, out["y"].tolist()) == (np.float32, np.int64, [3, 3])


# Making.


def test_spaces_are_those_of_each_agent():
    env = drifting()

    assert (env.observation_space("x"), env.action_space("y")) == (BOX, MOVES)
    with pytest.raises(ValueError, match=r"there is no agent 'z'. There are x, y"):
        env.observation_space("z")


def test_what_makes_no_environments_of_agents_is_refused():
    class Turns(Drifting):
        def agent_iter(self):
            pass

    class Nameless:
        def reset(self):
            pass

    shared = Drifting()
    with pytest.raises(ValueError, match=r"make_multi_agent_envs\(num_envs=0\): at least 1"):
        make_multi_agent_envs(Drifting, 0)
    with pytest.raises(TypeError, match="wants a function that returns a new environment, such as rps_v2.parallel_env, got"):
        make_multi_agent_envs("rps_v2")
    with pytest.raises(TypeError, match=r"environment 0 returned .* of type Turns, whose agents take turns .*not supported"):
        make_multi_agent_envs(Turns)
    with pytest.raises(TypeError, match="returned a Nameless, which has no 'possible_agents'"):
        make_multi_agent_envs(Nameless)
    with pytest.raises(ValueError, match="environment 1 returned an environment that is in use"):
        make_multi_agent_envs(lambda: shared, 2)
    with pytest.raises(OSError, match="no display") as caught:
        make_multi_agent_envs(raises(OSError("no display")))
    assert caught.value.__notes__ == ["raised while environment 0 was made"]


class ByTurns:
    """The face of PettingZoo's AEC API."""

    possible_agents = ("x", "y")
    agent_selection = "x"

    def last(self):
        pass

    def step(self, action):
        pass

    def reset(self, seed=None, options=None):
        pass

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return MOVES


class Iterated(ByTurns):
    last = None

    def agent_iter(self):
        pass


@pytest.mark.parametrize("kind", [ByTurns, Iterated])
@pytest.mark.parametrize("make", [make_multi_agent_envs, make_envs])
@pytest.mark.parametrize("is_made", [False, True])
def test_agents_that_take_turns_are_refused_by_name_with_what_to_do(kind, make, is_made):
    given = kind() if is_made else lambda: kind()
    with pytest.raises(TypeError, match=rf"{kind.__name__}, whose agents take turns \(PettingZoo's AEC API\)") as caught:
        make(given, 2)
    for name in (
        "not supported",
        "make_multi_agent_envs",
        "parallel_env",
        "aec_to_parallel(env)",
        "turn_based_aec_to_parallel(env)",
    ):
        assert name in str(caught.value)


def test_a_parallel_environment_is_sent_to_the_function_for_several_agents():
    for given in (Drifting, Drifting()):
        with pytest.raises(TypeError, match=r"Drifting, which has several agents: make it with make_multi_agent_envs\("):
            make_envs(given, 2)


def test_the_conversion_that_the_message_names_makes_environments():
    conversions = pytest.importorskip("pettingzoo.utils.conversions")
    classic = pytest.importorskip("pettingzoo.classic.rps_v2")
    with pytest.raises(TypeError, match="whose agents take turns"):
        make_multi_agent_envs(classic.env)
    assert make_multi_agent_envs(lambda: conversions.aec_to_parallel(classic.env()), 2).possible_agents == (
        "player_0",
        "player_1",
    )


def raises(error):
    def raise_it(*_):
        raise error

    return raise_it


def test_copies_that_differ_are_refused():
    def differing(name, value):
        made = iter((Drifting(), Drifting()))

        def make():
            env = next(made)
            if env.observation_space("x") and next_is_second.append(1) is None and len(next_is_second) == 2:
                setattr(env, name, value)
            return env

        next_is_second: list[int] = []
        return make

    with pytest.raises(SpaceError, match=r"environment 1 has the agents \('x',\), environment 0 has \('x', 'y'\)"):
        make_multi_agent_envs(differing("possible_agents", ("x",)), 2)
    with pytest.raises(SpaceError, match=r"agent 'x' has the spaces .*Discrete\(2\) in environment 1, and .* in environment 0"):
        make_multi_agent_envs(differing("action_space", lambda agent: spaces.Discrete(2)), 2)
    with pytest.raises(SpaceError, match="has no fixed layout"):
        make_multi_agent_envs(differing("observation_space", lambda agent: spaces.Text(4)), 2)


def test_agents_have_their_policies_once_and_for_all():
    env = drifting()
    assert env.assign_slots(str, ("x", "y")) is env.slots_of
    with pytest.raises(ValueError, match=r"these environments have the policies .*: make new environments"):
        env.assign_slots(lambda agent: agent * 2, ("xx", "yy"))


def test_agents_have_their_policies_by_a_mapping_too():
    env = drifting(seated=False)
    slots_of = env.assign_slots({"x": "first", "y": "second"}, ("first", "second"))
    assert {name: slots.agents for name, slots in slots_of.items()} == {"first": ("x",), "second": ("y",)}
    env = drifting(seated=False)
    with pytest.raises(ValueError, match=r"policy_of\('y'\) returned None, but the policies are x, y"):
        env.assign_slots({"x": "x"}, ("x", "y"))
    with pytest.raises(
        TypeError, match=r"policy_of wants a function .* or a dict of these names by agent, got None of type None"
    ):
        env.assign_slots(None, ("x", "y"))


def test_what_has_not_begun_cannot_go_on():
    env = drifting(seated=False)
    with pytest.raises(RuntimeError, match="no agent has a policy yet: assign policies with assign_slots"):
        env.begin()
    env.assign_slots(str, ("x", "y"))
    with pytest.raises(ResetNeeded, match=r"advance\(\) before begin\(\)"):
        env.advance({}, {})


def test_closing_closes_each():
    env = drifting(3)
    env.close()

    assert [one.closed for one in env.envs] == [1, 1, 1]


# What environments may not return.


def put(part, agent, value):
    """A fault: another value there."""

    def fault(env, result):
        result[part][agent] = value

    return fault


def without(part, agent):
    def fault(env, result):
        del result[part][agent]

    return fault


def agents_are(*agents):
    def fault(env, result):
        env.agents = list(agents)

    return fault


FAULTS = {
    "agent 'y' of environment 1 returned the reward None, expected one number": put("rewards", "y", None),
    "agent 'y' of environment 1 returned the reward nan, which is not finite": put("rewards", "y", float("nan")),
    "agent 'y' of environment 1, obs has shape (2,), its space has ()": put("obs", "y", np.zeros(2)),
    "agent 'y' of environment 1 returned obs 7, its space allows 0 to 4": put("obs", "y", 7),
    "agent 'x' of environment 1 returned obs [nan  0.], which is not finite": put(
        "obs", "x", np.array([np.nan, 0], np.float32)
    ),
    "agent 'y' of environment 1 returned terminated='no', expected True or False": put("terminations", "y", "no"),
    "environment 1 returned no obs of agent 'y' from step(), but it takes part": without("obs", "y"),
    "environment 1 returned no rewards of agent 'y' from step(), but it takes part": without("rewards", "y"),
    "environment 1 returned no truncations of agent 'y' from step(), but it takes part": without("truncations", "y"),
    "agent 'y' of environment 1 is no longer in env.agents, but was neither terminated nor truncated": agents_are("x"),
    "environment 1 has the agents [\"'z'\"], which are not in possible_agents": agents_are("x", "y", "z"),
    "from step(), expected (obs, rewards, terminations, truncations, infos), each by agent": lambda env, result: (1,),
}


@pytest.mark.parametrize("message", FAULTS)
def test_wrong_data_is_refused_where_it_enters_by_environment_and_agent(message):
    env = drifting(fault=FAULTS[message])
    with pytest.raises(EnvDataError) as caught:
        play(env, 30)

    assert message in str(caught.value)


def test_the_last_observation_of_an_episode_is_checked_too():
    class Ends(Drifting):
        def step(self, actions):
            result = super().step(actions)
            if not self.agents:
                result[0]["y"] = 9
            return result

    env = make_multi_agent_envs(Ends, 2)
    env.assign_slots(str, ("x", "y"))
    with pytest.raises(EnvDataError, match="environment 0 returned obs of agent 'y' 9, its space allows 0 to 4"):
        play(env, 9)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (({}, {}), "begins an episode without agents"),
        ({"x": 1}, r"from reset\(\), expected \(obs, infos\), both by agent"),
        (({"x": np.zeros(2, np.float32)}, {}), r"returned no obs of agent 'y' from reset\(\)"),
    ],
)
def test_a_wrong_beginning_is_refused(result, message):
    class Begins(Drifting):
        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.agents = self.agents if result != ({}, {}) else []
            return result

    env = make_multi_agent_envs(Begins, 1)
    env.assign_slots(str, ("x", "y"))
    with pytest.raises(EnvDataError, match=message) as caught:
        env.begin()
    assert re.search(r"It was in the reset for its episode 0, which began with \{.seed.: \d+\}\.$", str(caught.value))


def test_an_error_inside_an_environment_keeps_its_type_and_gets_a_note_of_where_it_was():
    env = drifting(seed=2, fault=raises(OSError("the simulator is gone")))
    with pytest.raises(OSError, match="the simulator is gone") as caught:
        play(env, 30)
    (note,) = caught.value.__notes__

    seed = env.envs[1].seeds[1]
    assert note.startswith("raised by environment 1 (<")
    assert f"in step 2 of its episode 1, which began with {{'seed': {seed}}}, at the actions {{" in note
    assert "'y': array([" in note


def test_the_actions_of_an_episode_that_is_too_long_to_be_recorded_are_unknown(monkeypatch):
    monkeypatch.setattr("ding_lite.envs.episode_starts._LONGEST", 2)
    with pytest.raises(OSError, match="the simulator is gone") as caught:
        play(drifting(seed=2, fault=raises(OSError("the simulator is gone"))), 30)
    where = caught.value.env_location

    assert (where.step, where.actions) == (2, None)


def test_not_as_many_actions_as_rows_are_refused():
    env = drifting()
    env.begin()
    with pytest.raises(ValueError, match="expected 2 actions, one for each row, got 3"):
        env.advance({name: np.zeros((3, 2), np.float32) for name in "xy"}, {})


def test_an_agent_that_has_left_may_stay_listed_until_all_have():
    class Lists(Drifting):
        def step(self, actions):
            assert set(actions) <= {"x", "y"}
            acted, self.agents = self.agents, list(actions)
            result = super().step(actions)
            self.agents = acted if self.agents else []
            return result

    env = make_multi_agent_envs(Lists, 2)
    env.assign_slots(str, ("x", "y"))
    expected, found = play(drifting(), 30), play(env, 30)

    assert [len(it[2]) for it in found] == [len(it[2]) for it in expected]


@pytest.mark.parametrize("fault", ["make", "close"])
def test_one_that_fails_leaves_no_other_open(fault):
    made = []

    class Failing(Drifting):
        def __init__(self):
            super().__init__()
            self.number = len(made)
            if (self.number, fault) == (2, "make"):
                raise OSError("no such level")
            made.append(self)

        def close(self):
            if (self.number, fault) == (0, "close"):
                raise OSError("cannot close")
            super().close()

    with pytest.raises(OSError, match="no such level|cannot close"):
        make_multi_agent_envs(Failing, 3).close()
    assert [one.closed for one in made] == ([1, 1] if fault == "make" else [0, 1, 1])
