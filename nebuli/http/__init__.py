"""Running circuits over HTTP, for people, browsers and curl: the same calls as over gRPC, and figures of members."""
