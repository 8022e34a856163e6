"""Commands: `ding-lite report`, `ding-lite plot` and `ding-lite watch`.

Room: ding_lite.commands, floor 7. Imports reports; tyro, the extra `cli`, when a command is given.
"""

from ding_lite.commands.programs import main

__all__ = ["main"]
