"""Staged groups: attempts that are committed, or dropped."""
