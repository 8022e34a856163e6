"""Auxiliary losses on the features of the network: one pass of the encoder for both, and the loss of the algorithm as it is."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.policy import DQNPolicy, PPOPolicy

OBS, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


class Auxiliary:
    """Predicts the next observation from the features."""

    weight = 0.1

    def make_model(self):
        model = super().make_model()
        model.predictor = nn.Linear(6, 3)
        return model

    def loss(self, batch):
        features = self.model.encode(batch.obs)
        output = self.model.from_features(features)
        loss, stats = self.td_loss(output, batch) if isinstance(self, DQNPolicy) else self.clipped_loss(*output, batch)
        error = (self.model.predictor(features) - batch.next_obs).square().mean()
        return loss + self.weight * error, {**stats, "error": error.detach()}


def made(base, weight=0.1, **settings):
    kind = type("Predicting", (Auxiliary, base), {"weight": weight})
    return [kind, base], {"seed": 0, "model.encoder_hidden_size_list": [6], **settings}


def rows(n=8):
    g = torch.Generator().manual_seed(0)
    names = ("reward", "log_prob", "advantage", "value", "return_")
    batch = {name: torch.randn(n, generator=g) for name in names}
    batch |= {"obs": torch.randn(n, 3, generator=g), "next_obs": torch.randn(n, 3, generator=g)}
    flags = {name: torch.rand(n, generator=g) < 0.2 for name in ("terminated", "truncated")}
    return tree({**batch, **flags, "action": torch.arange(n) % 2})


@pytest.mark.parametrize(
    ("base", "settings", "encoder"),
    [
        (DQNPolicy, {"model.dueling": True}, lambda model: model[0]),
        (PPOPolicy, {"model.share_encoder": True}, lambda model: model.encoder),
    ],
)
def test_the_encoder_runs_once_for_both_losses(base, settings, encoder):
    (kind, _), settings = made(base, **settings)
    policy, calls = kind(settings, OBS, DISCRETE), []
    policy.dry_run()
    encoder(policy.model).register_forward_hook(lambda module, inputs, output: calls.append(output.requires_grad))
    policy.loss(rows())

    assert calls.count(True) == 1  # others are of targets, without gradients


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3])])
def test_an_action_mask_counts_though_the_features_have_lost_it(action_space):
    class Clipped(PPOPolicy):
        def loss(self, batch):
            return self.clipped_loss(*self.model.from_features(self.model.encode(batch.obs)), batch)

    width = 3 if isinstance(action_space, spaces.Discrete) else 5
    obs_space = spaces.Dict(x=OBS, action_mask=spaces.MultiBinary(width))
    both = [kind({"seed": 0, "model.share_encoder": True}, obs_space, action_space) for kind in (Clipped, PPOPolicy)]
    mask = torch.tensor([[1, 0, 1, 0, 1][:width]] * 8)
    obs = {"x": torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), "action_mask": mask}
    action, _, outputs = both[0].collect_mode.forward({name: leaf.numpy() for name, leaf in obs.items()})
    given = {name: torch.linspace(-1, 1, 8) for name in ("advantage", "value", "return_")}
    batch = tree({"obs": obs, "action": torch.as_tensor(action), "log_prob": torch.as_tensor(outputs["log_prob"]), **given})
    losses = [policy.loss(batch) for policy in both]
    for loss, _ in losses:
        loss.backward()

    assert torch.equal(losses[0][0], losses[1][0])
    assert losses[0][1]["kl"].item() == pytest.approx(0, abs=1e-12)
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(*(policy.params for policy in both)))


@pytest.mark.parametrize(
    ("base", "settings"), [(DQNPolicy, {}), (DQNPolicy, {"model.dueling": True}), (PPOPolicy, {"model.share_encoder": True})]
)
def test_without_weight_the_loss_and_its_gradients_are_those_of_the_algorithm(base, settings):
    kinds, settings = made(base, weight=0.0, **settings)
    both = [kind(settings, OBS, DISCRETE) for kind in kinds]
    both[1].model.load_state_dict({k: v for k, v in both[0].model.state_dict().items() if "predictor" not in k})
    if base is DQNPolicy:
        both[1].target_model.load_state_dict(both[1].model.state_dict())
    losses = [policy.loss(rows())[0] for policy in both]
    for loss in losses:
        loss.backward()

    assert torch.equal(*losses)
    own = {name: param.grad for name, param in both[0].model.named_parameters()}
    for name, param in both[1].model.named_parameters():
        assert torch.equal(param.grad, own[name])
