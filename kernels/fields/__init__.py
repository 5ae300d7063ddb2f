"""The fields of a kernel's declaration."""
