"""Random states of torch that are loaded on another kind of device."""

import pytest
import torch
from gymnasium import spaces

from ding_lite.policy import DQNPolicy, StateDictError
from ding_lite.policy_state import set_torch_state

OF_GPU = torch.arange(16, dtype=torch.uint8)


def policy():
    return DQNPolicy({"seed": 0}, spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2))


def drawn(state):
    generator = torch.Generator()
    set_torch_state(generator, state)
    return torch.rand(4, generator=generator).tolist()


def test_a_state_of_the_same_kind_goes_on():
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    state = generator.get_state()
    assert drawn(state) == torch.rand(4, generator=generator).tolist()


def test_a_state_of_a_gpu_gives_numbers_that_depend_on_it_alone():
    assert drawn(OF_GPU) == drawn(OF_GPU.clone())
    assert drawn(OF_GPU) != drawn(OF_GPU + 1)


def test_a_policy_of_a_gpu_is_loaded_on_the_cpu():
    one, other = policy(), policy()
    state = one.state_dict()
    state["learn"]["generator"] = OF_GPU
    one.load_state_dict(state)
    other.load_state_dict(state)
    assert torch.equal(one.generator.get_state(), other.generator.get_state())


@pytest.mark.parametrize("broken", [OF_GPU[:5], OF_GPU.float(), OF_GPU.view(4, 4), torch.zeros(5000, dtype=torch.uint8)])
def test_a_state_of_no_device_is_refused(broken):
    one = policy()
    state = one.state_dict()
    state["learn"]["generator"] = broken
    with pytest.raises(StateDictError, match="expected the state of a torch.Generator"):
        one.load_state_dict(state)
