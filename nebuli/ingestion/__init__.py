"""Ingestion: what comes from sources outside, into durable collections, once and at definite times."""
