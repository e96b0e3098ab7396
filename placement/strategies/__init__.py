"""Which node each operator runs at: the bottom-up rule, the least traffic, and what both need."""
