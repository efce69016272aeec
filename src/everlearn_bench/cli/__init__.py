"""The verbs ``bench`` and ``demo``: one file each."""
