"""Durable collections over HTTP, next to a circuit or alone."""
