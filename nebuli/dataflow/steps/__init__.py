"""The parts of a circuit in steps other than its operators: exchanges between members, event time, saved state."""
