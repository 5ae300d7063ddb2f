"""Which replacements stay: the model's output, in float64, and its times."""
