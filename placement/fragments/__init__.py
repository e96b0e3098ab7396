"""What a placed plan is cut into, and which engine each fragment has."""
