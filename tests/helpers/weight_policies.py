"""A policy whose action says how often it has learned, for tests of the weights that an evaluation acts with."""

import torch

from ding_lite.policy import Policy


class Weight(Policy):
    """Its action is its weight, which is the number of times that it learned."""

    def make_model(self):
        return torch.nn.Linear(1, 1, bias=False)

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return self.model.weight.expand(len(obs), 1), state, {}

    def learn_on_batch(self, batch):
        self.train_iter += 1
        self.set_weights({"weight": torch.full((1, 1), float(self.train_iter))})
        return {}
