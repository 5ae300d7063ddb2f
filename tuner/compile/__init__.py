"""From a source to a cubin: compilers, a cache, a pool of processes."""

MOST_WORKERS = 64
"""Each takes about 120 MB. The slowest kernels of the catalogue take a core half a second, and the device 5 ms."""
