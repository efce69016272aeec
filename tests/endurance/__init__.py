"""Long tests, run on demand: `make faults`, `make fuzz`, `make soak`; a short part of each runs with every test.

A case is its number: its chances are seeded by it and by nothing else, so a case that failed is done again alone.
"""

import source_metadata  # noqa: F401  # before everlearn looks for its plugins
