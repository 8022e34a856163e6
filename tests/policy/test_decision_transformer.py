"""Decision Transformer: acting step by step equals its computation of windows; what must have no influence has none."""

import typing

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import Episodes, flatten, nested, tree
from ding_lite.data.trees import map_leaves
from ding_lite.datasets import open_dataset
from ding_lite.envs import make_envs
from ding_lite.envs.arrays import clipper
from ding_lite.envs.spaces import space_spec
from ding_lite.policy import DecisionTransformerPolicy
from ding_lite.rollout import make_worker

OBS = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "one of n": spaces.Discrete(5, start=2),
    "parts": spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3)),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
}
ACTIONS = {
    "one of n": spaces.Discrete(3, start=-1),
    "a vector": spaces.Box(-1.0, 3.0, (2,), np.float32),
    "several": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(0.0, 1.0, (1,), np.float32))),
}
SMALL = {"seed": 0, "model": {"size": 8, "layers": 2, "heads": 2}, "context_length": 4}


def made(obs="vector", action="one of n", **settings):
    policy = DecisionTransformerPolicy({**SMALL, "model.normalize_obs": False, **settings}, OBS[obs], ACTIONS[action])
    with torch.no_grad():
        policy.model.head.weight.mul_(100)  # far from uniform
    return policy


def recorded(elements, obs, action, lengths=(6, 1, 3), seed=0):
    """A dataset of episodes of these lengths."""
    rng, parts = np.random.default_rng(seed), []
    for number, length in enumerate(lengths):
        seen = elements(OBS[obs], length + 1, seed=10 * seed + number)
        ends = np.arange(length) == length - 1
        parts.append(
            {
                "obs": map_leaves(lambda leaf: leaf[:-1], seen),
                "next_obs": map_leaves(lambda leaf: leaf[1:], seen),
                "action": elements(ACTIONS[action], length, seed=number),
                "reward": rng.normal(size=length).astype(np.float32),
                "terminated": ends,
                "truncated": ends & False,
            }
        )
    return open_dataset(Episodes(map_leaves(lambda *leaves: np.concatenate(leaves), *parts), lengths))


def logits_of(policy, batch):
    returns = batch.return_to_go / policy.cfg.return_scale
    return policy.model(batch.obs, batch.action, returns, batch.timestep, batch.valid)


@pytest.mark.few
@pytest.mark.parametrize("obs", OBS)
@pytest.mark.parametrize("action", ACTIONS)
def test_acting_step_by_step_is_the_computation_of_windows(obs, action, elements):
    """An episode in which the policy acts, asking for the very return that follows, as windows."""
    policy, steps, envs = made(obs, action, target_return=7.0), 7, 2
    rewards = torch.linspace(-1, 2, steps * envs).reshape(steps, envs)
    rewards[-1] = 7.0 - rewards[:-1].sum(0)
    seen = elements(OBS[obs], steps, envs)
    state = [torch.stack([element] * envs) for element in policy.get_initial_state()]
    logits, actions, last = [], [], torch.zeros(envs)
    run = policy.model.forward

    def spied(*args):
        logits.append(run(*args))
        return logits[-1]

    policy.model.forward = spied
    with torch.no_grad():
        for step in range(steps):
            obs_now = map_leaves(lambda leaf: torch.as_tensor(leaf[step]), seen)  # noqa: B023
            taken, state, _ = policy.compute_actions(obs_now, state, explore=step % 2 == 0, prev_reward_batch=last)
            actions.append(clipper(policy.action_space)(map_leaves(lambda leaf: leaf.numpy(), nested(taken))))
            last = rewards[step]
    policy.model.forward = run
    acted = torch.stack([logit[:, -1] for logit in logits], 1)  # [B, T, width]
    for env in range(envs):
        rows = {
            "obs": map_leaves(lambda leaf: leaf[:, env], seen),  # noqa: B023
            "action": map_leaves(lambda *leaves: np.stack([leaf[env] for leaf in leaves]), *actions),  # noqa: B023
            "reward": rewards[:, env].numpy(),
            "terminated": np.arange(steps) == steps - 1,
            "truncated": np.zeros(steps, bool),
        }
        rows["next_obs"] = map_leaves(lambda leaf: np.concatenate([leaf[1:], leaf[-1:]]), rows["obs"])
        windows = open_dataset(Episodes(rows, [steps])).windows(np.arange(steps), 4)
        with torch.no_grad():
            torch.testing.assert_close(logits_of(policy, windows)[:, -1], acted[env], rtol=1e-4, atol=1e-4)


