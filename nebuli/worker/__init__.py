"""A node of a topology: runs fragments, their sources and sinks, and is driven over gRPC."""
