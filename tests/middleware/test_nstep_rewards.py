"""Enhancers: n-step rewards against a table and a naive loop, and priorities in the order of the sequence."""

import numpy as np
import pytest
import torch

from ding_lite import PipelineError, Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes, PrioritizedReplayBuffer, Trajectories
from ding_lite.middleware import data_pusher, nstep_reward_enhancer, priority_calculator
from ding_lite.pipeline import contract_of

DONE_AT_2 = [False, False, True, False, False]
CUT_AT_1 = [False, True, False, False, False]
NEVER = [False] * 5


def cfg_of(n: int, gamma: float = 0.5) -> DQNConfig:
    return DQNConfig().override({"policy.nstep": n, "policy.discount_factor": gamma})


def rollout_of(reward, terminated, truncated, valid=None) -> Trajectories:
    """A rollout whose observations say where they stand: 100 * environment + row, and half a row more after the step."""
    reward = np.asarray(reward, np.float32)
    row, env = np.indices(reward.shape)
    place = (100 * env + row).astype(np.float32)
    columns = {
        "obs": {"x": place[..., None], "y": {"z": place.astype(np.int64)}},
        "action": env.copy(),
        "reward": reward,
        "next_obs": {"x": place[..., None] + 0.5, "y": {"z": place.astype(np.int64)}},
        "terminated": np.asarray(terminated),
        "truncated": np.asarray(truncated),
    }
    return Trajectories(columns, valid)


def enhanced(rollout: Trajectories, n: int, gamma: float = 0.5) -> Trajectories:
    ctx = OnlineRLContext()
    ctx.trajectories = rollout
    nstep_reward_enhancer(cfg_of(n, gamma))(ctx)
    return ctx.trajectories


TWO_ENVS = {
    "reward": np.array([[1, 2, 4, 8, 16], [32, 64, 128, 256, 512]]).T,
    "terminated": np.array([DONE_AT_2, NEVER]).T,
    "truncated": np.array([NEVER, CUT_AT_1]).T,
}


def test_windows_of_three_steps_are_those_of_the_table():
    columns = enhanced(rollout_of(**TWO_ENVS), n=3).columns

    #                          ends at the termination | at the rollout's end   ends at the cut | in full | at the rollout's end
    assert columns["reward"].T.tolist() == [[3, 4, 4, 16, 16], [64, 64, 384, 512, 512]]
    assert columns["discount"].T.tolist() == [[0.125, 0.25, 0.5, 0.25, 0.5], [0.25, 0.5, 0.125, 0.25, 0.5]]
    assert columns["terminated"].T.tolist() == [[True, True, True, False, False], NEVER]
    assert columns["truncated"].T.tolist() == [NEVER, [True, True, False, False, False]]
    assert columns["next_obs"]["x"][..., 0].T.tolist() == [[2.5, 2.5, 2.5, 4.5, 4.5], [101.5, 101.5, 104.5, 104.5, 104.5]]
    assert columns["next_obs"]["y"]["z"].T.tolist() == [[2, 2, 2, 4, 4], [101, 101, 104, 104, 104]]


def test_one_step_leaves_rewards_as_they_are_and_adds_the_discount():
    rollout = rollout_of(**TWO_ENVS)
    columns = enhanced(rollout, n=1, gamma=0.25).columns

    np.testing.assert_array_equal(columns["reward"], TWO_ENVS["reward"])
    assert (columns["discount"] == 0.25).all()
    for name in ("next_obs", "terminated", "truncated"):
        assert columns[name] is rollout.columns[name]


def test_what_was_collected_stays_as_it_was_and_observations_are_not_copied():
    rollout = rollout_of(**TWO_ENVS)
    before = {name: np.copy(rollout.columns[name]) for name in ("reward", "terminated", "truncated")}
    columns = enhanced(rollout, n=3).columns

    assert columns["obs"] is rollout.columns["obs"]
    assert columns["action"] is rollout.columns["action"]
    for name, column in before.items():
        np.testing.assert_array_equal(rollout.columns[name], column)
    assert (columns["reward"].dtype, columns["discount"].dtype) == (np.float32, np.float32)


