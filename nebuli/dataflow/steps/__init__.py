"""What a circuit in steps has beside its operators: exchanges between members, event time, saved state."""
