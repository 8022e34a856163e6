"""Pickles of plain data with tensors, apart from their large buffers."""

import numpy as np
import pytest
import torch

from ding_lite.processes.pickles import dumps_apart, loads_apart

TENSORS = {
    "large": torch.randn(50, 100),
    "small": torch.randn(3),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "transposed": torch.randn(100, 60).T,
    "part": torch.randn(100, 60)[10:20, ::2],
    "bfloat16": torch.randn(50, 100).bfloat16(),
    "complex": torch.randn(50, 100, dtype=torch.complex64),
    "flags": torch.rand(100, 100) < 0.5,
    "needs a gradient": torch.randn(50, 100, requires_grad=True),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_as_they_were(name):
    tensor = TENSORS[name]
    found = loads_apart(*dumps_apart({"it": tensor, 3: [tensor]}))
    for one in (found["it"], found[3][0]):
        assert (one.dtype, one.shape, one.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
        assert torch.equal(one, tensor)


def test_large_buffers_are_apart_and_what_is_loaded_is_a_copy():
    state = {"tensor": torch.ones(100, 100), "array": np.ones((100, 100)), "step": 7}
    data, buffers = dumps_apart(state)
    assert len(data) < 1000
    assert sum(buffer.nbytes for buffer in buffers) == 120_000
    found = loads_apart(data, buffers)
    state["tensor"] += 1
    assert found["tensor"].sum() == found["array"].sum() == 10_000
    found["tensor"] += 5
    found["array"] += 5
    assert loads_apart(data, buffers)["array"].sum() == 10_000
    assert found["step"] == 7
