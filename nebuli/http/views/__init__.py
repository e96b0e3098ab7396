"""Views of a query that runs, over HTTP."""
