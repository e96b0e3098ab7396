"""Spark's data source of durable collections."""
