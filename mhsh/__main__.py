"""`python -m mhsh` is the command `mhsh`."""

import sys

from mhsh.cli.start import start

if __name__ == "__main__":
    sys.exit(start())
