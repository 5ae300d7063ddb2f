"""The kernel `layer_norm`: sources and declaration."""
