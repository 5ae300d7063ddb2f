"""Captures of a running program's launches through PyCUDA and CuPy, and folders of kernels made of them."""
