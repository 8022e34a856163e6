"""A policy is tried out before its first iteration: what does not fit is an error then, and nothing of the trial remains."""

import random
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.basics.global_random import global_random_states
from ding_lite.config import PPOConfig
from ding_lite.data import tree
from ding_lite.data.column_names import RESERVED
from ding_lite.data.trees import with_leaves
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, interaction_evaluator, multistep_trainer
from ding_lite.nn import RunningNorm
from ding_lite.policy import DQNPolicy, DQNPolicyConfig, IMPALAPolicy, PPOPolicy, PPOPolicyConfig
from ding_lite.policy_base import Policy, build_policy
from ding_lite.policy_check import ColumnError, HookError

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def log_prob_loss(policy, model, dist_class, batch):
    logit, _ = model.from_batch(batch)
    return -(dist_class(logit, model).logp(batch.action) * batch.reward).mean()


def made(observation_space=BOX, action_space=DISCRETE, base=Policy, **hooks):
    hooks.setdefault("loss_fn", log_prob_loss)
    policy = build_policy("Mine", base=base, **hooks)({"seed": 0}, observation_space, action_space)
    policy.dry_run()
    return policy


def test_a_column_that_nobody_gives_is_named_with_the_hook():
    def loss_fn(policy, model, dist_class, batch):
        return (model.values(batch.obs) * batch["no_such_column"]).mean()

    with pytest.raises(ColumnError, match=r"loss of Mine reads the column 'no_such_column'.*obs \[6, 4\].*reward \[6\]"):
        made(loss_fn=loss_fn)


@pytest.mark.parametrize("hook", ["postprocess_fn", "stats_fn"])
def test_so_is_one_that_another_hook_reads(hook):
    with pytest.raises(ColumnError, match=rf"{hook.removesuffix('_fn')} of Mine reads the column 'advantages'"):
        made(**{hook: lambda policy, batch: batch.advantages})


def test_the_loss_may_read_what_before_step_sets():
    class Sets(DQNPolicy):
        def before_step(self):
            super().before_step()
            self.strength = 0.5

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss * self.strength, stats

    policy = Sets({"seed": 0}, BOX, DISCRETE)
    policy.dry_run()

    assert not hasattr(policy, "strength")


class StopsEarly(PPOPolicy):
    """Leaves out the rest of a rollout's gradient steps once the policy has changed enough."""

    def learn_on_batch(self, batch):
        self.stopped = False
        return super().learn_on_batch(batch)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        self.stopped = self.stopped or bool(stats["kl"] > 1e-4)
        return loss * (not self.stopped), stats


class Measures(DQNPolicy):
    """Its statistics have the size of the weights after the step."""

    def after_step(self):
        super().after_step()
        self.size = sum(param.detach().square().sum() for param in self.params)

    def stats(self, batch):
        return {**super().stats(batch), "size": self.size}


class NeverSet(PPOPolicy):
    def loss(self, batch):
        return super().loss(batch)[0] * self.factor


def test_the_loss_may_read_what_learn_on_batch_sets_around_it():
    StopsEarly(None, BOX, DISCRETE).dry_run()
    Measures(None, BOX, DISCRETE).dry_run()
    with pytest.raises(HookError, match="AttributeError: 'NeverSet' object has no attribute 'factor'"):
        NeverSet(None, BOX, DISCRETE).dry_run()


def test_an_error_in_before_step_is_found_before_the_run():
    class Fails(DQNPolicy):
        def before_step(self):
            self.nothing.step()

    with pytest.raises(HookError, match="before_step of Fails"):
        Fails({"seed": 0}, BOX, DISCRETE).dry_run()


def test_what_postprocess_adds_the_loss_may_read():
    def loss_fn(policy, model, dist_class, batch):
        return (model.values(batch.obs) - batch.target).square().mean()

    policy = made(loss_fn=loss_fn, postprocess_fn=lambda policy, batch: with_leaves(batch, target=2 * batch.reward))

    assert policy.columns == ("obs", "reward")
    assert set(policy.loss_columns) == {"obs", "target"}


