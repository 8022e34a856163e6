"""Modes of torch that belong to a thread, such as gradients and autocast, and their transfer to a helper thread."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

from ding_lite.basics.blocks import block

_AUTOCAST_DEVICES = ("cpu", "cuda")


class TorchModes(NamedTuple):
    """The modes of one thread."""

    takes_gradients: bool
    is_inference: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    """(device type, whether it is enabled, dtype) for each device type."""
    caches_weights: bool
    device: Any
    """Default device of new tensors."""


def torch_modes_here() -> TorchModes | None:
    """The modes of the calling thread; None if torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # another thread may be importing it
        return None
    return TorchModes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES),
        torch.is_autocast_cache_enabled(),
        torch.get_default_device(),
    )


@block
def _entered(modes: TorchModes, here: TorchModes) -> Any:
    torch: Any = sys.modules["torch"]
    with contextlib.ExitStack() as stack:
        if modes.is_inference != here.is_inference:
            stack.enter_context(torch.inference_mode(modes.is_inference))
        stack.enter_context(torch.set_grad_enabled(modes.takes_gradients))
        for kind, is_on, dtype in modes.autocast:
            if is_on or (kind, is_on, dtype) not in here.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled=is_on, cache_enabled=modes.caches_weights))
        if modes.device != here.device:
            stack.enter_context(modes.device)
        yield


def torch_modes(modes: TorchModes | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which the calling thread has these modes; None changes nothing."""
    here = None if modes is None else torch_modes_here()
    if modes is None or here is None or modes == here:
        return contextlib.nullcontext()
    return _entered(modes, here)
