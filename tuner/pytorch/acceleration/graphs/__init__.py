"""Models that are replayed as CUDA graphs."""