def test_an_extra_output_may_be_read_too():
    def loss_fn(policy, model, dist_class, batch):
        return (model.values(batch.obs) - batch.memory.first[:, 0]).square().mean()

    policy = made(loss_fn=loss_fn, extra_action_out_fn=lambda policy: {"memory": {"first": torch.ones(3, 7)}})

    assert policy.columns == ("obs", "memory")


class Wrong(Policy):
    """Acts as it is told to."""

    action, outputs = torch.zeros(3, dtype=torch.int64), {}

    def compute_actions(self, obs, state=(), **kwargs):
        return self.action, state, self.outputs

    def loss(self, batch):
        return self.model.values(batch.obs).mean()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"action": torch.zeros(3, 2)},
            r"compute_actions of Given returns the column 'action' of shape \[3, 2\].*return \[3\]",
        ),
        ({"action": torch.tensor(0)}, r"compute_actions of Given returns the column 'action' of shape \[\]"),
        ({"outputs": {"value": torch.zeros(1, 3)}}, r"returns the column 'value' of shape \[1, 3\].*\[3, \.\.\.\]"),
        ({"outputs": {"a": {"b": torch.zeros(4)}}}, r"returns the column 'a/b' of shape \[4\]"),
    ],
)
def test_an_output_of_a_wrong_shape_is_named_with_hook_column_and_shape(given, message):
    with pytest.raises(HookError, match=message):
        type("Given", (Wrong,), given)(None, BOX, DISCRETE).dry_run()


@pytest.mark.parametrize("name", ["action", "next_obs", "policy_version", "state_in_7", *RESERVED])
def test_an_extra_output_by_the_name_of_another_column_is_refused(name):
    with pytest.raises(HookError, match=f"compute_actions of Mine returns the extra output '{name}'"):
        made(extra_action_out_fn=lambda policy: {name: torch.zeros(3)})


@pytest.mark.parametrize(
    ("base", "target", "message"),
    [
        (Policy, lambda batch: batch.reward.sum(0), r"'target' of shape \[3\] with columns \[2, 3, ...\].*per step"),
        (Policy, lambda batch: batch.reward.mean(), r"'target' of shape \[\] with columns \[2, 3, ...\]"),
    ],
)
def test_a_column_of_postprocess_that_fits_no_other_is_named_with_its_shape(base, target, message):
    with pytest.raises(HookError, match="postprocess of Mine returns the column " + message):
        made(
            base=base,
            loss_fn=lambda policy, model, dist_class, batch: model(batch.obs).sum(),
            postprocess_fn=lambda policy, batch: with_leaves(batch, target=target(batch)),
        )


@pytest.mark.parametrize("target", [lambda batch: batch.reward.mean(), lambda batch: batch.obs.mean(0)])
@pytest.mark.parametrize("base", [DQNPolicy, IMPALAPolicy])
def test_a_column_of_any_shape_is_let_be_where_nothing_is_cut_into_rows(base, target):
    class Adding(base):
        def postprocess(self, batch):
            return with_leaves(super().postprocess(batch), target=target(batch))

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + 0 * batch.target.mean(), stats

    policy = Adding(None, BOX, DISCRETE)
    policy.dry_run()
    assert "target" in policy.loss_columns


def test_postprocess_that_changes_values_in_place_is_refused_unless_the_batch_is_from_replay():
    def postprocess_fn(policy, batch):
        batch["reward"] *= 2
        batch.obs.clamp_(-1, 1)
        return batch

    words = r"postprocess of Mine changes the values of obs, reward in place, .* batch\['obs'\] = batch\['obs'\] \* 2\.$"
    with pytest.raises(HookError, match=words):
        made(loss_fn=log_prob_loss, postprocess_fn=postprocess_fn)
    made(
        base=DQNPolicy, loss_fn=lambda policy, model, dist, batch: DQNPolicy.loss(policy, batch), postprocess_fn=postprocess_fn
    )


def test_postprocess_may_cut_the_batch_anew():
    def shorter(policy, batch):
        return tree({name: batch[name][:1] for name in ("obs", "action", "reward")})

    assert made(postprocess_fn=shorter).columns == ("obs", "action", "reward")


