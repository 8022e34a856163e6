"""MultiAgentWorker: each row holds what its agent observed, did and earned; agents leave, join late, or share a policy."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import flatten
from ding_lite.engine import WorkCancelled
from ding_lite.envs import SpaceError, make_envs, make_multi_agent_envs
from ding_lite.policy import Policy, PPOPolicy, PPOPolicyConfig
from ding_lite.rollout import LocalWorker, MultiAgentWorker

FLAGS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}
EARLY = [
    {"a0": (2, "terminated"), "a1": (5, "truncated"), "b0": (3, "truncated")},
    {"a0": (1, "both"), "a1": (1, "truncated"), "b0": (1, "terminated")},
    {"a0": (4, "truncated"), "a1": (2, "terminated"), "b0": (4, "truncated")},
]
TOGETHER = [dict.fromkeys(("a0", "a1", "b0"), (3, "truncated"))]


class Counting:
    """What each agent sees is (copy, episode, step, its number); its reward is 100 * number + 10 * step + action.

    Args:
        index: of the copy.
        endings: by episode, over and over: when and how each agent's part ends.
        joins: at which step an agent comes; 0 where it is not named.
        in_place: whether an agent's observations are all written into one array.
    """

    possible_agents = ("a0", "a1", "b0")

    def __init__(self, index=0, endings=EARLY, joins=None, in_place=False):
        self.index, self.endings, self.joins, self.in_place = index, endings, joins or {}, in_place
        self.episode, self.seeds, self.lent = -1, [], {}

    def observation_space(self, agent):
        if agent.startswith("b"):
            return spaces.Dict(where=spaces.Box(-1, 1000, (2,), np.float64), when=spaces.MultiDiscrete([1000, 9]))
        return spaces.Box(0, 1000, (4,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3, start=5) if agent.startswith("b") else spaces.Discrete(4)

    def see(self, agent):
        place = self.index, self.episode, self.t, self.possible_agents.index(agent)
        if agent.startswith("b"):
            return {"where": np.array(place[:2], np.float64), "when": np.array(place[2:], np.int64)}
        array = self.lent.setdefault(agent, np.zeros(4, np.float32)) if self.in_place else np.zeros(4, np.float32)
        array[:] = place
        return array

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.episode, self.t, self.gone = self.episode + 1, 0, set()
        self.agents = [agent for agent in self.possible_agents if self.joins.get(agent, 0) == 0]
        return {agent: self.see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents or set(actions) == set(self.agents)
        self.t += 1
        endings = self.endings[self.episode % len(self.endings)]
        flags = {agent: FLAGS[endings[agent][1]] if endings[agent][0] == self.t else (False, False) for agent in self.agents}
        rewards = {
            agent: float(100 * self.possible_agents.index(agent) + 10 * self.t + action) for agent, action in actions.items()
        }
        stay = [agent for agent in self.agents if not any(flags[agent])]
        come = [agent for agent in self.possible_agents if self.joins.get(agent, 0) == self.t > 0]
        obs = {agent: self.see(agent) for agent in dict.fromkeys((*self.agents, *come))}
        infos = {agent: {"t": self.t} for agent in self.agents}
        terminations, truncations = ({agent: flag[k] for agent, flag in flags.items()} for k in (0, 1))
        self.agents = [agent for agent in self.possible_agents if agent in (*stay, *come)]
        return obs, rewards, terminations, truncations, infos


def place_of(obs):
    """(copy, episode, step, number) of nested observations, [..., 4]."""
    if isinstance(obs, dict):
        return np.concatenate([np.asarray(obs["where"]), np.asarray(obs["when"])], -1).astype(np.int64)
    return np.asarray(obs).astype(np.int64)


def rule(place, space):
    return space.start + (place @ np.array([1, 5, 3, 2])) % space.n


class Rule(Policy):
    """Does what `rule` says of what it sees."""

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return rule(place_of(obs), self.action_space), [], {}


def counting(count=2, **settings):
    made = iter(range(count))
    return make_multi_agent_envs(lambda: Counting(next(made), **settings), count)


def rules(env, names):
    """A policy of each name, for the agents whose names begin with it."""
    of = {agent: next(name for name in names if agent.startswith(name)) for agent in env.possible_agents}
    first = {name: next(agent for agent in of if of[agent] == name) for name in names}
    modes = {
        name: Rule({}, env.observation_space(agent), env.action_space(agent)).collect_mode for name, agent in first.items()
    }
    return modes, of.__getitem__


def alone(index, num_steps, **settings):
    """What one copy goes through, step by step: a dict of (obs, action, reward, next_obs, flags) by agent for each step."""
    env, steps = Counting(index, **settings), []
    obs, _ = env.reset()
    for _ in range(num_steps):
        acting = list(env.agents)
        before = {agent: place_of(obs[agent]).tolist() for agent in acting}
        actions = {agent: int(rule(np.array(before[agent]), env.action_space(agent))) for agent in acting}
        after, rewards, terminations, truncations, _ = env.step(actions)
        steps.append(
            {
                agent: (
                    before[agent],
                    actions[agent],
                    rewards[agent],
                    place_of(after[agent]).tolist(),
                    (terminations[agent], truncations[agent] and not terminations[agent]),
                )
                for agent in acting
            }
        )
        obs = after if env.agents else env.reset()[0]
    return steps


def rows(trajectories, agents, count):
    """The same of what was recorded, by copy, step and agent; without steps that are not valid."""
    columns, found = trajectories.columns, [[{} for _ in range(trajectories.num_steps)] for _ in range(count)]
    obs, next_obs = place_of(columns["obs"]), place_of(columns["next_obs"])
    for t in range(trajectories.num_steps):
        for row, (index, agent) in enumerate((index, agent) for index in range(count) for agent in agents):
            flags = bool(columns["terminated"][t, row]), bool(columns["truncated"][t, row])
            if trajectories.valid is not None and not trajectories.valid[t, row]:
                assert (columns["reward"][t, row], *flags) == (0, False, False)
                continue
            told = int(columns["action"][t, row]), float(columns["reward"][t, row])
            found[index][t][agent] = (obs[t, row].tolist(), *told, next_obs[t, row].tolist(), flags)
    return found


@pytest.mark.few
@pytest.mark.parametrize("settings", [{}, {"endings": TOGETHER}, {"joins": {"a1": 1, "b0": 2}}, {"in_place": True}])
@pytest.mark.parametrize("names", [("a", "b"), ("b0", "a0", "a1"), ("b", "a")])
def test_each_row_holds_what_its_agent_saw_did_and_earned(names, settings):
    if settings.get("joins"):
        settings = {
            **settings,
            "endings": [dict.fromkeys(("a0", "a1", "b0"), (4, "truncated")), {**EARLY[0], "a0": (4, "both")}],
        }
    env, count = counting(3, **settings), 3
    modes, policy_of = rules(env, names)
    worker = MultiAgentWorker(env, modes, policy_of)
    found = [[{} for _ in range(23)] for _ in range(count)]
    for begun, num_steps in ((0, 9), (9, 1), (10, 13)):
        rollout = worker.collect(num_steps)
        assert rollout.env_steps == num_steps * count
        for name, trajectories in rollout.trajectories.items():
            agents = [agent for agent in env.possible_agents if policy_of(agent) == name]
            assert trajectories.num_envs == count * len(agents)
            for index, steps in enumerate(rows(trajectories, agents, count)):
                for t, step in enumerate(steps):
                    found[index][begun + t].update(step)

    assert found == [alone(index, 23, **settings) for index in range(count)]


def test_where_all_leave_together_every_step_is_valid():
    env = counting(endings=TOGETHER)
    rollout = MultiAgentWorker(env, *rules(env, ("a", "b"))).collect(10)

    assert [part.valid for part in rollout.trajectories.values()] == [None, None]


def test_an_agent_that_left_stands_still_until_its_environment_begins_anew():
    env = counting(1)
    part = MultiAgentWorker(env, *rules(env, ("a", "b"))).collect(8).trajectories["a"]

    assert part.valid[:, 0].tolist() == [True, True, False, False, False, True, True, True]
    assert place_of(part.columns["obs"])[:, 0, 1:3].tolist() == [[0, 0], [0, 1], [0, 2], [0, 2], [0, 2], [1, 0], [2, 0], [2, 1]]
    assert len(part) == int(part.valid.sum())


def test_an_episode_tells_what_each_agent_earned_and_its_return_is_their_sum():
    env = counting(2)
    modes, policy_of = rules(env, ("a", "b"))
    episodes = MultiAgentWorker(env, modes, policy_of).collect(10).episodes
    earned: dict = {}
    for index in range(2):
        for step in alone(index, 10):
            for agent, (obs, _, reward, _, _) in step.items():
                earned.setdefault((index, obs[1]), {}).setdefault(agent, []).append(reward)

    assert [(one.number, one.env) for one in episodes] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    for one in episodes:
        expected = {agent: sum(rewards) for agent, rewards in earned[one.env, one.number].items()}
        assert one.info["return"] == expected
        assert one.return_ == sum(expected.values())
        assert one.length == max(map(len, earned[one.env, one.number].values()))
        assert one.seed == env.envs[one.env].seeds[one.number]
        assert one.info["info"]["a1"] == {"t": EARLY[one.number % 3]["a1"][0]}


class CountingPolicy(Policy):
    """Counts its steps in each row, and tells what it was asked with."""

    def get_initial_state(self):
        return [0]

    def compute_actions(self, obs, state, prev_action_batch, prev_reward_batch, **kwargs):
        asked = {"prev_action": prev_action_batch, "prev_reward": prev_reward_batch}
        action = rule(place_of(obs), self.action_space)
        return action, [state[0] + 1], {name: torch.as_tensor(column) for name, column in asked.items()}


def test_a_recurrent_state_begins_with_each_agents_episode_and_so_do_the_last_action_and_reward():
    env = make_multi_agent_envs(lambda: Counting(joins={"a1": 1}, endings=EARLY[::2]), 1)
    spaces_of = {name: (env.observation_space(name + "0"), env.action_space(name + "0")) for name in "ab"}
    modes = {"a": CountingPolicy({}, *spaces_of["a"]).collect_mode, "b": Rule({}, *spaces_of["b"]).collect_mode}
    part = MultiAgentWorker(env, modes, lambda agent: agent[0]).collect(30).trajectories["a"]
    columns, seen = part.columns, 0
    for row in range(2):
        expected = None
        for t in range(30):
            if not part.valid[t, row]:
                expected = None
                continue
            steps, action, reward = expected or (0, 0, 0.0)
            asked = columns["state_in_0"][t, row], columns["prev_action"][t, row], columns["prev_reward"][t, row]
            assert asked == (steps, action, reward)
            assert columns["state_out_0"][t, row] == steps + 1
            ended = columns["terminated"][t, row] or columns["truncated"][t, row]
            expected = None if ended else (steps + 1, int(columns["action"][t, row]), float(columns["reward"][t, row]))
            seen += 1
    assert seen == len(part) > 30


class Alone:
    """A gymnasium environment as one of several agents, of which there is one."""

    possible_agents = ("it",)

    def __init__(self, env):
        self.env = env

    def observation_space(self, agent):
        return self.env.observation_space

    def action_space(self, agent):
        return self.env.action_space

    def reset(self, seed=None, options=None):
        self.agents = ["it"]
        return tuple({"it": part} for part in self.env.reset(seed=seed, options=options))

    def step(self, actions):
        result = self.env.step(actions["it"])
        self.agents = [] if result[2] or result[3] else ["it"]
        return tuple({"it": part} for part in result)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_one_agent_alone_is_the_run_of_an_ordinary_vector_environment(env_id, digest):
    def make():
        return gymnasium.make(env_id, max_episode_steps=20, disable_env_checker=True)

    ordinary, agents = make_envs(make, 3, seed=5), make_multi_agent_envs(lambda: Alone(make()), 3, seed=5)

    def policy():
        return PPOPolicy(PPOPolicyConfig(seed=1), ordinary.single_observation_space, ordinary.single_action_space)

    def told(episodes):
        return [(it.env, it.number, it.seed, it.length, pytest.approx(it.return_, rel=1e-6)) for it in episodes]

    one = LocalWorker(ordinary, policy().collect_mode)
    several = MultiAgentWorker(agents, {"p": policy().collect_mode}, lambda agent: "p")
    for num_steps in (30, 17):
        expected, found = one.collect(num_steps), several.collect(num_steps)
        assert digest(found.trajectories["p"].columns, found.trajectories["p"].valid) == digest(
            expected.trajectories.columns, expected.trajectories.valid
        )
        assert told(found.episodes) == told(expected.episodes)
    assert told(several.play_episodes(7)) == told(one.play_episodes(7))


def test_played_episodes_are_whole_and_equally_many_in_each_environment():
    env = counting(2)
    worker = MultiAgentWorker(env, *rules(env, ("a", "b")))
    worker.collect(3)
    episodes = worker.play_episodes(5)

    assert [(one.env, one.number) for one in episodes] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    assert [one.length for one in episodes] == [1, 4, 5, 1, 4]


def test_a_policy_with_the_name_pieces_has_a_state_that_loads(digest):
    env = make_multi_agent_envs(lambda: Alone(gymnasium.make("CartPole-v1", disable_env_checker=True)), 3, seed=2)
    policy = CountingCart({"seed": 4}, env.observation_space("it"), env.action_space("it"))
    worker = MultiAgentWorker(env, {"pieces": policy.collect_mode}, lambda agent: "pieces")
    worker.collect(3)
    state = copy.deepcopy(worker.state_dict())
    worker.collect(3)
    worker.load_state_dict(state)

    assert digest(worker.state_dict()) == digest(state)
    worker.load_state_dict({"pieces": [state]})
    assert digest(worker.state_dict()) == digest(state)


def test_played_episodes_are_broken_off_when_the_run_ends():
    env = counting(2)
    with pytest.raises(WorkCancelled):
        MultiAgentWorker(env, *rules(env, ("a", "b"))).play_episodes(5, lambda: True)


def test_a_restored_worker_goes_on_where_the_saved_one_was(digest):
    def made():
        env = make_multi_agent_envs(lambda: Alone(gymnasium.make("CartPole-v1", disable_env_checker=True)), 3, seed=2)
        policy = CountingCart({"seed": 4}, env.observation_space("it"), env.action_space("it"))
        return env, policy, MultiAgentWorker(env, {"p": policy.collect_mode}, lambda agent: "p")

    env, policy, worker = made()
    worker.collect(41)
    state = copy.deepcopy((env.state_dict(), policy.state_dict(), worker.state_dict()))
    expected = worker.collect(50)
    env, policy, worker = made()
    env.load_state_dict(state[0])
    policy.load_state_dict(state[1])
    worker.load_state_dict(state[2])
    found = worker.collect(50)

    assert digest(found.trajectories["p"].columns, found.episodes) == digest(
        expected.trajectories["p"].columns, expected.episodes
    )


class CountingCart(Policy):
    """Acts by chance, counts its steps, and wants to know what it did last."""

    def get_initial_state(self):
        return [torch.zeros(2)]

    def compute_actions(self, obs, state, prev_action_batch, **kwargs):
        action = torch.randint(2, (len(obs),), generator=self.generator)
        return action, [state[0] + 1], {"before": torch.as_tensor(prev_action_batch)}


def test_a_state_with_agents_that_have_left_is_restored(digest):
    env = counting(2)
    worker = MultiAgentWorker(env, *rules(env, ("a", "b")))
    worker.collect(4)
    state = env.state_dict()
    expected = worker.collect(9)
    env = counting(2, endings=EARLY)
    worker = MultiAgentWorker(env, *rules(env, ("a", "b")))
    for one in env.envs:
        one.episode = -1
    env.load_state_dict(state)
    found = worker.collect(9)

    assert digest(*((it.columns, it.valid) for it in found.trajectories.values())) == digest(
        *((it.columns, it.valid) for it in expected.trajectories.values())
    )


def test_what_a_policy_logs_while_acting_stands_under_its_name():
    class Logs(Rule):
        def compute_actions(self, obs, state=None, **kwargs):
            self.metrics.log_value("asked", len(obs), reduce="sum")
            return super().compute_actions(obs, state, **kwargs)

    env = counting(2)
    modes, policy_of = rules(env, ("a", "b"))
    modes["a"] = Logs({}, env.observation_space("a0"), env.action_space("a0")).collect_mode
    worker = MultiAgentWorker(env, modes, policy_of)
    worker.collect(3)
    logged = worker.reduce_metrics()

    times = [("time", "inference"), ("time", "env_step")]
    assert [list(dict(flatten(one))) for one in logged] == [[("a", "asked")], times]


# Several policies of one seed.


class ByChance(Policy):
    """Acts by chance."""

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        count = len(place_of(obs))
        return self.action_space.start + torch.randint(int(self.action_space.n), (count,), generator=self.generator), [], {}


def by_chance(env, names, seed=0):
    """A policy for each name, all of one seed."""
    return {name: ByChance({"seed": seed}, env.observation_space("a0"), env.action_space("a0")) for name in names}


class Pair(Counting):
    """Two agents that see the same."""

    possible_agents = ("a0", "a1")

    def see(self, agent):
        return np.array([self.index, self.episode, self.t, 0], np.float32)


PAIR = [dict.fromkeys(("a0", "a1"), (9, "truncated"))]


def pair(policies, role="collect_mode"):
    env = make_multi_agent_envs(lambda: Pair(endings=PAIR), 4)
    return env, MultiAgentWorker(env, {name: getattr(policy, role) for name, policy in policies(env).items()}, str)


@pytest.mark.parametrize("role", ["collect_mode", "eval_mode"])
def test_policies_of_one_seed_act_by_random_numbers_of_their_own_and_in_the_same_way_each_time(role):
    runs = [pair(lambda env: by_chance(env, ("a0", "a1")), role)[1].collect(50).trajectories for _ in range(2)]
    one, other = (runs[0][name].columns["action"] for name in ("a0", "a1"))
    assert 0.15 < (one == other).mean() < 0.35  # by chance 0.25
    for name in ("a0", "a1"):
        np.testing.assert_array_equal(runs[0][name].columns["action"], runs[1][name].columns["action"])


def test_a_policy_alone_acts_by_the_numbers_that_it_always_had():
    env = make_multi_agent_envs(lambda: Pair(endings=PAIR), 4)
    policy, alone = (by_chance(env, ("all",))["all"] for _ in range(2))
    found = (
        MultiAgentWorker(env, {"all": policy.collect_mode}, lambda agent: "all")
        .collect(1)
        .trajectories["all"]
        .columns["action"][0]
    )

    np.testing.assert_array_equal(found, alone.collect_mode.forward(np.zeros((8, 4), np.float32))[0])


@pytest.mark.parametrize("order", ["worker first", "state first"])
def test_a_loaded_state_stays_where_several_policies_act(order):
    env, worker = pair(lambda env: by_chance(env, ("a0", "a1")))
    saved = {name: one.policy.learner for name, one in worker.actors.items()}
    worker.collect(5)
    states = {name: copy.deepcopy(learner.state_dict()) for name, learner in saved.items()}
    expected = worker.collect(7).trajectories

    def loaded(env):
        policies = by_chance(env, ("a0", "a1"), seed=3)
        if order == "state first":
            load(policies)
        made.update(policies)
        return policies

    def load(policies):
        for name, policy in policies.items():
            policy.load_state_dict(states[name])

    made = {}
    env, worker = pair(loaded)
    if order == "worker first":
        load(made)
    found = worker.collect(7).trajectories
    for name in ("a0", "a1"):
        np.testing.assert_array_equal(found[name].columns["action"], expected[name].columns["action"])


def test_a_second_worker_goes_on_with_the_random_numbers_of_the_first():
    env, worker = pair(lambda env: by_chance(env, ("a0", "a1")))
    modes = {name: one.policy for name, one in worker.actors.items()}
    worker.collect(3)
    expected = {name: mode.actor.generator_state()["generator"].clone() for name, mode in modes.items()}
    MultiAgentWorker(env, modes, str)
    for name, mode in modes.items():
        assert torch.equal(mode.actor.generator_state()["generator"], expected[name])


# What is refused.


def test_a_policy_made_for_other_spaces_is_named_with_its_agents():
    env = counting()
    modes, policy_of = rules(env, ("a", "b"))
    with pytest.raises(SpaceError) as caught:
        MultiAgentWorker(env, {"a": modes["b"], "b": modes["b"]}, policy_of)

    assert any("raised for the policy 'a', which acts for a0, a1" in note for note in caught.value.__notes__)


def test_an_error_of_a_policy_that_acts_names_it_with_its_agents():
    class Stuck(Rule):
        def compute_actions(self, obs, state=None, **kwargs):
            if place_of(obs)[..., 2].any():
                raise KeyError("stuck")
            return super().compute_actions(obs, state, **kwargs)

    env = counting()
    modes, policy_of = rules(env, ("a", "b"))
    modes["b"] = Stuck({}, env.observation_space("b0"), env.action_space("b0")).collect_mode
    with pytest.raises(KeyError, match="stuck") as caught:
        MultiAgentWorker(env, modes, policy_of).collect(3)

    assert caught.value.__notes__ == ["raised by the policy 'b', which acts for b0"]


def test_what_does_not_act_by_itself_and_what_is_no_environment_of_agents_is_refused():
    env = counting()
    modes, policy_of = rules(env, ("a", "b"))
    with pytest.raises(TypeError, match=r"the policy 'a', a Rule, is not an acting mode: pass policy.collect_mode"):
        MultiAgentWorker(env, {**modes, "a": Rule({}, env.observation_space("a0"), env.action_space("a0"))}, policy_of)
    with pytest.raises(TypeError, match="expected environments of several agents, got"):
        MultiAgentWorker(make_envs("CartPole-v1", 1), modes, policy_of)


def test_an_agent_without_a_policy_and_a_policy_without_an_agent_are_refused():
    env = counting()
    modes, policy_of = rules(env, ("a", "b"))
    with pytest.raises(ValueError, match=r"policy_of\('b0'\) returned 'bb', but the policies are a, b: did you mean 'b'\?"):
        MultiAgentWorker(env, modes, lambda agent: "a" if agent.startswith("a") else "bb")
    with pytest.raises(ValueError, match=r"policy_of\('b0'\) returned None, but the policies are a, b"):
        MultiAgentWorker(env, modes, {"a0": "a", "a1": "a"})
    with pytest.raises(ValueError, match=r"assigns no agent to the policy 'c': remove the policy. The agents are a0, a1, b0"):
        MultiAgentWorker(env, {**modes, "c": modes["a"]}, policy_of)
    with pytest.raises(
        TypeError, match=r"policy_of wants a function from an agent .* or a dict of these names by agent, got 'a'"
    ):
        MultiAgentWorker(env, modes, "a")


def test_policy_of_may_be_a_mapping():
    runs = []
    for mapping in (False, True):
        env = counting()
        modes, policy_of = rules(env, ("a", "b"))
        given = {agent: policy_of(agent) for agent in env.possible_agents} if mapping else policy_of
        runs.append(MultiAgentWorker(env, modes, given).collect(9).trajectories)
    for name in ("a", "b"):
        np.testing.assert_array_equal(runs[0][name].columns["action"], runs[1][name].columns["action"])


def test_agents_of_different_spaces_cannot_share_a_policy():
    env = counting()
    modes, _ = rules(env, ("a", "b"))
    with pytest.raises(SpaceError, match=r"the agents 'a0' and 'b0' of the policy 'a' have the spaces"):
        MultiAgentWorker(env, {"a": modes["a"]}, lambda agent: "a")
