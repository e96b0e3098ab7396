"""The logs of a circuit in steps: what came in, which of it counts for which step, and what came out."""
