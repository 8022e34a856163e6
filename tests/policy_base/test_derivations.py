"""What users write where a hook takes a function: defaults and rates of their own, several losses, forgotten columns."""

import functools
import inspect

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite import policy as policies
from ding_lite.data import nested, tree
from ding_lite.policy import DQNPolicy, Policy, PPOPolicy
from ding_lite.policy_base import build_policy
from ding_lite.policy_check import ColumnError, HookError
from ding_lite.policy_parts import LearningRateSchedule

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def loss_fn(policy, model, dist_class, batch):
    return -(dist_class(model.from_batch(batch)[0], model).logp(batch["action"]) * batch["reward"]).mean()


def rows(n=6, **more):
    return tree({"obs": torch.ones(n, 4), "action": torch.arange(n) % 3, "reward": torch.arange(n) / n, **more})


def rollout(policy):
    obs = torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(0))
    columns = {name: torch.ones(4, 2) for name in ("log_prob", "value", "advantage", "return_", "reward")}
    return tree({"obs": obs, "action": torch.zeros(4, 2, dtype=torch.int64), **columns})


def test_an_optimizer_keeps_the_rates_that_its_function_gave_it():
    def optimizer_fn(policy, config):
        groups = [{"params": policy.params[:2], "lr": 1e-4}, {"params": policy.params[2:], "lr": 1e-2}]
        return torch.optim.Adam(groups)

    policy = PPOPolicy.with_updates(optimizer_fn=optimizer_fn)(None, BOX, DISCRETE)
    policy.learn_mode.forward(rollout(policy))

    assert [group["lr"] for group in policy.optimizer.param_groups] == [1e-4, 1e-2]


def test_gradients_may_be_those_of_parts_of_the_loss():
    def parts(policy, model, dist_class, batch):
        policy.parts = loss_fn(policy, model, dist_class, batch), model.values(batch["obs"]).square().mean()
        return sum(policy.parts)

    def gradients_fn(policy, optimizer, loss):
        given = [torch.autograd.grad(part, policy.params, allow_unused=True, retain_graph=True) for part in policy.parts]
        both = [[x for x in pair if x is not None] for pair in zip(*given)]
        return [(sum(pair), param) for pair, param in zip(both, policy.params) if pair]

    kind = build_policy("Parts", loss_fn=parts, gradients_fn=gradients_fn)
    policy, plain = (
        kind({"seed": 0}, BOX, DISCRETE),
        build_policy("Sum", loss_fn=parts)({"seed": 0, "grad_clip": None}, BOX, DISCRETE),
    )
    for _ in range(3):
        policy.learn_mode.forward(rows())
        plain.learn_mode.forward(rows())

    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(policy.params, plain.params))


@pytest.mark.parametrize(
    "hooks",
    [
        {"loss_fn": lambda policy, model, dist_class, batch: (PPOPolicy.loss(policy, batch)[0], {"mine": 1.0})},
        {"loss_fn": lambda policy, model, dist_class, batch: (PPOPolicy.loss(policy, batch)[0], None)},
        {"loss_fn": lambda policy, model, dist_class, batch: PPOPolicy.loss(policy, batch)[0]},
        {"gradients_fn": lambda policy, optimizer, loss: {"norm": float(nn.utils.clip_grad_norm_(policy.params, 0.5))}},
        {"gradients_fn": lambda policy, optimizer, loss: {"odd": 1.0} if policy.train_iter % 2 else {}},
    ],
)
def test_what_is_logged_may_be_numbers_and_may_come_now_and_then(hooks):
    policy = PPOPolicy.with_updates(**hooks)({"learn.target_kl": 0.1, "learn.epoch_per_collect": 3}, BOX, DISCRETE)

    assert all(
        np.isfinite(float(value)) for name, value in policy.learn_mode.forward(rollout(policy)).items() if "var" not in name
    )


@pytest.mark.parametrize("name", ["advantage", "weight", "discount"])
def test_a_column_that_the_pipeline_did_not_bring_is_named_with_who_would(name):
    def reading(policy, model, dist_class, batch):
        return loss_fn(policy, model, dist_class, batch) * batch[name].mean()

    policy = build_policy("HookReads", loss_fn=reading)(None, BOX, DISCRETE)
    with pytest.raises(
        ColumnError, match=rf"HookReads reads the column '{name}'.*obs \[6, 4\].*gae_estimator.*nstep_reward_enhancer"
    ):
        policy.learn_mode.forward(rows())


