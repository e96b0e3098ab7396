"""Processes that are forked from a template, which has everything imported, so that they start at once."""
