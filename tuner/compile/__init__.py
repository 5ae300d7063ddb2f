"""From a source to a cubin: compilers, a cache, a pool of processes."""
