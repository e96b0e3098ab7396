"""Inputs of a member: sources that are read into its log, or ahead of the steps and repeatedly, if needed."""
