"""Commands: `ding-lite report`, `ding-lite plot` and `ding-lite watch`."""

from ding_lite.commands.programs import main

__all__ = ["main"]
