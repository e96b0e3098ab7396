"""Which state of a query with views holds only what is asked for, and by which paths that is filled."""
