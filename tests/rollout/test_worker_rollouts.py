"""SplitWorker: the same rollouts wherever the environments are, with the weights that the policy has when it is asked."""

import gc
import weakref

import gymnasium
import numpy as np
import pytest
from slow_cases import mostly_slow
from states import same

from ding_lite.config import DQNConfig
from ding_lite.engine import WorkCancelled, load_checkpoint, save_checkpoint
from ding_lite.envs import make_envs
from ding_lite.policy import DQNPolicy
from ding_lite.rollout import LocalWorker, SplitWorker, make_worker

pytestmark = pytest.mark.timeout(60)
PROCESSES = {"workers": 2, "backend": "process"}
both = pytest.mark.parametrize("backend", ["local", "process"])


def history(case, contents, envs, calls=3):
    """Rollouts and evaluations, with other weights each time."""
    policy = case.policy()
    collector, evaluator = make_worker(envs[0], policy.collect_mode), make_worker(envs[1], policy.eval_mode)
    found = [contents(collector.collect(4, random=True))]
    for steps in range(5, 5 + calls):
        rollout = collector.collect(steps, **case.kwargs)
        found.append(contents(rollout))
        case.change(policy, rollout)
        found.append(evaluator.play_episodes(7))
        if steps == 6:
            collector.begin()
            found.append(collector.get_weights())
    collector.begin(seed=9)
    return [
        *found,
        contents(collector.collect(3, random=True)),
        contents(collector.collect(3, **case.kwargs)),
        policy.state_dict(),
    ]


@pytest.mark.few
@pytest.mark.parametrize("workers", mostly_slow([1, 4], 1))
def test_rollouts_of_processes_are_those_of_as_many_local_workers(case, contents, digest, workers):
    expected, found = (
        history(case, contents, [case.envs(workers, backend) for _ in range(2)]) for backend in ("local", "process")
    )
    for one, other in zip(expected, found, strict=True):
        assert digest(other) == digest(one)


def test_each_number_of_workers_is_a_run_of_its_own_with_episodes_of_the_same_seeds(dqn_case, contents, digest):
    runs = [history(dqn_case, contents, [dqn_case.envs(workers), dqn_case.envs(workers)]) for workers in (1, 2, 2)]
    assert digest(runs[1]) == digest(runs[2]) != digest(runs[0])
    first = [run[0][0]["obs"]["at"][0] for run in runs]
    np.testing.assert_array_equal(first[0], first[1])


def test_a_worker_is_local_where_the_environments_are(dqn_case):
    policy = dqn_case.policy()
    assert type(make_worker(dqn_case.envs(), policy.collect_mode)) is LocalWorker
    assert type(make_worker(dqn_case.envs(2), policy.collect_mode)) is SplitWorker


@pytest.mark.few
def test_rollouts_handed_out_are_never_overwritten(case, contents, digest):
    policy, envs = case.policy(), case.envs(**PROCESSES)
    worker = make_worker(envs, policy.collect_mode)
    kept = [contents(worker.collect(steps, **case.kwargs)) for steps in (12, 3)] + [worker.play_episodes(6)]
    before = digest(kept)
    for steps in (12, 3, 20):
        case.change(policy, worker.collect(steps, **case.kwargs))
        worker.play_episodes(6)
    assert digest(kept) == before


@pytest.mark.few
def test_every_transition_bears_the_version_of_the_weights_that_acted(case):
    policy = case.policy()
    worker = make_worker(case.envs(**PROCESSES), policy.collect_mode)
    for steps in (2, 1, 3):
        rollout = worker.collect(steps)
        np.testing.assert_array_equal(rollout.trajectories.columns["policy_version"], np.full((steps, 5), policy.version))
        assert rollout.version == policy.version
        case.change(policy, worker.collect(4))
        policy.set_weights(policy.get_weights())
    random = worker.collect(2, random=True)
    assert (random.version, random.trajectories.columns["policy_version"].tolist()) == (-1, [[-1] * 5] * 2)


@pytest.mark.few
@both
def test_held_and_adopted_weights_are_acted_with_and_then_the_newest_again(case, backend):
    def versions(worker):
        return worker.collect(1).version

    policy = case.policy()
    mode = policy.collect_mode
    worker = make_worker(case.envs(2, backend), mode)
    old = policy.learn_mode.snapshot()
    policy.set_weights({name: -tensor for name, tensor in policy.get_weights().items()})
    policy.set_weights(policy.get_weights())
    assert versions(worker) == 2
    mode.load_snapshot(old)
    assert (versions(worker), mode.is_led) == (0, True)
    for name, tensor in zip(policy.model.state_dict(), old.values):
        np.testing.assert_array_equal(worker.get_weights()[name], tensor)
    with mode.acting_with(old):
        mode.load_snapshot(policy.snapshot())
        assert versions(worker) == 0
    assert versions(worker) == 2
    mode.load_snapshot(None)
    with mode.acting_with(policy.snapshot()):
        policy.set_weights(policy.get_weights())
        assert versions(worker) == 2
    assert (versions(worker), mode.is_led) == (3, False)


