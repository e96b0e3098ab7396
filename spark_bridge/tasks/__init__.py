"""Within a task of Spark: which one it is, and streams that each partition sends or receives."""
