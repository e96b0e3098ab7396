"""The members of a circuit at workers, as their coordinator has them: which, where, and others in their place."""
