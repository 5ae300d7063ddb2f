"""linear: Y = act(X Wᵀ + b), a fully connected layer in one launch."""