def test_the_future_other_places_and_the_last_action_have_no_influence(elements):
    policy = made()
    batch = recorded(elements, "vector", "one of n").windows(np.arange(10), 4)
    with torch.no_grad():
        before = logits_of(policy, batch)
        for name in ("obs", "action", "return_to_go", "timestep"):
            changed = tree(nested(batch))
            column = changed[name].clone()
            column[~batch.valid] = column.flatten()[0] + 1 if column.ndim == 2 else 9.0
            if name == "action":
                column = column.clamp(-1, 1)
                column[:, -1] = 1
            else:
                column[:, -1] = column[:, -1] + 1
            changed[name] = column
            after = logits_of(policy, changed)
            assert torch.equal(before[:, :-1][batch.valid[:, :-1]], after[:, :-1][batch.valid[:, :-1]]), name
            assert torch.equal(before[:, -1], after[:, -1]) == (name == "action"), name


def test_the_loss_is_the_mean_over_all_steps_of_the_windows(elements):
    policy = made("parts", "a vector")
    batch = recorded(elements, "parts", "a vector").windows(np.arange(10), 4)
    loss, stats = policy.loss(batch)
    logit, log_probs = logits_of(policy, batch), []
    for row in range(10):
        for step in range(4):
            if batch.valid[row, step]:
                action = map_leaves(lambda leaf: leaf[row, step][None], nested(batch.action))  # noqa: B023
                log_probs.append(policy.model.distribution.evaluate(logit[row, step][None], action)[0])
    torch.testing.assert_close(loss, -torch.cat(log_probs).mean())
    assert set(stats) == {"loss", "entropy", "mse"}


def test_it_learns_which_action_brings_which_return():
    """A bandit with the return 0 for action 0 and 1 for action 1, both as often in the data."""
    rows = {
        "obs": np.zeros((64, 3), np.float32),
        "next_obs": np.zeros((64, 3), np.float32),
        "action": np.arange(64) % 2 - 1,
        "reward": (np.arange(64) % 2).astype(np.float32),
        "terminated": np.ones(64, bool),
        "truncated": np.zeros(64, bool),
    }
    dataset = open_dataset(rows)
    policy = made(**{"learn.learning_rate": 0.02, "return_scale": 1.0, "target_return": 1.0, "context_length": 2})
    for _ in range(30):
        policy.learn_mode.forward(dataset.windows(np.arange(64), 2))
    assert policy.predict(np.zeros(3, np.float32))[0] == 0
    policy.cfg.target_return = 0.0
    assert policy.predict(np.zeros(3, np.float32))[0] == -1


def test_predict_counts_the_rewards_that_it_gets():
    policy = made(target_return=3.0)
    obs = np.zeros(3, np.float32)
    _, state = policy.predict(obs)
    _, with_reward = policy.predict(obs, state, prev_reward_batch=np.array([2.0]))
    _, of_zero = policy.predict(obs, state, prev_reward_batch=0.0)
    assert [float(found[-2]) for found in (with_reward, of_zero)] == [pytest.approx(0.01), pytest.approx(0.03)]
    assert int(with_reward[-1]) == 2
    with pytest.raises(ValueError, match=r"acts on the last reward .* predict\(obs, state, prev_reward_batch=reward\)"):
        policy.predict(obs, state)


def test_it_acts_in_environments_with_the_rewards_of_the_last_steps():
    envs = make_envs("CartPole-v1", 2)
    policy = DecisionTransformerPolicy(SMALL, envs.single_observation_space, envs.single_action_space)
    assert policy.previous == ("prev_action_batch", "prev_reward_batch")


def test_it_reads_windows_alone_so_that_recorded_episodes_have_no_states():
    policy = made()
    policy.dry_run()
    assert set(policy.learn_mode.columns) == {"obs", "action", "return_to_go", "valid", "timestep"}
    assert policy.collect_mode.state_columns == ()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"obs": torch.zeros(4, 3), "action": torch.zeros(4)}, "got a batch with action, obs"),
        ({"valid": torch.ones(4, 7), "timestep": torch.zeros(4, 7), "return_to_go": torch.zeros(4, 7)}, r"got \[4, 7\]"),
    ],
)
def test_other_batches_are_refused(batch, words):
    with pytest.raises(ValueError, match=rf"learns from windows \[N, 4\] of a dataset, {words}: fetch them by"):
        made().postprocess(tree(batch))


