"""A staged channel on disk: files of attempts, a journal of promises, and the jobs that write and read them."""
