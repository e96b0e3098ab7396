"""Rows as text: CSV and JSON, as sources and the ingestion read them."""
