"""The process-wide services, and their faces for threads and for other event loops."""
