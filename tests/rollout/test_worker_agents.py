"""SplitMultiAgentWorker: the same rollouts of all policies with every backend, even if processes are killed, hang or raise."""

import copy
import os
import re
import signal
import sys
import time
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_cases import mostly_slow

from ding_lite.data import flatten
from ding_lite.engine import WorkCancelled
from ding_lite.envs import EnvDataError, SpaceError, make_multi_agent_envs
from ding_lite.policy import Policy, PPOPolicy, PPOPolicyConfig
from ding_lite.processes import WorkerDied, WorkerHangs
from ding_lite.rollout import MultiAgentWorker, SplitMultiAgentWorker, make_multi_agent_worker

pytestmark = pytest.mark.timeout(60)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

AGENTS = ("a0", "a1", "b0")
FAULTS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(60),
    "raise": lambda: int("no number"),
}
ERRORS = {"SIGKILL": WorkerDied, "hang": WorkerHangs, "raise": ValueError}
both = pytest.mark.parametrize("backend", ["local", "process"])


class Drifting:
    """Agents drift by the seed and by their actions; each leaves at a random time, and a1 joins in step 1 of some episodes.

    Args:
        faults: file that names the fault that strikes in step 3, and is emptied before; None for none.
    """

    possible_agents = AGENTS

    def __init__(self, faults=None):
        self.faults = faults

    def observation_space(self, agent):
        at = spaces.Box(-99, 99, (3,), np.float32)
        return at if agent == "b0" else spaces.Dict(at=at, lamp=spaces.Discrete(4))

    def action_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32) if agent == "b0" else spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng, self.t = np.random.default_rng(seed), 0
        self.at = {agent: self.rng.normal(size=3) for agent in AGENTS}
        self.ends = dict(zip(AGENTS, self.rng.integers(2, 9, size=3)))
        self.agents = ["a0", "b0"] if self.rng.random() < 0.5 else list(AGENTS)
        return {agent: self.see(agent) for agent in self.agents}, {}

    def see(self, agent):
        at = self.at[agent].astype(np.float32)
        return at if agent == "b0" else {"at": at, "lamp": self.t % 4}

    def step(self, actions):
        self.t += 1
        if self.faults is not None and self.t == 3 and (fault := self.faults.read_text()):
            self.faults.write_text("")
            FAULTS[fault]()
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action)
            self.at[agent] = 0.9 * self.at[agent] + self.rng.normal(size=3) + np.mean(action)
        before, come = self.agents, ["a1"] if self.t == 1 and "a1" not in self.agents else []
        obs = {agent: self.see(agent) for agent in (*before, *come)}
        terminations = {agent: self.t == self.ends[agent] for agent in before}
        truncations = dict.fromkeys(before, self.t == 7)
        self.agents = [one for one in AGENTS if one in come or (one in before and not (terminations[one] or truncations[one]))]
        rewards = {agent: float(self.at[agent][0]) for agent in before}
        return obs, rewards, terminations, truncations, {agent: {"t": self.t} for agent in before}


class Recurrent(Policy):
    """Acts by chance and by what it remembers, in tensors and in objects, and logs how often it acts."""

    def make_model(self):
        return torch.nn.GRUCell(3, 3)

    def get_initial_state(self):
        return [torch.zeros(3), {"seen": [0]}]

    def compute_actions(self, obs, state=None, *, prev_action_batch=None, temperature=1.0, **kwargs):
        h = self.model(obs["at"], state[0]) + 0.1 * torch.as_tensor(prev_action_batch)[:, None]
        noise = torch.rand(h.shape, generator=self.generator).clamp_min(1e-9).log().neg().log()
        action = (h / temperature - noise).argmax(-1)
        self.metrics.log_value("acted", len(action), reduce="sum")
        things = [{"seen": [*thing["seen"], one]} for thing, one in zip(state[1], action.tolist())]
        return action, [h, things], {"logit": h}


def made(workers=1, backend="local", faults=None, **settings):
    return make_multi_agent_envs(partial(Drifting, faults), 5, seed=3, workers=workers, backend=backend, **settings)


def policies_for(env):
    """A policy for a0 and a1, and one for b0, with the same seed."""
    return {
        "a": Recurrent({"seed": 4}, env.observation_space("a0"), env.action_space("a0")),
        "b": PPOPolicy(
            PPOPolicyConfig(seed=4).override({"model.encoder_hidden_size_list": [48]}),
            env.observation_space("b0"),
            env.action_space("b0"),
        ),
    }


def workers_for(env, policies, mode="collect_mode"):
    return make_multi_agent_worker(env, {name: getattr(one, mode) for name, one in policies.items()}, lambda agent: agent[0])


def contents(rollout):
    parts = {name: (one.columns, one.valid) for name, one in rollout.trajectories.items()}
    return parts, rollout.episodes, rollout.env_steps


