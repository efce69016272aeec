"""Methods that learn which units a domain may use."""
