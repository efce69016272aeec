"""What one command computes; the command line prints it."""
