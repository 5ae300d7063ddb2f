"""The kernel `add_rms_norm`: sources and declaration."""
