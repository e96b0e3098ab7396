"""Members as processes of this machine."""
