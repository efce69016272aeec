"""The computations of the commands; the command line prints their results."""
