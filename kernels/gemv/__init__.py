"""gemv: y = alpha A x + beta y."""
