"""Views that hold only what is asked for: by a client, and the graph alone."""
