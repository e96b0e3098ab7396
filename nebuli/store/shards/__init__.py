"""Shards: a log of entries each, the state that follows from it, and what can be done to it."""
