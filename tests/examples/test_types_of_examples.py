"""Type hints of middleware: every example passes its own configuration to middleware that say they take it."""

import ast
import inspect

import pytest
from example_runs import EXAMPLES, config_of, load_example

from ding_lite import config, middleware

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def middleware_given_cfg(name):
    """The middleware that an example calls with `cfg` as the first argument."""
    calls = [it for it in ast.walk(ast.parse((EXAMPLES / f"{name}.py").read_text())) if isinstance(it, ast.Call)]
    named = [it.func.id for it in calls if isinstance(it.func, ast.Name) and it.args and ast.unparse(it.args[0]) == "cfg"]
    return [getattr(middleware, it) for it in named if hasattr(middleware, it)]


@pytest.mark.parametrize("name", NAMES)
def test_the_type_hint_of_cfg_is_that_of_the_example(name):
    for package in ("ale_py", "mujoco", "gymnasium_robotics", "pettingzoo", "mpe2"):
        if package in (EXAMPLES / f"{name}.py").read_text():
            pytest.importorskip(package)
    kind = type(config_of(load_example(name)))
    for part in middleware_given_cfg(name):
        assert issubclass(kind, hint_of_cfg(part)), f"{part.__name__} takes {hint_of_cfg(part)}"


def hint_of_cfg(part):
    """The configurations that the type hint of the argument cfg of a middleware allows."""
    hints = inspect.signature(part).parameters["cfg"].annotation.split(" | ")
    return (object,) if hints == ["Any"] else tuple(getattr(config, hint) for hint in hints if hasattr(config, hint))


def test_middleware_are_found():
    assert middleware.OffPolicyLearner in middleware_given_cfg("sac")
    assert hint_of_cfg(middleware.OffPolicyLearner) == (config.RunConfig,)
