"""How large pushes may be: they are in memory at the client, at the coordinator and at the member."""

MAX_BYTES = 64 << 20
"""Bound on the rows of one push, as an Arrow IPC stream."""
MESSAGE_BYTES = MAX_BYTES + (1 << 20)
"""Bound on the whole message."""
WAITING_BYTES = 4 * MESSAGE_BYTES
"""Bound on all messages that wait at a server at once."""
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # Otherwise gRPC measures how much fits on a fast connection, and takes as much of each message that is not read.
    # Messages that are read have as much as they need all the same.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
)
"""Options of a server that takes pushes."""
