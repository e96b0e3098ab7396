"""The gate: the tests that `make test` runs, chosen so that they take ten minutes, and a second chance for each."""
