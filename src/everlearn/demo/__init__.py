"""What ``everlearn demo`` runs: real text, offline, with and without protection, on one page."""
