"""Faults planted in a copy, and what noticed them: `make mutants`."""
