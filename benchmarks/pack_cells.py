"""Put the cells of finished grids into one archive a folder, or take them out again.

    python benchmarks/pack_cells.py FOLDER [FOLDER ...]
    python benchmarks/pack_cells.py --unpack FOLDER [FOLDER ...]

FOLDER is what `--results` of `everlearn bench` and `sweep` names. A grid reads the archive, makes none of its cells
again and writes new ones beside it as files, until they are packed too. To measure a cell again, unpack and remove
its file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from everlearn.grid.archive import pack, unpack


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--unpack", action="store_true")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        print(f"{folder}: {(unpack if arguments.unpack else pack)(folder)} cells")


if __name__ == "__main__":
    main()