def test_a_size_that_is_no_multiple_of_the_heads_is_refused():
    with pytest.raises(ValueError, match=r"model.size = 9 is not a multiple of model.heads = 2"):
        made(**{"model.size": 9})


def last_actions(state, policy):
    """The actions that a state holds, the oldest first."""
    return state[-4][0] if policy.cfg.context_length > 1 else None


def test_the_state_has_actions_within_their_bounds():
    policy = made(action="a vector")
    with torch.no_grad():
        policy.model.head.bias.fill_(50.0)
    obs = np.zeros(3, np.float32)
    action, state = policy.predict(obs)
    assert action.tolist() == [3.0, 3.0]
    assert last_actions(state, policy)[-1].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("action", ["one of n", "a vector"])
def test_the_action_that_the_environment_got_takes_the_place_of_the_own_one(action):
    policy, obs = made(action=action), np.zeros(3, np.float32)
    first, state = policy.predict(obs)
    same = policy.predict(obs, state, prev_reward_batch=0.0)
    again = policy.predict(obs, state, prev_reward_batch=0.0, prev_action_batch=first)
    assert all(torch.equal(one, other) for one, other in zip(same[1], again[1]))
    got = np.array([9.0, -0.5], np.float32) if action == "a vector" else np.int64(1 if first != 1 else 0)
    after = policy.predict(obs, state, prev_reward_batch=0.0, prev_action_batch=got)[1]
    assert last_actions(after, policy)[-2].tolist() == np.clip(got, -1, 3).tolist()
    assert torch.equal(last_actions(after, policy)[0], last_actions(same[1], policy)[0]), "earlier steps stay"


class Replaced(DecisionTransformerPolicy):
    """What acts on it: the actions of another one."""

    seen: typing.ClassVar[list] = []

    def compute_actions(self, obs, state=(), *, explore=True, prev_action_batch=None, prev_reward_batch=None, **kwargs):
        found = super().compute_actions(
            obs, state, explore=explore, prev_action_batch=prev_action_batch, prev_reward_batch=prev_reward_batch, **kwargs
        )
        self.seen.append(found[1])
        return torch.full_like(found[0], 2.0), *found[1:]


def test_a_collector_gives_it_the_actions_that_the_environments_got():
    envs = make_envs("Pendulum-v1", 2, seed=0)
    settings = {**SMALL, "context_length": 4}
    policy = Replaced(settings, envs.single_observation_space, envs.single_action_space)
    Replaced.seen.clear()
    make_worker(envs, policy.collect_mode).collect(3)
    envs.close()
    actions = Replaced.seen[-1][1]  # [B, 3, 1]: two that the environment got, and the one that was computed
    assert actions[:, :-1].flatten().tolist() == [2.0] * 4
    assert actions[:, -1].flatten().tolist() != [2.0] * 2


@pytest.mark.few
@pytest.mark.parametrize("obs", OBS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_context_of_one_step_depends_on_this_step_alone(obs, action, elements):
    policy = made(obs, action, context_length=1)
    dataset = recorded(elements, obs, action)
    before = policy.model.head.weight.clone()
    assert np.isfinite(float(policy.learn_mode.forward(dataset.windows(np.arange(10), 1))["loss"]))
    assert not torch.equal(before, policy.model.head.weight)
    seen = elements(OBS[obs], 2, 2)
    _, state, _ = policy.eval_mode.forward(map_leaves(lambda leaf: leaf[0], seen))
    second = map_leaves(lambda leaf: leaf[1], seen)
    taken = nested(policy.eval_mode.forward(second, state, prev_reward_batch=np.zeros(2))[0])
    assert [path for path, _ in flatten(taken)] == [path for path, _ in flatten(space_spec(ACTIONS[action]))]


def test_it_learns_from_unfinished_episodes_with_the_returns_that_are_known():
    rows = {
        "obs": np.arange(5, dtype=np.float32)[:, None].repeat(3, 1),
        "next_obs": np.arange(1, 6, dtype=np.float32)[:, None].repeat(3, 1),
        "action": np.zeros(5, np.int64),
        "reward": np.ones(5),
        "terminated": np.arange(5) == 1,
        "truncated": np.zeros(5, bool),
    }
    rows["next_obs"][1] = 9
    dataset = open_dataset(rows)
    assert dataset.finished.tolist() == [True, False]
    batch = dataset.windows(np.arange(5), 4)
    assert batch.return_to_go[:, -1].tolist() == [2, 1, 3, 2, 1]
    assert np.isfinite(float(made().learn_mode.forward(batch)["loss"]))
