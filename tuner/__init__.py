"""Compiling, verifying, timing and searching kernels on a device. No web, no SQL."""
