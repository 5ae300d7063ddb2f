"""A kernel's source as text, its identity, and the folders that hold kernels."""