def test_columns_that_a_postprocessor_sets_are_not_in_the_batch_that_it_was_given():
    def postprocess_fn(policy, batch):
        batch["advantage"] = 2 * batch["reward"]
        batch["obs"] = batch["obs"] + 1
        return batch

    def loss_fn(policy, model, dist_class, batch):
        assert torch.equal(batch.advantage, 2 * batch.reward)
        return model.values(batch.obs).mean()

    policy = build_policy("Setting", loss_fn=loss_fn, postprocess_fn=postprocess_fn)(None, BOX, DISCRETE)
    columns = {"obs": torch.zeros(5, 4), "reward": torch.ones(5)}
    batch = tree(columns)
    policy.learn_mode.forward(batch)

    assert set(nested(batch)) == {"obs", "reward"}
    assert all(batch[name] is columns[name] for name in columns)


def test_a_postprocessor_may_set_a_column_and_read_it():
    def postprocess_fn(policy, batch, other_agent_batches=None, episode=None):
        batch["doubled"] = batch["reward"] * 2
        batch["more"] = batch.doubled + 1
        return batch

    policy = build_policy("Setting", loss_fn=loss_fn, postprocess_fn=postprocess_fn)(None, BOX, DISCRETE)

    assert policy.columns == ("obs", "action", "reward")
    assert policy.learn_mode.forward(rows())["total_loss"].isfinite()


def test_a_decorated_function_is_called_as_it_is_written():
    def scaled_loss(policy, model, dist_class, batch, scale):
        return scale * loss_fn(policy, model, dist_class, batch)

    @functools.wraps(scaled_loss)
    def half_loss(policy, model, dist_class, batch):
        return scaled_loss(policy, model, dist_class, batch, 0.5)

    def rescale(policy, batch, others, episode):
        assert others is not None
        return batch

    @functools.wraps(rescale)
    def passes_on(*args, **kwargs):
        return rescale(*args, **kwargs)

    policy = build_policy("Decorated", loss_fn=half_loss, postprocess_fn=passes_on)(None, BOX, DISCRETE)
    policy.dry_run()


def test_defaults_of_a_users_function_are_kept():
    told = []

    def postprocess_fn(policy, batch, gamma=0.5):
        told.append(gamma)
        return batch

    def optimizer_fn(policy, lr=0.25):
        return torch.optim.SGD(policy.params, lr=lr)

    policy = build_policy("Defaults", loss_fn=loss_fn, postprocess_fn=postprocess_fn, optimizer_fn=optimizer_fn)(
        None, BOX, DISCRETE
    )
    policy.dry_run()

    assert told == [0.5]
    assert policy.optimizer.param_groups[0]["lr"] == 0.25


def test_arguments_that_a_users_function_may_leave_out_are_passed_too():
    told = []

    def optimizer_fn(policy, config=None):
        return torch.optim.SGD(policy.params, lr=config["lr"])

    def extra_action_out_fn(policy, obs=None, model=None, scale=2.0):
        told.append((obs is not None, model is policy.model, scale))
        return {"scaled": scale * torch.ones(len(obs))}

    policy = build_policy("Optional", loss_fn=loss_fn, optimizer_fn=optimizer_fn, extra_action_out_fn=extra_action_out_fn)(
        {"lr": 0.125}, BOX, DISCRETE
    )
    policy.dry_run()

    assert policy.optimizer.param_groups[0]["lr"] == 0.125
    assert set(told) == {(True, True, 2.0)}


def test_arguments_that_the_user_has_bound_are_kept():
    def optimizer_fn(policy, config=None):
        return torch.optim.SGD(policy.params, lr=config["lr"])

    @functools.wraps(optimizer_fn)
    def bound(policy, **settings):
        return optimizer_fn(policy, config={"lr": 0.5}, **settings)

    for fn, rate in ((functools.partial(optimizer_fn, config={"lr": 0.25}), 0.25), (bound, 0.5)):
        policy = build_policy("Bound", loss_fn=loss_fn, optimizer_fn=fn)({"lr": 0.125}, BOX, DISCRETE)
        assert policy.optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize("given", [torch.zeros(()), 3.0])
def test_what_a_gradients_fn_cannot_return_is_named(given):
    def gradients_fn(policy, optimizer, loss):
        return given

    policy = build_policy("Clipping", loss_fn=loss_fn, gradients_fn=gradients_fn)(None, BOX, DISCRETE)
    with pytest.raises(HookError, match=r"a gradients_fn returned .*: return None, a dict of values to log, or \(gradient"):
        policy.dry_run()