def rounds(envs, before=lambda number: None, count=3):
    """Rollouts and evaluations with other weights each time, and all states at the end."""
    policies = policies_for(envs[0])
    collector, evaluator = workers_for(envs[0], policies), workers_for(envs[1], policies, "eval_mode")
    found = []
    for number in range(count):
        before(number)
        found += [contents(collector.collect(4 + number, temperature=0.5)), evaluator.play_episodes(7)]
        logged = [one for one in collector.reduce_metrics() if one and "time" not in one]
        found.append([(path, one.peek()) for path, one in flatten({str(at): one for at, one in enumerate(logged)})])
        for policy in policies.values():
            policy.set_weights({name: 1.1 * one for name, one in policy.get_weights().items()})
    states = [one.state_dict() for one in (*policies.values(), *envs, collector, evaluator)]
    for state in states[2:4]:
        for piece in state.get("pieces", [state]):
            for episode in piece["episodes"]:
                episode.pop("attributes")  # those of the wrappers: none
    return [*found, collector.get_weights(), states]


def closed(envs, **kwargs):
    try:
        return rounds(envs, **kwargs)
    finally:
        for env in envs:
            env.close()


@pytest.mark.parametrize("workers", mostly_slow([2, 4], 2))
def test_rollouts_of_processes_are_those_of_as_many_local_workers(workers, digest):
    expected, found = (closed([made(workers, backend), made(2, backend)], count=2) for backend in ("local", "process"))
    for one, other in zip(expected, found, strict=True):
        assert digest(other) == digest(one)


def test_one_process_gives_the_rollouts_of_environments_in_this_process(digest):
    plain, process = closed([made(), made()]), closed([made(1, "process"), made(1, "process")])
    assert digest(process[:-1]) == digest(plain[:-1])


def test_each_row_of_several_workers_begins_like_that_of_one(digest):
    """The first observations, which do not depend on actions."""
    rollouts = []
    for workers in (1, 2, 3):
        env = made(workers)
        worker = workers_for(env, policies_for(env))
        assert type(worker) is (MultiAgentWorker if workers == 1 else SplitMultiAgentWorker)
        rollouts.append(worker.collect(3))
    for rollout in rollouts[1:]:
        for name, part in rollout.trajectories.items():
            first = rollouts[0].trajectories[name].columns["obs"]
            assert digest(_first(part.columns["obs"])) == digest(_first(first))
            assert part.num_envs == rollouts[0].trajectories[name].num_envs
        assert rollout.env_steps == 15


def _first(obs):
    return {name: leaf[0] for name, leaf in obs.items()} if isinstance(obs, dict) else obs[0]


def test_policies_of_one_seed_draw_different_random_numbers_in_every_worker():
    env = made(3)
    policies = {name: ByChance({"seed": 1}, env.observation_space("a0"), spaces.Discrete(3)) for name in ("x", "y")}
    modes = {"x": policies["x"].collect_mode, "y": policies["y"].collect_mode}
    copies = [one.worker_copy(index, name).actor for name, one in modes.items() for index in range(3)]
    drawn = {tuple(torch.randint(9, (20,), generator=one.generator).tolist()) for one in copies}
    assert len(drawn) == 6


