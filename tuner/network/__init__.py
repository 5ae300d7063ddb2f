"""A small network on tuned kernels, and the handwritten digits that it reads."""
