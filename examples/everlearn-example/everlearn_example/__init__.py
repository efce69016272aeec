"""One file for each kind of thing that a package can add to everlearn."""
