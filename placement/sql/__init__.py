"""SQL expressions of a query: parsed by sqlglot, typed once, a tree that engines evaluate."""
