"""Put a trained base model into the package: ``python -m everlearn_bench.suites.docs.ship STAGE`` (`make base`)."""

from __future__ import annotations

import sys
from pathlib import Path

from everlearn_bench.suites.docs import base_path
from everlearn_bench.suites.pretraining import ship

if __name__ == "__main__":
    print(ship(Path(sys.argv[1]), base_path()))
