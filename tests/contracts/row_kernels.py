"""Configurations of kernels whose results have rows, with a problem each: whoever checks rows checks all of them."""

ROW_KERNELS = {
    "softmax": ("online", {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}, {"m": 50, "n": 21}, "float32", {}),
    "add_layer_norm": ("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1}, {"m": 50, "n": 21}, "float32", {}),
    "attention": (
        "tiled",
        {"LANES": 8, "TILE_K": 32, "TILE_Q": 16},
        {"batch": 3, "heads": 4, "queries": 40, "keys": 48, "depth": 32, "kv_heads": 2},
        "float32",
        {"mask": "causal"},
    ),
    "linear_gated": ("tiled", {"TILE_WIDTH": 8}, {"m": 20, "n": 24, "k": 32}, "bfloat16", {}),
    "conv2d": (
        "direct",
        {"THREADS": 256},
        {"batch": 3, "height": 9, "width": 8, "channels": 4, "filters": 4, "kernel_h": 3, "kernel_w": 3, "padding": 1},
        "float32",
        {},
    ),
}
