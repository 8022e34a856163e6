"""Policies made from functions: each hook is called, in its place, with what it is promised."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.data.trees import with_leaves
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, PPOPolicy, PPOPolicyConfig
from ding_lite.policy_base import OnPolicyConfig, Policy, build_policy
from ding_lite.policy_parts import LearningRateSchedule

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
T, B = 4, 2


def one_step_loss(policy, model, dist_class, batch):
    logit, _ = model.from_batch(batch)
    return -(dist_class(logit, model).logp(batch["action"]) * batch["reward"]).mean()


def made(config=None, observation_space=BOX, action_space=DISCRETE, **hooks):
    hooks.setdefault("loss_fn", one_step_loss)
    return build_policy("Mine", **hooks)({"seed": 0, **(config or {})}, observation_space, action_space)


def rollout(policy, seed=0, **columns):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, 4)).astype(np.float32)
    steps = [policy.collect_mode.forward(obs[t]) for t in range(T)]
    outputs = {name: np.stack([outputs[name] for _, _, outputs in steps]) for name in steps[0][2]}
    return tree(
        {
            "obs": obs[:-1],
            "next_obs": obs[1:],
            "action": np.stack([action for action, _, _ in steps]),
            "reward": rng.normal(size=(T, B)).astype(np.float32),
            "terminated": rng.random((T, B)) < 0.2,
            "truncated": rng.random((T, B)) < 0.2,
            **outputs,
            **columns,
        }
    )


@pytest.mark.few
@pytest.mark.parametrize("space", [DISCRETE, spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 3])], ids=str)
def test_a_loss_alone_makes_a_policy_that_learns_what_pays(space):
    policy = made(action_space=space)
    obs = np.zeros((200, 4), np.float32)
    for _ in range(60):
        action, _, outputs = policy.collect_mode.forward(obs)
        paid = (action.reshape(200, -1)[:, 0] > 0.5).astype(np.float32) - 0.5
        policy.learn_mode.forward(tree({"obs": obs, "action": action, "reward": paid, **outputs}))
    best, _, _ = policy.eval_mode.forward(obs[:1])

    assert np.all(best.reshape(-1)[0] > 0.5)


def test_its_gradient_is_that_of_the_formula():
    policy = made()
    batch = rollout(policy)
    before = policy.get_weights()
    expected = build_policy("Other", loss_fn=one_step_loss)({"seed": 0}, BOX, DISCRETE)
    loss = 0.0
    for t in range(T):
        for b in range(B):
            log_prob = expected.model.logits(batch.obs[t, b].unsqueeze(0)).log_softmax(-1)[0, batch.action[t, b]]
            loss = loss - log_prob * batch.reward[t, b] / (T * B)
    loss.backward()
    nn.utils.clip_grad_norm_(expected.params, 0.5)
    expected.optimizer.step()
    output = policy.learn_mode.forward(batch)

    np.testing.assert_allclose(output["total_loss"], loss.item(), rtol=1e-5)
    for name, tensor in expected.get_weights().items():
        if name.startswith("actor"):
            torch.testing.assert_close(policy.get_weights()[name], tensor, rtol=1e-4, atol=1e-6)
            assert not torch.equal(tensor, before[name])


def test_rows_and_rollouts_are_learned_from_alike():
    one, other = made(), made()
    batch = rollout(one)
    rows = tree({name: batch[name].flatten(0, 1) for name in ("obs", "action", "reward")})
    one.learn_mode.forward(batch)
    other.learn_mode.forward(rows)

    assert all(torch.equal(tensor, other.get_weights()[name]) for name, tensor in one.get_weights().items())


def test_steps_that_were_only_a_reset_are_left_out():
    one, other = made(), made()
    batch = rollout(one)
    valid = torch.tensor([[True, False]] * T)
    one.learn_mode.forward(with_leaves(batch, valid=valid))
    other.learn_mode.forward(tree({name: batch[name][:, 0] for name in ("obs", "action", "reward")}))

    assert all(torch.equal(tensor, other.get_weights()[name]) for name, tensor in one.get_weights().items())


@pytest.mark.parametrize("is_tried_out", [True, False])
@pytest.mark.parametrize("does_backward", [True, False])
def test_a_first_step_takes_the_gradient_once_whether_or_not_the_policy_was_tried_out(does_backward, is_tried_out):
    def gradients_fn(policy, optimizer, loss):
        if does_backward:
            loss.backward()

    sgd = {"optimizer_fn": lambda policy, config: torch.optim.SGD(policy.params, lr=0.1)}
    policies = [made(gradients_fn=gradients_fn, **sgd), made({"grad_clip": None}, **sgd)]
    if is_tried_out:
        policies[0].dry_run()
    batch = rollout(policies[0])
    for policy in policies:
        policy.learn_mode.forward(batch)

    for mine, plain in zip(*(policy.model.parameters() for policy in policies)):
        torch.testing.assert_close(mine, plain)


def test_the_hooks_are_called_in_their_order_and_may_save_things_for_each_other():
    calls = []

    def hook(name, give=lambda policy, given: None):
        def called(policy, *given):
            calls.append(name)
            return give(policy, given)

        return called

    def loss_fn(policy, model, dist_class, batch):
        calls.append("loss")
        policy.loss_obj = one_step_loss(policy, model, dist_class, batch)
        return policy.loss_obj

    def stats_fn(policy, batch):
        calls.append("stats")
        return {"kept": policy.loss_obj.detach()}

    def gradients_fn(policy, optimizer, loss):
        calls.append("gradients")

    policy = made(
        loss_fn=loss_fn,
        stats_fn=stats_fn,
        gradients_fn=gradients_fn,
        before_init=lambda policy, o, a, c: calls.append("before_init"),
        before_loss_init=lambda policy, o, a, c: calls.append("before_loss_init"),
        after_init=lambda policy, o, a, c: calls.append("after_init"),
        optimizer_fn=lambda policy, config: calls.append("optimizer") or torch.optim.SGD(policy.params, lr=config["lr"]),
        make_model=lambda policy, o, a, c: calls.append("model") or Policy.make_model(policy),
        postprocess_fn=lambda policy, batch, others, episode: calls.append("postprocess") or batch,
        extra_action_out_fn=lambda policy: calls.append("extra") or {"logit": policy.model.last_output()},
    )
    assert calls == ["before_init", "model", "optimizer", "before_loss_init", "after_init"]
    calls.clear()
    policy.dry_run()
    assert calls == ["extra", "postprocess", "loss", "gradients", "stats"]
    batch = rollout(policy)
    calls.clear()
    output = policy.learn_mode.forward(batch)

    assert calls == ["postprocess", "loss", "gradients", "stats"]
    assert output["kept"] == output["total_loss"]
    assert type(policy.optimizer) is torch.optim.SGD
    assert batch.logit.shape == (T, B, 3)


def test_init_hooks_are_told_the_spaces_and_the_configuration():
    told = []
    made(
        {"lr": 0.5, "mine": "x"},
        before_init=lambda policy, observation_space, action_space, config: told.append(
            (observation_space, action_space, config["lr"], config["mine"], hasattr(policy, "model"))
        ),
        before_loss_init=lambda policy, o, a, c: told.append(hasattr(policy, "model")),
        after_init=lambda policy, o, a, c: told.append(policy.columns),
    )

    assert told == [(BOX, DISCRETE, 0.5, "x", False), True, ("obs", "action", "reward")]


@pytest.mark.parametrize("count", [1, 5])
def test_extra_outputs_of_each_step_land_in_the_batch_and_not_in_evaluations(count):
    def of_policy(policy):
        return {"value": policy.model.value_function(), "behaviour_logit": policy.model.last_output()}

    def of_all(policy, obs, state, model, dist):
        return {"value": model.values(obs), "behaviour_logit": dist.logit}

    policy = made(extra_action_out_fn=of_policy if count == 1 else of_all)
    batch = rollout(policy)
    flat = batch.obs.flatten(0, 1)

    torch.testing.assert_close(batch.value.flatten(), policy.model.values(flat).detach())
    torch.testing.assert_close(batch.behaviour_logit.flatten(0, 1), policy.model.logits(flat).detach())
    assert policy.eval_mode.forward(flat.numpy())[2] == {}


def in_place(policy, optimizer, loss):
    return {"grad_norm": nn.utils.clip_grad_norm_(policy.params, 0.01)}


def does_backward(policy, optimizer, loss):
    loss.backward()
    return {"grad_norm": nn.utils.clip_grad_norm_(policy.params, 0.01)}


def pairs(policy, optimizer, loss):
    gradients = torch.autograd.grad(loss, policy.params, allow_unused=True)
    norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients if gradient is not None))
    factor = torch.clamp(0.01 / (norm + 1e-6), max=1.0)
    return [(gradient * factor, param) for gradient, param in zip(gradients, policy.params) if gradient is not None]


@pytest.mark.parametrize("gradients_fn", [in_place, does_backward, pairs])
def test_gradients_may_be_changed_computed_or_returned(gradients_fn):
    def sgd(policy, config):
        return torch.optim.SGD(policy.params, lr=1.0)

    policy = made(gradients_fn=gradients_fn, optimizer_fn=sgd)
    before = policy.get_weights()
    for seed in range(3):
        policy.learn_mode.forward(rollout(policy, seed))
        moved = torch.sqrt(sum((tensor - before[name]).square().sum() for name, tensor in policy.get_weights().items()))
        before = policy.get_weights()
        torch.testing.assert_close(moved, torch.tensor(0.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize("hook", ["before_init", "loss_fn", "gradients_fn", "stats_fn", "optimizer_fn", "extra_action_out_fn"])
def test_a_hook_that_takes_other_arguments_is_refused_with_those_it_is_given(hook):
    def wrong(a, b, c, d, e, f):
        pass

    with pytest.raises(TypeError, match=rf"Mine: {hook} is called with \(policy.*the signature is wrong\(a, b, c, d, e, f\)"):
        build_policy("Mine", **{hook: wrong})


def test_what_is_no_hook_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"there is no hook 'los_fn': did you mean 'loss_fn'"):
        PPOPolicy.with_updates(los_fn=one_step_loss)
    with pytest.raises(TypeError, match="loss_fn is a int: pass a function"):
        build_policy("Mine", loss_fn=3)


def test_with_updates_changes_one_hook_and_leaves_the_others():
    def doubled(policy, model, dist_class, batch):
        loss, stats = PPOPolicy.loss(policy, batch)
        return 2 * loss, {**stats, "mine": loss.detach()}

    Doubled = PPOPolicy.with_updates(name="Doubled", loss_fn=doubled)
    cfg = PPOPolicyConfig(seed=0).override({"learn.epoch_per_collect": 1, "learn.grad_clip_norm": None})
    one, other = (kind(cfg, BOX, DISCRETE) for kind in (PPOPolicy, Doubled))
    given = {
        "advantage": np.ones((T, B), np.float32),
        "return_": np.ones((T, B), np.float32),
        "value": np.zeros((T, B), np.float32),
    }
    outputs = [policy.learn_mode.forward(rollout(policy, **given)) for policy in (one, other)]

    assert Doubled.__name__ == "Doubled"
    assert issubclass(Doubled, PPOPolicy)
    assert PPOPolicy.loss is not Doubled.loss
    assert outputs[1].keys() - outputs[0].keys() == {"mine"}
    torch.testing.assert_close(outputs[1]["total_loss"], 2 * outputs[0]["total_loss"])
    for one_param, other_param in zip(one.params, other.params):
        torch.testing.assert_close(other_param.grad, 2 * one_param.grad)


def test_updates_of_updates_add_up():
    First = DQNPolicy.with_updates(name="First", stats_fn=lambda policy, batch: {"first": torch.tensor(1.0)})
    Second = First.with_updates(name="Second", optimizer_fn=lambda policy, config: torch.optim.SGD(policy.params, lr=0.1))
    policy = Second(DQNPolicyConfig(seed=0), BOX, DISCRETE)
    rows = tree({name: leaf.flatten(0, 1) for name, leaf in rollout(policy).items()})

    assert policy.learn_mode.forward(rows)["first"] == 1
    assert type(policy.optimizer) is torch.optim.SGD
    assert policy.target_model is not policy.model


def test_the_default_configuration_is_what_it_is_told():
    typed = build_policy("Typed", loss_fn=one_step_loss, get_default_config=lambda: OnPolicyConfig(device="cpu", seed=5))
    mapped = build_policy("Mapped", loss_fn=one_step_loss, get_default_config=lambda: {"gamma": 0.5, "mine": 1})

    assert typed(None, BOX, DISCRETE).seed == 5
    policy = mapped({"mine": 2}, BOX, DISCRETE)
    assert (policy.config["gamma"], policy.config["mine"], policy.cfg.collect.discount_factor) == (0.5, 2, 0.5)
    assert mapped(OnPolicyConfig(), BOX, DISCRETE).config["gamma"] == 0.99


def test_methods_of_mixins_come_before_those_of_the_base_and_their_constructors_are_the_setups_to_call():
    class Counting:
        def __init__(self, start):
            self.count = start

        def gradient_step(self, batch):
            self.count += 1
            return super().gradient_step(batch)

    def setup_mixins(policy, observation_space, action_space, config):
        Counting.__init__(policy, 10)
        LearningRateSchedule.__init__(policy, 0.5, [(0, 0.5), (2, 0.1)])

    policy = made(mixins=[Counting, LearningRateSchedule], before_loss_init=setup_mixins)
    rates = []
    for seed in range(3):
        policy.learn_mode.forward(rollout(policy, seed))
        rates.append(policy.cur_lr)

    assert policy.count == 13
    assert rates == pytest.approx([0.5, 0.3, 0.1])
