"""Launches of problems that differ in the size of one axis: one launcher, a few configurations, any size."""
