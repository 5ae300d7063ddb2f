"""Y = act(X Gᵀ) * (X Uᵀ): the gated first half of a transformer's feed-forward block, in one launch."""
