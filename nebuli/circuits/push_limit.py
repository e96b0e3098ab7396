"""How large pushes may be: they are in memory at the client, at the coordinator and at the member."""

MAX_BYTES = 64 << 20
"""Of the rows of one, as an Arrow IPC stream."""
MESSAGE_BYTES = MAX_BYTES + (1 << 20)
"""Of the whole message."""
WAITING_BYTES = 4 * MESSAGE_BYTES
"""Of all messages that wait at a server at once."""
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # Else gRPC finds out by itself how much fits on a fast connection, and takes as much of each message that nobody
    # reads. What is read has as much as it needs all the same.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
)
"""Of a server that takes pushes."""
