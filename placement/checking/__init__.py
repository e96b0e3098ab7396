"""A query against a topology: what it is bound to, schemas, event time, policies, and what is refused."""
