"""Members of a circuit in lockstep: when they step, what they keep, and where they go on after one was lost."""
