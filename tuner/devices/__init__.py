"""Devices: what they are to the tuner, and those of this machine."""
