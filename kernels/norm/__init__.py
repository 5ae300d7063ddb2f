"""What the kernels rms_norm and layer_norm, alone and behind a residual addition, have in common."""
