"""The CUDA device, and what is known of GPUs."""
