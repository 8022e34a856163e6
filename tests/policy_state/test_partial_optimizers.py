"""Optimizers of some of the parameters of a policy: their states are saved, and loaded again."""

import warnings

import pytest
import torch
from gymnasium import spaces
from interpreted_steps import batch_of
from states import same, through_a_file

from ding_lite.policy import DQNPolicy


def _last(params):
    return [{"params": params[-2:]}]


def _without_first(params):
    return [{"params": [param for param in params if param.requires_grad]}]


def _two_groups(params):
    return [{"params": params[-2:], "lr": 1e-2}, {"params": params[2:4]}]


def _reversed(params):
    return [{"params": params[::-1]}]


@pytest.mark.parametrize("choose", [_last, _without_first, _two_groups, _reversed])
def test_an_optimizer_of_some_parameters_is_saved_and_loaded(choose, tmp_path):
    class Partly(DQNPolicy):
        def make_model(self):
            model = super().make_model()
            next(model.parameters()).requires_grad_(False)
            return model

        def make_optimizer(self, params):
            return torch.optim.Adam(choose([*params]), lr=1e-3)

    def made():
        cfg = DQNPolicy.config_type().override({"model.encoder_hidden_size_list": [8, 8], "seed": 0})
        return Partly(cfg, spaces.Box(-1.0, 1.0, (5,)), spaces.Discrete(3))

    one, two = made(), made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some weights are not learned
        for step in range(3):
            one.learn_mode.forward(batch_of(step))
        one.load_state_dict(one.state_dict())
        two.load_state_dict(through_a_file(one.state_dict()))
        for step in range(3, 6):
            for policy in (one, two):
                policy.learn_mode.forward(batch_of(step))
    assert same(two.state_dict()["model"], one.state_dict()["model"])
    assert same(two.state_dict()["optimizer"], one.state_dict()["optimizer"])
