"""How large a push may be: it is in memory at the client, at the coordinator and at the member."""

MAX_BYTES = 64 << 20
"""Of the rows, as an Arrow IPC stream."""
MESSAGE_BYTES = MAX_BYTES + (1 << 20)
"""Of the whole message."""
