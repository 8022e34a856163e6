"""`python -m ding_lite.commands`, which is `ding-lite`."""

import sys

from ding_lite.commands.subcommands import main

if __name__ == "__main__":
    sys.exit(main())
