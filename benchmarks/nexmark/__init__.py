"""Nexmark's queries on two members in steps, beside pathway, bytewax, Spark Structured Streaming and DuckDB."""
