"""What a circuit in steps has beside its operators: trades between members, event time, saved state."""
