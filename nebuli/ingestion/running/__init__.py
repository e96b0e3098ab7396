"""Instances of sources as processes of a host: started, restarted and adopted by a supervisor, one per store."""
