"""The services of a worker over gRPC and HTTP."""
