"""Values of every kind that can be changed in place, for contexts to start with."""

from typing import Any

import numpy as np
import torch

KINDS = ["array", "tensor", "nested", "dict", "object", "slots"]


class Box:
    def __init__(self, value):
        self.value = value


class SlottedBox:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def made(kind: str) -> Any:
    """A value of this kind, which holds zeros."""
    return {
        "array": lambda: np.zeros(3, np.int64),
        "tensor": lambda: torch.zeros(3, dtype=torch.int64),
        "nested": lambda: [[0, 0], [0]],
        "dict": lambda: {"one": np.zeros(2, np.int64), "two": [0]},
        "object": lambda: Box(np.zeros(2, np.int64)),
        "slots": lambda: SlottedBox([0, 0]),
    }[kind]()


def bump(thing: Any, by: int = 1) -> None:
    """Count up in place, by a number below 1000."""
    if isinstance(thing, (np.ndarray, torch.Tensor)):
        thing += by
        thing %= 10**9
    elif isinstance(thing, list):
        for index, inner in enumerate(thing):
            if isinstance(inner, int):
                thing[index] = (inner + by) % 10**9
            else:
                bump(inner, by)
    elif isinstance(thing, dict):
        for inner in thing.values():
            bump(inner, by)
    else:
        bump(thing.value, by)


def content(thing: Any) -> Any:
    """What it holds, comparable."""
    if isinstance(thing, (np.ndarray, torch.Tensor)):
        return thing.tolist()
    if isinstance(thing, list):
        return [content(inner) for inner in thing]
    if isinstance(thing, dict):
        return {name: content(inner) for name, inner in thing.items()}
    return content(thing.value) if hasattr(thing, "value") else thing


def number(thing: Any) -> int:
    """The first number in it."""
    held = content(thing)
    while not isinstance(held, int):
        held = next(iter(held.values() if isinstance(held, dict) else held))
    return held
