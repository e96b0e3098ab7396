"""Bounds that hold where nobody says another."""

from __future__ import annotations

DEFAULT_MAX_STATE_BYTES = 1 << 30
"""What the state of an operator may hold."""
