"""The commands, a module each; those of queries on running workers are in one."""
