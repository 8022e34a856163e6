"""ParamGroupsMixin: one Adam for parts that learn at rates of their own."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.policy_base import Policy
from ding_lite.policy_parts import ParamGroupsMixin

SPACES = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


class TwoParts(ParamGroupsMixin, Policy):
    """A left part that learns in each step, and a right one that learns where `both` is set."""

    learns_from = "transitions"
    rates = 0.1, 0.1
    both = True

    def make_model(self):
        return nn.ModuleDict({"left": nn.Linear(3, 2), "right": nn.Linear(3, 2)})

    def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
        return self.model["left"](obs).argmax(-1), state, {}

    def param_groups(self):
        return {name: (self.model[name].parameters(), rate) for name, rate in zip(("left", "right"), self.rates, strict=True)}

    def loss(self, batch):
        loss = self.model["left"](batch.obs).square().mean()
        return loss + self.model["right"](batch.obs).square().mean() if self.both else loss


def batch():
    return tree({"obs": torch.ones(4, 3)})


@pytest.mark.parametrize(("rates", "groups"), [((0.1, 0.1), 1), ((0.1, 0.01), 2)])
def test_parts_of_one_rate_share_a_group(rates, groups):
    policy = type("Rates", (TwoParts,), {"rates": rates})(None, *SPACES)

    assert len(policy.optimizer.param_groups) == groups
    assert sum(len(group["params"]) for group in policy.optimizer.param_groups) == 4


def test_each_part_moves_at_its_rate():
    policy = type("Rates", (TwoParts,), {"rates": (0.1, 0.001)})(None, *SPACES)
    before = {name: part.weight.detach().clone() for name, part in policy.model.items()}
    policy.learn_mode.forward(batch())

    for name, rate in (("left", 0.1), ("right", 0.001)):  # Adam's first step is the rate
        moved = (policy.model[name].weight - before[name]).abs()
        torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-2, atol=0)


def test_a_part_without_a_loss_is_left_alone_with_its_moments():
    policy = TwoParts(None, *SPACES)
    policy.learn_mode.forward(batch())
    policy.both = False
    right = policy.model["right"].weight
    before, moments = right.detach().clone(), {name: one.clone() for name, one in policy.optimizer.state[right].items()}
    policy.learn_mode.forward(batch())

    assert torch.equal(right, before)
    assert all(torch.equal(moments[name], one) for name, one in policy.optimizer.state[right].items())


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.01)])
def test_a_parameter_of_two_parts_is_refused_by_name_unless_it_does_not_learn(rates):
    class Shared(TwoParts):
        has_frozen = False

        def make_model(self):
            model = super().make_model()
            model["right"].bias = model["left"].bias
            return model.requires_grad_(not self.has_frozen)

    kind = type("Rates", (Shared,), {"rates": rates})
    with pytest.raises(
        TypeError, match=r"'left.bias' of the ModuleDict of this Rates is in two parts, 'left' and 'right', .* o"
    ):
        kind(None, *SPACES)
    policy = type("Frozen", (kind,), {"has_frozen": True})(None, *SPACES)
    assert sum(len(group["params"]) for group in policy.optimizer.param_groups) == 3


def test_a_policy_without_parameter_groups_is_told_to_name_them():
    with pytest.raises(NotImplementedError, match=r"Lonely has no param_groups\(\): return the parameters"):
        type("Lonely", (ParamGroupsMixin, Policy), {"loss": lambda self, batch: self.model.values(batch.obs).mean()})(
            None, *SPACES
        )
