"""The recipe by which messages become collections: times are recorded, what came until then is told, and written."""
