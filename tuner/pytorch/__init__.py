"""Tuned kernels in PyTorch programs: what `import tilewright.torch` offers. See docs/pytorch.md."""
