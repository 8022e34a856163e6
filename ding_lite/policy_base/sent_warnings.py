"""Warnings of another process, which are shown in the process of the script, by its own filters."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ding_lite.basics.blocks import block


class SentWarning(NamedTuple):
    """A warning, to send to another process."""

    message: str
    category: type[Warning]
    filename: str
    lineno: int


@block
def collecting_warnings(found: list[SentWarning]) -> Iterator[None]:
    """A context whose warnings are added to a list, also after an error; equal ones only once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            sent = [SentWarning(str(one.message), one.category, one.filename, one.lineno) for one in caught]
            found += [one for one in dict.fromkeys(sent) if one not in found]


def show_warnings(found: Sequence[SentWarning]) -> None:
    """Issue warnings as if they came from their lines in this process: by default, each is shown once.

    Raises:
        Warning: the filters of this process make it an error.
    """
    for one in dict.fromkeys(found):
        module = _module_of(one.filename)
        registry: dict[Any, Any] = {} if module is None else vars(module).setdefault("__warningregistry__", {})
        name = None if module is None else module.__name__
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, name, registry)


def _module_of(filename: str) -> Any:
    return next((one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == filename), None)
