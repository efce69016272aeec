"""End tasks in which the model writes programs, and the sandbox that runs them."""
