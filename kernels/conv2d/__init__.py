"""conv2d: Y = act(conv(X, W) + b), a layer of a convolutional network in one launch."""
