"""The names of the library's calls that say enough to make them again: library, version and algorithm."""

from __future__ import annotations

CUBLASLT, OPENBLAS = "cuBLASLt ", "OpenBLAS "
"""What names begin with; the version follows."""

ALGORITHM = "algorithm"
"""The first word of a cublasLt algorithm's own; in results of earlier versions it is "heuristic"."""


def is_launched(name: str) -> bool:
    """Whether launchers make the call of this name, where this version of the library is installed."""
    if not name.endswith(")"):
        return False  # another kernel follows, or it was not verified
    return name.startswith(OPENBLAS) or (name.startswith(CUBLASLT) and f" ({ALGORITHM} " in name)


def without_algorithm(name: str) -> str:
    """The library and its version, of a time that is of other problems too, and so of other algorithms."""
    return name.partition(f" ({ALGORITHM} ")[0]