def test_an_action_without_the_parts_of_its_space_is_refused():
    space = spaces.Dict({"a": DISCRETE, "b": DISCRETE})
    with pytest.raises(
        HookError, match=r"returns actions with the keys \['action'\], and the action space has \['action/a', 'action/b'\]"
    ):
        Wrong(None, BOX, space).dry_run()


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (
            lambda policy, model, dist_class, batch: model.values(batch.obs),
            r"loss of Mine returns a tensor of shape \[6\].*scalar",
        ),
        (lambda policy, model, dist_class, batch: 1.0, r"loss of Mine returns a float.*scalar tensor"),
        (lambda policy, model, dist_class, batch: batch.reward.mean(), r"loss of Mine does not depend on the model's weights"),
        (
            lambda policy, model, dist_class, batch: model.values(batch.reward).mean(),
            r"loss of Mine fails .*reward \[6\].*RuntimeError",
        ),
    ],
)
def test_a_loss_that_is_none_is_refused(loss_fn, message):
    with pytest.raises(HookError, match=message):
        made(loss_fn=loss_fn)


def test_states_come_out_as_many_as_went_in():
    class Forgets(Wrong):
        def get_initial_state(self):
            return [0, 0]

        def compute_actions(self, obs, state=(), **kwargs):
            return self.action, state[:1], {}

    with pytest.raises(
        HookError, match="compute_actions of Forgets returned a state of 1 elements, and get_initial_state one of 2"
    ):
        Forgets(None, BOX, DISCRETE).dry_run()


@pytest.mark.parametrize(
    ("initial", "after", "message"),
    [
        ([torch.zeros(4)], [torch.zeros(3, 5)], r"state element 0 with shape \(3, 5\), but its shape was \(3, 4\)"),
        ([torch.zeros(4)], [torch.zeros(4)], r"state element 0 with shape \(4,\)"),
        ([0], [torch.zeros(3)], "state element 0 with dtype torch.float32, but its dtype was torch.int64"),
        (["a"], [["b", "c"]], "state element 0 for 2 environments, but there are 3"),
        ([0], None, "a state that is a NoneType"),
    ],
)
def test_a_state_of_another_form_is_refused_by_name(initial, after, message):
    class Changing(Wrong):
        def get_initial_state(self):
            return initial

        def compute_actions(self, obs, state=(), **kwargs):
            return self.action, after, {}

    with pytest.raises(HookError, match="compute_actions of Changing returned .*" + message):
        Changing(None, BOX, DISCRETE).dry_run()


def test_a_hook_that_forgets_the_initial_state_is_named():
    class Forgets(Wrong):
        def get_initial_state(self):
            return None

    with pytest.raises(HookError, match="get_initial_state of Forgets fails"):
        Forgets(None, BOX, DISCRETE).dry_run()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(3), r"returns actions of dtype float32, and Discrete\(3\) takes integers"),
        (torch.tensor([0, 1, 3]), r"returns the actions \[0, 1, 3\], and some are not in Discrete\(3\)"),
        ([[0], [1], [2]], r"returns the column 'action' of shape \[3, 1\]"),
    ],
)
def test_actions_that_are_none_of_their_space_are_refused(action, message):
    with pytest.raises(HookError, match="compute_actions of Given .*" + message):
        type("Given", (Wrong,), {"action": action})(None, BOX, DISCRETE).dry_run()


@pytest.mark.parametrize(("hook", "given"), [("stats", 1.0), ("stats", [1]), ("gradients", torch.zeros(3))])
def test_what_a_hook_gives_to_log_is_a_dict(hook, given):
    kind = type("Mine", (PPOPolicy,), {hook: lambda self, *_: given})
    with pytest.raises(HookError, match=f"{hook} of Mine returns a .*return a dict of values to log"):
        kind(None, BOX, DISCRETE).dry_run()


@pytest.mark.parametrize("hook", ["stats", "gradients", "learn_on_batch", "extra_action_out"])
def test_a_hook_may_give_none_in_place_of_an_empty_dict(hook):
    policy = type("Mine", (DQNPolicy,), {hook: lambda self, *_: None})(None, BOX, DISCRETE)
    batch = {"obs": torch.ones(6, 4), "next_obs": torch.ones(6, 4), "action": torch.zeros(6, dtype=torch.int64)}
    output = policy.learn_mode.forward(tree({**batch, "reward": torch.ones(6), "terminated": torch.zeros(6).bool()}))

    assert isinstance(output, dict)
    assert policy.collect_mode.forward(np.zeros((2, 4), np.float32))[2] == {}


