"""From rows to changes of a collection: what is added, and what takes the place of what."""
