"""Spark reading and writing channels, beside the same batches made within its tasks: `python -m benchmarks.spark`."""
