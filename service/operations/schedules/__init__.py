"""Schedules: kept, checked, fired."""
