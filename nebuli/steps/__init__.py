"""Queries in steps: members in lockstep, with logs of what came in and went out, and checkpoints."""
