"""The judgement on which replacements stay: by the model's output, against float64, and its times."""
