"""Demand: what applications asked for and nobody has tuned."""
