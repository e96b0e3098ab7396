"""Sources that are ingested into the collections of stores, as they fare, over HTTP."""
