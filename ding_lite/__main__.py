"""`python -m ding_lite`, which is `ding-lite`."""

import sys

from ding_lite.commands import main

if __name__ == "__main__":
    sys.exit(main())
