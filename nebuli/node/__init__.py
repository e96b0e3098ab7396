"""A node of a topology: runs fragments, their sources and sinks, and is driven over gRPC."""

from __future__ import annotations

import os

# Else gRPC tells on standard error of connections that end, as they do; it reads this when it is imported first.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
