"""Drawings computed on a worker's device."""
