"""Databases with at most two versions, in which members of a circuit keep its state: a checkpoint is a version."""