def test_an_error_inside_a_hook_keeps_its_cause():
    def stats_fn(policy, batch):
        raise OSError("the disk is gone")

    with pytest.raises(HookError, match=r"stats of Mine fails on a dummy batch .*OSError: the disk is gone") as caught:
        made(stats_fn=stats_fn)
    assert isinstance(caught.value.__cause__, OSError)


OBSERVATIONS = [
    BOX,
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete([3, 4], start=[1, -2]),
    spaces.MultiBinary(4),
    spaces.Box(5, 6, (2,), np.float32),
    spaces.Box(0, 255, (36, 36, 3), np.uint8),
    spaces.Dict({"keys": spaces.Discrete(2), "b": spaces.Tuple((BOX, spaces.Discrete(3, start=4)))}),
]


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_a_dummy_observation_is_one_of_its_space(space):
    seen = []

    def loss_fn(policy, model, dist_class, batch):
        seen.append(batch.obs)
        return log_prob_loss(policy, model, dist_class, batch)

    made(observation_space=space, loss_fn=loss_fn)
    obs = seen[0] if isinstance(seen[0], torch.Tensor) else seen[0].json()
    row = torch.utils._pytree.tree_map(lambda leaf: np.asarray(leaf[0]), obs)
    if isinstance(space, spaces.Dict):
        row = {"keys": np.int64(row["keys"]), "b": (row["b"]["0"], np.int64(row["b"]["1"]))}

    assert space.contains(np.int64(row) if isinstance(space, spaces.Discrete) else row)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_nothing_of_the_trial_remains(kind):
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # noqa: NPY002
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    policy = kind(kind.config_type(seed=0), BOX, DISCRETE)
    fresh_rng = np.random.default_rng([0, 0])
    fresh_rng.integers(2**63)
    policy.dry_run()

    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    assert policy.rng.bit_generator.state == fresh_rng.bit_generator.state
    assert (policy.train_iter, policy.version) == (0, 0)
    assert all(param.grad is None for param in policy.params)
    assert not policy.optimizer.state_dict()["state"]
    assert not policy.hook_metrics.reduce()


def test_what_a_hook_keeps_on_the_policy_is_not_of_the_dummy_batch():
    held = []

    class Keeping(PPOPolicy):
        calls = 0

        def before_loss_init(self):
            super().before_loss_init()
            self.seen, self.counts, self.table, self.began = [], {"n": [0]}, np.zeros(2), True
            self.total, self.norm, self.own = torch.zeros(1), RunningNorm((4,)), np.random.default_rng(3)
            held.append(self.seen)

        def loss(self, batch):
            self.calls += 1
            self.last_loss, stats = super().loss(batch)
            self.seen.append(len(batch.obs))
            self.counts["n"][0] += 1
            self.table += 1
            self.total += 1
            self.norm.update(batch.obs)
            self.own.random()
            return self.last_loss, stats

    policy = Keeping(None, BOX, DISCRETE)
    policy.dry_run()

    assert (policy.calls, policy.seen, policy.counts, policy.table.tolist()) == (0, [], {"n": [0]}, [0, 0])
    assert policy.began
    assert policy.seen is held[0]
    assert (float(policy.total), float(policy.norm.count)) == (0, 0)
    assert policy.own.random() == np.random.default_rng(3).random()
    assert not hasattr(policy, "last_loss")


class Counted(PPOPolicy):
    """Counts how often it computed a loss, beside what a trial puts back."""

    batches = []

    def loss(self, batch):
        Counted.batches.append(batch)
        self.metrics.log_value("losses", 1, reduce="sum")
        return super().loss(batch)


def rollout(length=5):
    policy = PPOPolicy(None, BOX, DISCRETE)
    zeros, obs = torch.zeros(length, 2), torch.randn(length, 2, 4)
    columns = {"obs": obs, "next_obs": obs, "action": zeros.long(), "reward": zeros, "log_prob": zeros - 1}
    batch = policy.with_values(tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()}))
    return with_leaves(batch, advantage=zeros + 1, return_=zeros)


