"""Claims: what clients report of configurations that were served to them, verified by workers."""
