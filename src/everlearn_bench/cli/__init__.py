"""The commands ``bench`` and ``demo``: one file each."""