def test_neither_making_a_policy_nor_asking_for_its_modes_computes_a_loss_and_learning_begins_with_the_batch_given():
    Counted.batches.clear()
    policy = Counted({"seed": 0}, BOX, DISCRETE)
    policy.collect_mode.forward(np.zeros((2, 4), np.float32))
    policy.eval_mode.forward(np.zeros((2, 4), np.float32))
    policy.learn_mode.snapshot(), policy.state_dict()
    assert Counted.batches == []

    policy.learn_mode.forward(rollout())
    assert Counted.batches[0].obs.abs().sum() > 0


def test_middleware_have_it_tried_out_once_when_they_are_made():
    Counted.batches.clear()
    cfg, envs = PPOConfig(), make_envs("CartPole-v1", 2)
    policy = Counted(cfg.policy, envs.single_observation_space, envs.single_action_space)
    StepCollector(cfg, policy.collect_mode, envs)
    assert len(Counted.batches) == 1

    gae_estimator(cfg, policy.collect_mode), multistep_trainer(cfg, policy.learn_mode)
    assert len(Counted.batches) == 1
    assert Counted.batches[0].obs.abs().sum() == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda cfg, policy, envs: StepCollector(cfg, policy.collect_mode, envs),
        lambda cfg, policy, envs: multistep_trainer(cfg, policy.learn_mode),
        lambda cfg, policy, envs: interaction_evaluator(cfg, policy.eval_mode, envs),
        lambda cfg, policy, envs: policy.columns,
    ],
)
def test_each_asking_for_a_policy_that_does_not_fit_raises_the_error_and_leaves_the_policy_as_it_was(ask):
    cfg, envs = PPOConfig(), make_envs("CartPole-v1", 2)

    class Misspelt(PPOPolicy):
        calls = 0

        def loss(self, batch):
            self.calls += 1
            return super().loss(batch)[0] + batch.rewrad.mean()

    policy = Misspelt(cfg.policy, envs.single_observation_space, envs.single_action_space)
    policy.metrics.log_value("mine", 3.0)
    before = policy.generator_state()["rng"]
    for _ in range(2):
        with pytest.raises(ColumnError, match="loss of Misspelt reads the column 'rewrad'.*did you mean 'reward'"):
            ask(cfg, policy, envs)

    assert policy.calls == 0
    assert policy.generator_state()["rng"] == before
    assert policy.metrics.peek() == {"mine": 3.0}


def test_a_policy_that_has_learned_may_be_tried_out_and_goes_on_as_if_it_had_not_been(digest):
    batch = rollout()
    states = []
    for tries in (False, True):
        policy = Counted({"seed": 0}, BOX, DISCRETE)
        policy.learn_mode.forward(batch)
        if tries:
            policy.dry_run()
        policy.learn_mode.forward(batch)
        states.append((digest(policy.state_dict()), policy.metrics.peek()["losses"]))
    assert states[0] == states[1]


class Drawing(Policy):
    """Acts by numbers of this source."""

    source = staticmethod(lambda policy: torch.rand(1))

    def before_loss_init(self):
        super().before_loss_init()
        self.own, self.numpys, self.pythons = torch.Generator(), np.random.default_rng(3), random.Random(3)

    def compute_actions(self, obs, state=(), **kwargs):
        self.drawn = float(self.source(self))
        return torch.zeros(len(obs), dtype=torch.int64), state, {"drawn": np.full(len(obs), self.drawn)}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (lambda policy: torch.rand(1), "of torch."),
        (lambda policy: np.random.random(), "of numpy.random."),  # noqa: NPY002
        (lambda policy: random.random(), "of random."),
    ],
)
def test_acting_by_global_random_numbers_is_a_warning(source, named):
    policy = type("Mine", (Drawing,), {"source": staticmethod(source)})({"seed": 0}, BOX, DISCRETE)
    before = global_random_states()
    with pytest.warns(
        UserWarning, match=f"compute_actions of Mine draws from the global random generator {named}.*self.generator"
    ):
        policy.dry_run()
    assert global_random_states() == before


