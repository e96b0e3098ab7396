"""SQL statements as queries: what sqlglot reads of one becomes the operators that a query file has."""
