"""Stale and improvable best configurations, and comparisons after tuning again."""
