"""Y = X dequantised(W)ᵀ: a layer without bias, whose weights are whole numbers of 8 or 4 bits."""
