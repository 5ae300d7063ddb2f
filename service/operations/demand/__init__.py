"""Demand: requested problems that are not tuned."""
