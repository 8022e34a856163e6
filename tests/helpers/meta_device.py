"""The device "meta" as a GPU: its tensors have no elements, and torch refuses to mix them with those of the CPU."""

import contextlib
from unittest import mock

import rank_policies
import torch
from compiled_policies import MORE, WITHOUT_VALID

from ding_lite.compiling import functional_steps
from ding_lite.data import tree
from ding_lite.policy import Policy

META = torch.device("meta")


def _without_generator(draw):
    """There are no generators of this device."""
    return lambda *args, generator=None, **kwargs: draw(*args, **kwargs)


def _new_tensor(tensor, values, **_):
    """Torch's own one skips the dispatcher on this device."""
    return torch.tensor(values, dtype=tensor.dtype).to(tensor.device)


class _OnCpu(torch.Generator):
    """A generator, whatever its device."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


@contextlib.contextmanager
def on_meta():
    """A block in which policies are made on this device, and their steps can be traced."""
    clip = torch.nn.utils.clip_grad_norm_
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            *((torch, name, _without_generator(getattr(torch, name))) for name in ("randn", "rand", "randint")),
            (torch, "Generator", _OnCpu),
            (torch, "equal", lambda one, other: True),
            (torch.Tensor, "new_tensor", _new_tensor),
            (torch.nn.utils, "clip_grad_norm_", lambda params, limit, foreach: clip(params, limit)),
            (functional_steps, "_DEVICES", ("meta",)),
            (Policy, "generator_state", lambda policy: {}),
            (Policy, "load_generator_state", lambda policy, state: None),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mock.patch("ding_lite.policy_base.policy.available_device", return_value=META))
        yield


def traced(case):
    """The traced step of a policy on this device."""
    settings = {**rank_policies.CASES[case], **MORE.get(case, {})}
    with on_meta(), mock.patch.dict(rank_policies.CASES, {case: settings}):
        policy = rank_policies.made(case)
        batch, _ = rank_policies.rows_of(policy, 0)
        if case in WITHOUT_VALID:
            batch.pop("valid")
        batch = policy.postprocess(tree({name: it.to(META) for name, it in batch.items()}))
        return functional_steps.trace_step(policy, batch, checks_gradients=False)
