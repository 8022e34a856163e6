"""Global random generators of torch, numpy and Python, which all threads of a process share."""

from __future__ import annotations

import math
import operator
import random
import sys
from collections.abc import Mapping
from typing import Any


def global_random_states() -> dict[str, Any]:
    """The state of each global generator whose library is loaded, by module name; comparable with `==`."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy.random"] = _comparable(numpy.random.get_state(legacy=False))
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _comparable(state: Any) -> Any:
    """A state of any bit generator of numpy with tuples instead of arrays, which cannot be compared with `==`."""
    if isinstance(state, Mapping):
        return {name: _comparable(inner) for name, inner in state.items()}
    return (state.dtype.str, state.tobytes()) if hasattr(state, "tobytes") else state


def _with_arrays(state: Any) -> Any:
    import numpy as np

    if isinstance(state, Mapping):
        return {name: _with_arrays(inner) for name, inner in state.items()}
    return np.frombuffer(state[1], state[0]) if isinstance(state, tuple) else state


def set_global_random_states(states: Mapping[str, Any]) -> None:
    """Restore a result of `global_random_states`."""
    random.setstate(states["random"])
    if "numpy.random" in states:
        import numpy as np

        np.random.set_state(_with_arrays(states["numpy.random"]))  # noqa: NPY002
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
    """Restore the states of the global generators. Those of GPUs are restored if there are as many as then.

    Raises:
        ValueError: a state is not valid; the message names it, and no generator is changed.
    """
    import numpy as np
    import torch

    require_global_random(state)
    random.setstate(_python_state(state["random"]))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if _fits_gpus(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


def require_global_random(state: Any, where: str = "global_random") -> None:
    """Raise an error if this is not a result of `save_global_random`. No generator is changed.

    Args:
        state: the saved state.
        where: its name in messages.

    Raises:
        ValueError: an entry is missing or not valid; the message names it.
    """
    checks = {"random": _require_python, "numpy": _require_numpy, "torch": _require_torch, "cuda": _require_cuda}
    if not isinstance(state, Mapping):
        raise ValueError(f"{where} is {state!r:.80}, expected a dict with {[*checks]}.")
    for name, check in checks.items():
        if name not in state:
            raise ValueError(f"{where} has no {name!r}, only {sorted(map(str, state))}.")
        try:
            check(state[name])
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
            cause = " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"{where}[{name!r}] is not a state of {_GENERATORS[name]} ({cause}), got {state[name]!r:.80}."
            ) from None


_GENERATORS = {
    "random": "Python's random",
    "numpy": "numpy.random",
    "torch": "the global generator of torch",
    "cuda": "the generators of GPUs",
}


def _python_state(saved: Any) -> tuple[Any, ...]:
    import numpy as np

    version, words, next_gauss = saved  # words: an array, or a tuple in files of earlier versions
    return version, tuple(np.asarray(words).tolist()), next_gauss


def _require_python(saved: Any) -> None:
    version, words, next_gauss = state = _python_state(saved)
    trial = random.Random()
    trial.setstate(state)
    if version == trial.VERSION and trial.getstate()[1] != words:  # Python cuts off what is too large
        raise ValueError("its words are not integers from 0 to 4294967295")
    _require_twister(words[:-1])
    _require_number("the next number of gauss()", next_gauss, next_gauss is None)


def _require_numpy(saved: Any) -> None:
    import numpy as np

    own = np.random.get_state(legacy=False)  # noqa: NPY002
    trial = np.random.RandomState(getattr(np.random, own["bit_generator"])())
    trial.set_state(saved)
    if isinstance(saved, Mapping):
        words, has_gauss = saved["state"], saved["has_gauss"]
        if own["bit_generator"] == "MT19937" and not 0 <= operator.index(words["pos"]) <= 624:
            raise ValueError(f"state['pos'] is {words['pos']!r}, expected an integer from 0 to 624")  # numpy does not check it
        found = trial.get_state(legacy=False)["state"]
        if own["bit_generator"] == "MT19937":
            _require_twister(words["key"])
        if any(not np.array_equal(found[name], words[name]) for name in found):
            raise ValueError("its words are not integers from 0 to 4294967295")
        if has_gauss not in (0, 1):
            raise ValueError(f"has_gauss is {has_gauss!r}, expected 0 or 1")
        _require_number("gauss", saved["gauss"])


def _require_twister(words: Any) -> None:
    """Refuse words of a Mersenne Twister from which it gives 0 forever."""
    if not any(words):
        raise ValueError("its words are all 0, from which all further numbers are 0")


def _require_torch(saved: Any) -> None:
    import torch

    torch.Generator().set_state(saved)


def _require_cuda(saved: Any) -> None:
    import torch

    if not isinstance(saved, (list, tuple)) or not all(isinstance(one, torch.Tensor) for one in saved):
        raise TypeError("expected a list of tensors")
    if _fits_gpus(saved):
        for number, one in enumerate(saved):
            torch.Generator(f"cuda:{number}").set_state(one)


def _fits_gpus(saved: Any) -> bool:
    import torch

    return bool(saved) and torch.cuda.is_available() and torch.cuda.device_count() == len(saved)


def _require_number(name: str, value: Any, may_be_missing: bool = False) -> None:
    if not may_be_missing and (isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
