"""The recipe by which messages become collections.

Times are recorded, messages up to them are delivered, and written.
"""
