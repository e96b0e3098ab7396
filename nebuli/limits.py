"""Default bounds."""

from __future__ import annotations

MOST_MEMBERS = 64
"""How many members a query in steps may have."""
DEFAULT_MAX_STATE_BYTES = 1 << 30
"""Bound on the state of an operator."""
DEFAULT_KEEP = "10min"
"""How long a collection can be read back."""
MAX_KEEP_S = 10**9
"""The longest that a collection can be read back."""
DEFAULT_KEEP_OUTPUT_BYTES = 1 << 30
"""Bound on the output that a member keeps for programs after its sinks have it."""