@pytest.mark.filterwarnings("ignore:policy.nstep = .* is longer than a rollout")
@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_windows_are_those_of_a_loop_over_any_rollout(n, steps):
    rng, gamma, envs = np.random.default_rng(n), 0.9, 7
    for resets in (0.0, 0.3):
        terminated, truncated = rng.random((2, steps, envs)) < 0.2
        valid = np.ones((steps, envs), bool)
        valid[1:] = ~((terminated | truncated)[:-1] & (rng.random((steps - 1, envs)) < resets))
        terminated, truncated = terminated & valid, truncated & valid
        reward = rng.standard_normal((steps, envs))
        rollout = rollout_of(reward, terminated, truncated, valid if resets else None)
        columns = enhanced(rollout, n, gamma).columns
        assert (columns["discount"][~valid] == 0).all()
        for t, b in np.argwhere(valid):
            total, last = 0.0, t
            for last in range(t, min(t + n, steps)):
                total += gamma ** (last - t) * reward[last, b]
                if terminated[last, b] or truncated[last, b]:
                    break
            assert columns["reward"][t, b] == pytest.approx(total, abs=1e-5)
            assert columns["discount"][t, b] == pytest.approx(gamma ** (last - t + 1))
            assert columns["next_obs"]["x"][t, b, 0] == 100 * b + last + 0.5
            assert (columns["terminated"][t, b], columns["truncated"][t, b]) == (terminated[last, b], truncated[last, b])


def test_the_discount_arrives_in_the_replay_buffer_and_steps_that_were_only_resets_do_not():
    valid = np.ones((5, 2), bool)
    valid[3, 0] = False
    ctx, buffer = OnlineRLContext(), PrioritizedReplayBuffer(100)
    ctx.trajectories = rollout_of(**TWO_ENVS, valid=valid)
    for middleware in (nstep_reward_enhancer(cfg_of(3)), data_pusher(None, buffer)):
        middleware(ctx)

    assert len(buffer) == 9
    assert set(buffer.sample(200).discount.tolist()) == {0.125, 0.25, 0.5}


def test_whole_episodes_are_enhanced_one_by_one():
    rollout, ctx = rollout_of(**TWO_ENVS), OnlineRLContext()
    rows = rollout.rows()
    rows["terminated"] = np.array([False, False, True, False, False, False, True, False, True, False])
    rows["truncated"] = np.arange(10) == 9
    ctx.episodes = Episodes(rows, [3, 4, 2, 1])
    before = ctx.episodes
    nstep_reward_enhancer(cfg_of(3))(ctx)
    priority_calculator(lambda rollout: [float(one.action) for one in rollout])(ctx)
    buffer = PrioritizedReplayBuffer(20, alpha=1.0)
    data_pusher(None, buffer)(ctx)
    after = ctx.episodes

    assert rows["reward"].tolist() == [1, 32, 2, 64, 4, 128, 8, 256, 16, 512]
    assert after[0].reward.tolist() == [1 + 16 + 0.5, 32 + 1, 2]
    assert after[1].reward.tolist() == [64 + 2 + 32, 4 + 64 + 2, 128 + 4, 8]
    assert after[2].reward.tolist() == [256 + 8, 16]
    assert [one.discount.tolist() for one in after] == [[0.125, 0.25, 0.5], [0.125, 0.125, 0.25, 0.5], [0.25, 0.5], [0.5]]
    assert after[1].next_obs.x.squeeze(1).tolist() == [102.5, 3.5, 3.5, 3.5]
    assert after.lengths.tolist() == before.lengths.tolist()
    assert torch.equal(after[1].obs.x, before[1].obs.x)
    np.testing.assert_allclose(buffer.state_dict()["scaled"] - 1e-6, rows["action"], atol=1e-12)


def test_an_episode_that_does_not_end_before_the_next_one_is_cut_there():
    rollout, ctx = rollout_of(**TWO_ENVS), OnlineRLContext()
    rows = {**rollout.rows(), "terminated": np.arange(10) == 2, "truncated": np.zeros(10, bool)}
    ctx.episodes = Episodes(rows, [3, 4, 3])
    nstep_reward_enhancer(cfg_of(3))(ctx)

    assert ctx.episodes[1].reward.tolist() == [64 + 2 + 32, 4 + 64 + 2, 128 + 4, 8]
    assert ctx.episodes[1].truncated.tolist() == [False, True, True, True]
    assert not rows["truncated"].any()


def test_priorities_need_no_ends_of_episodes():
    rollout, ctx = rollout_of(**TWO_ENVS), OnlineRLContext()
    ctx.episodes = Episodes({**rollout.rows(), "terminated": np.zeros(10, bool), "truncated": np.zeros(10, bool)}, [3, 7])
    priority_calculator(lambda rollout: [1.0 for _ in rollout])(ctx)
    assert ctx.episodes.lengths.tolist() == [3, 7]


