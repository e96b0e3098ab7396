"""What a worker answers over gRPC and HTTP."""
