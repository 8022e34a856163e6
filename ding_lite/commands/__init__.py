"""Commands: `ding-lite report`, `ding-lite plot`, `ding-lite watch` and `ding-lite replay`."""

from ding_lite.commands.programs import main

__all__ = ["main"]
