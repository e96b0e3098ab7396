"""Durable collections over HTTP, beside a circuit or alone."""
