"""What a worker and those who drive it say to each other: the gRPC messages, their security, and what they mean."""
