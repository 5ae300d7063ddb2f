"""`tilewright.torch.accelerate`: tuned kernels in a model where they make the whole of it faster."""
