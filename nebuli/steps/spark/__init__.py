"""Members as the tasks of one barrier stage of Spark."""
