"""Global random generators of torch, numpy and Python, which all threads of a process share."""

from __future__ import annotations

import random
import sys
from typing import Any


def global_random_states() -> dict[str, Any]:
    """The state of each global generator whose library is loaded, by module name; comparable with `==`."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = kind, keys.tobytes(), *rest
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
