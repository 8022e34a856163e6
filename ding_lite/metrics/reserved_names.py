"""Reserved names: those under which the library's collectors and learners log values of their own."""

from __future__ import annotations

from collections.abc import Iterable

ACTING = frozenset({"env_steps_throughput"})
"""Of collectors. Other names of theirs, such as "env_steps", have an owner, so that a row drops others with a warning."""
LEARNING = frozenset({"gradient_steps", "gradient_steps_throughput", "policy_lag"})
"""Of learners."""


def require_own_names(logs: str, names: Iterable[object], reserved: Iterable[str]) -> None:
    """Refuse names that the library uses itself.

    Args:
        logs: what logs them, and how, for the message: "loss of MyPolicy returns".
        names: the names.
        reserved: `ACTING` or `LEARNING`, or others.

    Raises:
        ValueError: one of them is reserved.
    """
    taken = sorted(set(reserved).intersection(names))
    if taken:
        raise ValueError(
            f"{logs} {taken[0]!r}, a name under which ding_lite logs a value of its own, so one of the two would be lost: use "
            f"another name, such as 'my_{taken[0]}'."
        )
