"""Cases of a property that `make test` shows on a few of them only."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """The cases as parameters, all marked slow except `fast`; a tuple has several values."""
    cases = list(cases)
    if missing := [case for case in fast if case not in cases]:
        raise ValueError(f"{missing} are not among the cases {cases}.")
    return [
        case if case in fast else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
