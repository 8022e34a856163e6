"""Modes of torch that belong to a thread, such as gradients and autocast; a thread that helps another one takes them over."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

_AUTOCAST_DEVICES = ("cpu", "cuda")


class TorchModes(NamedTuple):
    """The modes of one thread."""

    takes_gradients: bool
    is_inference: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    """Device type, whether it is on, dtype."""
    caches_weights: bool
    device: Any
    """On which tensors are made; None for torch's own."""


def torch_modes_here() -> TorchModes | None:
    """The modes of the thread that calls; None where torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # or just being loaded by another thread
        return None
    return TorchModes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES),
        torch.is_autocast_cache_enabled(),
        torch.get_default_device(),
    )


@contextlib.contextmanager
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
    """For the time of a block, these modes on the thread that calls; None leaves them as they are."""
    here = None if modes is None else torch_modes_here()
    if modes is None or here is None or modes == here:
        return contextlib.nullcontext()
    return _entered(modes, here)
