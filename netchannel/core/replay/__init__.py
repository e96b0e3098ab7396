"""Streams that are kept, and read any number of times."""
