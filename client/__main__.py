"""``python -m client``: the same as the command ``cohort``."""

import sys

from client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