def test_extra_outputs_see_the_state_that_was_acted_with_and_need_no_distribution():
    class Counting(DQNPolicy):
        def get_initial_state(self):
            return [0]

        def compute_actions(self, obs, state=(), **kwargs):
            action, _, outputs = super().compute_actions(obs, [], **kwargs)
            return action, [state[0] + 1], outputs

    def extra_action_out_fn(policy, obs, state, model, dist):
        return {"count": state[0], "q_value": model(obs)}

    policy = Counting.with_updates(extra_action_out_fn=extra_action_out_fn)(None, BOX, DISCRETE)
    mode = policy.collect_mode
    _, state, first = mode.forward(np.zeros((2, 4), np.float32), mode.get_initial_state(2))
    _, _, second = mode.forward(np.zeros((2, 4), np.float32), state)

    assert (first["count"].tolist(), second["count"].tolist()) == ([0, 0], [1, 1])
    assert first["q_value"].shape == (2, 3)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"optimizer_fn": lambda policy, config: None}, "of Mine returns a NoneType: return one torch.optim.Optimizer"),
        ({"optimizer_fn": lambda policy, config: [torch.optim.SGD(policy.params)]}, "returns a list"),
        ({"optimizer_fn": lambda policy, config: torch.optim.LBFGS(policy.params)}, "returns a LBFGS, which needs a closure"),
        ({"make_model": lambda *given: None}, "make_model of Mine returns a NoneType: return a torch.nn.Module"),
    ],
)
def test_what_is_no_optimizer_or_model_is_refused_by_name(hooks, message):
    with pytest.raises(TypeError, match=message):
        build_policy("Mine", loss_fn=loss_fn, **hooks)(None, BOX, DISCRETE)


def test_the_distribution_of_a_hook_draws_with_the_policys_random_numbers():
    drawn = []

    def sampling(policy, model, dist_class, batch):
        dist = dist_class(model.from_batch(batch)[0], model)
        drawn.append(dist.sample())
        return -dist.logp(drawn[-1]).mean()

    kind = build_policy("Sampling", loss_fn=sampling)
    for _ in range(2):
        policy = kind({"seed": 7}, BOX, DISCRETE)
        policy.learn_mode.forward(rows(200))
        torch.rand(3)  # torch's own numbers are no matter

    assert torch.equal(*drawn)
    assert len(drawn[0].unique()) == 3


def test_gradients_that_are_computed_in_some_calls_only_are_refused():
    def gradients_fn(policy, optimizer, loss):
        if policy.train_iter == 0:
            loss.backward()

    policy = build_policy("Sometimes", loss_fn=loss_fn, gradients_fn=gradients_fn)(None, BOX, DISCRETE)
    policy.learn_mode.forward(rows())
    with pytest.raises(HookError, match="gradients_fn of Sometimes left all gradients None"):
        policy.learn_mode.forward(rows())


@pytest.mark.parametrize("mixins", [LearningRateSchedule, ["LearningRateSchedule"]])
def test_mixins_that_are_no_list_of_classes_are_refused(mixins):
    with pytest.raises(TypeError, match="Mine: mixins=.* is not a list of classes"):
        build_policy("Mine", loss_fn=loss_fn, mixins=mixins)


def test_a_schedule_that_nothing_follows_costs_a_warning(recwarn):
    kind = build_policy("Plain", loss_fn=loss_fn)
    with pytest.warns(UserWarning, match="lr_schedule has no effect on a .*mixins=.LearningRateSchedule"):
        kind({"learn.lr_schedule": [(0, 0.5), (10, 0.0)]}, BOX, DISCRETE)
    recwarn.clear()
    with_mixin = kind.with_updates(mixins=[LearningRateSchedule])({"learn.lr_schedule": [(0, 0.5), (10, 0.0)]}, BOX, DISCRETE)

    assert with_mixin.cur_lr == 0.5
    assert not recwarn.list


def test_a_column_that_is_read_now_and_then_is_named_when_it_is_not_there():
    class HookReads(DQNPolicy):
        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + (0 * batch.truncated.sum() if self.train_iter else 0), stats

    policy = HookReads(None, BOX, DISCRETE)
    batch = rows(next_obs=torch.ones(6, 4), terminated=torch.zeros(6, dtype=torch.bool))
    policy.learn_mode.forward(batch)
    with pytest.raises(ColumnError, match="learning of HookReads reads the column 'truncated'.*only have the columns"):
        policy.learn_mode.forward(batch)


