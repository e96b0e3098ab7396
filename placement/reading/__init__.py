"""Query files: reading, and reporting all mistakes with their places."""
