"""Joins: of rows that match, and of those that nothing matches as well."""
