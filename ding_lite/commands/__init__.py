"""Commands: `ding-lite report`, `plot`, `watch`, `eval`, `play` and `replay`."""

from ding_lite.commands.programs import main

__all__ = ["main"]
