"""The protocol between a worker and its clients: the gRPC messages, their security, and their meaning."""
