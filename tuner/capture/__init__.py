"""What a running program launches through PyCUDA and CuPy, and folders of kernels made of it."""
