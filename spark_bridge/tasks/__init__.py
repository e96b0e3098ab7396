"""A task of Spark, from within: which one it is, and streams that each partition sends or receives."""
