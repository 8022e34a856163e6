"""Histories: what of a run's compiled steps belongs to its state, so that a resumed run goes on with the same ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ding_lite.compiling.forms import Form


class History:
    """Which steps a run compiles, and which it does not.

    Args:
        is_auto: whether compilation runs beside the first steps of a form.
    """

    entries: ClassVar[tuple[str, ...]] = ("forms", "values", "failed", "refused", "is_auto")
    """Names of the entries of its state."""

    def __init__(self, is_auto: bool) -> None:
        self.is_auto = is_auto
        self.forms: dict[str, int] = {}
        """By the digest of a form, the value of `train_iter` from which it is compiled."""
        self.values: dict[str, None] = {}
        """Hashes of the Python values that traced forms hold for."""
        self.failed: dict[str, str] = {}
        """By the digest of a form that is not compiled, the reason."""
        self.refused = ""
        """Why no step is compiled, if that holds in a resumed run too."""

    def begins(self, digest: str) -> float:
        """The value of `train_iter` from which a form is compiled; infinity if it never is."""
        if digest in self.failed or digest not in self.forms:
            return math.inf
        return self.forms[digest] if self.is_auto else 0  # "auto" may have put it off

    def add_values(self, form: Form, is_replaced: bool) -> int:
        """Count the values that a form holds for. A resumed run, which traces its forms again, counts none twice.

        Args:
            form: the form.
            is_replaced: whether objects were replaced by others, which counts each time.

        Returns:
            The number of different values so far.
        """
        text = repr((form.digest, form.step.variant, [str(guard) for guard in form.step.guards]))
        if is_replaced:
            text = f"{len(self.values)} {text}"
        self.values[hashlib.sha256(text.encode()).hexdigest()[:16]] = None
        return len(self.values)

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data."""
        return {
            "forms": [[digest, begins] for digest, begins in self.forms.items()],
            "values": [*self.values],
            "failed": [[digest, reason] for digest, reason in self.failed.items()],
            "refused": self.refused,
            "is_auto": self.is_auto,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. What a run with another `is_auto` could not compile is tried again."""
        # States of older versions have only forms, whose digests were made in another way.
        forms = state["forms"] if "is_auto" in state else ()
        is_same = bool(state.get("is_auto", self.is_auto)) == self.is_auto
        self.forms.clear()
        self.forms.update({str(digest): int(begins) for digest, begins in forms})
        self.values = dict.fromkeys(map(str, state.get("values", ()) if is_same else ()))
        self.failed = {str(digest): str(reason) for digest, reason in (state.get("failed", ()) if is_same else ())}
        self.refused = str(state.get("refused", "")) if is_same else ""
