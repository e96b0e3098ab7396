"""Durable collections: named histories of rows, which any number of processes write, read at a time, and follow."""
