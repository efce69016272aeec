"""Show the results of diagnostics as tables and figures."""
