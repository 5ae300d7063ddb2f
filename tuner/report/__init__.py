"""Ladder reports: the steps that people learn a kernel by, measured one beside the other on the device at hand."""
