"""Query plans and where they run."""
