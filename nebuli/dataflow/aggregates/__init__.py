"""Values per group, kept up to date under changes."""
