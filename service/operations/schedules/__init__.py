"""Schedules: stored, checked, fired."""
