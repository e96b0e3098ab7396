"""Members of a circuit in lockstep: when they step, their state, and where they continue after one was lost."""
