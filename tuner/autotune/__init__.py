"""The Triton autotuner of applications: configurations that are known, in the place of `triton.autotune`."""
