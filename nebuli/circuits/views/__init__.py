"""Views of circuits, read by key while they run."""
