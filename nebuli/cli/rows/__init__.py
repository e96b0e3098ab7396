"""Rows, and collections of them: how commands read them from files, and show them."""
