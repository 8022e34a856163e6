"""Global random generators of torch, numpy and Python, which all threads of a process share."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
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


def set_global_random_states(states: Mapping[str, Any]) -> None:
    """Restore a result of `global_random_states`."""
    random.setstate(states["random"])
    if "numpy.random" in states:
        import numpy as np

        kind, keys, *rest = states["numpy.random"]
        np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002
    if "torch" in states:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))


def save_global_random() -> dict[str, Any]:
    """The states of the global generators as plain data, for `load_global_random`."""
    import numpy as np
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    version, words, next_gauss = random.getstate()
    return {
        "random": (version, np.array(words, np.uint32), next_gauss),  # files of 625 numbers are slow to write and to read
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def load_global_random(state: Mapping[str, Any]) -> None:
    """Restore the states of the global generators. Those of GPUs are restored if there are as many as then."""
    import numpy as np
    import torch

    version, words, next_gauss = state["random"]  # words: an array, or a tuple in files of earlier versions
    random.setstate((version, tuple(np.asarray(words).tolist()), next_gauss))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
