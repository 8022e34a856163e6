"""What tests that run the examples in this process share."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ding_lite.config import RunConfig

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def load_example(name: str) -> ModuleType:
    """The module of an example, fresh."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_of(module: ModuleType) -> RunConfig:
    """The configuration that an example starts from."""
    return getattr(module, "CONFIG", None) or module.main.__annotations__["cfg"]()


def override_known(cfg: RunConfig, values: Mapping[str, Any]) -> None:
    """Override those settings that this configuration has; not every algorithm has all of them."""

    def has(key: str) -> bool:
        section: Any = cfg
        for name in key.split("."):
            if not hasattr(section, name):
                return False
            section = getattr(section, name)
        return True

    cfg.override({key: value for key, value in values.items() if has(key)})
