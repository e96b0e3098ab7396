"""What a staged channel has on disk: attempts, and the journal of what it has promised."""
