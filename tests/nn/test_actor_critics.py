"""Actor and critic: what they remember, share, and begin as."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import tree
from ding_lite.nn import make_actor_critic

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


def made(observation_space=BOX, action_space=DISCRETE, **options):
    torch.manual_seed(0)
    return make_actor_critic(observation_space, action_space, [16], **options)


@pytest.mark.parametrize("share_encoder", [False, True])
@pytest.mark.parametrize("space", [BOX, IMAGE], ids=["vector", "image"])
def test_logits_and_values_are_those_of_both_together(share_encoder, space):
    model = made(space, share_encoder=share_encoder)
    obs = torch.from_numpy(np.stack([space.sample() for _ in range(5)]))
    logit, value = model(obs)

    assert logit.shape == (5, 3)
    assert value.shape == (5,)
    assert torch.equal(model.logits(obs), logit)
    assert torch.equal(model.values(obs), value)


@pytest.mark.parametrize("share_encoder", [False, True])
def test_it_remembers_what_it_computed_last(share_encoder):
    model, obs = made(share_encoder=share_encoder), torch.randn(6, 4)
    logit, state = model.from_batch(tree({"obs": obs}))

    assert state == []
    assert torch.equal(model.last_output(), logit)
    assert torch.equal(model.value_function(), model.values(obs))
    model.logits(obs[:2])
    assert model.last_output().shape == (2, 3)
    assert model.value_function().shape == (2,)


def test_a_copy_forgets_what_was_computed():
    model = made()
    model.logits(torch.randn(6, 4, requires_grad=True))
    copied = copy.deepcopy(model)

    with pytest.raises(KeyError):
        copied.last_output()


def test_actions_are_nearly_uniform_and_values_small_at_the_start():
    model, obs = made(), torch.randn(100, 4)

    assert (model.logits(obs).softmax(-1) - 1 / 3).abs().max() < 0.02
    assert model.values(obs).abs().max() < 3


def test_an_encoder_that_is_shared_is_there_once():
    assert sum(p.numel() for p in made(share_encoder=True).parameters()) < sum(p.numel() for p in made().parameters())
