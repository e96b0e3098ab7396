"""The coordinator of a circuit: its ways to the members that it has, its lives, and others in their place."""
