"""Searches over a feasible set, by ask and tell."""
