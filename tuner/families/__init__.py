"""Tuning of families: problems that differ in the size of one axis, served by a few configurations with ranges."""
