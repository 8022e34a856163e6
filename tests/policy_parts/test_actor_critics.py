"""What policies share that learn from rollouts: optimizers, normalised observations, and things attached to their state."""

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.config import ConfigError
from ding_lite.data import tree
from ding_lite.policy import A2CPolicy, A2CPolicyConfig, IMPALAPolicy, PPOPolicy, REINFORCEPolicy, build_policy

OBS, ACTIONS = spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(2)
ALGORITHMS = [A2CPolicy, IMPALAPolicy, PPOPolicy, REINFORCEPolicy]
T, B = 6, 2


def made(kind=A2CPolicy, **settings):
    return kind(kind.config_type(seed=0).override({"model.encoder_hidden_size_list": [8], **settings}), OBS, ACTIONS)


def rollout(seed=0):
    g = torch.Generator().manual_seed(seed)
    obs, numbers = 3 * torch.randn(2, T, B, 3, generator=g) + 1, torch.randn(4, T, B, generator=g)
    columns = dict(zip(("reward", "value", "advantage", "return_"), numbers))
    no = torch.zeros(T, B, dtype=torch.bool)
    columns |= {"obs": obs[0], "next_obs": obs[1], "terminated": no, "truncated": no}
    return {**columns, "action": torch.arange(T * B).reshape(T, B) % 2, "log_prob": torch.full((T, B), -0.7)}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_rmsprop_takes_the_steps_of_its_equation(kind):
    policy = made(kind, **{"learn.optimizer": "rmsprop", "learn.learning_rate": 0.01})
    expected, square = [param.detach().clone() for param in policy.params], [torch.zeros_like(p) for p in policy.params]
    batch = tree(rollout())
    for _ in range(3):
        rows = policy.loss_batch(batch)
        policy.gradient_step(rows)
        for i, param in enumerate(policy.params):
            square[i] = 0.99 * square[i] + 0.01 * param.grad.square()
            expected[i] = expected[i] - 0.01 * param.grad / (square[i].sqrt() + 1e-5)

    for param, wanted in zip(policy.params, expected):
        torch.testing.assert_close(param.detach(), wanted)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_observations_are_taken_in_once_a_rollout_after_learning_without_padding(kind):
    policy, batch = made(kind, **{"model.normalize_obs": True}), rollout()
    valid = torch.ones(T, B, dtype=torch.bool)
    valid[-2:, 1] = False
    batch["truncated"][-3, 1] = True
    during = []
    normalizer = policy.model.normalizer
    normalizer.register_forward_hook(lambda module, *_: during.append(module.count.item()))
    policy.learn_mode.forward(tree({**batch, "valid": valid}))

    assert set(during) == {0.0}
    assert normalizer.count == T * B - 2
    torch.testing.assert_close(normalizer.mean, batch["obs"][valid].double().mean(0))


def test_acting_sees_the_statistics_with_the_weights_of_the_same_version():
    policy = made(**{"model.normalize_obs": True})
    mode, obs = policy.collect_mode, np.ones((4, 3), np.float32)
    old = policy.snapshot()
    policy.learn_mode.forward(tree(rollout()))
    with torch.inference_mode():
        mode.load_snapshot(old)
        mode.forward(obs)
        assert mode.actor.model.normalizer.count == 0
        mode.load_snapshot(None)
        mode.forward(obs)
    assert mode.actor.model.normalizer.count == T * B
    assert policy.get_weights()["normalizer.count"] == T * B


def test_a_policy_that_was_built_from_functions_normalises_too():
    def loss_fn(policy, model, dist_class, batch):
        logit, _ = model.from_batch(batch)
        return -(dist_class(logit, model).logp(batch.action) * batch.reward).mean()

    policy = build_policy("Built", loss_fn=loss_fn)({"model.normalize_obs": True}, OBS, ACTIONS)
    policy.learn_mode.forward(tree(rollout()))

    assert policy.model.normalizer.count == T * B


def test_without_normalisation_nothing_is_in_the_way():
    assert made().model.normalizer is None


class Counter:
    """Something with a state."""

    def __init__(self, count=0):
        self.count = count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_what_is_attached_is_saved_and_restored_with_the_policy():
    policy, counter = made(), Counter()
    policy.learn_mode.attach("counter", counter)
    counter.count = 7
    state = policy.state_dict()
    counter.count = 9
    policy.load_state_dict(state)

    assert counter.count == 7
    assert state["attached"] == {"counter": {"count": 7}}


def test_a_state_waits_for_what_is_attached_later_and_is_saved_again_meanwhile():
    policy, other, third, counter = made(), made(), made(), Counter()
    policy.attach("counter", Counter(7))
    other.load_state_dict(policy.state_dict())
    third.load_state_dict(other.state_dict())
    third.attach("counter", counter)

    assert counter.count == 7


def test_what_takes_the_place_of_another_goes_on_from_it():
    policy, second = made(), Counter()
    policy.attach("counter", Counter(7))
    policy.attach("counter", second)
    second.count += 1

    assert policy.state_dict()["attached"] == {"counter": {"count": 8}}


def test_a_state_from_before_anything_was_attached_leaves_it_as_it_is():
    policy, counter = made(), Counter(7)
    state = {name: part for name, part in policy.state_dict().items() if name != "attached"}
    policy.attach("counter", counter)
    policy.load_state_dict(state)

    assert counter.count == 7


def test_what_has_no_state_cannot_be_attached():
    with pytest.raises(TypeError, match=r"attach\('thing', ...\) wants an object with state_dict\(\).*got 3 of type int"):
        made().attach("thing", 3)


class Lock(Counter):
    """Something that cannot be sent to another process."""

    def __reduce__(self):
        raise TypeError("not to be sent")


def test_copies_that_act_elsewhere_take_nothing_along_that_is_attached():
    policy = made()
    policy.attach("lock", Lock())

    cloudpickle.dumps(policy.collect_mode.worker_copy(1))


def test_only_one_optimizer_is_offered_by_each_name():
    with pytest.raises(ConfigError, match="optimizer"):
        A2CPolicyConfig().override({"learn.optimizer": "sgd"})


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_explained_variance_is_logged_only_where_it_is_defined(kind):
    def learned(change):
        policy, batch = made(kind, **({"baseline": True} if kind is REINFORCEPolicy else {})), rollout()
        return policy.learn_mode.forward(tree(change(policy, batch)))

    def single(policy, batch):
        return {name: leaf[:1, :1] for name, leaf in batch.items()}

    def all_alike(policy, batch):
        return {**batch, "return_": torch.ones(T, B)}

    def one_valid(policy, batch):
        return {**batch, "valid": torch.arange(T * B).reshape(T, B) == 3}

    assert learned(lambda policy, batch: batch)["vf_explained_var"].isfinite()
    for change in (single, all_alike, one_valid):
        output = learned(change)
        assert "vf_explained_var" not in output
        assert all(torch.as_tensor(number).isfinite().all() for number in output.values())
