"""Recorded trials: read, and replayed as a device."""