class ByChance(Policy):
    """Acts by chance."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.randint(3, (len(obs["at"]),), generator=self.generator), [], {}


@both
def test_the_environments_can_be_stepped_from_this_process_as_well(backend, digest):
    runs = []
    for env in (made(), made(2, backend)):
        worker = MultiAgentWorker(env, {name: one.eval_mode for name, one in policies_for(env).items()}, lambda agent: agent[0])
        runs.append([contents(worker.collect(9)), worker.play_episodes([1, 0, 2, 0, 1])])
        env.begin(seed=8)
        runs[-1] += [contents(worker.collect(4)), env.run_seed]
        env.close()
    assert digest(runs[0][2:]) == digest(runs[1][2:])
    assert digest(runs[0][0][0], runs[0][1]) == digest(runs[1][0][0], runs[1][1])


@both
def test_a_run_continues_from_saved_states(backend, digest):
    def state_of(env, policies, worker):
        return copy.deepcopy(
            (env.state_dict(), {name: one.state_dict() for name, one in policies.items()}, worker.state_dict())
        )

    env = made(2, backend)
    policies = policies_for(env)
    worker = workers_for(env, policies)
    worker.collect(11)
    state = state_of(env, policies, worker)
    expected = contents(worker.collect(9))
    env.close()

    env = made(2, backend)
    policies = policies_for(env)
    worker = workers_for(env, policies)
    worker.collect(2)
    for name, one in policies.items():
        one.load_state_dict(state[1][name])
    env.load_state_dict(state[0])
    worker.load_state_dict(state[2])
    assert digest(state_of(env, policies, worker)) == digest(state)
    assert digest(contents(worker.collect(9))) == digest(expected)
    env.close()


@pytest.mark.few
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_in_a_step_and_is_restarted_gives_the_same_rollouts(fault, tmp_path, digest):
    faults = tmp_path / "fault"
    faults.touch()
    settings = {"workers": 2, "backend": "process", "restart": True, "timeout_s": 1.5}
    expected = closed([made(2), made(1)], count=2)
    envs = [made(faults=faults, **settings), made(1)]
    found = closed(envs, before=lambda number: number == 1 and faults.write_text(fault), count=2)
    assert digest(found) == digest(expected)
    assert faults.read_text() == ""
    assert 1 <= sum(host.restarts for host in envs[0].hosts) <= 2  # both pieces may have read it


def test_a_worker_that_is_killed_between_two_rollouts_or_released_continues_where_it_was(digest):
    envs = [made(2, "process", restart=True), made(2, "process")]

    def disturb(number):
        os.kill(envs[0].hosts[number % 2].pid, signal.SIGKILL)
        if number:
            envs[1].release()

    assert digest(closed(envs, before=disturb)) == digest(closed([made(2), made(2)]))
    assert [host.restarts for host in envs[0].hosts] == [2, 1]


@pytest.mark.few
@pytest.mark.parametrize("fault", FAULTS)
def test_without_restart_the_error_names_environment_episode_and_step(fault, tmp_path):
    faults = tmp_path / "fault"
    faults.touch()
    env = made(2, "process", faults, timeout_s=0.5)
    worker = workers_for(env, policies_for(env))
    worker.collect(1)
    faults.write_text(fault)
    with pytest.raises(ERRORS[fault]) as caught:
        worker.collect(30)
    words = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    expected = (
        r"environment \d.* in step 2 of its episode 0" if fault == "raise" else r"environment \d, episode 0, step 2 of it"
    )
    assert re.search(expected, words), words
    env.close()


def test_an_evaluation_is_cancelled():
    env = made(2, "process")
    worker, asked = workers_for(env, policies_for(env), "eval_mode"), []
    with pytest.raises(WorkCancelled, match="the run ended during an evaluation"):
        worker.play_episodes(10**6, lambda: asked.append(1) or len(asked) > 1)
    assert [len(worker.play_episodes(count)) for count in (5, [1, 0, 2, 0, 0])] == [5, 3]
    env.close()


def test_data_that_does_not_fit_is_located_by_its_index_among_all_environments():
    class Wrong(Drifting):
        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            return obs, dict.fromkeys(rewards, float("nan")) if self.wrong else rewards, *rest

        def reset(self, seed=None, options=None):
            self.wrong = seed == 4
            return super().reset(seed, options)

    class Last(Wrong):
        count = 0

        def __init__(self):
            super().__init__()
            Last.count += 1
            self.index = Last.count - 1

        def reset(self, seed=None, options=None):
            result = super().reset(seed, options)
            self.wrong = self.index == 3
            return result

    env = make_multi_agent_envs(Last, 4, workers=2)
    worker = workers_for(env, policies_for(env))
    with pytest.raises(EnvDataError, match=r"^agent 'a0' of environment 3 .*reward"):
        worker.collect(3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"make_multi_agent_envs\(workers=6\) for 5 environments: .* expected 1 to 5"):
        made(6)
    with pytest.raises(ValueError, match=r"make_multi_agent_envs\(backend='threads'\): unknown backend"):
        made(2, "threads")
    two, three = made(2), made(3)
    workers = [workers_for(env, policies_for(env)) for env in (two, three)]
    with pytest.raises(ValueError, match=r"state of environments in 2 pieces does not fit 3: make them with workers=2"):
        three.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match=r"in 2 pieces does not fit environments in one piece: make them with workers=2"):
        made().load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match=r"the state of 2 workers does not fit 3: make the environments with workers=2"):
        workers[1].load_state_dict(workers[0].state_dict())
    workers[0].collect(2)
    state = two.state_dict()
    state["pieces"][1]["episodes"] = state["pieces"][1]["episodes"][:1]
    before = two.state_dict()
    with pytest.raises(ValueError, match=r"the state of 1 environments"):
        two.load_state_dict(state)
    assert two.state_dict()["pieces"][0]["returns"] == before["pieces"][0]["returns"]
    with pytest.raises(ValueError, match="these environments have the policies"):
        two.assign_slots(lambda agent: agent, AGENTS)


def test_pieces_with_other_spaces_are_refused_and_no_process_is_left(census):
    class Odd(Drifting):
        def action_space(self, agent):
            return spaces.Discrete(os.getpid())

    make_multi_agent_envs(Drifting, 1, backend="process").close()  # the fork server stays
    before = census()
    with pytest.raises(SpaceError, match=r"agent 'a0' has the spaces .* in environment 2, and .* in environment 0"):
        make_multi_agent_envs(Odd, 4, workers=2, backend="process")
    assert census() == before


@pytest.mark.slow
def test_closed_environments_leave_nothing_behind(census):
    def cycle():
        env = made(2, "process")
        worker = workers_for(env, policies_for(env))
        rollout = worker.collect(20)
        env.close()
        return rollout

    cycle()
    before = census()
    rollout = cycle()
    checksum = float(np.sum(rollout.trajectories["b"].columns["obs"]))
    del rollout
    assert np.isfinite(checksum)
    assert census() == before
