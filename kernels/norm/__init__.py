"""The common part of the kernels rms_norm and layer_norm, alone and behind a residual addition."""
