"""Settings without effect, of which a policy warns."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from ding_lite.policy import A2CPolicy, DQNPolicy, IMPALAPolicy, PPOPolicy, PPOPolicyConfig, REINFORCEPolicy
from ding_lite.policy_base import build_policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"model.normalize_obs": True},
        {"model.layer_norm": True},
        {"learn.rmsprop_decay": 0.5},
        {"gama": 0.5},
    ],
)
def test_a_warning_of_a_setting_is_at_the_line_that_makes_the_policy(settings):
    class Own(DQNPolicy):
        def make_model(self):
            return nn.Linear(4, 3)

    def main():
        return Own(settings, BOX, DISCRETE)  # here

    with pytest.warns(UserWarning, match="no effect|did you mean") as caught:
        main()
    places = [(it.filename, Path(it.filename).read_text().splitlines()[it.lineno - 1].rpartition("# ")[2]) for it in caught]
    assert places == [(__file__, "here")]


def reward_loss(policy, model, dist_class, batch):
    logit, _ = model.from_batch(batch)
    return -(dist_class(logit, model).logp(batch["action"]) * batch["reward"]).mean()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(A2CPolicy, "A2CPolicy"), (REINFORCEPolicy, "REINFORCEPolicy"), (build_policy("Own", loss_fn=reward_loss), "Own")],
)
def test_a_batch_size_of_a_policy_that_takes_one_step_per_rollout_is_a_warning(kind, name, recwarn):
    kind({"learn.batch_size": 64}, BOX, DISCRETE)  # the default
    assert not recwarn.list
    words = f"learn.batch_size = 16 has no effect: {name} takes one gradient step on the whole rollout. Leave it out; or use"
    with pytest.warns(UserWarning, match=words):
        kind({"learn.batch_size": 16}, BOX, DISCRETE)


@pytest.mark.parametrize("given", ["settings", "typed", "default"])
def test_its_epochs_are_a_warning_if_its_configuration_has_them(given):
    def changed():
        return PPOPolicyConfig().override({"learn.epoch_per_collect": 5, "learn.batch_size": 16})

    default = changed if given == "default" else PPOPolicyConfig
    kind = build_policy("Own", loss_fn=reward_loss, get_default_config=default)
    settings = {"settings": {"learn.epoch_per_collect": 5, "learn.batch_size": 16}, "typed": changed(), "default": None}
    with pytest.warns(UserWarning, match="learn.epoch_per_collect = 5 and learn.batch_size = 16 have no effect: Own takes one"):
        kind(settings[given], BOX, DISCRETE)


def test_there_is_no_warning_if_something_reads_them():
    class InParts(A2CPolicy):
        def learn_on_batch(self, batch):
            return {}

    class PartOfRows(A2CPolicy):
        def loss(self, batch):
            return super().loss(batch[: self.cfg.learn.batch_size])

    def part_of_rows(policy, model, dist_class, batch):
        return reward_loss(policy, model, dist_class, batch[: policy.config["learn.batch_size"]])

    class Learning:
        def learn_on_batch(self, batch):
            return {}

    kinds = [PPOPolicy, IMPALAPolicy, DQNPolicy, InParts, PartOfRows, build_policy("Part", loss_fn=part_of_rows)]
    kinds += [
        A2CPolicy.with_updates("Mixed", mixins=[Learning]),
        type("FromReplay", (A2CPolicy,), {"learns_from": "transitions"}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in kinds:
            kind({"learn.batch_size": 16}, BOX, DISCRETE)
