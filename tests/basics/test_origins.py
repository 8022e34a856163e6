import sys

import pytest

from ding_lite.basics.origins import is_of_ding_lite, is_of_script


@pytest.mark.parametrize(
    ("module", "is_ours", "is_of_user"),
    [
        ("ding_lite", True, False),
        ("ding_lite.policy.dqn", True, False),
        ("ding_lite_experiments", False, True),
        ("ding_lite_experiments.buffers", False, True),
        ("__main__", False, True),
        ("torch.nn", False, False),
        ("json", False, False),
        (None, False, False),  # as functions made by exec() have
    ],
)
def test_a_module_is_of_ding_lite_of_a_library_or_of_the_script(module, is_ours, is_of_user, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", type(pytest)("__main__"))  # pytest is in site-packages
    is_of_script.cache_clear()

    assert (is_of_ding_lite(module), is_of_script(module)) == (is_ours, is_of_user)
    is_of_script.cache_clear()