@both
@pytest.mark.parametrize("workers", [1, 2])
def test_a_mode_has_the_weights_with_which_its_workers_acted_last(dqn_case, backend, workers, recwarn):
    policy = dqn_case.policy()
    mode, newest, rollout = policy.eval_mode, policy.get_weights, LocalWorker(dqn_case.envs(), policy.collect_mode).collect(8)
    worker, obs = (
        make_worker(dqn_case.envs(workers, backend), mode),
        {"at": np.zeros((1, 3), np.float32), "lamp": np.zeros(1, int)},
    )
    for act in (
        lambda: worker.play_episodes(5),
        lambda: worker.play_episodes(5),
        lambda: mode.forward(obs),
        lambda: worker.collect(1),
    ):
        dqn_case.change(policy, rollout)
        act()
        acted_with = newest()
        dqn_case.change(policy, rollout)
        assert same(mode.get_weights(), acted_with)
        assert not same(newest(), acted_with)
    mode.forward(obs)
    assert same(mode.actor.get_weights(), newest())
    assert not len(recwarn)


@pytest.mark.few
@both
def test_other_weights_of_a_version_that_there_was_are_acted_with(case, backend, digest):
    policy, other = case.policy(seed=0), case.policy(seed=1)
    worker = make_worker(case.envs(2, backend), policy.collect_mode)
    worker.collect(3)
    assert policy.version == other.version
    make_worker(case.envs(2, backend), other.collect_mode)  # so that its state is that of two workers
    policy.load_state_dict(other.state_dict())
    worker.begin(seed=3)
    expected = make_worker(case.envs(2, backend), other.collect_mode).collect(9)
    found = worker.collect(9)
    for name in ("obs", "action"):
        assert digest(found.trajectories.columns[name]) == digest(expected.trajectories.columns[name])


@pytest.mark.few
def test_a_released_worker_acts_with_the_weights_that_it_had(case, contents, digest):
    runs = []
    for releases in (False, True):
        policy, envs = case.policy(), case.envs(**PROCESSES)
        worker = make_worker(envs, policy.collect_mode)
        case.change(policy, worker.collect(6, **case.kwargs))
        runs.append([contents(worker.collect(6, **case.kwargs))])
        for ask in (worker.begin, worker.state_dict, policy.state_dict, lambda: None):
            if releases:
                envs.release()
            runs[-1] += [ask(), contents(worker.collect(6, **case.kwargs)), worker.play_episodes(5)]
    assert digest(runs[0]) == digest(runs[1])


@pytest.mark.few
@both
@pytest.mark.parametrize("order", ["made first", "loaded first"])
def test_a_run_goes_on_from_saved_states_of_policy_environments_and_worker(case, backend, order, contents, digest, tmp_path):
    policy, envs = case.policy(), case.envs(2, backend)
    worker = make_worker(envs, policy.collect_mode)
    case.change(policy, worker.collect(7, **case.kwargs))
    worker.collect(5, random=True)
    worker.collect(3, **case.kwargs)
    state = {"policy": policy.state_dict(), "envs": envs.state_dict(), "worker": worker.state_dict()}
    path = save_checkpoint(state, tmp_path / "run.pt")
    expected = contents(worker.collect(8, **case.kwargs)), contents(worker.collect(3, random=True))

    state = load_checkpoint(path)
    policy, envs = case.policy(seed=7), case.envs(2, backend)
    policy.seed = 0
    if order == "loaded first":
        policy.load_state_dict(state["policy"])
        assert digest(policy.state_dict()["collect"]) == digest(state["policy"]["collect"])
    worker = make_worker(envs, policy.collect_mode)
    if order == "made first":
        worker.collect(4, **case.kwargs)
        policy.load_state_dict(state["policy"])
    envs.load_state_dict(state["envs"])
    worker.load_state_dict(state["worker"])
    assert digest((contents(worker.collect(8, **case.kwargs)), contents(worker.collect(3, random=True)))) == digest(expected)


@pytest.mark.few
def test_a_new_worker_goes_on_with_the_random_numbers_of_the_one_before(case, contents, digest):
    runs = []
    for workers, backend in ((1, "local"), (1, "process")):
        policy, envs = case.policy(), case.envs(workers, backend)
        make_worker(envs, policy.collect_mode).collect(6, **case.kwargs)
        make_worker(envs, policy.collect_mode).collect(6, **case.kwargs)
        envs.close()
        runs.append(policy.state_dict())
    assert digest(runs[0]) == digest(runs[1])


