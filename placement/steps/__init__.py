"""Queries in steps: where their rows change members."""
