"""classifier: the last two layers of a network and their softmax in one launch."""
