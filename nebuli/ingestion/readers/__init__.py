"""Sources that messages come from, one module for each kind."""
