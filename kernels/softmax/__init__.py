"""softmax: each row of Y is exp(x - max) / sum of the same row of X."""
