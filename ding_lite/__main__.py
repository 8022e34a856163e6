"""`python -m ding_lite`, which is `ding-lite`.

Room: ding_lite, floor 7. Imports the commands.
"""

import sys

from ding_lite.commands import main

if __name__ == "__main__":
    sys.exit(main())
