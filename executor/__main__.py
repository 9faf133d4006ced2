"""`python -m executor`."""

import sys

from executor.cli.main import main

if __name__ == "__main__":  # the trainer's helpers are spawned and import this module again
    sys.exit(main())