def _count_of_workers(objects):
    return sum(name.startswith("worker") for name in objects)


@both
def test_workers_that_are_no_longer_used_are_removed_from_the_processes(dqn_case, backend):
    envs = dqn_case.envs(2, backend)
    for _ in range(3):
        policy = dqn_case.policy()
        worker = make_worker(envs, policy.collect_mode)
        worker.collect(2, **dqn_case.kwargs)
        assert min(envs.ask(_count_of_workers)) > 0
    del policy, worker
    gc.collect()

    assert envs.ask(_count_of_workers) == [0, 0]


class SelfPlay(gymnasium.Wrapper):
    def __init__(self, opponents):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.opponents = opponents


def test_environments_in_this_process_that_hold_their_policy_are_freed():
    def acted():
        opponents = []
        envs = make_envs(lambda: SelfPlay(opponents), 4, workers=2, backend="local")
        policy = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
        opponents.append(policy)
        make_worker(envs, policy.collect_mode).collect(8, eps=0.5)
        envs.close()
        return weakref.ref(policy)

    held = acted()
    gc.collect()

    assert held() is None


@both
def test_a_recurrent_state_of_any_objects_hinders_neither_workers_nor_what_they_save(noting_case, backend, contents, digest):
    policy, envs = noting_case.policy(), noting_case.envs(2, backend)
    worker = make_worker(envs, policy.collect_mode)
    found = contents(worker.collect(9, **noting_case.kwargs))
    state = {"policy": policy.state_dict(), "envs": envs.state_dict()}
    with pytest.raises(TypeError, match=r"recurrent state\[2\]\[0\] is a Note, which a checkpoint cannot hold"):
        worker.state_dict()
    envs.release()
    assert digest(policy.state_dict()) == digest(state["policy"])
    assert "Note(ndarray" in found[0]["kind"][-1, 0]
    again = contents(worker.collect(9, **noting_case.kwargs))

    other, envs = noting_case.policy(), noting_case.envs(2)
    worker = make_worker(envs, other.collect_mode)
    expected = [contents(worker.collect(9, **noting_case.kwargs)) for _ in range(2)]
    assert digest([found, again]) == digest(expected)


def test_a_state_of_another_number_of_workers_is_refused_with_the_mend(dqn_case):
    policy, other = dqn_case.policy(), dqn_case.policy()
    worker, three = make_worker(dqn_case.envs(2), policy.collect_mode), make_worker(dqn_case.envs(3), other.collect_mode)
    words = r"the state of a policy that acted in 2 workers does not fit 3: make the environments with workers=2."
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(policy.state_dict())
    with pytest.raises(ValueError, match=r"the state of 2 workers does not fit 3: make the environments with workers=2."):
        three.load_state_dict(worker.state_dict())
    alone = dqn_case.policy()
    with pytest.raises(ValueError, match=r"acted in 1 worker does not fit 3: make the environments with workers=1\."):
        other.load_state_dict(alone.state_dict())
    alone.load_state_dict(policy.state_dict())  # to look at what was learned takes no workers
    make_worker(dqn_case.envs(), alone.eval_mode).play_episodes(5)
    with pytest.raises(ValueError, match=words):
        make_worker(dqn_case.envs(3), alone.collect_mode)


@both
def test_a_state_that_a_later_worker_refuses_changes_no_earlier_one(recurrent_case, backend, digest):
    envs = recurrent_case.envs(2, backend)
    worker = make_worker(envs, recurrent_case.policy().collect_mode)
    worker.collect(3)
    older = worker.state_dict()
    worker.collect(3)
    before = worker.state_dict()
    assert digest(before) != digest(older)
    state = {"pieces": [older["pieces"][0], {**older["pieces"][1], "memory": {"state": [], "last": None}}]}
    with pytest.raises(ValueError, match="the saved recurrent state has elements for"):
        worker.load_state_dict(state)

    assert digest(worker.state_dict()) == digest(before)
    worker.load_state_dict(older)
    assert digest(worker.state_dict()) == digest(older)


@both
def test_an_evaluation_that_nobody_waits_for_is_broken_off(dqn_case, backend):
    envs = dqn_case.envs(2, backend)
    worker = make_worker(envs, dqn_case.policy().eval_mode)
    asked = []
    with pytest.raises(WorkCancelled, match="the run ended during an evaluation"):
        worker.play_episodes(10**6, lambda: asked.append(1) or len(asked) > 5)
    assert [len(worker.play_episodes(count)) for count in (5, [1, 0, 2, 0, 0])] == [5, 3]
