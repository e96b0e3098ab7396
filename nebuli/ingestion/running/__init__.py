"""A source's instances as processes of a host: started, kept, and ended with whoever keeps them."""
