"""Results of hooks: a model that acting copies cannot copy is refused by the name of the hook."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.policy_base import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def made(make_model):
    return type("Own", (Policy,), {"make_model": lambda self: make_model()})(None, BOX, DISCRETE)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("make_model", "words"),
    [
        (
            lambda: torch.jit.script(nn.Linear(4, 3)),
            r"make_model of Own returns a .*, a module of torch.jit, .*without torch.jit",
        ),
        (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 3))), "returns a Sequential with 0, a module of torch.jit"),
        (lambda: nn.LazyLinear(3), "make_model of Own returns a LazyLinear, a LazyLinear whose parameters are not initialized"),
        (lambda: nn.Sequential(nn.ReLU(), nn.LazyBatchNorm1d()), "a Sequential with 1, a LazyBatchNorm1d whose parameters"),
        (lambda: 3, "make_model of Own returns a int: return a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_copied_is_refused_with_the_fix(make_model, words):
    with pytest.raises(TypeError, match=words):
        made(make_model)


def test_a_lazy_module_that_was_called_is_a_model_as_any_other():
    def make_model():
        model = nn.LazyLinear(3)
        model(torch.zeros(1, 4))
        return model

    policy = made(make_model)

    assert policy.collect_mode.actor.model.weight.shape == (3, 4)


class TwoOptimizers(Policy):
    """An actor and a critic, each with an optimizer of its own, unless it forgets one."""

    forgets = is_late = False

    def make_model(self):
        return nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)})

    def make_optimizer(self, params):
        if not (self.forgets or self.is_late):
            self.optimizers = {"critic": torch.optim.Adam(self.model["critic"].parameters(), 1e-3)}
        return torch.optim.Adam(self.model["actor"].parameters(), 1e-3)

    def after_init(self):
        super().after_init()
        if self.is_late:
            self.critic_optimizer = torch.optim.Adam(self.model["critic"].parameters(), 1e-3)


def test_weights_that_no_optimizer_of_the_policy_has_are_named_and_those_of_another_one_are_not(recwarn):
    TwoOptimizers(None, BOX, DISCRETE)
    type("Late", (TwoOptimizers,), {"is_late": True})(None, BOX, DISCRETE)
    assert not recwarn
    with pytest.warns(UserWarning, match="without some of the model's weights, which will not learn"):
        type("Forgets", (TwoOptimizers,), {"forgets": True})(None, BOX, DISCRETE)
