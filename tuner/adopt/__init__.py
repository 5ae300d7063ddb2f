"""Folders of kernels, made from a Kernel Tuner script that runs with its calls intercepted."""
