"""What all tests of compiled steps share."""

import pytest

from ding_lite.basics.torch_threads import torch_threads


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The number of threads is part of a package's key, and small tensors gain nothing from threads."""
    with torch_threads(1):
        yield
