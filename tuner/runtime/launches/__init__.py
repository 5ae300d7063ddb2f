"""Launches of one problem in a context of CUDA, on the CPU, or by a call of a library."""
