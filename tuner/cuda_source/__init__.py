"""A `.cu` file as a syntax tree: its kernels, their parameters, and the part that one kernel needs."""
