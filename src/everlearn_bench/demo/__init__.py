"""Run ``everlearn demo``: real text, offline, with and without protection, compared on one page."""
