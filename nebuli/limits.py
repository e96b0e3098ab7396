"""Bounds that hold where nobody says another."""

from __future__ import annotations

MOST_MEMBERS = 64
"""How many members a query in steps may have."""
DEFAULT_MAX_STATE_BYTES = 1 << 30
"""What the state of an operator may hold."""
DEFAULT_KEEP = "10min"
"""How long a collection can be read back."""
MAX_KEEP_S = 10**9
"""The longest that a collection can be read back."""
DEFAULT_KEEP_OUTPUT_BYTES = 1 << 30
"""What a member keeps of the output that its sinks have had, for programs that read it."""
