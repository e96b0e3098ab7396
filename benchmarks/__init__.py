"""Measures netchannel and its peers in one run: `make bench`, or `python -m benchmarks --help`."""
