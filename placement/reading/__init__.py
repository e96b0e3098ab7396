"""Query files: read, and all that is wrong with one said with its place."""
