"""The kernel `rms_norm`: sources and declaration."""
