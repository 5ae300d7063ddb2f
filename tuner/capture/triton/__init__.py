"""Captured launches of Triton functions as folders of kernels."""
