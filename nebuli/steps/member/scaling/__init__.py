"""State and logs from the members of a circuit to another number of them."""
