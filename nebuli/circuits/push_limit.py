"""How large pushes may be: they are in memory at the client, at the coordinator and at the member."""

MAX_BYTES = 64 << 20
"""Of the rows of one, as an Arrow IPC stream."""
MESSAGE_BYTES = MAX_BYTES + (1 << 20)
"""Of the whole message."""
WAITING_BYTES = 4 * MESSAGE_BYTES
"""Of all messages that wait at a server at once."""
