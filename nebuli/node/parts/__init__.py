"""The fragments of queries with views: the parts of a graph with partial state, and reads of their views."""