@pytest.mark.parametrize("batch", [None, [1.0], np.zeros(3), 5])
def test_what_is_no_batch_is_refused_by_name(batch):
    policy = DQNPolicy(None, BOX, DISCRETE)
    with pytest.raises(TypeError, match=r"learn_mode.forward of DQNPolicy wants a batch, got"):
        policy.learn_mode.forward(batch)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_a_dict_is_a_batch(kind):
    one, other = kind({"seed": 0}, BOX, DISCRETE), kind({"seed": 0}, BOX, DISCRETE)
    batch = rollout(one) if kind is PPOPolicy else rows(next_obs=torch.ones(6, 4), terminated=torch.zeros(6, dtype=torch.bool))
    leaves = {name: getattr(batch, name) for name in batch.keys()}  # noqa: SIM118  it is no mapping
    given = one.learn_mode.forward(batch), other.learn_mode.forward(leaves)

    assert all(torch.equal(x, y) for x, y in zip(one.params, other.params))
    assert given[0].keys() == given[1].keys()


def test_a_postprocessor_that_forgets_its_batch_later_on_is_named():
    class Forgets(DQNPolicy):
        def postprocess(self, batch):
            return batch if self.train_iter == 0 else None

    policy = Forgets(None, BOX, DISCRETE)
    batch = rows(next_obs=torch.ones(6, 4), terminated=torch.zeros(6, dtype=torch.bool))
    policy.learn_mode.forward(batch)
    with pytest.raises(HookError, match="postprocess of Forgets returns a NoneType: return a batch"):
        policy.learn_mode.forward(batch)


def test_rows_of_another_shape_are_told_beside_the_error():
    policy = DQNPolicy(None, BOX, DISCRETE)
    shorter = torch.zeros(5, dtype=torch.int64)
    batch = rows(next_obs=torch.ones(6, 4), terminated=torch.zeros(6, dtype=torch.bool), action=shorter)
    with pytest.raises(RuntimeError) as error:
        policy.learn_mode.forward(batch)

    assert "next_obs [6, 4]" in error.value.__notes__[0]
    assert "action [5]" in error.value.__notes__[0]
    assert "one observation has shape (4,)" in error.value.__notes__[0]


def test_an_optimizer_of_weights_beside_the_model_is_refused_and_one_that_lacks_some_costs_a_warning():
    class Beside(DQNPolicy):
        def make_optimizer(self, params):
            self.q_net = nn.Linear(4, 3)
            return torch.optim.Adam([*params, *self.q_net.parameters()])

    class Lacking(DQNPolicy):
        def make_optimizer(self, params):
            return torch.optim.Adam(params[:2])

    with pytest.raises(TypeError, match="of Beside returns an Adam with weights that are not in self.model.*make_model"):
        Beside(None, BOX, DISCRETE)
    with pytest.warns(UserWarning, match="of Lacking returns an Adam without some of the model's weights"):
        Lacking(None, BOX, DISCRETE)


@pytest.mark.parametrize("name", ["actor", "loss", "stats"])
def test_an_attribute_in_the_place_of_a_method_is_refused_by_name(name):
    class Hiding(DQNPolicy):
        def before_loss_init(self):
            super().before_loss_init()
            setattr(self, name, nn.MSELoss())

    with pytest.raises(TypeError, match=f"Hiding.{name} is a method of policies, but self.{name} is set to a MSELoss"):
        Hiding(None, BOX, DISCRETE).dry_run()


def test_an_optimizer_may_have_a_schedule_of_torch():
    """It wraps the step of the optimizer."""

    class Scheduled(DQNPolicy):
        def make_optimizer(self, params):
            optimizer = torch.optim.Adam(params)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return optimizer

    policy = Scheduled(None, spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
    assert isinstance(policy.optimizer, torch.optim.Adam)


@pytest.mark.parametrize(
    "kind",
    [
        *(one for name in policies.__all__ if isinstance(one := getattr(policies, name), type) and issubclass(one, Policy)),
        PPOPolicy.with_updates(name="Mine"),
        build_policy("Scheduled", loss_fn=lambda policy, model, dist_class, batch: None, mixins=[LearningRateSchedule]),
    ],
    ids=lambda kind: kind.__name__,
)
def test_help_shows_the_arguments_of_the_policy_and_not_those_of_its_mixins(kind):
    assert list(inspect.signature(kind).parameters) == ["cfg", "observation_space", "action_space", "model"]
