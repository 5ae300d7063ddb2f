"""Ours and a library's call take turns on the first calls of a range, and the faster one stays."""
