"""What concerns netchannel alone, measured beside itself: modules of the same shape as the contestants'."""
