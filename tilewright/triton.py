"""For applications with Triton kernels: `from tilewright.triton import autotune` in the place of `triton.autotune`."""

from tilewright.tuner.autotune.autotune import ChosenFunction, autotune

__all__ = ["ChosenFunction", "autotune"]
