"""Runs tuning jobs: the engine, one child process per job, and maintenance."""
