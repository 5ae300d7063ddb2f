"""Recorded trials: read, written, and replayed as a device."""
