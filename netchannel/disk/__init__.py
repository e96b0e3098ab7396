"""Joins core and storage: does the core's blocking work on files, in jobs."""
