"""Commands: `ding-lite report`, `plot`, `watch`, `eval`, `play` and `replay`.

Internal: its names may change in any version.
"""

from ding_lite.commands.subcommands import main

__all__ = ["main"]
