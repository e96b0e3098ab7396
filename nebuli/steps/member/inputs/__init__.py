"""What comes into a member: sources that are read into its log, or ahead of the steps and again, if need be."""
