"""`python -m ding_lite.commands`, which is `ding-lite`.

Room: ding_lite.commands, floor 7. Imports the room's programs.
"""

import sys

from ding_lite.commands.programs import main

if __name__ == "__main__":
    sys.exit(main())
