"""`python -m toolkit`: the same entry as the console script. Nothing else lives here."""

import sys

from toolkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
