"""Methods that add a penalty on the weights."""
