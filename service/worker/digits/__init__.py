"""Drawings recognised on a worker's device."""
