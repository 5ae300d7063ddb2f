"""The kernel `add_layer_norm`: sources and declaration."""