def test_a_configuration_without_nstep_is_refused():
    with pytest.raises(TypeError, match=r"nstep_reward_enhancer wants a configuration with policy.nstep, such as DQNConfig"):
        nstep_reward_enhancer(PPOConfig())


def test_sums_of_several_steps_are_not_summed_up_again():
    ctx, enhance = OnlineRLContext(trajectories=rollout_of(**TWO_ENVS)), nstep_reward_enhancer(cfg_of(3))
    enhance(ctx)
    with pytest.raises(RuntimeError, match="nstep_reward_enhancer found the column 'discount'.*Use it only once"):
        enhance(ctx)


makers = pytest.mark.parametrize("make", [lambda: nstep_reward_enhancer(cfg_of(2)), lambda: priority_calculator(len)])


@makers
def test_enhancers_without_a_collector_are_refused_with_the_fix(make):
    task = Task()
    with task.start(ctx=OnlineRLContext()), pytest.raises(PipelineError, match=r"reads ctx.trajectories.*StepCollector"):
        task.use(make()).run(max_step=1)
    with pytest.raises(RuntimeError, match=r"found neither ctx.trajectories nor ctx.episodes: put a collector"):
        make()(OnlineRLContext())


VALID = np.array([[True, True], [False, True], [True, True]])
ENV_MAJOR = [0.0, 4.0, 1.0, 3.0, 5.0]  # the real steps of 2 * row + environment, environment by environment
FORMS = {
    "an array": np.array,
    "a tensor": lambda x: torch.tensor(x, requires_grad=True),
    "a list": list,
    "a list of tensors": lambda x: [torch.tensor(one) for one in x],
    "doubles": lambda x: np.array(x, np.float64),
}


def prioritised(fn, valid=VALID) -> Trajectories:
    ctx = OnlineRLContext()
    ctx.trajectories = Trajectories({"number": np.arange(6.0).reshape(3, 2)}, valid)
    priority_calculator(fn)(ctx)
    return ctx.trajectories


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_priorities_in_the_order_of_the_sequence_stand_beside_their_transitions(form):
    found = prioritised(lambda rollout: form(ENV_MAJOR))

    assert [float(one.priority) for one in found] == [float(one.number) for one in found] == ENV_MAJOR
    assert found.columns["priority"].tolist() == [[0, 1], [0, 3], [4, 5]]
    assert found.columns["priority"].dtype == np.float32
    assert prioritised(lambda rollout: form([0.0, 2, 4, 1, 3, 5]), valid=None).columns["priority"].tolist() == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


@pytest.mark.parametrize("valid", [VALID, None])
def test_priorities_may_come_as_a_column(valid):
    found = prioritised(lambda rollout: torch.from_numpy(rollout.columns["number"] + 1), valid)

    assert [float(one.priority) for one in found] == [float(one.number) + 1 for one in found]


def test_the_function_sees_the_rollout_and_what_it_gives_decides_what_is_drawn_first():
    buffer, ctx = PrioritizedReplayBuffer(100, alpha=1.0), OnlineRLContext()
    ctx.trajectories = Trajectories({"number": np.arange(6.0).reshape(3, 2)}, VALID)
    priority_calculator(lambda rollout: [1e6 * float(one.number == 4) for one in rollout])(ctx)
    data_pusher(None, buffer)(ctx)
    batch = buffer.sample(50)

    assert (batch.number == 4).all()
    assert set(batch.keys()) == {"number", "weight", "index"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, 2.0], r"priorities of shape \(2,\) for a rollout of 5 transitions: return \(3, 2\), or \(5,\)"),
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        (1.0, r"shape \(\)"),
        ([0.0, -1.0, 0.0, 0.0, 0.0], "the priority -1.0 for transition 1 of the rollout: priorities must be finite and >= 0"),
        (np.array([[0, 0], [0, np.nan], [0, 0]]), "the priority nan for transition 3"),
        ([0.0, 0.0, 1e300, 0.0, 0.0], "the priority inf for transition 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_wrong_priorities_are_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        prioritised(lambda rollout: given)


def test_what_is_no_function_is_refused_and_objects_that_it_touches_are_in_the_contract():
    with pytest.raises(TypeError, match=r"priority_calculator wants a function of ctx.trajectories, got 3, a int"):
        priority_calculator(3)
    policy = object()

    assert contract_of(priority_calculator(len, uses=[policy])).uses == (policy,)
