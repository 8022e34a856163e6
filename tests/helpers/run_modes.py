"""The modes of a run: on one thread or several, with and without lag."""

import pytest

MODES = pytest.mark.parametrize(
    "mode",
    [{}, {"max_lag": 1}, {"async_mode": True}, {"async_mode": True, "max_lag": 3}],
    ids=["plain", "lag", "threads", "lag 3"],
)
