"""``python -m everlearn``: the command line, also for ``accelerate launch -m everlearn``."""

import sys

from everlearn.cli import main

if __name__ == "__main__":
    sys.exit(main())
