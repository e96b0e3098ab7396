"""A node of a topology: runs fragments, their sources and sinks, and is driven over gRPC."""

from __future__ import annotations

import os

# Otherwise gRPC logs to standard error when connections end, which is normal; it reads this when it is imported first.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
