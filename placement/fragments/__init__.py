"""The fragments of a placed plan, and the engine of each."""
