"""CUDA graphs on the CPU: what is recorded runs operation by operation, in the memory of the recording."""

import contextlib
from unittest import mock

import interpreted_steps
import torch

from ding_lite.compiling import compiled_steps, cuda_graphs, optimizer_updates
from ding_lite.data import tree
from ding_lite.policy import DQNPolicy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(kind=DQNPolicy, compiles="on", **settings):
    return interpreted_steps.made(kind, compiles, **{"device": DEVICE, **settings})


def rows(step=0):
    return tree({name: it.to(DEVICE) for name, it in interpreted_steps.batch_of(step).items()})


def recorded(work, rehearse, device):
    """As `cuda_graphs.record`: rehearsals come first, recording computes nothing, and the outputs stay where they are."""
    step = work.__self__
    before = [it.detach().clone() for it in step._inputs]
    rehearse()
    assert all(torch.equal(it, old) or it.isnan().any() for it, old in zip(step._inputs, before)), "a rehearsal changes inputs"
    work()
    for it, old in zip(step._inputs, before):
        if 0 not in it.stride():
            it.detach().copy_(old)
    outputs, packed = step._outputs, step._packed

    def replay():
        work()
        for there, new in zip((*outputs, *(it for _, it in packed)), (*step._outputs, *(it for _, it in step._packed))):
            there.copy_(new)
        step._outputs, step._packed = outputs, packed

    def replay_without_gradients():
        with torch.no_grad():
            replay()

    RECORDINGS.append(step)
    return replay_without_gradients


RECORDINGS = []
"""The step of each recording."""


@contextlib.contextmanager
def recording():
    """A block in which policies on the CPU learn as those on a GPU do. Gives a list with an entry for each recording in it.
    With a GPU, nothing is pretended.
    """
    RECORDINGS.clear()
    with contextlib.ExitStack() as stack:
        if torch.cuda.is_available():
            real = cuda_graphs.record
            spy = mock.Mock(side_effect=lambda *args: RECORDINGS.append(args) or real(*args))
            stack.enter_context(mock.patch.object(cuda_graphs, "record", spy))
        else:
            for module in (compiled_steps, optimizer_updates):
                stack.enter_context(mock.patch.object(module, "uses_graphs", return_value=True))
            stack.enter_context(mock.patch.object(cuda_graphs, "record", recorded))
        yield RECORDINGS
