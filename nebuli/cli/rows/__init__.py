"""Rows, collections, sources and views: reading rows from files, and printing."""
