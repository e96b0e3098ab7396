"""Calls: who asks a service of a receiver, and what goes on where it answers."""
