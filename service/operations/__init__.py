"""Operations: one function for each thing that the service does, called by API, pages, workers and command line."""

DEFAULT_PRIORITY = 5
"""The priority of a job that names none; 9 runs first, 0 last."""
