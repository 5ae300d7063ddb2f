"""Whether a best still stands, and what tuning it again came to."""