ANY_HOOK = r"a hook of Mine that learns \(postprocess, loss, gradients or stats\)"


@pytest.mark.few
@pytest.mark.parametrize("hook", ["postprocess", "loss", "gradients", "stats"])
@pytest.mark.parametrize(
    ("source", "who", "named"),
    [
        (lambda: torch.randn_like(torch.zeros(2)), "{} of Mine", "of torch."),
        (lambda: np.random.random(), ANY_HOOK, "of numpy.random."),  # noqa: NPY002
        (lambda: random.random(), ANY_HOOK, "of random."),
    ],
)
def test_learning_by_global_random_numbers_is_a_warning(hook, source, who, named, recwarn):
    def drawing(self, *args):
        source()
        return getattr(PPOPolicy, hook)(self, *args)

    policy = type("Mine", (PPOPolicy,), {hook: drawing})({"seed": 0}, BOX, DISCRETE)
    before = global_random_states()
    policy.dry_run()
    assert len(recwarn) == 1
    wanted = f"{who.format(hook)} draws from the global random generator {named}.*self.generator"
    assert re.match(wanted, str(recwarn[0].message))
    assert global_random_states() == before


class Dropping(nn.Module):
    """A critic with dropout."""

    def __init__(self, layer):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 1))

    def values(self, obs):
        return self.layers(obs).squeeze(-1)


class OfDropping(Policy):
    """Learns a critic that has this layer."""

    layer = nn.Dropout

    def make_model(self):
        return Dropping(self.layer())

    def compute_actions(self, obs, state=(), **kwargs):
        self.model.values(obs)
        return torch.zeros(len(obs), dtype=torch.int64), state, {}

    def loss(self, batch):
        return self.model.values(batch.obs).mean()


def test_dropout_is_a_warning_that_says_how_to_repeat_a_run(recwarn):
    OfDropping({"seed": 0}, BOX, DISCRETE).dry_run()
    assert len(recwarn) == 1  # acting copies have no dropout
    message = str(recwarn[0].message)
    assert re.match(r"loss of OfDropping draws .*dropout \(layers\.1\) draws from torch's global generator", message)
    assert "`torch.manual_seed(cfg.seed)` at the start of the script makes runs that do not overlap repeatable" in message


def test_dropout_that_is_switched_off_is_no_warning(recwarn):
    type("Off", (OfDropping,), {"layer": lambda self: nn.Dropout().eval()})({"seed": 0}, BOX, DISCRETE).dry_run()
    assert not recwarn


@pytest.mark.parametrize(
    "source",
    [
        lambda policy: torch.rand(1, generator=policy.generator),
        lambda policy: policy.rng.random(),
        lambda policy: torch.rand(1, generator=policy.own),
        lambda policy: policy.numpys.random(),
        lambda policy: policy.pythons.random(),
    ],
)
def test_generators_of_a_policy_are_each_copys_own(source, recwarn):
    def numbers():
        policy = type("Mine", (Drawing,), {"source": staticmethod(source)})({"seed": 0}, BOX, DISCRETE)
        policy.dry_run()
        modes = policy.collect_mode, policy.eval_mode, policy.collect_mode.worker_copy(0), policy.collect_mode.worker_copy(1)
        first = [float(mode.forward(np.zeros((1, 4), np.float32))[2]["drawn"][0]) for mode in modes]
        return first, float(source(policy))

    first, own = numbers()
    again, own_again = numbers()
    assert (first, own) == (again, own_again)
    assert len({*first, own}) == 4  # the first worker draws what a collector without workers draws
    assert not [one for one in recwarn if "global random" in str(one.message)]


def test_a_statistic_that_is_a_weight_is_logged_as_it_was_before_the_step():
    class Alpha(PPOPolicy):
        def make_model(self):
            model = super().make_model()
            model.alpha = nn.Parameter(torch.zeros(()))
            return model

        def loss(self, batch):
            loss, stats = super().loss(batch)
            return loss + self.model.alpha, {**stats, "alpha": self.model.alpha.detach(), "number": self.model.alpha.item()}

    policy = Alpha({"seed": 0, "lr": 0.1}, BOX, DISCRETE)
    output = policy.learn_mode.forward(rollout())
    assert float(output["alpha"]) == pytest.approx(float(output["number"])) != 0


