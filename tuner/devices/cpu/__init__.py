"""The CPU device: CUDA sources run on the host."""
