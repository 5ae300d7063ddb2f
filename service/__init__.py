"""The service: database, job engine, REST API, dashboard, command line."""

GARBAGE_AFTER = 20_000
"""New containers before the garbage collector of a program of ours runs; Python's own 700 are two or three requests."""
