"""Methods that hold back a part of the update."""
