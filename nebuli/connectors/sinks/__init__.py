"""Sinks: where rows go to."""