def test_running_means_are_as_they_were():
    def make_model(policy, observation_space, action_space, config):
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

    def loss_fn(policy, model, dist_class, batch):
        return dist_class(model(batch.obs + 7)).logp(batch.action).mean()

    class Acting(Policy):
        def compute_actions(self, obs, state=(), **kwargs):
            return self.model(obs).argmax(-1), state, {}

    policy = made(base=Acting, make_model=make_model, loss_fn=loss_fn)

    assert policy.model[0].running_mean.tolist() == [0.0] * 4
    assert policy.model[0].num_batches_tracked == 0


def test_only_the_columns_that_are_read_are_known_to_the_learning_mode():
    dqn = DQNPolicy(DQNPolicyConfig(), BOX, DISCRETE)
    ppo = PPOPolicy(PPOPolicyConfig(), BOX, DISCRETE)

    assert set(dqn.learn_mode.columns) == {"obs", "action", "reward", "next_obs", "terminated", "weight", "discount"}
    assert set(ppo.learn_mode.columns) == {"obs", "action", "log_prob", "value", "advantage", "return_"}
    assert Policy(None, BOX, DISCRETE).learn_mode.columns is None


def test_a_policy_may_declare_columns_that_its_pipeline_adds():
    class Distilled(Policy):
        derived = {**Policy.derived, "teacher": (3,)}

        def loss(self, batch):
            return (self.model.logits(batch.obs) - batch.teacher).square().mean()

    policy = Distilled(None, BOX, DISCRETE)
    output = policy.learn_mode.forward(tree({"obs": torch.zeros(5, 4), "teacher": torch.ones(5, 3)}))

    assert set(policy.columns) == {"obs", "teacher"}
    assert output["total_loss"] > 0


def test_a_policy_that_only_acts_may_say_so():
    class Acts(Policy):
        def loss(self, batch):
            raise NotImplementedError("it does not learn")

    policy = Acts(None, BOX, DISCRETE)

    assert policy.columns is None
    assert policy.collect_mode.forward(np.zeros((2, 4), np.float32))[0].shape == (2,)
    with pytest.raises(NotImplementedError, match="it does not learn"):
        policy.learn_mode.forward(tree({"obs": torch.zeros(2, 4)}))


def test_it_calls_the_hooks_in_the_order_that_the_documents_give():
    order = []

    def noting(name):
        hook = getattr(DQNPolicy, name)
        return lambda self, *args, **kwargs: order.append(name) or hook(self, *args, **kwargs)

    names = ("dummy_batch", "loss", "compute_actions", "check_model", "postprocess")
    kind = type("Noting", (DQNPolicy,), {name: noting(name) for name in names})
    policy = kind(None, BOX, DISCRETE, model=DQNPolicy(None, BOX, DISCRETE).model)
    order.clear()
    policy.dry_run()

    assert list(dict.fromkeys(order)) == ["check_model", "compute_actions", "dummy_batch", "postprocess", "loss"]


class Turned(nn.Module):
    """A Q-network with complex weights."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.turns = nn.ModuleList([nn.Linear(4, 4, dtype=torch.complex64)])

    def forward(self, obs):
        return self.head(self.turns[0](obs.to(torch.complex64)).abs())


@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
def test_complex_weights_are_refused_by_name_before_learning(optimizer):
    hooks = {} if optimizer is None else {"optimizer_fn": lambda policy, config: optimizer(policy.params)}
    policy = DQNPolicy.with_updates(**hooks)(None, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), model=Turned())
    words = r"DQNPolicy cannot learn the parameter 'turns.0.weight' of its Turned, which is torch.complex64 .*view_as_real"
    batch = {"obs": torch.zeros(3, 4), "next_obs": torch.zeros(3, 4), "reward": torch.zeros(3)}
    batch |= {"action": torch.zeros(3, dtype=torch.int64), "terminated": torch.zeros(3, dtype=torch.bool)}

    with pytest.raises(HookError, match=words):
        policy.dry_run()
    with pytest.raises(HookError, match=words):
        policy.learn_mode.forward(tree(batch))
    assert policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
