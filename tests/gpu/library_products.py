"""Products that the library computes whole: kernel, dtype and options, and how far results may be off by dtype."""

CASES = [
    (kernel, dtype, options)
    for dtype in ("float32", "bfloat16", "float16")
    for kernel, options in (
        ("gemm", {}),
        ("gemm", {"beta_zero": False}),
        ("gemm", {"trans_b": True}),
        ("linear", {"activation": "none"}),
        ("linear", {"activation": "relu"}),
    )
]
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}
