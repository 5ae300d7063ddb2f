"""Compilations that compile workers of other hosts make: offered, leased, signed, fetched, forgotten."""
