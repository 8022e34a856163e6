"""Columns of infos of several agents: each row has what its own agent's info said, in this process and in others."""

import sys
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.config import RunConfig
from ding_lite.contexts import MultiAgentContext
from ding_lite.data import flatten
from ding_lite.engine import Task
from ding_lite.envs import EnvDataError, make_multi_agent_envs
from ding_lite.middleware import MultiAgentCollector
from ding_lite.policy import Policy
from ding_lite.rollout import MultiAgentWorker, make_multi_agent_worker

cloudpickle.register_pickle_by_value(sys.modules[__name__])
NAMES = ("place", "grid")


class Early:
    """The n-th agent leaves after n + 2 steps. Observations and infos say step and agent; the fish have no grid."""

    possible_agents = ("cat_0", "cat_1", "fish")

    def __init__(self, odd=None):
        self.odd, self.episode = odd or {}, -1

    def observation_space(self, agent):
        return spaces.Box(0, 99, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def see(self):
        return {agent: np.array([self.t, k], np.float32) for k, agent in enumerate(self.possible_agents)}

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.episode = 0, list(self.possible_agents), self.episode + 1
        return self.see(), {agent: {"place": -1} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        infos = {}
        for k, agent in enumerate(self.possible_agents):
            if agent in actions:
                infos[agent] = {"place": 10 * self.t + k}
                if agent != "fish":
                    infos[agent]["grid"] = np.array([self.t, k], np.int64)
        if (self.episode, self.t) == (0, 2):
            infos["cat_0"].update(self.odd)
        ended = {agent: self.t >= self.possible_agents.index(agent) + 2 for agent in actions}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return self.see(), dict.fromkeys(actions, 0.0), dict.fromkeys(actions, False), ended, infos


class Zero(Policy):
    """Always takes the first action."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.zeros(len(obs), dtype=torch.int64), [], {}


def kind_of(agent):
    return agent.partition("_")[0]


def made(names=NAMES, count=2, odd=None, kind=Early, **settings):
    return make_multi_agent_envs(partial(kind, odd), count, info_columns=names, **settings)


def modes_for(env):
    return {name: Zero({}, env.observation_space("fish"), env.action_space("fish")).collect_mode for name in ("cat", "fish")}


def test_each_row_has_the_values_of_its_own_agent():
    env = made()
    with pytest.warns(UserWarning, match=r"names 'grid', which is in no info .* of Early for the policy 'fish'"):
        rollout = MultiAgentWorker(env, modes_for(env), kind_of).collect(9).trajectories
    cats = rollout["cat"]
    seen, place = np.asarray(cats.batch.next_obs), np.asarray(cats.batch.info.place)
    valid = np.asarray(cats.valid)

    assert not valid.all()
    np.testing.assert_array_equal(place[valid], (10 * seen[..., 0] + seen[..., 1])[valid])
    np.testing.assert_array_equal(np.asarray(cats.batch.info.grid)[valid], seen.astype(np.int64)[valid])
    assert np.isnan(place[~valid]).all()
    assert cats.batch.info.grid.dtype == torch.int64
    assert np.isnan(np.asarray(rollout["fish"].batch.info.grid)).all()
    assert np.asarray(rollout["fish"].batch.info.place)[:5, 0].tolist() == [12, 22, 32, 42, 12]


@pytest.mark.filterwarnings("ignore:info_columns names 'grid'")
@pytest.mark.parametrize("settings", [{"workers": 2}, {"workers": 2, "backend": "process"}])
def test_they_are_the_same_in_pieces_and_in_processes(settings):
    env, split = made(), made(**settings)
    rollout = MultiAgentWorker(env, modes_for(env), kind_of).collect(9).trajectories
    parts = make_multi_agent_worker(split, modes_for(split), kind_of).collect(9).trajectories
    by_steps = MultiAgentWorker(split, modes_for(split), kind_of).collect(3).trajectories
    split.close()

    for name in ("cat", "fish"):
        for path, leaf in flatten(rollout[name].columns["info"]):
            np.testing.assert_array_equal(leaf, dict(flatten(parts[name].columns["info"]))[path])
    assert by_steps["cat"].columns["info"].keys() == set(NAMES)


def test_without_names_there_is_no_column():
    env = made(())
    assert "info" not in MultiAgentWorker(env, modes_for(env), kind_of).collect(3).trajectories["cat"].columns


@pytest.mark.filterwarnings("ignore:info_columns names 'grid'")
def test_restored_environments_continue_with_the_same_columns():
    env, restored = made(), made()
    worker, other = (MultiAgentWorker(one, modes_for(one), kind_of) for one in (env, restored))
    worker.collect(2)
    restored.load_state_dict(env.state_dict())
    rest, again = worker.collect(4).trajectories["cat"], other.collect(4).trajectories["cat"]

    assert restored.state_dict()["info_columns"] == env.state_dict()["info_columns"]
    for path, leaf in flatten(rest.columns["info"]):
        np.testing.assert_array_equal(leaf, dict(flatten(again.columns["info"]))[path])


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"place": "here"}, "'place' is 'here', expected a number"),
        ({"grid": None}, "'grid' is missing"),
        ({"grid": np.zeros(3)}, r"'grid' is an array of float64 of shape \[3\], expected int64 of shape \[2\]"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_agent_and_place(odd, words):
    env = made(odd=odd)
    with pytest.raises(
        EnvDataError, match=rf"agent 'cat_0' of environment 0 got an info in which {words}.*step 1 of its episode 0"
    ):
        MultiAgentWorker(env, modes_for(env), kind_of).collect(4)


def test_an_output_of_the_same_name_is_refused():
    class Info(Zero):
        def extra_action_out(self, obs, state):
            return {"info": torch.zeros(len(obs))}

    env = made()
    modes = {**modes_for(env), "cat": Info({}, env.observation_space("fish"), env.action_space("fish")).collect_mode}
    with pytest.raises(ValueError, match="the policy 'cat' returns the extra output 'info'"):
        MultiAgentWorker(env, modes, kind_of)


def test_the_collector_records_the_names_in_the_configuration():
    cfg, env = RunConfig().override({"env.info_columns": ["place"], "policy.collect.n_sample": 4}), made(("place",))
    loop = Task()
    with loop.start(ctx=MultiAgentContext()):
        loop.use(MultiAgentCollector(cfg, modes_for(env), env, kind_of)).run(1)
    assert loop.ctx.parts["cat"].trajectories.columns["info"].keys() == {"place"}


def test_one_string_is_refused():
    with pytest.raises(TypeError, match="make_multi_agent_envs.* wants several names"):
        make_multi_agent_envs(Early, 2, info_columns="place")


class InPlace(Early):
    """Keeps the dicts that it returned, and changes them in place, also in resets, and the infos of agents that have left."""

    def __init__(self, odd=None):
        super().__init__(odd)
        self.parts, self.infos = [{}, {}, {}, {}], {agent: {} for agent in self.possible_agents}

    def kept(self, rewards, terminations, truncations):
        for info in self.infos.values():
            info["place"] = self.t
        infos = {agent: self.infos[agent] for agent in rewards}
        for part, values in zip(self.parts, (rewards, terminations, truncations, infos)):
            part.clear()
            part.update(values)
        return self.parts

    def reset(self, seed=None, options=None):
        obs, _ = super().reset(seed, options)
        rewards, no = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, False)
        return obs, self.kept(rewards, no, no)[3]

    def step(self, actions):
        obs, _, terminations, truncations, _ = super().step(actions)
        return obs, *self.kept(dict.fromkeys(actions, float(self.t)), terminations, truncations)


@pytest.mark.parametrize("settings", [{}, {"workers": 2}])
def test_an_environment_may_change_what_it_returned_in_place(settings):
    env = made(("place",), **settings, kind=InPlace)
    rollout = make_multi_agent_worker(env, modes_for(env), kind_of).collect(9)
    fish, cats = (rollout.trajectories[name].batch for name in ("fish", "cat"))

    assert fish.reward[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert fish.truncated[:, 0].tolist() == [False, False, False, True] * 2 + [False]
    assert fish.info.place[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert cats.reward[:, 0].tolist() == [1, 2, 0, 0, 1, 2, 0, 0, 1]
    assert cats.truncated[:, 0].tolist() == [False, True, False, False] * 2 + [False]
    assert len(rollout.episodes) == 4
    for episode in rollout.episodes:
        assert episode.info["info"] == {"cat_0": {"place": 2}, "cat_1": {"place": 3}, "fish": {"place": 4}}
