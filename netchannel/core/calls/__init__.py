"""Calls: the side that calls a receiver's service, and the side that answers."""
