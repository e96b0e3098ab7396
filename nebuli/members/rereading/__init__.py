"""Sources that give the same rows again: what of them counts for which step is logged, and the rows are not."""
